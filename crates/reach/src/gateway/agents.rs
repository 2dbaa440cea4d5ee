//! The listener that agents dial: native links, kas tunnels, and either of them inside WebSocket.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tarbet_identity::Pin;
use tarbet_link::handshake::{Hello, Refusal, RefusalCode};
use tarbet_link::{Accepted, ByteStream, CloseReason, Protocol, Settings, WebSocketLimits, detect};
use tarbet_telemetry::problem::chain;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::Hub;
use crate::agent::END_TO_END;
use crate::directory::{Admitted, DirectoryError, Site};
use crate::kas::agent::SUBPROTOCOL;
use crate::kas::server::Carrier;
use crate::local::{Held, LinkId, Place};

/// The WebSocket subprotocol of native links.
const NATIVE: &str = "tarbet-link";
/// How long a peer may take to say what it is: half-open connections must not pile up.
const FIRST_WORD: Duration = Duration::from_secs(10);

// A gateway holds many links, and most are idle: whatever is not needed until the end of one is boxed, so that it
// takes memory only while it runs.
pub(super) async fn serve(hub: Arc<Hub>, stream: ByteStream, peer: SocketAddr) {
    let (protocol, stream) = match Box::pin(tokio::time::timeout(FIRST_WORD, detect(stream))).await {
        Ok(Ok(detected)) => detected,
        Ok(Err(error)) => {
            return tracing::debug!(%peer, %error, "A connection broke before it said anything.");
        }
        Err(_) => return tracing::debug!(%peer, "A connection said nothing in time."),
    };
    match protocol {
        Protocol::Native => native(&hub, ByteStream::new(stream), peer).await,
        Protocol::Http2 => {
            Box::pin(hub.kas.serve(ByteStream::new(stream), Carrier::Plain, &hub.leaving)).await;
        }
        Protocol::Http1 => match Box::pin(websocket(ByteStream::new(stream))).await {
            Ok((stream, NATIVE)) => native(&hub, stream, peer).await,
            Ok((stream, _)) => Box::pin(hub.kas.serve(stream, Carrier::WebSocket, &hub.leaving)).await,
            Err(cause) => tracing::debug!(%peer, cause, "No WebSocket came about."),
        },
        Protocol::Tls => {
            tracing::warn!(%peer, "An agent speaks TLS to a listener that does not; check its URL.");
        }
        other => tracing::debug!(%peer, protocol = ?other, "A connection speaks no protocol of agents."),
    }
}

async fn websocket(stream: ByteStream) -> Result<(ByteStream, &'static str), String> {
    let accepted = tokio::time::timeout(
        FIRST_WORD,
        tarbet_link::accept_websocket(stream, &[NATIVE, SUBPROTOCOL], WebSocketLimits::default()),
    );
    match accepted.await {
        Ok(Ok((socket, _, chosen))) => Ok((ByteStream::new(socket), chosen)),
        Ok(Err(error)) => Err(chain(&error)),
        Err(_) => Err("the upgrade took too long".into()),
    }
}

async fn native(hub: &Arc<Hub>, stream: ByteStream, peer: SocketAddr) {
    let Some((held, driver)) = Box::pin(join(hub, stream, peer)).await else { return };
    let reason = driver.await;
    hub.local.remove(held.id);
    if let Some(registry) = &hub.registry {
        Box::pin(registry.withdraw(&held)).await;
    }
    let reason = reason.map_or_else(|error| error.to_string(), |reason| reason.to_string());
    tracing::info!(site = %held.site, link = %held.id, reason, "An agent left.");
}

/// Takes an agent in, and makes its link known.
async fn join(
    hub: &Arc<Hub>,
    stream: ByteStream,
    peer: SocketAddr,
) -> Option<(Arc<Held>, JoinHandle<CloseReason>)> {
    let id = LinkId::fresh();
    let mut admitted = None;
    let accepting = tarbet_link::accept(stream, FIRST_WORD, |hello| {
        let admitted = &mut admitted;
        async move {
            *admitted = Some(admit(hub, &hello).await?);
            Ok(Accepted {
                link: id.uuid(),
                gateway: hub.name.clone(),
                settings: Settings::for_purpose(hello.agent.purpose),
            })
        }
    });
    let (link, driver) = match accepting.await {
        Ok(accepted) => accepted,
        Err(error) => {
            hub.metrics.refused_links.inc();
            tracing::info!(%peer, cause = %chain(&error), "An agent was not taken in.");
            return None;
        }
    };
    let (Admitted { site, token_id, .. }, place) = admitted?;
    let driver = tokio::spawn(driver);
    let agent = &link.info().agent;
    let (services, key) = offered(&agent.services);
    let held = Arc::new(Held {
        id,
        services,
        agent: format!("{} {}", agent.name, agent.version),
        key,
        token_id: Some(token_id),
        since: Timestamp::now(),
        way: Arc::new(link.clone()),
        site: site.name.clone(),
    });
    tracing::info!(site = %held.site, link = %id, %peer, agent = %held.agent, "An agent connected.");
    hub.local.add(Arc::clone(&held));
    drop(place);
    hub.metrics.links_opened.inc();
    if hub.leaving.is_cancelled() {
        // It came in while the others were told to go.
        held.way.drain();
    }
    learn(hub, &site, key).await;
    if let Some(registry) = &hub.registry {
        registry.announce(&held).await;
    }
    Some((held, driver))
}

