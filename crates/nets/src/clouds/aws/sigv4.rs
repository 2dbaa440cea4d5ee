//! Signatures of AWS, version 4, and the keys they are made with.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use aws_lc_rs::hmac;
use http::{HeaderName, HeaderValue, header};
use sha2::{Digest, Sha256};

use crate::clouds::auth::{Authorize, unusable};
use crate::clouds::pace::Clock;
use crate::error::Error;

/// Where the keys of AWS's users are.
#[derive(Clone, Default)]
pub struct Environment {
    keys: Option<Keys>,
    file: Option<PathBuf>,
    profile: String,
    /// The region that the environment names.
    pub region: Option<String>,
}

#[derive(Clone)]
struct Keys {
    id: String,
    secret: String,
    session: Option<String>,
}

impl Environment {
    /// Reads the variables that AWS's own tools read.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Self {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let keys = get("AWS_ACCESS_KEY_ID").zip(get("AWS_SECRET_ACCESS_KEY"));
        let keys = keys.map(|(id, secret)| Keys { id, secret, session: get("AWS_SESSION_TOKEN") });
        let file = get("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from);
        let file = file.or_else(|| get("HOME").map(|home| PathBuf::from(home).join(".aws/credentials")));
        Self {
            keys,
            file,
            profile: get("AWS_PROFILE").unwrap_or_else(|| "default".into()),
            region: get("AWS_REGION").or_else(|| get("AWS_DEFAULT_REGION")),
        }
    }

    /// The keys as they are now: files are renewed by others.
    async fn keys(&self) -> Result<Keys, Error> {
        if let Some(keys) = &self.keys {
            return Ok(keys.clone());
        }
        let none = || {
            unusable("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or `aws configure`", "there are no keys")
        };
        let file = self.file.as_ref().ok_or_else(none)?;
        let text = tokio::fs::read_to_string(file).await;
        let text = text.map_err(|error| unusable(&file.display().to_string(), &error.to_string()))?;
        let mut section = section(&text, &self.profile);
        let id = section.remove("aws_access_key_id").ok_or_else(none)?;
        let secret = section.remove("aws_secret_access_key").ok_or_else(none)?;
        Ok(Keys { id, secret, session: section.remove("aws_session_token") })
    }
}

/// One section of a file of profiles.
fn section(text: &str, profile: &str) -> BTreeMap<String, String> {
    let mut inside = false;
    let mut found = BTreeMap::new();
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            inside = name.trim() == profile;
        } else if let Some((key, value)) = line.split_once('=').filter(|_| inside && !line.starts_with('#')) {
            found.insert(key.trim().to_owned(), value.trim().to_owned());
        }
    }
    found
}

/// Signs requests to one service in one region.
pub struct Signer {
    environment: Environment,
    region: String,
    service: &'static str,
    clock: Arc<dyn Clock>,
}

impl Signer {
    /// Nothing is read yet.
    pub fn new(environment: Environment, region: &str, service: &'static str, clock: Arc<dyn Clock>) -> Self {
        Self { environment, region: region.into(), service, clock }
    }
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec()
}

/// AWS escapes more than browsers do.
fn escape(text: &str, slash: bool) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            b'/' if slash => out.push('/'),
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

#[async_trait]
impl Authorize for Signer {
    async fn authorize(&self, request: &mut reqwest::Request) -> Result<(), Error> {
        let keys = self.environment.keys().await?;
        let wrong = |_| unusable("the keys", "they are not visible characters");
        let second = i64::try_from(self.clock.unix()).unwrap_or_default();
        let time =
            jiff::Timestamp::from_second(second).map_err(|error| Error::Internal(error.to_string()))?;
        let stamp = time.strftime("%Y%m%dT%H%M%SZ").to_string();
        let date = &stamp[..8];
        let host = request.url().host_str().unwrap_or_default().to_owned();
        let host = request.url().port().map_or_else(|| host.clone(), |port| format!("{host}:{port}"));
        let mut signed = BTreeMap::from([("host", host), ("x-amz-date", stamp.clone())]);
        if let Some(session) = &keys.session {
            signed.insert("x-amz-security-token", session.clone());
        }
        for (name, value) in &signed {
            let value = HeaderValue::try_from(value).map_err(wrong)?;
            request.headers_mut().insert(HeaderName::from_static(name), value);
        }
        if let Some(kind) = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok())
        {
            signed.insert("content-type", kind.to_owned());
        }
        let mut query: Vec<String> = request
            .url()
            .query_pairs()
            .map(|(key, value)| format!("{}={}", escape(&key, false), escape(&value, false)))
            .collect();
        query.sort();
        let names = signed.keys().copied().collect::<Vec<_>>().join(";");
        let headers: Vec<String> =
            signed.iter().map(|(name, value)| format!("{name}:{}", value.trim())).collect();
        let body = request.body().and_then(reqwest::Body::as_bytes).unwrap_or_default();
        let canonical = format!(
            "{}\n{}\n{}\n{}\n\n{names}\n{}",
            request.method(),
            escape(request.url().path(), true),
            query.join("&"),
            headers.join("\n"),
            hex::encode(Sha256::digest(body)),
        );
        let scope = format!("{date}/{}/{}/aws4_request", self.region, self.service);
        let text = format!("AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{}", hex::encode(Sha256::digest(canonical)));
        let key = [date, &self.region, self.service, "aws4_request"]
            .iter()
            .fold(format!("AWS4{}", keys.secret).into_bytes(), |key, part| mac(&key, part));
        let signature = hex::encode(mac(&key, &text));
        let value = format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
            keys.id
        );
        let mut value = HeaderValue::try_from(value).map_err(wrong)?;
        value.set_sensitive(true);
        request.headers_mut().insert(header::AUTHORIZATION, value);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_read() {
        let text = "[default]\naws_access_key_id = A\n[work]\n# x = y\naws_access_key_id=B\naws_secret_access_key = c=d\n";
        let section = section(text, "work");
        assert_eq!(
            (section["aws_access_key_id"].as_str(), section["aws_secret_access_key"].as_str()),
            ("B", "c=d")
        );
        assert_eq!(escape("a b/ü", true), "a%20b/%C3%BC");
    }
}
