//! The nouns: deployments, rules, spaces. Free of any wire.

use std::fmt;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

mod rule;

pub use rule::{ANY, Direction, Rule};

/// A place in a cloud that belongs to one namespace: a subscription, a project, a resource group.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Deployment {
    /// As the cloud spells it, such as `projects/P`.
    pub id: String,
    /// The namespace it belongs to.
    pub namespace: String,
}

/// Address spaces in use, and whose they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    /// The spaces.
    pub spaces: Vec<IpNet>,
    /// The cloud they are in.
    pub cloud: String,
    /// The namespace they belong to.
    pub namespace: String,
    /// The deployment, where the cloud tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment: Option<String>,
}

/// A network of a cloud that is of none of the namespaces it was asked about: others made it, and nobody here
/// ever changes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignNetwork {
    /// What the cloud calls it, the only one of that name.
    pub id: String,
    /// Its short name, which others may have too.
    pub name: String,
    /// Where it is; nothing if it is everywhere.
    pub region: String,
    /// The deployment it was found in.
    pub deployment: String,
    /// Its address spaces.
    pub spaces: Vec<IpNet>,
    /// How many subnets it has, where the cloud tells.
    #[serde(default)]
    pub subnets: Option<u32>,
    /// How many machines are in it, where the cloud tells.
    #[serde(default)]
    pub machines: Option<u32>,
}

/// A resource as a cloud reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Created {
    /// Its short name.
    pub name: String,
    /// What the cloud calls it.
    pub uri: String,
    /// Its address.
    pub ip: String,
}

/// What may be switched on in a plugin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Flags {
    /// Resources made by others may be taken in: by Tarbet's plugin of Azure, and by those of others.
    pub attach_resource_enabled: bool,
    /// Managed Kubernetes clusters may be resources: of Tarbet's plugins of Azure and Google Cloud, and of others'.
    pub kubernetes_clusters_enabled: bool,
    /// Private endpoints may be resources: of Tarbet's plugins of Google Cloud and IBM, and of others'.
    pub private_endpoints_enabled: bool,
}

impl Flags {
    /// Those that are on, by name.
    pub fn on(self) -> impl Iterator<Item = &'static str> {
        let all = [
            ("attachResourceEnabled", self.attach_resource_enabled),
            ("kubernetesClustersEnabled", self.kubernetes_clusters_enabled),
            ("privateEndpointsEnabled", self.private_endpoints_enabled),
        ];
        all.into_iter().filter(|(_, on)| *on).map(|(name, _)| name)
    }

    /// Those that are on here and there.
    #[must_use]
    pub fn within(self, there: Self) -> Self {
        Self {
            attach_resource_enabled: self.attach_resource_enabled && there.attach_resource_enabled,
            kubernetes_clusters_enabled: self.kubernetes_clusters_enabled
                && there.kubernetes_clusters_enabled,
            private_endpoints_enabled: self.private_endpoints_enabled && there.private_endpoints_enabled,
        }
    }
}

/// A secret shared by the two ends of a VPN. It is never printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SharedKey(String);

impl SharedKey {
    /// Letters and digits only: one cloud refuses `/`, another `+`.
    pub fn from_random(bytes: [u8; 32]) -> Self {
        const ALPHABET: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789Zz";
        // Six bits a character; the two repeated letters cost a hundredth of a bit each. The first has five
        // and is a letter: AWS takes no key that begins with a zero.
        let bits = std::iter::once(31).chain(std::iter::repeat(63));
        Self(
            bytes
                .iter()
                .zip(bits)
                .map(|(byte, bits)| char::from(ALPHABET[usize::from(byte & bits)]))
                .collect(),
        )
    }

    /// A key from the wire.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The key itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedKey(…)")
    }
}

/// The tag of a resource: `NAMESPACE.CLOUD.NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceTag {
    /// The namespace.
    pub namespace: String,
    /// The cloud.
    pub cloud: String,
    /// The short name.
    pub name: String,
}

impl ResourceTag {
    /// Reads the three parts; nothing if there are more or fewer.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        let (namespace, cloud, name) = (parts.next()?, parts.next()?, parts.next()?);
        let complete = parts.next().is_none() && [namespace, cloud, name].iter().all(|part| !part.is_empty());
        complete.then(|| Self { namespace: namespace.into(), cloud: cloud.into(), name: name.into() })
    }
}

impl fmt::Display for ResourceTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.namespace, self.cloud, self.name)
    }
}

/// Who is told when a tag changes: `NAMESPACE>CLOUD>URI`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Subscriber {
    /// The namespace of the resource.
    pub namespace: String,
    /// Its cloud.
    pub cloud: String,
    /// Its URI there.
    pub uri: String,
}

impl Subscriber {
    /// Reads the three parts; the URI may itself hold `>`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '>');
        let (namespace, cloud, uri) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Self { namespace: namespace.into(), cloud: cloud.into(), uri: uri.into() })
    }
}

impl fmt::Display for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}>{}>{}", self.namespace, self.cloud, self.uri)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_letters_and_digits_and_never_printed() {
        let key = SharedKey::from_random(std::array::from_fn(|i| i as u8 * 7));
        assert_eq!(key.expose().len(), 32);
        assert!(key.expose().bytes().all(|b| b.is_ascii_alphanumeric()), "{}", key.expose());
        assert!(!format!("{key:?}").contains(key.expose()));
        for byte in 0..=255 {
            assert!(
                SharedKey::from_random([byte; 32])
                    .expose()
                    .starts_with(|first: char| first.is_ascii_alphabetic())
            );
        }
    }

    #[test]
    fn flags_that_are_on_are_named() {
        let flags =
            Flags { attach_resource_enabled: true, private_endpoints_enabled: true, ..Flags::default() };
        assert_eq!(flags.on().collect::<Vec<_>>(), ["attachResourceEnabled", "privateEndpointsEnabled"]);
    }

    #[test]
    fn names_with_parts_read_back() {
        let tag = ResourceTag::parse("default.gcp.vm1").unwrap();
        assert_eq!((tag.cloud.as_str(), tag.to_string().as_str()), ("gcp", "default.gcp.vm1"));
        for bad in ["", "a", "a.b", "a.b.c.d", "a..c"] {
            assert!(ResourceTag::parse(bad).is_none(), "{bad}");
        }
        let subscriber = Subscriber::parse("default>gcp>projects/p>x").unwrap();
        assert_eq!(
            (subscriber.uri.as_str(), subscriber.to_string().as_str()),
            ("projects/p>x", "default>gcp>projects/p>x")
        );
    }
}
