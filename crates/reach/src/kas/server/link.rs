//! One connection of an agent: what it calls, and when it must end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use prost::Message;
use rand::Rng;
use tarbet_identity::Secret;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use super::Shared;
use crate::kas::descriptor::Descriptor;
use crate::kas::frame::put;
use crate::kas::gitlab::ForModules;
use crate::kas::inbox::Inbox;
use crate::kas::kubernetes::KubernetesApi;
use crate::kas::order::{CONNECT_REQUEST, Track};
use crate::kas::outbox::{Outbox, OutboxBody, outbox};
use crate::kas::pool::{Agent, Lane};
use crate::kas::prefix::Rpc;
use crate::kas::proto::entity::AgentMeta;
use crate::kas::proto::{agent_configuration, agent_registrar};
use crate::kas::{locked, meta, status};

/// How long an agent may take to say what it called for.
const FIRST_MESSAGE: Duration = Duration::from_secs(20);

/// How often an agent that is registered by its stream is noted again, and how soon after it could not be.
const NOTE_AGAIN: Duration = Duration::from_mins(4);
const NOTE_SOON: Duration = Duration::from_secs(10);

/// How soon it is asked again whose a tunnel is when nobody could say, as the original does.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// How the gateway is called in `Via`.
const PRODUCT: &str = concat!("tarbet-gateway/", env!("CARGO_PKG_VERSION"));

/// More different tokens than any agent uses on one connection.
const MAX_TOKENS: usize = 64;

/// Why a connection ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// It is old, or the gateway stops: the agent is asked to move.
    Moving,
    /// It has no valid token, or none any more.
    Refused,
}

/// An agent that was let in.
#[derive(Clone)]
struct Guest {
    token: Secret,
    agent: Arc<Agent>,
    /// Whether it has opened a tunnel here.
    carried: bool,
    /// Makes the connection count against the limit of its site.
    _place: Arc<dyn Send + Sync>,
}

/// Those who were let in.
#[derive(Default)]
struct Guests {
    present: Vec<Guest>,
    /// Those who had tunnels here and are here no more. What they said before may be heard only now.
    past: Vec<i64>,
    /// The connection has ended.
    over: bool,
}

pub(super) struct Link {
    shared: Arc<Shared>,
    id: u64,
    moving: AtomicBool,
    /// Everybody who was let in, for looking again.
    guests: Mutex<Guests>,
    /// Streams that are held open without a tunnel.
    held: Mutex<Vec<Outbox>>,
}

