//! The signatures we know by name.

/// A JWS algorithm. There is no `none`, and no way to add it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// HMAC with SHA-256.
    Hs256,
    /// HMAC with SHA-384.
    Hs384,
    /// HMAC with SHA-512.
    Hs512,
    /// Ed25519.
    EdDsa,
    /// RSA PKCS#1 v1.5 with SHA-256, 2048 bits or more; verified only.
    Rs256,
    /// ECDSA on P-256 with SHA-256; verified only.
    Es256,
}

impl Algorithm {
    /// The three HMACs: all of them fit the same shared secret.
    pub const HMAC: [Self; 3] = [Self::Hs256, Self::Hs384, Self::Hs512];
    /// Those of an identity provider that publishes its keys.
    pub const PUBLIC_KEY: [Self; 3] = [Self::EdDsa, Self::Rs256, Self::Es256];

    /// Its name in a header.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hs256 => "HS256",
            Self::Hs384 => "HS384",
            Self::Hs512 => "HS512",
            Self::EdDsa => "EdDSA",
            Self::Rs256 => "RS256",
            Self::Es256 => "ES256",
        }
    }

    /// Its HMAC, if it is one.
    pub(super) fn hmac(self) -> Option<aws_lc_rs::hmac::Algorithm> {
        match self {
            Self::Hs256 => Some(aws_lc_rs::hmac::HMAC_SHA256),
            Self::Hs384 => Some(aws_lc_rs::hmac::HMAC_SHA384),
            Self::Hs512 => Some(aws_lc_rs::hmac::HMAC_SHA512),
            Self::EdDsa | Self::Rs256 | Self::Es256 => None,
        }
    }
}
