//! Who is at the other end, from the certificate it proved to hold.

use std::net::IpAddr;

use jiff::Timestamp;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::hash::sha256;
use crate::key::Pin;
use crate::subject::Subject;

/// A name in a certificate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AltName {
    /// A host name.
    Dns(String),
    /// An address.
    Ip(IpAddr),
    /// A URI, such as a [`Subject`]'s.
    Uri(String),
}

/// What a certificate says of its holder. Worth as much as whoever checked it: an authority that this
/// end trusts, or a pin, in which case only the `pin` counts and the names are the holder's own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The subject's common name, as Kubernetes uses it for users.
    pub common_name: Option<String>,
    /// The subject's organisations, as Kubernetes uses them for groups.
    pub organizations: Vec<String>,
    /// The alternative names.
    pub names: Vec<AltName>,
    /// SHA-256 of the certificate.
    pub fingerprint: [u8; 32],
    /// The key, by which it may be pinned.
    pub pin: Pin,
    /// The last moment of the certificate.
    pub expires: Timestamp,
}

impl PeerIdentity {
    /// Reads a certificate. `None` if it is not one.
    pub fn of_certificate(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let names = certificate
            .subject_alternative_name()
            .ok()?
            .map_or(Vec::new(), |names| names.value.general_names.iter().filter_map(alt_name).collect());
        let common_name = certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
        let organizations = certificate.subject().iter_organization();
        Some(Self {
            common_name: common_name.map(str::to_owned),
            organizations: organizations.filter_map(|name| name.as_str().ok()).map(str::to_owned).collect(),
            names,
            fingerprint: sha256(der),
            pin: Pin::of_public_key_info(certificate.public_key().raw),
            expires: Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()?,
        })
    }

    /// The party that one of its URIs names, if it has exactly one such URI.
    pub fn subject(&self) -> Option<Subject> {
        let mut subjects = self.names.iter().filter_map(|name| match name {
            AltName::Uri(uri) => uri.parse().ok(),
            AltName::Dns(_) | AltName::Ip(_) => None,
        });
        subjects.next().filter(|_| subjects.next().is_none())
    }
}

fn alt_name(name: &GeneralName<'_>) -> Option<AltName> {
    match name {
        GeneralName::DNSName(name) => Some(AltName::Dns((*name).to_owned())),
        GeneralName::URI(uri) => Some(AltName::Uri((*uri).to_owned())),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes).ok().map(|v4| AltName::Ip(v4.into())),
            16 => <[u8; 16]>::try_from(*bytes).ok().map(|v6| AltName::Ip(v6.into())),
            _ => None,
        },
        _ => None,
    }
}
