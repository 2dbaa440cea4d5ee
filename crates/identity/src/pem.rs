//! PEM in and out. Errors never quote the text, because it may be a private key.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroizing;

/// Far beyond any bundle that is trusted by hand; the system's own roots are some 300 kB.
const MAX_SIZE: usize = 4 * 1024 * 1024;

/// What is wrong with a PEM text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PemError {
    /// No `CERTIFICATE` section.
    #[error("there is no CERTIFICATE section in it")]
    NoCertificate,
    /// No private key section of a known kind.
    #[error("there is no unencrypted PRIVATE KEY section in it")]
    NoKey,
    /// A section that does not decode.
    #[error("a section in it is cut short or not base64")]
    Malformed,
    /// Too much text.
    #[error("it is larger than {MAX_SIZE} bytes")]
    TooLarge,
}

/// All certificates, in order, at least one. Other sections are passed over.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    if pem.len() > MAX_SIZE {
        return Err(PemError::TooLarge);
    }
    let certificates: Vec<_> =
        CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|_| PemError::Malformed)?;
    if certificates.is_empty() { Err(PemError::NoCertificate) } else { Ok(certificates) }
}

/// The first private key: PKCS#8, SEC1 or PKCS#1.
pub(crate) fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, PemError> {
    if pem.len() > MAX_SIZE {
        return Err(PemError::TooLarge);
    }
    match PrivateKeyDer::pem_slice_iter(pem).next() {
        Some(Ok(key)) => Ok(key),
        Some(Err(_)) => Err(PemError::Malformed),
        None => Err(PemError::NoKey),
    }
}

/// One section, in lines of 64 characters.
pub(crate) fn encode(label: &str, der: &[u8]) -> String {
    let body = Zeroizing::new(STANDARD.encode(der));
    let lines = body.len().div_ceil(64);
    let mut text = String::with_capacity(body.len() + lines + 2 * (label.len() + 18));
    text.extend(["-----BEGIN ", label, "-----\n"]);
    let mut rest = body.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at(rest.len().min(64));
        text.extend([line, "\n"]);
        rest = more;
    }
    text.extend(["-----END ", label, "-----\n"]);
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(crate::effort::cases())]

        #[test]
        fn what_is_written_is_read(chain in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..300), 1..4)) {
            let text: String = chain.iter().map(|der| encode("CERTIFICATE", der)).collect();
            prop_assert!(text.lines().all(|line| line.len() <= 64));
            let read = certificates(text.as_bytes()).unwrap();
            prop_assert_eq!(read.iter().map(|der| der.to_vec()).collect::<Vec<_>>(), chain);
            prop_assert_eq!(private_key(text.as_bytes()).unwrap_err(), PemError::NoKey);
        }
    }

    #[test]
    fn refusals() {
        assert_eq!(certificates(b"").unwrap_err(), PemError::NoCertificate);
        assert_eq!(certificates(&vec![b'a'; MAX_SIZE + 1]).unwrap_err(), PemError::TooLarge);
        assert_eq!(certificates(b"-----BEGIN CERTIFICATE-----\nAAAA\n").unwrap_err(), PemError::Malformed);
        assert_eq!(
            private_key(b"-----BEGIN PRIVATE KEY-----\n!\n-----END PRIVATE KEY-----\n").unwrap_err(),
            PemError::Malformed
        );
    }
}
