//! A console on a port of its own, with one panel that counts and one that fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::routing::{get, post};
use serde_json::json;
use tarbet_console::{Console, Panel};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Ends with the value.
pub(super) struct Served {
    /// `http://127.0.0.1:PORT`.
    pub(super) url: String,
    /// What the panel `count` reads.
    pub(super) count: Arc<AtomicU64>,
    /// Ends it.
    pub(super) stop: CancellationToken,
    /// The task that serves.
    pub(super) task: Option<tokio::task::JoinHandle<std::io::Result<()>>>,
    _guard: DropGuard,
}

pub(super) async fn served() -> Served {
    let count = Arc::new(AtomicU64::new(0));
    let read = Arc::clone(&count);
    let (more, less) = (Arc::clone(&count), Arc::clone(&count));
    let routes = Router::new()
        .route("/more", post(async move || (more.fetch_add(1, Ordering::SeqCst) + 1).to_string()))
        .route("/now", get(async move || less.load(Ordering::SeqCst).to_string()));
    let panels = [
        Panel::live("count", move || {
            let value = json!({ "count": read.load(Ordering::SeqCst) });
            async move { Ok(value) }
        })
        .routes(routes),
        Panel::live("broken", || async {
            Err(Problem::new(&ground::INTERNAL, "The panel is broken.").because("it always is"))
        }),
        Panel::fixed("still", json!(["stays"])),
    ];
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let stop = CancellationToken::new();
    let task = tokio::spawn(Console::new(panels).serve(listener, stop.clone()));
    Served { url, count, _guard: stop.clone().drop_guard(), stop, task: Some(task) }
}