impl Link {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let id = shared.pool.next_id();
        Self { shared, id, moving: AtomicBool::new(false), guests: Mutex::default(), held: Mutex::default() }
    }

    /// Answers one call. Failures are answers, too.
    pub(super) async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<OutboxBody> {
        if request.method() != Method::POST || !is_grpc(request.headers()) {
            return refuse_http();
        }
        let outcome = match Rpc::find(self.shared.config.prefix, request.uri().path()) {
            Some(Rpc::Connect) => self.connect(request).await,
            Some(Rpc::Register) => self.register(request).await,
            Some(Rpc::Unregister) => self.unregister(request).await,
            Some(Rpc::GetConfiguration) => self.configure(request).await,
            Some(Rpc::AskGitlab) => self.ask_gitlab(request).await,
            Some(
                Rpc::MakeRequest | Rpc::GetConnectedAgents | Rpc::GitPushEvent | Rpc::ListAgentConfigFiles,
            )
            | None => Err(Status::unimplemented(
                "agent → gateway: this gateway does not offer the method to agents",
            )),
        };
        match outcome {
            Ok(body) => grpc(body),
            Err(status) => {
                tracing::debug!(code = ?status.code(), cause = status.message(), "An agent's call was refused.");
                let mut response = grpc(OutboxBody::empty());
                response.headers_mut().extend(status::to_headers(&status));
                response
            }
        }
    }

    async fn connect(&self, request: Request<Incoming>) -> Result<OutboxBody, Status> {
        let (agent, mut inbox) = self.admit_patiently(request).await?;
        let frame = first(&mut inbox).await?;
        self.carry(&agent);
        let mut track = Track::new(&CONNECT_REQUEST);
        let pool = &self.shared.pool;
        let known = pool.known_descriptor(agent.id, &frame);
        let (descriptor, new) = if let Some(known) = known {
            track.step(Some(1))?;
            (known, false)
        } else {
            (Arc::new(Descriptor::read(&mut track, frame.clone())?), true)
        };
        let (outbox, body) = outbox();
        let lane = Box::new(Lane {
            id: pool.next_id(),
            connection: self.id,
            agent: Arc::clone(&agent),
            descriptor: Arc::clone(&descriptor),
            inbox,
            outbox,
            track,
        });
        if self.moving.load(Ordering::Acquire) {
            lane.dismiss();
            return Ok(body);
        }
        let body = pool.admit(lane, body);
        if new {
            pool.learn_descriptor(agent.id, &frame, &descriptor);
        }
        // The request to move may have come meanwhile, when this tunnel was not in the pool yet.
        if self.moving.load(Ordering::Acquire) {
            pool.release(agent.id, self.id);
        }
        Ok(body)
    }

    /// Notes that an agent has tunnels here.
    fn carry(&self, agent: &Agent) {
        let mut guests = locked(&self.guests);
        let known = guests.present.iter_mut().find(|known| known.agent.id == agent.id);
        if known.is_some_and(|known| !std::mem::replace(&mut known.carried, true)) {
            self.shared.host.carried_over(agent, self.id);
        }
    }

    async fn register(self: &Arc<Self>, request: Request<Incoming>) -> Result<OutboxBody, Status> {
        let (agent, mut inbox) = self.admit(request).await?;
        let agent_registrar::RegisterRequest { agent_meta, pod_id } = single(&mut inbox).await?;
        let this = Arc::clone(self);
        // To its end, whether or not the connection is there to hear of it: what is noted can be taken back,
        // what is half noted cannot.
        let noted = self.shared.notes.spawn(async move {
            this.shared.host.registered(&agent, pod_id, agent_meta.unwrap_or_default()).await?;
            this.seat(&agent, pod_id);
            Ok::<_, Status>(())
        });
        noted.await.map_err(|_| Status::unavailable("agent → gateway: the gateway is shutting down"))??;
        Ok(reply(&agent_registrar::RegisterResponse {}))
    }

    /// Notes that a process sits at this connection. If the connection has ended since it said so, it ends for
    /// this process as for the others that had tunnels here.
    fn seat(&self, agent: &Agent, pod: i64) {
        let guests = locked(&self.guests);
        let host = &self.shared.host;
        if guests.present.iter().any(|known| known.agent.id == agent.id) {
            host.registered_over(agent, pod, self.id);
        } else if guests.past.contains(&agent.id) {
            host.registered_over(agent, pod, self.id);
            host.carried_over(agent, self.id);
            host.disconnected(agent, self.id, self.moving.load(Ordering::Acquire));
        }
    }

    async fn unregister(&self, request: Request<Incoming>) -> Result<OutboxBody, Status> {
        let (agent, mut inbox) = self.admit(request).await?;
        let message: agent_registrar::UnregisterRequest = single(&mut inbox).await?;
        self.shared.host.unregistered(&agent, message.pod_id).await?;
        Ok(reply(&agent_registrar::UnregisterResponse {}))
    }

    async fn configure(&self, request: Request<Incoming>) -> Result<OutboxBody, Status> {
        let (agent, mut inbox) = self.admit(request).await?;
        let asked: agent_configuration::ConfigurationRequest = single(&mut inbox).await?;
        let configuration = self.shared.host.configuration(&agent).await?;
        let (outbox, mut body) = outbox();
        // One that has a configuration keeps it: it may be that of the original, with modules that are
        // unknown here.
        if let Some(answer) = configuration.filter(|_| asked.commit_id.is_empty()) {
            outbox.push(|buffer| put(buffer, &answer));
        }
        if self.moving.load(Ordering::Acquire) {
            outbox.answer(&Status::ok(""));
        } else {
            let mut held = locked(&self.held);
            held.retain(|stream| !stream.is_gone());
            held.push(outbox);
            drop(held);
            // Agents that do not register by a call of its own are there for as long as they hold this stream.
            if !asked.skip_register {
                body = self.note(agent, asked.agent_meta.unwrap_or_default(), body);
            }
        }
        Ok(body)
    }

    /// Passes a request of a module of the agent on to GitLab.
    async fn ask_gitlab(&self, request: Request<Incoming>) -> Result<OutboxBody, Status> {
        let gitlab = self.shared.host.gitlab().ok_or_else(|| {
            Status::unimplemented(
                "agent → gateway: there is no GitLab behind this gateway that could be asked",
            )
        })?;
        let (metadata, token) = (request.headers().clone(), bearer(request.headers())?);
        let (_, inbox) = self.admit(request).await?;
        let upstream = Arc::new(ForModules::new(gitlab, token));
        let modules = KubernetesApi::of_modules(self.shared.config.prefix, PRODUCT, upstream);
        let (outbox, body) = outbox();
        let over = CancellationToken::new();
        let body = body.holding(over.clone().drop_guard());
        tokio::spawn(async move {
            // An agent that goes away needs no answer.
            over.run_until_cancelled(modules.answer(metadata, inbox, outbox)).await;
        });
        Ok(body)
    }

    /// Registers an agent under a number that is made up for this one stream, until the stream is over.
    fn note(&self, agent: Arc<Agent>, meta: AgentMeta, body: OutboxBody) -> OutboxBody {
        let number = rand::rng().random_range(1..i64::MAX);
        let over = CancellationToken::new();
        let body = body.holding(over.clone().drop_guard());
        let host = Arc::clone(&self.shared.host);
        self.shared.notes.spawn(async move {
            loop {
                let noted = host.registered(&agent, number, meta.clone()).await;
                let pause = if noted.is_ok() { NOTE_AGAIN } else { NOTE_SOON };
                if tokio::time::timeout(pause, over.cancelled()).await.is_ok() {
                    break;
                }
            }
            // The host said what went wrong; what stays ends by itself.
            let _ = host.unregistered(&agent, number).await;
        });
        body
    }

    /// Finds out who calls, and opens what it sends.
    async fn admit(&self, request: Request<Incoming>) -> Result<(Arc<Agent>, Inbox), Status> {
        let (token, inbox) = open(request)?;
        let agent = self.shared.host.admit(&token).await?;
        self.welcome(token, agent, inbox)
    }

    /// The same for a tunnel, which may as well wait here until somebody can say whose it is: an agent whose
    /// tunnels fail pauses longer each time.
    async fn admit_patiently(&self, request: Request<Incoming>) -> Result<(Arc<Agent>, Inbox), Status> {
        let (token, inbox) = open(request)?;
        let mut pause = FIRST_PAUSE;
        let agent = loop {
            match self.shared.host.admit(&token).await {
                Err(status) if status.code() == Code::Unavailable && !self.moving.load(Ordering::Acquire) => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                outcome => break outcome?,
            }
        };
        self.welcome(token, agent, inbox)
    }

    fn welcome(&self, token: Secret, agent: Arc<Agent>, inbox: Inbox) -> Result<(Arc<Agent>, Inbox), Status> {
        let guests = &mut *locked(&self.guests);
        if guests.over {
            return Err(Status::unavailable("agent → gateway: the connection has ended"));
        }
        if !guests.present.iter().any(|known| known.token.matches(token.expose())) {
            if guests.present.len() >= MAX_TOKENS {
                return Err(Status::resource_exhausted("agent → gateway: too many tokens on one connection"));
            }
            let place = self.shared.host.connect(&agent)?;
            guests.present.push(Guest { token, agent: Arc::clone(&agent), carried: false, _place: place });
        }
        Ok((agent, inbox))
    }

    /// Watches over the connection: its age, its tokens, and the gateway's own end.
    pub(super) async fn until_end(&self, moves_at: Instant, stop: &CancellationToken) -> Ending {
        let config = &self.shared.config;
        let mut refused = std::pin::pin!(self.until_refused());
        let mut admission = std::pin::pin!(tokio::time::sleep(config.admission_timeout));
        let mut admitted = false;
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep_until(moves_at) => break,
                () = admission.as_mut(), if !admitted => {
                    if locked(&self.guests).present.is_empty() {
                        tracing::debug!("A connection presented no valid token in time.");
                        return Ending::Refused;
                    }
                    admitted = true;
                }
                () = refused.as_mut() => return Ending::Refused,
            }
        }
        self.moving.store(true, Ordering::Release);
        Ending::Moving
    }

    /// Looks at the tokens of the connection from time to time; ends when none of them is good any more.
    pub(super) async fn until_refused(&self) {
        let mut recheck = tokio::time::interval(self.shared.config.recheck_every);
        recheck.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        recheck.reset();
        loop {
            recheck.tick().await;
            if self.recheck().await {
                return;
            }
        }
    }

    /// Looks at all tokens again. Tells whether that left nobody.
    async fn recheck(&self) -> bool {
        let guests = locked(&self.guests).present.clone();
        let before = guests.len();
        let mut refused = Vec::new();
        for Guest { token, agent, .. } in guests {
            // Only a clear no counts: that the answer cannot be had is no reason to cut a link.
            if let Err(status) = self.shared.host.admit(&token).await
                && matches!(status.code(), Code::Unauthenticated | Code::PermissionDenied | Code::NotFound)
            {
                tracing::info!(
                    agent = agent.id,
                    site = agent.name,
                    cause = status.message(),
                    "The token of a connected agent is no longer valid."
                );
                self.shared.pool.evict(agent.id, Some(self.id), &status);
                refused.push(token);
            }
        }
        if refused.is_empty() {
            return false;
        }
        let Guests { present, past, .. } = &mut *locked(&self.guests);
        let is_refused = |guest: &mut Guest| refused.iter().any(|gone| gone.matches(guest.token.expose()));
        let gone: Vec<Guest> = present.extract_if(.., is_refused).collect();
        for Guest { agent, carried, .. } in gone {
            if !present.iter().any(|known| known.agent.id == agent.id) {
                past.extend(carried.then_some(agent.id));
                self.shared.host.disconnected(&agent, self.id, false);
            }
        }
        before > 0 && present.is_empty()
    }

    /// Ends everything idle with OK.
    pub(super) fn release(&self) {
        let agents: Vec<i64> = locked(&self.guests).present.iter().map(|known| known.agent.id).collect();
        for agent in agents {
            self.shared.pool.release(agent, self.id);
        }
        for stream in std::mem::take(&mut *locked(&self.held)) {
            stream.answer(&Status::ok(""));
        }
    }

    /// The last word about the connection.
    pub(super) fn over(&self, error: Option<hyper::Error>) {
        locked(&self.held).clear();
        let moves = self.moving.load(Ordering::Acquire);
        let guests = &mut *locked(&self.guests);
        guests.over = true;
        for Guest { agent, carried, .. } in guests.present.drain(..) {
            guests.past.extend(carried.then_some(agent.id));
            self.shared.host.disconnected(&agent, self.id, moves);
        }
        if let Some(error) = error {
            tracing::debug!(%error, "The connection of an agent broke.");
        }
    }
}

