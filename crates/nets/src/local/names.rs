//! What things are called in the kernel. Everything begins with the prefix, so that everything can be found.

use sha2::{Digest, Sha256};

use super::state::{MachineName, NetworkName};

/// Names of one local cloud. Parts hold no dot, so names cannot meet.
#[derive(Debug, Clone)]
pub(super) struct Names {
    base: String,
}

impl Names {
    pub(super) fn new(prefix: &str, cloud: &str) -> Self {
        Self { base: format!("{prefix}-{cloud}") }
    }

    /// What all namespaces of this cloud begin with.
    pub(super) fn everything(&self) -> String {
        format!("{}.", self.base)
    }

    pub(super) fn network(&self, name: &NetworkName) -> String {
        format!("{}.{}.{}", self.base, name.namespace, name.region)
    }

    pub(super) fn machine(&self, name: &MachineName) -> String {
        format!("{}.{}", self.network(&name.network), name.name)
    }

    /// No region begins with an underscore.
    pub(super) fn hub(&self, namespace: &str) -> String {
        format!("{}.{namespace}._vpn", self.base)
    }

    pub(super) fn tunnel(&self, namespace: &str, index: u32) -> String {
        format!("{}.t{index}", self.hub(namespace))
    }

    /// The port of a namespace on the wide area bridge: interface names are short.
    pub(super) fn wan_port(netns: &str) -> String {
        format!("w{}", short(netns))
    }

    /// The hub's interface towards a network.
    pub(super) fn hub_port(&self, name: &NetworkName) -> String {
        format!("n{}", short(&self.network(name)))
    }

    /// An interface towards a peered network.
    pub(super) fn peer_port(&self, other: &NetworkName) -> String {
        format!("p{}", short(&self.network(other)))
    }
}

fn short(text: &str) -> String {
    hex::encode(&Sha256::digest(text.as_bytes())[..5])
}

/// Names end up in names of namespaces.
pub(super) fn part(what: &str, name: &str) -> Result<(), crate::error::Error> {
    let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let sound = !name.is_empty() && name.len() <= 50 && name.bytes().all(legal) && !name.starts_with('-');
    if sound {
        return Ok(());
    }
    let message =
        format!("`{}` is not a name: 1 to 50 of a-z, 0-9 and -, not beginning with -", name.escape_debug());
    Err(crate::error::Error::invalid(what, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_fit_and_namespaces_tell_apart() {
        let names = Names::new("tarbet", "east");
        let network = NetworkName { namespace: "default".into(), region: "r1".into() };
        assert_eq!(names.network(&network), "tarbet-east.default.r1");
        for interface in [Names::wan_port("x"), names.hub_port(&network), names.peer_port(&network)] {
            assert!(interface.len() <= 15, "{interface}");
        }
        assert!(part("name", "vm-1").is_ok());
        for bad in ["", "-a", "a.b", "A", "a_b", "ä", &"x".repeat(51)] {
            assert!(part("name", bad).is_err(), "{bad}");
        }
    }
}
