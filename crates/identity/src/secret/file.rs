//! Secrets in files, and the config type that names such a file.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use super::Secret;

/// No secret of ours comes near this; a larger file is the wrong file.
const MAX_SIZE: u64 = 1024 * 1024;

/// Why a secret could not be read. None of these contains any of the file's content.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file is missing, unreadable or not a file.
    #[error("cannot read the secret file {}; check that it exists and that this user may read it", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Nothing in it, or only a newline.
    #[error("the secret file {} is empty; write the secret into it", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// Text was expected.
    #[error("the secret file {} is not UTF-8 text; is it the right file?", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
    },
    /// Far beyond any secret.
    #[error("the secret file {} is larger than {MAX_SIZE} bytes; is it the right file?", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
}

/// In a config file: the path of a file that holds a secret.
///
/// To keep a secret from being pasted in its place (and then printed by every error about a missing
/// file), the value must look like a path: absolute, or beginning with `./` or `../`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct SecretFile(PathBuf);

/// The value of a secret's file setting is not a path. The value itself is withheld on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected the path of a file that holds the secret, absolute or beginning with ./ or ../ \
     (the value is not shown, as it may be the secret itself)"
)]
pub struct NotAPath;

impl SecretFile {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Reads it as text; see [`Secret::from_file`].
    pub fn read(&self) -> Result<Secret, SecretError> {
        Secret::from_file(&self.0)
    }
}

impl TryFrom<String> for SecretFile {
    type Error = NotAPath;

    fn try_from(mut value: String) -> Result<Self, NotAPath> {
        let path_like = ["/", "./", "../"].iter().any(|start| value.starts_with(start));
        if path_like && !value.ends_with('/') && !value.contains(char::is_control) {
            Ok(Self(PathBuf::from(value)))
        } else {
            value.zeroize();
            Err(NotAPath)
        }
    }
}

impl std::str::FromStr for SecretFile {
    type Err = NotAPath;

    fn from_str(value: &str) -> Result<Self, NotAPath> {
        value.to_owned().try_into()
    }
}

impl fmt::Display for SecretFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

impl schemars::JsonSchema for SecretFile {
    fn schema_name() -> Cow<'static, str> {
        "SecretFile".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "pattern": "^(/|\\./|\\.\\./).*[^/]$",
            "description": "Path of a file that holds the secret, absolute or beginning with ./ or ../."
        })
    }
}

pub(super) fn read_bytes(path: &Path) -> Result<Zeroizing<Vec<u8>>, SecretError> {
    let failed = |source| SecretError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if meta.permissions().mode() & 0o004 != 0 {
        tracing::warn!(path = %path.display(), "Secret file can be read by everybody on this machine.");
    }
    // Room for everything at once, so that growing leaves no unwiped copy behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(meta.len().min(MAX_SIZE) as usize + 1));
    file.take(MAX_SIZE + 1).read_to_end(&mut bytes).map_err(failed)?;
    match bytes.len() as u64 {
        0 => Err(SecretError::Empty { path: path.to_owned() }),
        len if len > MAX_SIZE => Err(SecretError::TooLarge { path: path.to_owned() }),
        _ => Ok(bytes),
    }
}

pub(super) fn read_text(path: &Path) -> Result<String, SecretError> {
    let bytes = read_bytes(path)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| SecretError::NotText { path: path.to_owned() })?;
    let line = text.strip_suffix('\n').map_or(text, |line| line.strip_suffix('\r').unwrap_or(line));
    if line.trim().is_empty() {
        return Err(SecretError::Empty { path: path.to_owned() });
    }
    Ok(line.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn file(content: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), content).unwrap();
        file
    }

    #[test]
    fn one_trailing_newline_goes() {
        for (content, want) in [
            ("a b", "a b"),
            ("a\n", "a"),
            ("a\r\n", "a"),
            ("a\n\n", "a\n"),
            (" a ", " a "),
            ("a\nb\n", "a\nb"),
        ] {
            let secret = Secret::from_file(file(content.as_bytes()).path()).unwrap();
            assert_eq!(secret.expose(), want, "{content:?}");
        }
    }

    #[test]
    fn refusals_name_the_file_and_not_the_content() {
        let missing = tempfile::tempdir().unwrap();
        let cases = [
            Secret::from_file(missing.path().join("none")),
            Secret::from_file(missing.path()),
            Secret::from_file(file(b"").path()),
            Secret::from_file(file(b"\n").path()),
            Secret::from_file(file(b"canary\xff").path()),
            Secret::from_file(file(&b"canary".repeat(300_000)).path()),
        ];
        for case in cases {
            let error = case.unwrap_err();
            assert!(error.to_string().contains('/'), "{error}");
            assert!(!format!("{error:?} {error}").contains("canary"), "{error}");
        }
    }

    #[test]
    fn config_takes_paths_and_withholds_anything_else() {
        for path in ["/run/secrets/token", "./token", "../a/token"] {
            let parsed: SecretFile = serde_json::from_value(path.into()).unwrap();
            assert_eq!(parsed.path(), Path::new(path));
            assert_eq!(serde_json::to_value(&parsed).unwrap(), path);
        }
        for inline in ["", "canary", "tbj_canary", "canary/with/slash==", "/canary\nsecond line", "/canary/"]
        {
            let error = serde_json::from_value::<SecretFile>(inline.into()).unwrap_err();
            assert!(!format!("{error:?} {error}").contains("canary"), "{error}");
        }
    }
}
