//! Handshakes in turn: who is served when, and who keeps nobody waiting.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tarbet_identity::tls::{Acceptor, ClientTls, Connector, ServerTls, Turns};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::scene::{Scene, now};

/// A server that tells from which ports handshakes were finished, in order.
struct Server {
    address: SocketAddr,
    turns: Turns,
    finished: mpsc::UnboundedReceiver<u16>,
}

impl Server {
    async fn start(acceptor: Acceptor, turns: Turns) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (sender, finished) = mpsc::unbounded_channel();
        let given = turns.clone();
        tokio::spawn(async move {
            while let Ok((stream, peer)) = listener.accept().await {
                let (acceptor, turns, sender) = (acceptor.clone(), given.clone(), sender.clone());
                tokio::spawn(async move {
                    if let Ok(mut stream) = acceptor.accept_in_turn(stream, &turns).await {
                        let _ = sender.send(peer.port());
                        // Until the client goes.
                        drop(stream.read_u8().await);
                    }
                });
            }
        });
        Ok(Self { address, turns, finished })
    }

    /// Begins a handshake and tells its port.
    async fn dial(&self, connector: &Connector) -> Result<u16> {
        let stream = TcpStream::connect(self.address).await?;
        let (port, connector) = (stream.local_addr()?.port(), connector.clone());
        tokio::spawn(async move {
            let mut stream = connector.connect("localhost", stream).await?;
            stream.read_u8().await.context("closed")
        });
        Ok(port)
    }

    /// Says hello and then nothing more.
    async fn dawdle(&self, connector: &Connector) -> Result<TcpStream> {
        let (near, mut far) = tokio::io::duplex(64 * 1024);
        let connector = connector.clone();
        let dawdling = tokio::spawn(async move { connector.connect("localhost", near).await.map(drop) });
        let mut hello = vec![0; 5];
        far.read_exact(&mut hello).await?;
        hello.resize(5 + usize::from(u16::from_be_bytes([hello[3], hello[4]])), 0);
        far.read_exact(&mut hello[5..]).await?;
        dawdling.abort();
        let mut stream = TcpStream::connect(self.address).await?;
        stream.write_all(&hello).await?;
        // The answer shows that it has its turn.
        ensure!(stream.read_u8().await? == 22, "no handshake record");
        Ok(stream)
    }

    async fn waiting(&self, count: usize) -> Result<()> {
        let reached = async {
            while self.turns.waiting() != count {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_mins(1), reached).await.context("nobody waits")
    }
}

/// Both ends have patience: what is tried is the order, not the clock.
fn scene() -> Result<(Connector, Acceptor)> {
    let (scene, patience) = (Scene::new()?, Duration::from_mins(5));
    let server = ServerTls::new(scene.source(Scene::server_leaf())).handshake_timeout(patience);
    let client = ClientTls::only(scene.ca()).handshake_timeout(patience);
    Ok((client.build(now())?, server.build(now())?))
}

#[tokio::test]
async fn whoever_says_nothing_takes_no_turn() -> Result<()> {
    let (connector, acceptor) = scene()?;
    let mut server = Server::start(acceptor, Turns::new(1)).await?;
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(TcpStream::connect(server.address).await?);
    }
    for _ in 0..3 {
        let port = server.dial(&connector).await?;
        assert_eq!(server.finished.recv().await, Some(port));
    }
    assert_eq!(server.turns.waiting(), 0);
    Ok(())
}

#[tokio::test]
async fn those_who_wait_are_served_in_order() -> Result<()> {
    let (connector, acceptor) = scene()?;
    let mut server = Server::start(acceptor, Turns::lasting(1, Duration::from_hours(1))).await?;
    let first = server.dawdle(&connector).await?;
    let mut order = Vec::new();
    for count in 1..=20 {
        order.push(server.dial(&connector).await?);
        server.waiting(count).await?;
    }
    drop(first);
    let mut served = Vec::new();
    for _ in &order {
        served.push(server.finished.recv().await.context("the server is gone")?);
    }
    assert_eq!(served, order);
    assert_eq!(server.turns.waiting(), 0);
    Ok(())
}

#[tokio::test]
async fn one_who_dawdles_keeps_nobody_for_longer_than_a_turn() -> Result<()> {
    let (connector, acceptor) = scene()?;
    let mut server = Server::start(acceptor, Turns::lasting(1, Duration::from_millis(10))).await?;
    // They stay connected, and the handshakes of none of them have failed.
    let _dawdlers = (server.dawdle(&connector).await?, server.dawdle(&connector).await?);
    let port = server.dial(&connector).await?;
    assert_eq!(server.finished.recv().await, Some(port));
    Ok(())
}
