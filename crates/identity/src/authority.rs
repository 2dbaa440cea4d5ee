//! A certificate authority for one machine: `tarbet up` and everything in it, with no file to prepare.
//!
//! Its keys and those it certifies are on P-256. Ed25519 would be smaller, but browsers, Envoy's
//! BoringSSL and older curl do not take it in certificates, and these must be taken by strangers.
//! It issues and renews; it keeps no list of what it issued and revokes nothing: leaves live for weeks.

mod leaf;

pub(crate) use leaf::self_certificate;
pub use leaf::{Issued, Leaf, Usage, renewal_due};

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

use crate::files;
use crate::key::Pin;
use crate::pem::{self, PemError};
use crate::random::NoEntropy;
use crate::secret::{Secret, SecretError};
use crate::tls::PeerIdentity;

/// Key and certificate in one file, so that a crash cannot leave one without the other.
const FILE: &str = "authority.pem";
/// The certificate alone, for others to trust.
const PUBLIC_FILE: &str = "ca.crt";
/// The machine will be replaced before.
const VALIDITY: Duration = Duration::from_hours(10 * 365 * 24);

/// Why the authority could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// Its folder or files could not be written.
    #[error("cannot save the authority to {}; check that the folder may be written", path.display())]
    Save {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Its file could not be read.
    #[error("cannot load the authority")]
    Load(#[from] SecretError),
    /// Its file is not what we wrote.
    #[error("the authority's file {} is damaged; restore it, or remove it to begin anew", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: PemError,
    },
    /// Its key and certificate are not a pair.
    #[error("the authority's file {} holds no authority; restore it, or remove it to begin anew", path.display())]
    NotAnAuthority {
        /// The file.
        path: PathBuf,
    },
    /// A name that cannot be in a certificate.
    #[error("`{0}` cannot be a name in a certificate")]
    Name(String),
    /// A date that cannot be in a certificate.
    #[error("the certificate would begin or end outside the years that certificates can say")]
    Date,
    /// Building or signing failed.
    #[error("cannot make a certificate")]
    Make(#[from] rcgen::Error),
    /// No randomness for a key or a serial number.
    #[error("cannot make a certificate")]
    Entropy(#[from] NoEntropy),
}

/// A certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate_pem: String,
    expires: Timestamp,
}

impl Authority {
    /// Loads the authority of a folder, or makes one there. Also renews its certificate (with the same
    /// key and name, so that what it issued stays valid) once two thirds of its life have passed.
    pub fn open(folder: impl AsRef<Path>, now: Timestamp) -> Result<Self, AuthorityError> {
        let folder = folder.as_ref();
        let path = folder.join(FILE);
        let save = |path: &Path| {
            let path = path.to_owned();
            move |source| AuthorityError::Save { path, source }
        };
        if !path.try_exists().map_err(save(&path))? {
            files::private_folder(folder).map_err(save(folder))?;
            let text = make(&KeyPair::generate()?, now)?;
            // If another process was quicker, what it wrote is read below.
            files::create(&path, text.expose().as_bytes(), files::PRIVATE).map_err(save(&path))?;
        }
        let mut authority = Self::load(&path)?;
        let begun = authority.expires.checked_sub(VALIDITY).unwrap_or(Timestamp::MIN);
        if now >= renewal_due(begun, authority.expires) {
            let text = make(authority.issuer.key(), now)?;
            files::replace(&path, text.expose().as_bytes(), files::PRIVATE).map_err(save(&path))?;
            authority = Self::load(&path)?;
        }
        let public = folder.join(PUBLIC_FILE);
        if std::fs::read_to_string(&public).ok().as_ref() != Some(&authority.certificate_pem) {
            files::replace(&public, authority.certificate_pem.as_bytes(), files::PUBLIC)
                .map_err(save(&public))?;
        }
        Ok(authority)
    }

    fn load(path: &Path) -> Result<Self, AuthorityError> {
        let damaged = |source| AuthorityError::Damaged { path: path.to_owned(), source };
        let not_one = || AuthorityError::NotAnAuthority { path: path.to_owned() };
        let text = Secret::from_file(path)?;
        let key = pem::private_key(text.expose().as_bytes()).map_err(damaged)?;
        let key = KeyPair::try_from(&key).map_err(|_| not_one())?;
        let certificates = pem::certificates(text.expose().as_bytes()).map_err(damaged)?;
        let certificate = certificates.first().ok_or_else(not_one)?;
        let identity = PeerIdentity::of_certificate(certificate).ok_or_else(not_one)?;
        let spki = rcgen::PublicKeyData::subject_public_key_info(&key);
        if identity.pin != Pin::of_public_key_info(&spki) {
            return Err(not_one());
        }
        Ok(Self {
            issuer: Issuer::from_ca_cert_der(certificate, key).map_err(|_| not_one())?,
            certificate_pem: pem::encode("CERTIFICATE", certificate),
            expires: identity.expires,
        })
    }

    /// The certificate that others must trust.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// A new key and a certificate for it.
    pub fn issue(&self, leaf: &Leaf, now: Timestamp) -> Result<Issued, AuthorityError> {
        leaf.issue(&self.issuer, self.expires, now)
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("expires", &self.expires).finish_non_exhaustive()
    }
}

/// A self-signed certificate for the key, and the key, as one text.
fn make(key: &KeyPair, now: Timestamp) -> Result<Secret, AuthorityError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    // Each has its own name: of two with one name TLS would call the other's leaves forged, not foreign.
    let spki = rcgen::PublicKeyData::subject_public_key_info(key);
    let id = hex::encode(&Pin::of_public_key_info(&spki).as_bytes()[..8]);
    params.distinguished_name.push(DnType::CommonName, format!("Tarbet built-in authority {id}"));
    // It signs leaves, never another authority.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    leaf::set_validity(&mut params, now, VALIDITY, Timestamp::MAX)?;
    let certificate = params.self_signed(key)?;
    let key_pem = zeroize::Zeroizing::new(key.serialize_pem());
    Ok(Secret::new([key_pem.as_str(), &certificate.pem()].concat()))
}
