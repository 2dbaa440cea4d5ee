//! Everything of an agent that follows from one reading of its configuration: services, policy and links.
//!
//! When the configuration is read again and something has changed, another generation takes over: it is
//! up before the one before it is asked to leave, and what runs there finishes there.

use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tarbet_identity::PrivateKey;
use tarbet_link::handshake::Credential;
use tarbet_link::{Agent, GatewayUrl, Identity, NetConnector, NetDialer, SlotStatus};
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::health::Part;
use tarbet_telemetry::problem::chain;
use tarbet_telemetry::{Health, Problem};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::config::{AgentConfig, Surroundings};
use super::end_to_end::EndToEnd;
use super::kas::{self, Joined};
use super::{Dispatcher, Door, parts};
use crate::audit::AuditLog;
use crate::dial;

/// How long requests may go on over a link that is left while the agent runs: a log that is followed
/// should not end because a link has grown old. When the agent stops, its own deadline comes first.
const DRAIN: Duration = Duration::from_hours(1);

/// What stays the same for as long as the process lives.
pub(super) struct Lasting {
    pub(super) surroundings: Surroundings,
    pub(super) key: PrivateKey,
    pub(super) audit: Option<AuditLog>,
    pub(super) instance: Uuid,
    pub(super) health: Health,
    /// Whatever any generation left running.
    pub(super) tasks: TaskTracker,
}

/// One reading of the configuration, put to work.
pub(super) struct Generation {
    config: AgentConfig,
    digest: [u8; 32],
    dispatcher: Arc<Dispatcher>,
    native: Option<Arc<Agent>>,
    kas: Option<Joined>,
    stop: CancellationToken,
    refused_policy: Option<String>,
    /// Those before it, as long as anything runs there.
    left: Vec<Weak<Dispatcher>>,
}

impl Generation {
    /// Checks everything and makes it; nothing is dialled yet. Tokens of callers that were used before
    /// stay used.
    pub(super) async fn build(
        config: &AgentConfig,
        lasting: &Lasting,
        before: Option<&Self>,
    ) -> Result<Self, Problem> {
        let invalid =
            |message: String| Problem::new(&ground::CONFIG_INVALID, message).at("start of the agent");
        if config.gateways.is_empty() && config.kas.address.is_none() {
            return Err(invalid("The agent has no gateway to dial.".into())
                .advising("give it --gateway URL, or --kas-address URL for a kas"));
        }
        let digest = digest(config);
        let token = parts::token_source(config, lasting.surroundings.token.clone())?;
        let first_token = token()?;
        let policy = parts::read_policy(config)?;
        let callers = parts::callers(config, &policy)?;
        let name = config.name.clone().unwrap_or_else(|| lasting.surroundings.host.clone());
        let mut dispatcher = Dispatcher::new(parts::services(config, &policy, &name).await?, policy);
        if let Some(callers) = callers {
            let known = before.and_then(|before| before.dispatcher.callers());
            dispatcher = dispatcher.believing(match known {
                Some(known) => callers.remembering(&known),
                None => callers,
            });
        }
        let stop = CancellationToken::new();
        let key = EndToEnd::new(&lasting.key, &name, stop.clone()).map_err(|error| {
            Problem::new(&ground::CERTIFICATE_UNUSABLE, "The agent's own key cannot be used.")
                .because(chain(&error))
        })?;
        dispatcher = dispatcher.reached_end_to_end(key);
        if let Some(log) = &lasting.audit {
            dispatcher = dispatcher.recording(log.clone(), config.site.clone());
        }
        let dispatcher = Arc::new(dispatcher);
        let headers = parts::headers(config)?;
        let kas = match &config.kas.address {
            None => None,
            Some(address) => {
                let join = kas::Join {
                    address: address.clone(),
                    token: first_token,
                    pod: lasting.surroundings.pod.clone(),
                    proxies: lasting.surroundings.proxies.clone(),
                    headers: headers.clone(),
                    door: Door::of_links(Arc::clone(&dispatcher)),
                };
                Some(kas::join(config, join).await?)
            }
        };
        let gateways = gateways(config)?;
        let native = if gateways.is_empty() {
            None
        } else {
            let connector = NetConnector {
                tls: Some(Arc::new(dial::tls(config.ca_file.as_deref())?)),
                proxies: lasting.surroundings.proxies.clone(),
                headers,
                ..NetConnector::new(Arc::new(NetDialer::default()))
            };
            let links = tarbet_link::AgentConfig {
                links: config.links,
                bulk_links: config.bulk_links,
                drain_timeout: DRAIN,
                ..tarbet_link::AgentConfig::new(gateways, rand::random())
            };
            let identity = identity(token, name, lasting.instance, dispatcher.offered());
            let door = Arc::new(Door::of_links(Arc::clone(&dispatcher)));
            Some(Agent::new(links, Arc::new(connector), door, identity))
        };
        Ok(Self {
            config: config.clone(),
            digest,
            dispatcher,
            native,
            kas,
            stop,
            refused_policy: None,
            left: Vec::new(),
        })
    }

    /// Begins to dial.
    pub(super) fn run(&mut self, lasting: &Lasting) {
        let offered = self.dispatcher.offered();
        tracing::info!(services = ?offered, gateways = ?self.config.gateways, "The agent offers its services.");
        if let Some(agent) = &self.native {
            let (part, mut status) = (lasting.health.part("links"), agent.status());
            let stop = self.stop.clone();
            lasting.tasks.spawn(Arc::clone(agent).run(stop.clone()));
            lasting.tasks.spawn(async move {
                loop {
                    tell(&part, &status.borrow_and_update());
                    tokio::select! {
                        changed = status.changed() => if changed.is_err() { return },
                        () = stop.cancelled() => return,
                    }
                }
            });
        }
        if let Some(joined) = &mut self.kas {
            joined.run(&lasting.tasks, &lasting.health, &self.stop);
        }
    }

