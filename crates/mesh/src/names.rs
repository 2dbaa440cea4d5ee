//! Names that are legal, and different for different things.
//!
//! Names of generated objects are made by joining words with dashes, which is readable and
//! ambiguous: `a-b` of `c` and `a` of `b-c` join to the same. [`Names`] gives the plain form to
//! the first and adds a hash of the whole identity for any other; the order is that of the plan.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use crate::plan::Kind;

/// The longest name of an object.
const OBJECT: usize = 253;
/// The longest label of a DNS name.
pub(crate) const LABEL: usize = 63;
/// A host must still fit in a server name with Istio's prefix before it.
pub(crate) const HOST: usize = 230;

/// Whether it is one label of a DNS name.
pub(crate) fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty()
        && text.len() <= LABEL
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Whether it is a host name with at least one dot that can be called across meshes.
pub(crate) fn is_host(text: &str) -> bool {
    let numeric = text.rsplit('.').next().is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit()));
    text.len() <= HOST && text.contains('.') && text.split('.').all(is_label) && !numeric
}

/// Eight hexadecimal digits that stand for a whole identity.
pub(crate) fn short_hash(identity: &str) -> String {
    hex::encode(&Sha256::digest(identity)[..4])
}

/// The text itself if it is short enough, else its beginning and a hash of all of it.
pub(crate) fn fit(text: &str, longest: usize) -> String {
    if text.len() <= longest {
        return text.to_owned();
    }
    let beginning = text[..longest - 9].trim_end_matches(['-', '.']);
    format!("{beginning}-{}", short_hash(text))
}

/// A host name as part of an object's name.
pub(crate) fn dashed(host: &str) -> String {
    host.replace('.', "-")
}

/// The server name of a port that the OpenShift router accepts: Istio's own has underscores.
pub(crate) fn router_host(host: &str, port: u32) -> String {
    let (first, rest) = host.split_once('.').unwrap_or((host, ""));
    let label = fit(&format!("{first}-{port}"), LABEL);
    if rest.is_empty() { label } else { format!("{label}.{rest}") }
}

/// The server name that Istio's clients send for a port of a host.
pub(crate) fn istio_sni(host: &str, port: u32) -> String {
    format!("outbound_.{port}_._.{host}")
}

/// Names given so far.
#[derive(Debug, Default)]
pub(crate) struct Names(BTreeMap<(Kind, String, String), String>);

impl Names {
    /// A name for the thing that `identity` tells from all others of its kind.
    pub(crate) fn claim(&mut self, kind: Kind, namespace: &str, wanted: &str, identity: &str) -> String {
        let plain = fit(wanted, OBJECT);
        let key = |name: &str| (kind, namespace.to_owned(), name.to_owned());
        match self.0.get(&key(&plain)) {
            Some(holder) if holder != identity => {
                let other = format!("{}-{}", fit(wanted, OBJECT - 9), short_hash(identity));
                self.0.insert(key(&other), identity.to_owned());
                other
            }
            Some(_) => plain,
            None => {
                self.0.insert(key(&plain), identity.to_owned());
                plain
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn what_can_be_a_host() {
        for good in ["a.b", "ratings.bookinfo.svc.cluster.local", "r.mesh.global", "0.a"] {
            assert!(is_host(good), "{good}");
        }
        let long = format!("{}.b", "a".repeat(64));
        for bad in [
            "", "a", "*.b", "a..b", ".a.b", "a.b.", "A.b", "a_b.c", "-a.b", "a-.b", "10.0.0.1", "a b.c",
            &long,
        ] {
            assert!(!is_host(bad), "{bad}");
        }
        assert!(!is_host(&"a.".repeat(120)));
    }

    #[test]
    fn router_names_stay_within_a_label() {
        assert_eq!(
            router_host("ratings.bookinfo.svc.cluster.local", 9080),
            "ratings-9080.bookinfo.svc.cluster.local"
        );
        let (one, other) = (format!("{}a", "x".repeat(62)), format!("{}b", "x".repeat(62)));
        let (one, other) =
            (router_host(&format!("{one}.ns.svc"), 80), router_host(&format!("{other}.ns.svc"), 80));
        assert_ne!(one, other);
        assert!(one.split('.').all(is_label) && other.split('.').all(is_label), "{one}");
    }

    #[test]
    fn joined_names_that_collide_stay_apart() {
        let mut names = Names::default();
        let one = names.claim(Kind::EnvoyFilter, "ns", "sni-a-b-c-80", "a-b/c/80");
        let other = names.claim(Kind::EnvoyFilter, "ns", "sni-a-b-c-80", "a/b-c/80");
        assert_eq!(one, "sni-a-b-c-80");
        assert!(other.starts_with("sni-a-b-c-80-") && other != one, "{other}");
        assert_eq!(
            names.claim(Kind::EnvoyFilter, "ns", "sni-a-b-c-80", "a-b/c/80"),
            one,
            "the same thing again"
        );
        assert_eq!(names.claim(Kind::Route, "ns", "sni-a-b-c-80", "a/b-c/80"), "sni-a-b-c-80");
    }

    proptest! {
        #[test]
        fn different_things_have_different_legal_names(
            things in proptest::collection::btree_set(("[ab-]{1,6}", "[ab-]{1,6}", "[a-z]{0,300}"), 1..20)
        ) {
            let mut names = Names::default();
            let mut given = BTreeSet::new();
            for (service, namespace, tail) in &things {
                let wanted = format!("x{service}-{namespace}-{tail}x");
                let name = names.claim(Kind::Route, "ns", &wanted, &format!("{service}/{namespace}/{tail}"));
                prop_assert!(name.len() <= OBJECT && !name.ends_with('-'));
                prop_assert!(given.insert(name));
            }
        }
    }
}
