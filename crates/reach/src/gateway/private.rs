//! The listener for other gateways: it follows the instruction in each request and looks for
//! nothing itself, so requests cannot go round in circles.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use jiff::Timestamp;
use tarbet_link::handshake::{Hello, Refusal, RefusalCode};
use tarbet_link::{Body, ByteStream, Denial, Handler, Protocol, Target, detect};
use tarbet_telemetry::codes::reach;
use tarbet_telemetry::problem::chain;
use tarbet_telemetry::{RequestId, request};

use super::kube::CALLER;
use super::{Hub, kas};
use crate::forward::{Forwarder, Onward, link_denial};
use crate::local::Held;
use crate::peers::receive_peer;
use crate::quota::Permit;
use crate::route::{Until, instructed};
use crate::story::{Step, Story, Subject};

/// The service by which gateways ask each other for the story of a request.
pub(super) const STORIES: &str = "stories";

/// How long a peer may take to say what it is.
const FIRST_WORD: Duration = Duration::from_secs(10);

pub(super) async fn serve(hub: Arc<Hub>, stream: ByteStream, peer: SocketAddr) {
    let (protocol, stream) = match tokio::time::timeout(FIRST_WORD, detect(stream)).await {
        Ok(Ok((protocol, stream))) => (protocol, ByteStream::new(stream)),
        Ok(Err(error)) => {
            return tracing::debug!(%peer, %error, "A connection broke before it said anything.");
        }
        Err(_) => return tracing::debug!(%peer, "A connection said nothing in time."),
    };
    if protocol == Protocol::Http2 {
        return kas::private::serve(hub, stream, peer).await;
    }
    let (name, leaving) = (hub.name.clone(), hub.leaving.clone());
    let ended = receive_peer(stream, &name, &leaving, |hello| async move { admit(&hub, &hello) }).await;
    match ended {
        Ok(reason) => tracing::debug!(%peer, %reason, "A gateway hung up."),
        Err(error) => tracing::info!(%peer, cause = %chain(&error), "A gateway was not taken in."),
    }
}

fn admit(hub: &Arc<Hub>, hello: &Hello) -> Result<Arc<dyn Handler>, Refusal> {
    let refused = |text: &str| Refusal::new(RefusalCode::Credential, text);
    let Some(verifier) = &hub.colleagues else {
        return Err(refused("This gateway has no secret in common with others."));
    };
    let token =
        std::str::from_utf8(hello.credential.reveal()).map_err(|_| refused("The credential is not text."))?;
    verifier.verify(token, Timestamp::now()).map_err(|error| {
        tracing::warn!(gateway = %hello.agent.name, cause = %chain(&error), "A gateway's token was refused.");
        refused(
            "The gateways do not have the same secret, or their clocks differ by more than a few seconds.",
        )
    })?;
    Ok(Arc::new(Forwarder(Arc::new(ByInstruction(Arc::clone(hub))))))
}

/// Sends each thing over exactly the link it names.
struct ByInstruction(Arc<Hub>);

impl ByInstruction {
    fn follow(&self, target: &Target) -> Result<(Arc<Held>, Target), Denial> {
        let Some((link, inner)) = instructed(target) else {
            let code = reach::PROTOCOL_VIOLATION.id;
            let text = "The request does not say over which link it goes.";
            return Err(Denial::new(StatusCode::BAD_REQUEST, code, text).at(self.hop()));
        };
        let held = self.0.local.get(link).ok_or_else(|| {
            let text = "The link is no longer here.";
            Denial::new(StatusCode::BAD_GATEWAY, reach::LINK_LOST.id, text).at(self.hop()).untouched()
        })?;
        Ok((held, inner))
    }

    fn hop(&self) -> String {
        format!("gateway `{}` → agent", self.0.name)
    }

    /// Notes the part of a request's story that happens here.
    fn story(&self, held: &Held, inner: &Target, request: Option<&Request<Body>>) -> Arc<Story> {
        let header = |name: &str| request?.headers().get(name)?.to_str().ok();
        let id = header(request::HEADER).and_then(|id| id.parse().ok()).unwrap_or_else(RequestId::fresh);
        let wants = match request {
            Some(request) => format!("{inner} {} {}", request.method(), request.uri().path()),
            None => inner.to_string(),
        };
        let principal = header(CALLER.as_str()).unwrap_or("another gateway's caller").to_owned();
        let story = self.0.stories.begin(Subject { id, principal, site: held.site.clone(), wants });
        story.note(Step::Link(held.id));
        story
    }

    fn told(&self, path: &str) -> Response<Body> {
        let id: Option<RequestId> = path.trim_start_matches('/').parse().ok();
        let stories = id.map(|id| self.0.stories.find(id)).unwrap_or_default();
        let views: Vec<_> = stories.iter().map(|story| story.tell(&self.0.name)).collect();
        // Texts and numbers always become JSON.
        Response::new(Body::from(serde_json::to_vec(&views).unwrap_or_default()))
    }
}

impl Onward for ByInstruction {
    async fn call(
        &self,
        target: Target,
        mut request: Request<Body>,
    ) -> Result<(Response<Body>, Permit), Denial> {
        if target.name() == STORIES {
            return Ok((self.told(request.uri().path()), Permit::default()));
        }
        let (held, inner) = self.follow(&target)?;
        let story = self.story(&held, &inner, Some(&request));
        request.extensions_mut().insert(inner);
        let until = Until::take(request.headers_mut(), self.0.config().max_wait);
        request.extensions_mut().insert(until);
        match held.way.call(request).await {
            Ok(response) => {
                story.note(Step::Answered(response.status().as_u16()));
                Ok((response, Permit::default()))
            }
            Err(error) => Err(failed(&story, link_denial(error, &self.hop()))),
        }
    }

    async fn open(&self, target: Target, first: Bytes) -> Result<(ByteStream, Permit), Denial> {
        let (held, inner) = self.follow(&target)?;
        let story = self.story(&held, &inner, None);
        match held.way.open_with(inner, first).await {
            Ok(stream) => {
                story.note(Step::Opened);
                Ok((stream, Permit::default()))
            }
            Err(error) => Err(failed(&story, link_denial(error, &self.hop()))),
        }
    }
}

fn failed(story: &Story, denial: Denial) -> Denial {
    story.note(Step::Failed(denial.code.clone(), denial.message.clone()));
    denial
}
