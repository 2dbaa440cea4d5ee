//! Whose signatures on certificates count.

use std::path::{Path, PathBuf};

use rustls::RootCertStore;

use super::TlsError;
use super::live::FileSet;
use crate::pem;

/// Certificates of authorities.
#[derive(Clone, Debug)]
pub enum CaSource {
    /// A PEM file, read again when it changes.
    File(PathBuf),
    /// PEM text, such as [`Authority::certificate_pem`](crate::authority::Authority::certificate_pem).
    Pem(String),
}

impl CaSource {
    pub(super) fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Pem(_) => None,
        }
    }

    /// Adds all of them, or none counts.
    pub(super) fn add_to(&self, roots: &mut RootCertStore, files: &FileSet) -> Result<(), TlsError> {
        let (pem, origin) = match self {
            Self::File(path) => (files.get(path)?, path.display().to_string()),
            Self::Pem(text) => (text.as_bytes(), "the given text".to_owned()),
        };
        let certificates = pem::certificates(pem)
            .map_err(|source| TlsError::Certificates { origin: origin.clone(), source })?;
        for certificate in certificates {
            roots
                .add(certificate)
                .map_err(|source| TlsError::Authority { origin: origin.clone(), source })?;
        }
        Ok(())
    }
}

/// What the operating system trusts. Odd entries in it are passed over.
pub(super) fn add_system(roots: &mut RootCertStore) {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(error = %error, "Part of the system's trusted authorities could not be read.");
    }
    roots.add_parsable_certificates(found.certs);
}