/// The services an agent offers, and the key that it names among them.
fn offered(services: &[String]) -> (Vec<String>, Option<Pin>) {
    let key = services.iter().find_map(|service| service.strip_prefix(END_TO_END)?.parse().ok());
    let plain = services.iter().filter(|service| !service.starts_with(END_TO_END)).cloned();
    (plain.collect(), key)
}

/// Remembers a key of the site that was not seen before.
async fn learn(hub: &Hub, site: &Site, key: Option<Pin>) {
    let Some(pin) = key.filter(|pin| !site.keys.iter().any(|known| known.pin == *pin)) else { return };
    match hub.known.directory().learn_key(&site.name, pin, Timestamp::now()).await {
        Ok(()) => tracing::info!(site = %site.name, key = %pin, "An agent showed a new key of its site."),
        Err(error) => {
            tracing::warn!(site = %site.name, error = %chain(&error), "A site's key cannot be remembered.");
        }
    }
}

async fn admit(hub: &Hub, hello: &Hello) -> Result<(Admitted, Place), Refusal> {
    if hub.leaving.is_cancelled() {
        return Err(Refusal::new(RefusalCode::Draining, "This gateway is shutting down; dial another one."));
    }
    let refused = || Refusal::new(RefusalCode::Credential, tarbet_identity::Refusal::PUBLIC);
    let token = std::str::from_utf8(hello.credential.reveal()).map_err(|_| refused())?;
    let admitted = match hub.known.directory().admit_agent(token, Timestamp::now()).await {
        Ok(admitted) => admitted,
        Err(error @ DirectoryError::Refused(_)) => {
            tracing::info!(agent = %hello.agent.name, cause = %chain(&error), "An agent's token was refused.");
            return Err(refused());
        }
        Err(error) => {
            tracing::warn!(error = %chain(&error), "An agent's token cannot be checked.");
            return Err(Refusal::new(
                RefusalCode::Unavailable,
                "The gateway cannot check tokens at the moment.",
            ));
        }
    };
    let most = hub.quotas.config().site.links;
    let place = hub.local.reserve(&admitted.site.name, most).map_err(|held| {
        hub.metrics.over_quota("site.links");
        let text = format!("The site has {held} links at this gateway, and quotas.site.links is {most}.");
        Refusal::new(RefusalCode::Quota, text)
    })?;
    Ok((admitted, place))
}

/// Ends the links whose tokens are no longer good, until `stop`.
pub(super) async fn recheck(hub: &Hub, stop: CancellationToken) {
    let mut timer = tokio::time::interval(hub.config().recheck);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = timer.tick() => {}
            () = stop.cancelled() => return,
        }
        for (token, links) in by_token(hub.local.all()) {
            match hub.known.directory().still_good(&token, Timestamp::now()).await {
                Ok(true) => {}
                Ok(false) => {
                    for held in links {
                        tracing::info!(site = %held.site, link = %held.id, %token, "A link ends: its token was taken back.");
                        held.way.dismiss(Refusal::new(
                            RefusalCode::Revoked,
                            "The token of this agent is no longer good.",
                        ));
                    }
                }
                // A store that is away takes nobody's link: it is asked again soon.
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "Tokens cannot be checked again.");
                    break;
                }
            }
        }
    }
}

/// The links that came with each token: replicas of a site share one, and the store is asked once for all.
fn by_token(links: Vec<Arc<Held>>) -> HashMap<String, Vec<Arc<Held>>> {
    let mut tokens: HashMap<_, Vec<_>> = HashMap::new();
    for held in links {
        if let Some(token) = held.token_id.clone() {
            tokens.entry(token).or_default().push(held);
        }
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size<A, B, C, F>(_: impl Fn(A, B, C) -> F) -> usize {
        std::mem::size_of::<F>()
    }

    #[test]
    fn a_link_keeps_little_for_as_long_as_it_lasts() {
        // Ten thousand of them lie idle in one gateway.
        assert!(size(serve) <= 512, "{}", size(serve));
    }
}
