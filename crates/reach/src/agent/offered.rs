//! Services that other programs at the site give: streams to their socket or loopback port.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, StatusCode};
use tarbet_link::{Address, ByteStream, Denial, Dialer, IncomingStream, NetDialer, Target, relay};
use tarbet_telemetry::codes::{ground, reach};
use tarbet_telemetry::problem::chain;
use tokio::net::UnixStream;

use super::Service;
use super::policy::Wanted;

/// Names that mean something else.
const TAKEN: [&str; 4] = ["kubernetes", "tcp", "info", super::end_to_end::SERVICE];

/// Where an offered service is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// `unix:///path`.
    Socket(PathBuf),
    /// `host:port`, with or without `http://`: the scheme is the caller's affair.
    Network(Address),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix://") {
            return match PathBuf::from(path) {
                path if path.is_absolute() => Ok(Self::Socket(path)),
                _ => Err(format!("`{text}` names no absolute path")),
            };
        }
        let bare = text.strip_prefix("http://").or_else(|| text.strip_prefix("tcp://")).unwrap_or(text);
        let address = bare.trim_end_matches('/').parse::<Address>();
        address.map(Self::Network).map_err(|error| error.to_string())
    }
}

/// One of them, under the name callers ask for.
#[derive(Debug)]
pub struct Offered {
    name: String,
    place: Place,
    timeout: Duration,
}

impl Offered {
    /// A service of this name at this place; connections are given up after `timeout`.
    pub fn new(name: &str, place: &str, timeout: Duration) -> Result<Self, String> {
        if TAKEN.contains(&name) {
            return Err(format!("the name `{name}` is the agent's own"));
        }
        let target = Target::service(name).map_err(|error| error.to_string())?;
        Ok(Self { name: target.name().to_owned(), place: place.parse()?, timeout })
    }

    async fn connect(&self) -> Result<ByteStream, String> {
        match &self.place {
            Place::Socket(path) => {
                let opened = tokio::time::timeout(self.timeout, UnixStream::connect(path)).await;
                let opened = opened.map_err(|_| "it did not answer in time".to_owned())?;
                opened.map(ByteStream::new).map_err(|error| error.to_string())
            }
            Place::Network(address) => {
                let dialer = NetDialer { timeout: self.timeout };
                dialer.open(Target::tcp(address.clone())).await.map_err(|error| chain(&error))
            }
        }
    }
}

impl Service for Offered {
    fn name(&self) -> &str {
        &self.name
    }

    fn describe(&self, target: &Target, request: Option<&Request<()>>) -> Result<Wanted, Denial> {
        if target.address().is_none() && request.is_none() {
            return Ok(Wanted::Service(self.name.clone()));
        }
        let text = format!("The service `{}` takes streams without an address.", self.name);
        Err(Denial::new(StatusCode::BAD_REQUEST, ground::BAD_REQUEST.id, text).at("agent"))
    }

    fn stream(&self, incoming: IncomingStream) -> BoxFuture<'_, ()> {
        async move {
            match self.connect().await {
                Ok(far) => {
                    if let Ok(near) = incoming.accept() {
                        // Either end may break off at any time; both know why by themselves.
                        let _ = relay(near, far).await;
                    }
                }
                Err(cause) => {
                    tracing::info!(service = %self.name, cause, "An offered service does not answer.");
                    let text = format!("What gives the service `{}` does not answer.", self.name);
                    let denial = Denial::new(StatusCode::BAD_GATEWAY, reach::TARGET_UNREACHABLE.id, text);
                    incoming.deny(&denial.at("agent → service"));
                }
            }
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_sockets_or_addresses() {
        assert_eq!("unix:///run/x.sock".parse(), Ok(Place::Socket("/run/x.sock".into())));
        let local = Place::Network("127.0.0.1:3000".parse().unwrap());
        for text in ["127.0.0.1:3000", "http://127.0.0.1:3000/", "tcp://127.0.0.1:3000"] {
            assert_eq!(text.parse(), Ok(local.clone()), "{text}");
        }
        for text in ["unix://x", "", "nowhere", "https://x"] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }

    #[test]
    fn names_of_the_agents_own_services_stay_its_own() {
        for name in ["kubernetes", "tcp", "info", "", "two words"] {
            assert!(Offered::new(name, "127.0.0.1:1", Duration::from_secs(1)).is_err(), "{name}");
        }
        assert!(Offered::new("interlink", "127.0.0.1:1", Duration::from_secs(1)).is_ok());
    }
}
