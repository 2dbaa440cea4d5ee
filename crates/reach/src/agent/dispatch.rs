//! The one place where what arrives meets the policy, is put on record, and then meets its service.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderMap, Request, Response, StatusCode};
use jiff::Timestamp;
use tarbet_identity::Secret;
use tarbet_identity::caller::Caller;
use tarbet_link::{Body, Denial, Handler, IncomingCall, IncomingStream, IncomingUpgrade, Target};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::{ground, reach};
use tarbet_telemetry::problem::chain;
use tarbet_telemetry::request;

use super::callers::{self, Callers};
use super::end_to_end::{self, EndToEnd};
use super::policy::{Policy, Verdict, Wanted};
use super::{END_TO_END, Service, not_offered};
use crate::audit::{AuditLog, Event};

/// Brings what arrives to its service, if the policy permits.
pub struct Dispatcher {
    services: BTreeMap<String, Arc<dyn Service>>,
    policy: RwLock<Arc<Policy>>,
    callers: RwLock<Option<Arc<Callers>>>,
    end_to_end: Option<EndToEnd>,
    audit: AuditLog,
    site: Option<String>,
}

impl Dispatcher {
    /// These services under this policy. A service that no rule could ever permit is not offered.
    pub fn new(services: Vec<Arc<dyn Service>>, policy: Policy) -> Self {
        let services = services.into_iter().filter(|service| policy.offers(service.name()));
        Self {
            services: services.map(|service| (service.name().to_owned(), service)).collect(),
            policy: RwLock::new(Arc::new(policy)),
            callers: RwLock::default(),
            end_to_end: None,
            audit: AuditLog::none(),
            site: None,
        }
    }

    /// Another policy from the next request on; false if it is the same. Services that were not offered
    /// at the start stay away until the agent starts again: its gateways know what it offers.
    pub fn govern(&self, policy: Policy) -> bool {
        let mut current = self.policy.write().unwrap_or_else(PoisonError::into_inner);
        let changed = **current != policy;
        *current = Arc::new(policy);
        changed
    }

    fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.policy.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Believes callers whose tokens these are.
    #[must_use]
    pub fn believing(self, callers: Callers) -> Self {
        Self { callers: RwLock::new(Some(Arc::new(callers))), ..self }
    }

    /// Judges by the policy and the issuers of another from the next request on.
    pub fn judge_like(&self, other: &Self) {
        *self.policy.write().unwrap_or_else(PoisonError::into_inner) = other.policy();
        *self.callers.write().unwrap_or_else(PoisonError::into_inner) = other.callers();
    }

    /// Also takes connections that end at this agent.
    #[must_use]
    pub fn reached_end_to_end(self, key: EndToEnd) -> Self {
        Self { end_to_end: Some(key), ..self }
    }

    /// Puts every judgement on record.
    #[must_use]
    pub fn recording(self, audit: AuditLog, site: Option<String>) -> Self {
        Self { audit, site, ..self }
    }

    /// The names of what is offered, with the key under which the agent is reached end to end.
    pub fn offered(&self) -> Vec<String> {
        let key = self.end_to_end.as_ref().map(|key| format!("{END_TO_END}{}", key.pin()));
        self.services.keys().cloned().chain(key).collect()
    }

    /// The gRPC services that are offered, with their methods.
    fn methods(&self) -> Vec<(String, Vec<String>)> {
        let services = self.services.iter().map(|(name, service)| (name.clone(), service.methods()));
        services.filter(|(_, methods)| !methods.is_empty()).collect()
    }

