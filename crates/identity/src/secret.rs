//! Values that must never be printed: redacted in `Debug` and `Display`, wiped from memory on drop,
//! without `Serialize`, and `Deserialize` only where a field asks for it by name.

mod file;

pub use file::{NotAPath, SecretError, SecretFile};

use std::fmt;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Deserializer};
use zeroize::{Zeroize, Zeroizing};

/// A secret. `Secret` alone is text; [`SecretBytes`] is the same for raw bytes.
///
/// Clones share one buffer, which is wiped when the last of them goes.
pub struct Secret<T: Zeroize = String>(Arc<Zeroizing<T>>);

/// A secret that is not text, such as a symmetric key.
pub type SecretBytes = Secret<Vec<u8>>;

impl<T: Zeroize> Secret<T> {
    /// Takes a value into care. The caller's own copies, if any, stay the caller's problem.
    pub fn new(value: T) -> Self {
        Self(Arc::new(Zeroizing::new(value)))
    }
}

impl<T: Zeroize + Deref> Secret<T> {
    /// The value itself. Every use of this word is a place to review.
    pub fn expose(&self) -> &T::Target {
        &self.0
    }
}

impl<T: Zeroize + AsRef<[u8]>> Secret<T> {
    /// Compares in constant time with something presented from outside. Lengths are not secret.
    pub fn matches(&self, presented: impl AsRef<[u8]>) -> bool {
        aws_lc_rs::constant_time::verify_slices_are_equal(self.0.as_ref().as_ref(), presented.as_ref())
            .is_ok()
    }
}

impl Secret {
    /// Reads a text secret. One trailing newline is dropped, as editors and `echo` leave one.
    ///
    /// A file that is empty, not UTF-8 or larger than 1 MiB is refused; one that everybody on the
    /// machine can read is accepted with a warning.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, SecretError> {
        let path = path.as_ref();
        file::read_text(path).map(Self::new)
    }

    /// Writes it to a new file that only the owner may read. `false` means that a file is there already.
    pub fn create_file(&self, path: impl AsRef<Path>) -> std::io::Result<bool> {
        let path = path.as_ref();
        if let Some(folder) = path.parent() {
            crate::files::private_folder(folder)?;
        }
        crate::files::create(path, self.expose().as_bytes(), crate::files::PRIVATE)
    }

    /// For `#[serde(deserialize_with = "Secret::deserialize_inline")]`, on the few fields (a request
    /// body, never a config file) that carry a secret in the clear.
    pub fn deserialize_inline<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::new)
    }
}

impl SecretBytes {
    /// Reads a file as it stands, without trimming.
    pub fn from_raw_file(path: impl AsRef<Path>) -> Result<Self, SecretError> {
        file::read_bytes(path.as_ref()).map(|mut bytes| Self::new(std::mem::take(&mut *bytes)))
    }
}

impl<T: Zeroize> Clone for Secret<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Zeroize> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(redacted)")
    }
}

impl<T: Zeroize> fmt::Display for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(redacted)")
    }
}

impl From<String> for Secret {
    fn from(value: String) -> Self {
        Self::new(value)
    }
}

impl From<&str> for Secret {
    fn from(value: &str) -> Self {
        Self::new(value.to_owned())
    }
}

impl From<Vec<u8>> for SecretBytes {
    fn from(value: Vec<u8>) -> Self {
        Self::new(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printing_redacts() {
        let text = Secret::from("hunter2");
        let bytes = SecretBytes::from(b"hunter2".to_vec());
        for printed in [format!("{text}"), format!("{text:?}"), format!("{bytes}"), format!("{bytes:#?}")] {
            assert!(!printed.contains("hunter2"), "{printed}");
            assert!(printed.contains("redacted"), "{printed}");
        }
    }

    #[test]
    fn clones_are_equal_and_comparison_is_exact() {
        let secret = Secret::from("hunter2").clone();
        assert_eq!(secret.expose(), "hunter2");
        assert!(secret.matches("hunter2"));
        for other in ["", "hunter", "hunter22", "Hunter2"] {
            assert!(!secret.matches(other), "{other}");
        }
    }

    #[test]
    fn inline_only_where_a_field_asks() {
        #[derive(Deserialize)]
        struct Login {
            #[serde(deserialize_with = "Secret::deserialize_inline")]
            token: Secret,
        }
        let login: Login = serde_json::from_str(r#"{"token": "hunter2"}"#).unwrap();
        assert!(login.token.matches("hunter2"));
    }
}