    /// Waits until each gateway's kind has a connection that works; or says within `patience` why not.
    pub(super) async fn up(&self, patience: Duration) -> Result<(), Problem> {
        let unreachable = |cause: String| {
            Problem::new(&ground::CONFIG_INVALID, "No gateway of the new configuration takes the agent.")
                .because(cause)
                .advising(
                    "see that the addresses, the token and the authority are right, and send SIGHUP again",
                )
        };
        if let Some(agent) = &self.native {
            let mut status = agent.status();
            let up = status.wait_for(|slots| slots.iter().any(|slot| slot.link.is_some()));
            if tokio::time::timeout(patience, up).await.is_err() {
                let why = why(&agent.status().borrow());
                return Err(unreachable(why.unwrap_or_else(|| "no link came up in time".into())));
            }
        }
        if let Some(joined) = &self.kas {
            joined.up(patience).await.map_err(unreachable)?;
        }
        Ok(())
    }

    /// Whether this configuration, with the files it names as they are now, is the one in use.
    pub(super) fn is_of(&self, config: &AgentConfig) -> bool {
        self.digest == digest(config)
    }

    /// Makes it leave when the guard is dropped.
    pub(super) fn on_trial(&self) -> DropGuard {
        self.stop.clone().drop_guard()
    }

    /// Asks it to leave: what runs finishes first.
    pub(super) fn leave(&self) {
        self.stop.cancel();
    }

    /// Takes the place of the one before, which leaves. A gateway may go on to use a link that is left, by
    /// chance for a moment or on purpose for as long as it can: what comes that way is judged as here.
    pub(super) fn succeed(&mut self, mut before: Self) {
        self.left = std::mem::take(&mut before.left);
        self.left.push(Arc::downgrade(&before.dispatcher));
        self.judge_alike();
        before.leave();
    }

    fn judge_alike(&mut self) {
        self.left.retain(|left| {
            left.upgrade().is_some_and(|left| {
                left.judge_like(&self.dispatcher);
                true
            })
        });
    }

    /// Looks at the policy's file again. A file that cannot be used changes nothing, and is told of once.
    pub(super) fn look_at_policy(&mut self) -> Result<(), Problem> {
        if self.config.policy_file.is_none() {
            return Ok(());
        }
        let read = parts::read_policy(&self.config)
            .and_then(|policy| parts::callers(&self.config, &policy).map(|_| policy));
        match read {
            Ok(policy) => {
                self.refused_policy = None;
                if self.dispatcher.govern(policy) {
                    self.judge_alike();
                    tracing::info!("The site's policy has changed.");
                }
                Ok(())
            }
            Err(problem) => {
                if self.refused_policy.as_ref() != Some(&problem.cause) {
                    tracing::error!(cause = %problem.cause, problem = %problem.message, "The site's policy stays as it was.");
                    self.refused_policy = Some(problem.cause.clone());
                }
                Err(problem)
            }
        }
    }
}

fn gateways(config: &AgentConfig) -> Result<Vec<GatewayUrl>, Problem> {
    let read = |url: &String| {
        url.parse::<GatewayUrl>().map_err(|error| {
            Problem::new(&ground::CONFIG_INVALID, format!("`{url}` is no gateway URL."))
                .at("start of the agent")
                .because(chain(&error))
        })
    };
    config.gateways.iter().map(read).collect()
}

fn identity(
    token: parts::TokenSource,
    name: String,
    instance: Uuid,
    services: Vec<String>,
) -> impl Fn() -> Identity + Send + Sync + 'static {
    move || Identity {
        // A token that cannot be read any more is refused by the gateway, which names the reason.
        credential: token().map_or_else(|_| Credential::default(), |token| Credential::new(token.expose())),
        name: name.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        instance,
        services: services.clone(),
    }
}

/// The settings and the content of the files that links and services are made from. The policy has its own
/// way to change.
fn digest(config: &AgentConfig) -> [u8; 32] {
    let mut hash = Sha256::new();
    // Settings always become JSON.
    hash.update(serde_json::to_vec(config).unwrap_or_default());
    for file in [&config.ca_file, &config.kubeconfig, &config.token_file] {
        let content = file.as_deref().map(content).unwrap_or_default();
        hash.update(content.len().to_le_bytes());
        hash.update(content);
    }
    hash.finalize().into()
}

fn content(file: &Path) -> Vec<u8> {
    // One that cannot be read is found wanting when it is used.
    std::fs::read(file).unwrap_or_default()
}

/// One working link is enough to be reached.
fn tell(part: &Part, slots: &[SlotStatus]) {
    if slots.iter().any(|slot| slot.link.is_some()) {
        return part.ready();
    }
    match why(slots) {
        Some(why) => part.failing(why),
        None => part.starting("dialling"),
    }
}

fn why(slots: &[SlotStatus]) -> Option<String> {
    slots.iter().find_map(|slot| {
        let gateway = slot.gateway.as_ref().map_or_else(|| "a gateway".to_owned(), ToString::to_string);
        slot.error.as_ref().map(|error| format!("{gateway}: {}", chain(error.as_ref())))
    })
}