/// The token of a call, and what it sends.
fn open(request: Request<Incoming>) -> Result<(Secret, Inbox), Status> {
    let (head, body) = request.into_parts();
    let token = bearer(&head.headers)?;
    Ok((token, Inbox::new(&head.headers, body)?))
}

fn bearer(headers: &HeaderMap) -> Result<Secret, Status> {
    meta::bearer(headers).map(Secret::from).ok_or_else(|| {
        Status::unauthenticated("agent → gateway: the call carries no `authorization: Bearer` token")
    })
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

fn grpc(body: OutboxBody) -> Response<OutboxBody> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

fn refuse_http() -> Response<OutboxBody> {
    let mut response = Response::new(OutboxBody::empty());
    *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    response
}

fn reply(message: &impl Message) -> OutboxBody {
    let (outbox, body) = outbox();
    outbox.push(|buffer| put(buffer, message));
    outbox.answer(&Status::ok(""));
    body
}

async fn first(inbox: &mut Inbox) -> Result<Bytes, Status> {
    match tokio::time::timeout(FIRST_MESSAGE, inbox.message()).await {
        Ok(Some(message)) => message,
        Ok(None) => Err(Status::invalid_argument("agent → gateway: the call ended before its first message")),
        Err(_) => Err(Status::deadline_exceeded("agent → gateway: the first message did not come in time")),
    }
}

async fn single<M: Message + Default>(inbox: &mut Inbox) -> Result<M, Status> {
    M::decode(first(inbox).await?).map_err(|_| {
        Status::invalid_argument("agent → gateway: the request is not the message of its method")
    })
}
