//! The console: one embedded page, the JSON it reads, and one stream of whatever changes.
//!
//! It knows no capability. What it shows comes as [`Panel`]s: a name, a reading, and perhaps
//! routes of its own. Readings are open to whoever can reach the listener, which is loopback;
//! everything that changes something needs a bearer token.
//!
//! It refuses cookies, so that no other page can ride on a person's rights, and hosts that are
//! not this machine's own names, so that no other page can pretend to be this one.
//!
//! Start from [`Console::new`].

mod guard;
mod live;
mod page;
mod panel;

use std::io;
use std::net::SocketAddr;

use axum::routing::get;
use axum::{Json, Router, middleware};
use tarbet_telemetry::intake::{self, Limits};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use guard::is_own_host;
pub use panel::Panel;

use live::Live;
use panel::Content;

/// Where the console listens unless told.
pub const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7480);

/// The page with its panels, ready to be served.
pub struct Console {
    panels: Vec<Panel>,
}

impl Console {
    /// A console that shows these panels.
    pub fn new(panels: impl IntoIterator<Item = Panel>) -> Self {
        Self { panels: panels.into_iter().collect() }
    }

    /// Serves it until `stop`; open streams end then too.
    pub async fn serve(self, listener: TcpListener, stop: CancellationToken) -> io::Result<()> {
        let live = Live::new(&self.panels, stop.clone());
        let router = self.router(live.clone());
        let serving = intake::serve(listener, router, Limits::default(), stop);
        tokio::join!(serving, live.keep());
        Ok(())
    }

    fn router(self, live: Live) -> Router {
        let mut router = page::routes().route("/api/events", get(async move || live.stream()));
        for Panel { name, content, routes } in self.panels {
            let path = format!("/api/{name}");
            router = match content {
                Content::Live(read) => router.route(&path, get(move || panel::answer(read()))),
                Content::Fixed(value) => router.route(&path, get(async move || Json((*value).clone()))),
            };
            router = router.nest(&path, routes);
        }
        router
            .fallback(guard::not_found)
            .layer(middleware::from_fn(guard::check))
            .layer(middleware::from_fn(page::harden))
    }
}
