//! Who connects and does not say what they want: dropped in time, while others are served.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use futures::FutureExt;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tarbet_telemetry::intake::{self, Limits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};

/// So long that only what never happens misses it.
const PATIENCE: Duration = Duration::from_mins(1);

async fn served(limits: Limits) -> std::io::Result<(String, DropGuard)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let router = Router::new().route("/", get(async || "here\n"));
    let stop = CancellationToken::new();
    tokio::spawn(intake::serve(listener, router, limits, stop.clone()));
    Ok((address, stop.drop_guard()))
}

/// Whether a request is answered; on a machine that stalls its head may be late, so it is sent again.
async fn is_answered(address: &str) {
    let asking = async {
        loop {
            let answer = reqwest::get(format!("http://{address}/")).await;
            if answer.is_ok_and(|answer| answer.status() == 200) {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, asking).await.is_ok(), "others are served");
}

/// Waits until the other side closes; what it says before is its own affair.
async fn is_closed(mut stream: TcpStream, case: &str) {
    let mut said = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut said)).await;
    assert!(ended.is_ok(), "{case}: still open");
}

#[tokio::test]
async fn heads_that_are_never_finished_are_dropped_while_others_are_served() {
    let limits = Limits { head: Duration::from_millis(500), connections: 100 };
    let (address, _served) = served(limits).await.unwrap();
    let beginnings = [
        "",
        "G",
        "PRI * HTTP/2.0\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET / HT",
        "GET / HTTP/1.1\r\n",
        "GET / HTTP/1.1\r\nHost: here\r\nX-More: ",
        "\r\n\r\n",
    ];
    let mut held = Vec::new();
    for beginning in beginnings {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        stream.write_all(beginning.as_bytes()).await.unwrap();
        held.push((stream, beginning));
    }
    is_answered(&address).await;
    for (stream, beginning) in held {
        is_closed(stream, beginning).await;
    }
    is_answered(&address).await;
}

#[tokio::test]
async fn a_head_that_drips_is_as_late_as_one_that_stops() {
    let limits = Limits { head: Duration::from_millis(500), connections: 100 };
    let (address, _served) = served(limits).await.unwrap();
    for beginning in ["", "GET / HTTP/1.1\r\nHost: here\r\nX-Long: "] {
        let (read, mut write) = TcpStream::connect(&address).await.unwrap().into_split();
        write.write_all(beginning.as_bytes()).await.unwrap();
        let dripping = async {
            let mut pace = tokio::time::interval(Duration::from_millis(50));
            loop {
                pace.tick().await;
                if write.write_all(b"x").await.is_err() {
                    return;
                }
            }
        };
        let served = async {
            is_answered(&address).await;
            let mut read = read;
            while !matches!(read.read(&mut [0; 256]).await, Ok(0) | Err(_)) {}
        };
        let ended = async { tokio::join!(dripping, served) };
        assert!(tokio::time::timeout(PATIENCE, ended).await.is_ok(), "{beginning:?}: still open");
    }
}

#[tokio::test]
async fn more_connections_than_may_be_are_closed_and_places_come_back() {
    let limits = Limits { head: PATIENCE * 10, connections: 2 };
    let (address, _served) = served(limits).await.unwrap();
    let held = [TcpStream::connect(&address).await.unwrap(), TcpStream::connect(&address).await.unwrap()];
    is_closed(TcpStream::connect(&address).await.unwrap(), "a third").await;
    drop(held);
    is_answered(&address).await;
}

#[tokio::test]
async fn a_call_that_runs_is_finished_though_its_listener_stops() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
    let (begun, go_on) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let (told, waits) = (Arc::clone(&begun), Arc::clone(&go_on));
    let answer: intake::Answer = Arc::new(move |request| {
        let (told, waits) = (Arc::clone(&told), Arc::clone(&waits));
        async move {
            told.notify_one();
            waits.notified().await;
            http::Response::new(request.into_body())
        }
        .boxed()
    });
    let serving = tokio::spawn(intake::serve_rpc(listener, answer, Limits::default(), stop.clone()));
    let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (mut caller, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    let request = || http::Request::post(format!("http://{address}/")).body(Body::from("across")).unwrap();
    let call = tokio::spawn(caller.send_request(request()));
    begun.notified().await;
    stop.cancel();
    go_on.notify_one();
    let told = axum::body::to_bytes(Body::new(call.await.unwrap().unwrap().into_body()), 100).await.unwrap();
    assert_eq!(told, "across");
    assert!(tokio::time::timeout(PATIENCE, serving).await.is_ok(), "the listener ends after it");
    assert!(caller.send_request(request()).await.is_err(), "and takes no more");
}
