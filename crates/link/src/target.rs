//! What a caller wants at a site: a service by name, and for some services an address behind it.

use std::fmt;
use std::str::FromStr;

/// Long enough for a fully qualified gRPC service, short enough for a header.
const MAX_SERVICE: usize = 128;
/// The longest DNS name.
const MAX_HOST: usize = 253;

/// A service of an agent, with the address behind it where the service needs one.
///
/// Written `kubernetes`, `interlink` or `tcp db.local:5432`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    service: String,
    address: Option<Address>,
}

/// A host name or IP address, and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address {
    host: String,
    port: u16,
}

/// Why a text is not a [`Target`] or an [`Address`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadTarget {
    /// The name of the service is empty, too long, or has characters no service has.
    #[error("`{0}` is not a service name: 1 to 128 letters, digits, `.`, `-`, `_` or `/`")]
    Service(String),
    /// The host is empty, too long, or has characters no host has.
    #[error("`{0}` is not a host name or IP address")]
    Host(String),
    /// There is no port between 1 and 65535 after the last colon.
    #[error("`{0}` does not end in a port, as in `db.local:5432`")]
    Port(String),
}

impl Target {
    /// A service that needs no address.
    pub fn service(name: impl Into<String>) -> Result<Self, BadTarget> {
        let service = name.into();
        let legal = |b: u8| b.is_ascii_alphanumeric() || b"._-/".contains(&b);
        if service.is_empty() || service.len() > MAX_SERVICE || !service.bytes().all(legal) {
            return Err(BadTarget::Service(clip(&service)));
        }
        Ok(Self { service, address: None })
    }

    /// A TCP host behind the agent.
    pub fn tcp(address: Address) -> Self {
        Self { service: "tcp".into(), address: Some(address) }
    }

    /// The same service at this address.
    #[must_use]
    pub fn at(mut self, address: Address) -> Self {
        self.address = Some(address);
        self
    }

    /// The name of the service.
    pub fn name(&self) -> &str {
        &self.service
    }

    /// The address behind the service, if it has one.
    pub fn address(&self) -> Option<&Address> {
        self.address.as_ref()
    }
}

impl Address {
    /// A host and a port, checked.
    pub fn new(host: impl Into<String>, port: u16) -> Result<Self, BadTarget> {
        let host = host.into();
        let legal = |b: u8| b.is_ascii_alphanumeric() || b"._-:%".contains(&b);
        if host.is_empty() || host.len() > MAX_HOST || !host.bytes().all(legal) {
            return Err(BadTarget::Host(clip(&host)));
        }
        if port == 0 {
            return Err(BadTarget::Port(format!("{host}:0")));
        }
        Ok(Self { host, port })
    }

    /// The host, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

// What is repeated to a person of a text that was refused.
fn clip(text: &str) -> String {
    text.chars().take(64).collect()
}

impl FromStr for Target {
    type Err = BadTarget;

    fn from_str(text: &str) -> Result<Self, BadTarget> {
        match text.split_once(' ') {
            None => Self::service(text),
            Some((service, address)) => Ok(Self::service(service)?.at(address.parse()?)),
        }
    }
}

impl FromStr for Address {
    type Err = BadTarget;

    fn from_str(text: &str) -> Result<Self, BadTarget> {
        let (host, port) = text.rsplit_once(':').ok_or_else(|| BadTarget::Port(clip(text)))?;
        let host = match host.strip_prefix('[') {
            Some(inner) => inner.strip_suffix(']').ok_or_else(|| BadTarget::Host(clip(host)))?,
            None if host.contains(':') => return Err(BadTarget::Host(clip(host))),
            None => host,
        };
        Self::new(host, port.parse().map_err(|_| BadTarget::Port(clip(text)))?)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            None => f.write_str(&self.service),
            Some(address) => write!(f, "{} {address}", self.service),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_the_usual_forms() {
        for text in ["kubernetes", "interlink", "tcp db.local:5432", "tcp [::1]:80", "a.b.v1.Service"] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn refuses_what_could_be_read_in_two_ways() {
        for text in
            ["", " ", "tcp ", "tcp db", "tcp db:0", "tcp db:70000", "tcp ::1:80", "tcp [::1:80", "tcp a b:1"]
        {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
        assert!("x\r\ny: z".parse::<Target>().is_err());
    }

    proptest! {
        #[test]
        fn never_panics_and_survives_a_round_trip(text in ".{0,80}") {
            if let Ok(target) = text.parse::<Target>() {
                prop_assert_eq!(target.to_string().parse::<Target>().unwrap(), target);
            }
        }
    }
}
