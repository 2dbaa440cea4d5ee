//! A port of this machine that a command holds open until it is interrupted.

use std::net::SocketAddr;

use tarbet_link::ByteStream;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::supervisor::Signals;
use tokio::net::TcpListener;

/// A bound port that nobody is let in to yet.
pub struct Port {
    listener: TcpListener,
    /// Where it is, also if the system chose.
    pub address: SocketAddr,
}

impl Port {
    /// Binds it.
    pub async fn bind(listen: SocketAddr) -> Result<Self, Problem> {
        let listener = TcpListener::bind(listen).await.map_err(|error| {
            Problem::new(&ground::ADDRESS_IN_USE, format!("{listen} cannot be bound."))
                .because(error.to_string())
        })?;
        let address = listener.local_addr().unwrap_or(listen);
        Ok(Self { listener, address })
    }

    /// Hands each connection to a task of its own, until a signal ends the command.
    pub async fn run<S, F>(self, serve: S) -> Result<(), Problem>
    where
        S: Fn(ByteStream) -> F,
        F: Future<Output = ()> + Send + 'static,
    {
        let signals = Signals::listen().map_err(|error| {
            Problem::new(&ground::INTERNAL, "The command cannot listen for signals.")
                .because(error.to_string())
        })?;
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = signals.clone().next() => return Ok(()),
            };
            // Whoever hung up before it was taken needs nothing.
            let Ok((stream, _)) = accepted else { continue };
            tokio::spawn(serve(tarbet_link::tcp(stream)));
        }
    }
}