    pub(super) fn callers(&self) -> Option<Arc<Callers>> {
        self.callers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The service that is meant and what it is asked for.
    fn find(
        &self,
        target: Option<&Target>,
        request: Option<&Request<()>>,
    ) -> Result<(Arc<dyn Service>, Target, Wanted), Denial> {
        let target = target.ok_or_else(|| {
            let text = "The request does not say which service it is for.";
            Denial::new(StatusCode::BAD_REQUEST, ground::BAD_REQUEST.id, text).at("agent")
        })?;
        let service = self.services.get(target.name());
        let service = service.ok_or_else(|| not_offered(&format!("`{}`", target.name())))?;
        let wanted = service.describe(target, request)?;
        Ok((Arc::clone(service), target.clone(), wanted))
    }

    /// Puts a judgement on record. A permission counts when its record is in the file.
    async fn record(
        &self,
        wanted: &Wanted,
        headers: Option<&HeaderMap>,
        caller: Option<&str>,
        judged: Result<(), &Denial>,
    ) -> Result<(), Denial> {
        let header = |name: &str| headers?.get(name)?.to_str().ok();
        let said = || header("tarbet-caller").map(|name| format!("{name} (the gateway's word)"));
        let event = |outcome: &str, code: Option<&str>, begun| Event {
            request: header(request::HEADER).and_then(|id| id.parse().ok()),
            site: self.site.clone(),
            principal: caller.map(str::to_owned).or_else(said),
            wants: wanted.to_string(),
            outcome: outcome.to_owned(),
            begun,
            status: None,
            code: code.map(str::to_owned),
        };
        if let Err(refusal) = judged {
            self.audit.record_made(Timestamp::now(), || event("refused", Some(&refusal.code), None));
            return Ok(());
        }
        let Some(seq) = self.audit.record_made(Timestamp::now(), || event("permitted", None, None)) else {
            return Ok(());
        };
        self.audit.written(seq).await.map_err(|problem| {
            self.audit.record_made(Timestamp::now(), || event("refused", Some(&problem.code), Some(seq)));
            unwritable(problem)
        })
    }
}

/// How something came to the agent.
enum Origin {
    /// Over a link: the gateway can read and change it.
    Link,
    /// Inside a connection that ends here, opened by one who may have proven a name.
    EndToEnd(Option<Proven>),
}

/// One who proved a name when the connection was opened.
pub(super) struct Proven {
    pub(super) caller: Caller,
    pub(super) token: Secret,
    pub(super) to: Arc<Callers>,
}

impl Proven {
    /// Whether the proof holds now: an issuer may have been taken out since.
    fn holds(&self, callers: Option<Arc<Callers>>, now: Timestamp) -> bool {
        now < self.caller.expires
            && callers.is_some_and(|callers| {
                Arc::ptr_eq(&callers, &self.to) || callers.of_connection(self.token.expose(), now).is_ok()
            })
    }
}

/// Serves what comes in one way.
pub struct Door {
    dispatcher: Arc<Dispatcher>,
    origin: Origin,
}

impl Door {
    /// What comes over links.
    pub fn of_links(dispatcher: Arc<Dispatcher>) -> Self {
        Self { dispatcher, origin: Origin::Link }
    }

    /// The names of what is offered.
    pub fn offered(&self) -> Vec<String> {
        self.dispatcher.offered()
    }

    /// The gRPC services among them that say which methods they have.
    pub fn methods(&self) -> Vec<(String, Vec<String>)> {
        self.dispatcher.methods()
    }

    pub(super) fn end_to_end(dispatcher: Arc<Dispatcher>, proven: Option<Proven>) -> Self {
        Self { dispatcher, origin: Origin::EndToEnd(proven) }
    }

    /// Who the opener of this connection has proven to be, as long as that holds.
    fn caller(&self, now: Timestamp) -> Option<&str> {
        match &self.origin {
            Origin::EndToEnd(Some(proven)) if proven.holds(self.dispatcher.callers(), now) => {
                Some(&proven.caller.principal)
            }
            _ => None,
        }
    }

    /// Judges what came without a token of its own.
    fn judge(&self, wanted: &Wanted, caller: Option<&str>) -> Result<(), Denial> {
        let policy = self.dispatcher.policy();
        if !policy.accept_plain && matches!(self.origin, Origin::Link) {
            return Err(refusal(
                "it takes only what is sealed from the client to the agent: `tarbet kube proxy`, `tarbet forward`",
            ));
        }
        match policy.judge(wanted, caller) {
            Verdict::Permit => Ok(()),
            Verdict::Refuse(reason) => Err(refusal(&reason)),
        }
    }

