//! An interLink endpoint on a runner, as small as it can be.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use bytes::{Bytes, BytesMut};
use futures::{StreamExt, stream};
use http::StatusCode;
use hyper_util::rt::TokioIo;
use tarbet_pods::error::RunError;
use tarbet_pods::runner::Runner;
use tarbet_pods::wire::extension::{EXEC, EXEC_UPGRADE, EXTENSIONS, EXTENSIONS_HEADER, UPDATE, WATCH};
use tarbet_pods::wire::{self, ExecRequest, Frame, LogRequest, PodRef, RetrievedPod};
use tarbet_telemetry::Coded;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

type Runs = State<Arc<dyn Runner>>;

/// Serves `runner` at `address` until `stop`.
pub(crate) async fn serve(runner: Arc<dyn Runner>, address: SocketAddr, stop: CancellationToken) -> SocketAddr {
    let router = Router::new()
        .route("/pinglink", any(ping))
        .route("/create", any(create))
        .route("/delete", any(delete))
        .route("/status", any(status))
        .route("/getLogs", any(logs))
        .route(UPDATE, any(update))
        .route(WATCH, any(watch))
        .route(EXEC, any(exec))
        .with_state(runner);
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await.unwrap();
    });
    address
}

fn failed(error: &RunError) -> Response {
    let problem = error.problem();
    (problem.status(), serde_json::to_string(&problem).unwrap()).into_response()
}

fn answer<T: IntoResponse>(result: Result<T, RunError>) -> Response {
    result.map_or_else(|error| failed(&error), IntoResponse::into_response)
}

async fn ping(State(runner): Runs) -> Response {
    let text = serde_json::to_string(&runner.ping().await).unwrap();
    ([(EXTENSIONS_HEADER, EXTENSIONS)], text).into_response()
}

async fn create(State(runner): Runs, body: Bytes) -> Response {
    let pod: RetrievedPod = wire::read(&body, "a pod").unwrap();
    answer(runner.start(pod).await.map(|reply| serde_json::to_string(&reply).unwrap()))
}

async fn delete(State(runner): Runs, body: Bytes) -> Response {
    let pod: PodRef = wire::read(&body, "a pod").unwrap();
    let grace = pod.grace_seconds().map(Duration::from_secs);
    answer(runner.delete(&pod.metadata.uid, grace).await.map(|()| "gone"))
}

async fn status(State(runner): Runs, body: Bytes) -> Response {
    let pods = wire::read_items::<PodRef>(&body, "pods").unwrap().items;
    let uids: Vec<String> = pods.into_iter().map(|pod| pod.metadata.uid).collect();
    answer(runner.status(&uids).await.map(|told| serde_json::to_string(&told).unwrap()))
}

async fn logs(State(runner): Runs, body: Bytes) -> Response {
    let request: LogRequest = wire::read(&body, "a request").unwrap();
    match runner.logs(request).await {
        Ok(log) => Body::from_stream(log).into_response(),
        Err(error) => failed(&error),
    }
}

async fn update(State(runner): Runs, body: Bytes) -> Response {
    let pod: RetrievedPod = wire::read(&body, "a pod").unwrap();
    answer(runner.update(pod).await.map(|()| "taken"))
}

async fn watch(State(runner): Runs) -> Response {
    let changes = runner.changes();
    let first = runner.list().await.unwrap();
    let line = |status: &wire::PodStatus| serde_json::to_string(status).unwrap() + "\n";
    let first: Vec<Result<String, std::io::Error>> = first.iter().map(|status| Ok(line(status))).collect();
    let later = stream::unfold((changes, runner), move |(mut changes, runner)| async move {
        let told = match changes.recv().await {
            Ok(uid) if !uid.is_empty() => runner.status(&[uid]).await.unwrap(),
            Ok(_) | Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => runner.list().await.unwrap(),
            Err(_) => return None,
        };
        let text: String = told.iter().map(line).collect();
        Some((Ok(text), (changes, runner)))
    });
    Body::from_stream(stream::iter(first).chain(later)).into_response()
}

async fn exec(State(runner): Runs, mut request: Request) -> Response {
    let on = hyper::upgrade::on(&mut request);
    let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
    let wanted: ExecRequest = wire::read(&body, "a command").unwrap();
    let session = match runner.exec(wanted).await {
        Ok(session) => session,
        Err(error) => return failed(&error),
    };
    tokio::spawn(async move {
        let (mut from, mut to) = tokio::io::split(TokioIo::new(on.await.unwrap()));
        let (input, mut output) = (session.input, session.output);
        let feed = tokio::spawn(async move {
            let mut held = BytesMut::new();
            while from.read_buf(&mut held).await.is_ok_and(|count| count > 0) {
                while let Ok(Some(frame)) = Frame::read(&mut held) {
                    if input.send(frame).await.is_err() {
                        return;
                    }
                }
            }
        });
        while let Some(frame) = output.recv().await {
            let mut out = BytesMut::new();
            frame.write(&mut out);
            if to.write_all(&out).await.is_err() {
                break;
            }
        }
        let _ = to.shutdown().await;
        feed.abort();
    });
    let mut response = StatusCode::SWITCHING_PROTOCOLS.into_response();
    response.headers_mut().insert(http::header::UPGRADE, http::HeaderValue::from_static(EXEC_UPGRADE));
    response.headers_mut().insert(http::header::CONNECTION, http::HeaderValue::from_static("Upgrade"));
    response
}
