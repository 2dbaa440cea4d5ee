//! From HTTP to SPDY.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::{HeaderMap, StatusCode, header};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;

use super::{Kubelet, Refusal};

const PROTOCOL: &str = "x-stream-protocol-version";
const ACCEPTED: &str = "x-accepted-stream-protocol-versions";
const SPDY: &str = "SPDY/3.1";

/// A request that will be a SPDY connection once it is answered.
pub(super) struct Upgrade {
    on: OnUpgrade,
    /// The protocol both ends know.
    pub(super) protocol: &'static str,
}

/// Checks that SPDY is asked for, with one of these protocols, best first; the last one also stands for
/// callers that name none.
pub(super) fn upgrade(request: &mut Request, known: &[&'static str]) -> Result<Upgrade, Box<Response>> {
    let headers = request.headers();
    let text = |name: header::HeaderName| {
        headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    };
    if !text(header::CONNECTION).to_ascii_lowercase().contains("upgrade")
        || !text(header::UPGRADE).eq_ignore_ascii_case(SPDY)
    {
        return Err(Box::new(answer(Refusal::new(
            StatusCode::BAD_REQUEST,
            "unable to upgrade: this needs the headers Connection: Upgrade and Upgrade: SPDY/3.1",
        ))));
    }
    let Some(protocol) = choose(headers, known) else {
        let mut response = answer(Refusal::new(
            StatusCode::FORBIDDEN,
            format!("unable to upgrade: none of the protocols is known, only {}", known.join(", ")),
        ));
        for name in known {
            response.headers_mut().append(ACCEPTED, header::HeaderValue::from_static(name));
        }
        return Err(Box::new(response));
    };
    Ok(Upgrade { on: hyper::upgrade::on(request), protocol })
}

fn answer(refusal: Refusal) -> Response {
    axum::response::IntoResponse::into_response(refusal)
}

fn choose(headers: &HeaderMap, known: &[&'static str]) -> Option<&'static str> {
    let asked: Vec<&str> = headers
        .get_all(PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(',').map(str::trim))
        .collect();
    if asked.is_empty() {
        return known.last().copied();
    }
    known.iter().find(|name| asked.contains(name)).copied()
}

impl Upgrade {
    /// Answers the request; `serve` runs on the connection that it becomes.
    pub(super) fn accept<F, T>(self, kubelet: &Arc<Kubelet>, serve: F) -> Response
    where
        F: FnOnce(TokioIo<Upgraded>) -> T + Send + 'static,
        T: Future<Output = ()> + Send + 'static,
    {
        let (on, stop) = (self.on, kubelet.stop.clone());
        kubelet.streams.spawn(async move {
            match on.await {
                Ok(stream) => tokio::select! {
                    () = serve(TokioIo::new(stream)) => {}
                    () = stop.cancelled() => {}
                },
                Err(error) => tracing::debug!(error = %error, "A caller left before its upgrade."),
            }
        });
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(header::CONNECTION, header::HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, header::HeaderValue::from_static(SPDY));
        headers.insert(PROTOCOL, header::HeaderValue::from_static(self.protocol));
        response
    }
}
