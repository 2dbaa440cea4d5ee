//! Certificates for one server or client.

use std::net::IpAddr;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use rcgen::{KeyUsagePurpose, SanType, SerialNumber};
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use time::OffsetDateTime;

use super::AuthorityError;
use crate::key::PrivateKey;
use crate::pem;
use crate::random;
use crate::secret::Secret;
use crate::subject::Subject;
use crate::tls::AltName;

/// Long enough to sleep through a holiday, short enough to be renewed by routine.
const VALIDITY: Duration = Duration::from_hours(90 * 24);
/// Certificates begin a little early, for peers whose clocks are behind.
const EARLY: SignedDuration = SignedDuration::from_mins(5);

/// What a certificate may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// To be a server.
    Server,
    /// To be a client.
    Client,
    /// Both, as gateways are to each other.
    Both,
}

/// A certificate to be issued.
#[derive(Clone, Debug)]
pub struct Leaf {
    usage: Usage,
    common_name: Option<String>,
    names: Vec<AltName>,
    validity: Duration,
}

/// A certificate as issued.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The certificate.
    pub certificate_pem: String,
    /// Its private key, PKCS#8.
    pub key_pem: Secret,
    /// Its first moment.
    pub not_before: Timestamp,
    /// Its last moment.
    pub not_after: Timestamp,
}

impl Leaf {
    /// A certificate without names, for 90 days.
    pub fn new(usage: Usage) -> Self {
        Self { usage, common_name: None, names: Vec::new(), validity: VALIDITY }
    }

    /// Adds a DNS name.
    #[must_use]
    pub fn dns(self, name: impl Into<String>) -> Self {
        self.name(AltName::Dns(name.into()))
    }

    /// Adds an address.
    #[must_use]
    pub fn ip(self, address: impl Into<IpAddr>) -> Self {
        self.name(AltName::Ip(address.into()))
    }

    /// Adds the URI of a party, and its name as the common name.
    #[must_use]
    pub fn subject(self, subject: &Subject) -> Self {
        let leaf = self.name(AltName::Uri(subject.to_string()));
        Self { common_name: Some(subject.name().to_owned()), ..leaf }
    }

    /// Adds a name.
    #[must_use]
    pub fn name(mut self, name: AltName) -> Self {
        self.names.push(name);
        self
    }

    /// For another time than 90 days.
    #[must_use]
    pub fn valid_for(self, validity: Duration) -> Self {
        Self { validity, ..self }
    }

    pub(super) fn issue(
        &self,
        issuer: &Issuer<'_, KeyPair>,
        latest: Timestamp,
        now: Timestamp,
    ) -> Result<Issued, AuthorityError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        if let Some(name) = &self.common_name {
            params.distinguished_name.push(DnType::CommonName, name.as_str());
        }
        params.subject_alt_names = self.names.iter().map(san).collect::<Result<_, _>>()?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match self.usage {
            Usage::Server => vec![ExtendedKeyUsagePurpose::ServerAuth],
            Usage::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
            Usage::Both => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
        };
        params.use_authority_key_identifier_extension = true;
        let (not_before, not_after) = set_validity(&mut params, now, self.validity, latest)?;
        let key = KeyPair::generate()?;
        let certificate_pem = params.signed_by(&key, issuer)?.pem();
        let key_pem = Secret::new(pem::encode("PRIVATE KEY", key.serialized_der()));
        Ok(Issued { certificate_pem, key_pem, not_before, not_after })
    }
}

/// When a certificate should be replaced: after two thirds of its life, which leaves a third to notice
/// that it did not happen.
pub fn renewal_due(not_before: Timestamp, not_after: Timestamp) -> Timestamp {
    let third = (not_after.as_second() - not_before.as_second()) / 3;
    Timestamp::from_second(not_after.as_second() - third.max(0)).unwrap_or(not_after)
}

/// The certificate by which a key speaks for itself. Nobody looks at its dates.
pub(crate) fn self_certificate(key: &PrivateKey) -> Result<CertificateDer<'static>, AuthorityError> {
    let der = PrivatePkcs8KeyDer::from(key.pkcs8().expose());
    let pair = KeyPair::from_pkcs8_der_and_sign_algo(&der, &rcgen::PKCS_ED25519)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, key.public().id());
    Ok(params.self_signed(&pair)?.into())
}

/// Sets dates (never past `latest`) and a random serial number; gives the dates.
pub(super) fn set_validity(
    params: &mut CertificateParams,
    now: Timestamp,
    validity: Duration,
    latest: Timestamp,
) -> Result<(Timestamp, Timestamp), AuthorityError> {
    let not_before = now.checked_sub(EARLY).map_err(|_| AuthorityError::Date)?;
    let not_after = now.checked_add(validity).map_err(|_| AuthorityError::Date)?.min(latest);
    params.not_before = date(not_before)?;
    params.not_after = date(not_after)?;
    let mut serial = random::bytes::<16>()?;
    // Positive, and of full length.
    serial[0] = serial[0] & 0x7f | 0x40;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    Ok((not_before, not_after))
}

fn date(at: Timestamp) -> Result<OffsetDateTime, AuthorityError> {
    let date = OffsetDateTime::from_unix_timestamp(at.as_second()).map_err(|_| AuthorityError::Date)?;
    if (1950..=9999).contains(&date.year()) { Ok(date) } else { Err(AuthorityError::Date) }
}

fn san(name: &AltName) -> Result<SanType, AuthorityError> {
    let text = |text: &String| text.as_str().try_into().map_err(|_| AuthorityError::Name(text.clone()));
    Ok(match name {
        AltName::Dns(name) => SanType::DnsName(text(name)?),
        AltName::Uri(uri) => SanType::URI(text(uri)?),
        AltName::Ip(address) => SanType::IpAddress(*address),
    })
}