    /// Judges a request, whose own token counts where the connection proves nothing.
    async fn judge_request(
        &self,
        wanted: &Wanted,
        head: &mut Request<()>,
        body: Body,
    ) -> Result<Body, Denial> {
        let now = Timestamp::now();
        let token = head.headers_mut().remove(callers::TOKEN);
        let first = self.judge(wanted, self.caller(now));
        let (Err(_), Some(token), Some(callers)) = (&first, token, self.dispatcher.callers()) else {
            return self.record(wanted, Some(head.headers()), self.caller(now), first).await.map(|()| body);
        };
        let proven = match token.to_str() {
            Ok(token) => callers.of_request(token, head, body, now).await.map_err(|error| {
                tracing::info!(%wanted, cause = %chain(&error), "A caller's token was not believed.");
                refusal(&chain(&error))
            }),
            Err(_) => Err(refusal("the caller's token is not text")),
        };
        let name = proven.as_ref().ok().map(|(caller, _)| caller.principal.clone());
        let judged =
            proven.and_then(|(caller, body)| self.judge(wanted, Some(&caller.principal)).map(|()| body));
        let (judged, body) = match judged {
            Ok(body) => (Ok(()), body),
            Err(denial) => (Err(denial), Body::empty()),
        };
        self.record(wanted, Some(head.headers()), name.as_deref(), judged).await.map(|()| body)
    }

    /// The judgement, now that it is on record.
    async fn record(
        &self,
        wanted: &Wanted,
        headers: Option<&HeaderMap>,
        caller: Option<&str>,
        judged: Result<(), Denial>,
    ) -> Result<(), Denial> {
        if let Err(denial) = &judged {
            tracing::info!(%wanted, reason = %denial.message, "The policy refused a request.");
        }
        self.dispatcher.record(wanted, headers, caller, judged.as_ref().copied()).await?;
        judged
    }

    /// Whether another record can be taken.
    fn ready(&self) -> Result<(), Denial> {
        self.dispatcher.audit.ready().map_err(unwritable)
    }
}

fn unwritable(problem: Problem) -> Denial {
    Denial::new(problem.status(), problem.code, problem.message).at("agent → its audit log").untouched()
}

fn refusal(reason: &str) -> Denial {
    let text = format!("The site's policy does not permit this: {reason}.");
    Denial::new(StatusCode::FORBIDDEN, reach::AGENT_REFUSED_POLICY.id, text).at("agent: policy")
}

impl Handler for Door {
    fn call(&self, call: IncomingCall) -> BoxFuture<'_, Result<Response<Body>, Denial>> {
        async move {
            self.ready()?;
            let IncomingCall { target, request } = call;
            let (parts, body) = request.into_parts();
            let mut head = Request::from_parts(parts, ());
            let (service, target, wanted) = self.dispatcher.find(target.as_ref(), Some(&head))?;
            let body = self.judge_request(&wanted, &mut head, body).await?;
            service.call(target, head.map(|()| body)).await
        }
        .boxed()
    }

    fn stream(&self, incoming: IncomingStream) -> BoxFuture<'_, ()> {
        async move {
            // What comes inside is judged there.
            if let (Origin::Link, end_to_end::SERVICE, Some(key)) =
                (&self.origin, incoming.target().name(), &self.dispatcher.end_to_end)
            {
                if let Ok(stream) = incoming.accept() {
                    key.serve(&self.dispatcher, stream).await;
                }
                return;
            }
            let admitted = async {
                self.ready()?;
                let (service, _, wanted) = self.dispatcher.find(Some(incoming.target()), None)?;
                let caller = self.caller(Timestamp::now());
                self.record(&wanted, None, caller, self.judge(&wanted, caller)).await?;
                Ok(service)
            };
            match admitted.await {
                Ok(service) => service.stream(incoming).await,
                Err(denial) => incoming.deny(&denial),
            }
        }
        .boxed()
    }

    fn upgrade(&self, incoming: IncomingUpgrade) -> BoxFuture<'_, ()> {
        async move {
            let admitted = async {
                self.ready()?;
                let (service, _, wanted) =
                    self.dispatcher.find(incoming.target(), Some(incoming.request()))?;
                let mut head = copy(incoming.request());
                self.judge_request(&wanted, &mut head, Body::empty()).await?;
                Ok(service)
            };
            match admitted.await {
                Ok(service) => service.upgrade(incoming).await,
                Err(denial) => incoming.deny(&denial).await,
            }
        }
        .boxed()
    }
}

fn copy(request: &Request<()>) -> Request<()> {
    let mut copy = Request::new(());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    copy
}
