//! Every parser of outside bytes behind one call each, for fuzz targets: any input, no panic.

use crate::jwt::{self, Jwks};
use crate::token::Token;
use crate::{pem, tls};

/// A JWT: its envelope, and its middle as if the signature had fitted.
pub fn jwt(data: &[u8]) {
    jwt::parse_unverified(data);
}

/// A key set of an identity provider.
pub fn jwks(data: &[u8]) {
    drop(Jwks::parse(data));
}

/// A token as typed.
pub fn token(data: &[u8]) {
    drop(Token::parse(&String::from_utf8_lossy(data)));
}

/// PEM with certificates or a private key.
pub fn pem(data: &[u8]) {
    drop(pem::certificates(data));
    drop(pem::private_key(data));
}

/// A peer's certificate.
pub fn certificate(data: &[u8]) {
    drop(tls::PeerIdentity::of_certificate(data));
}
