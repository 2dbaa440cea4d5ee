//! Tokens of an identity provider: issuer, audience and algorithms are pinned, keys come from a file
//! or a URL and are looked at again.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tarbet_identity::jwt::{
    Algorithm, BadPolicy, Claims, Jwks, JwksError, JwtError, Verifier, VerifierPolicy,
};
use tarbet_telemetry::problem::chain;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{Grant, principal};
use crate::directory::Principal;

/// How often the keys in a file are looked at.
const FILE_CHECK: Duration = Duration::from_secs(5);
/// How often published keys are fetched.
const FETCH: Duration = Duration::from_mins(5);
/// How soon after a look the next one may follow, whoever asks for it.
const PAUSE: Duration = Duration::from_secs(5);
/// How long a provider may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// No key set comes near this.
const MAX_KEYS: usize = 256 * 1024;

/// An identity provider whose tokens are taken as credentials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OidcConfig {
    /// The only `iss` that is taken.
    pub issuer: String,
    /// Must be among `aud`.
    pub audience: String,
    /// The algorithms that are taken: `RS256`, `ES256`, `EdDSA`.
    #[serde(default = "algorithms")]
    pub algorithms: Vec<String>,
    /// The file with the provider's keys (JWKS), read again when it changes.
    #[serde(default)]
    pub jwks_file: Option<PathBuf>,
    /// Where the provider publishes its keys; `https`, or `http` on this machine.
    #[serde(default)]
    pub jwks_url: Option<String>,
    /// The authority of the provider's certificate, besides those of the system.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// The claim that is the caller's name.
    #[serde(default = "name_claim")]
    pub name_claim: String,
    /// The claim that lists the caller's groups.
    #[serde(default = "groups_claim")]
    pub groups_claim: String,
    /// Put in front of the name, so that nobody is taken for a user of another kind.
    #[serde(default = "prefix")]
    pub prefix: String,
    /// What callers may do.
    #[serde(default)]
    pub grants: Vec<Grant>,
}

fn algorithms() -> Vec<String> {
    vec![Algorithm::Rs256.name().to_owned()]
}

fn name_claim() -> String {
    "sub".into()
}

fn groups_claim() -> String {
    "groups".into()
}

fn prefix() -> String {
    "oidc:".into()
}

impl OidcConfig {
    /// What the types alone cannot refuse: setting and message.
    pub fn mistakes(&self) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        if self.issuer.is_empty() {
            found.push(("issuer", "must not be empty".to_owned()));
        }
        if self.audience.is_empty() {
            found.push(("audience", "must not be empty".to_owned()));
        }
        if self.algorithms.is_empty() || self.pinned().len() != self.algorithms.len() {
            found.push(("algorithms", "takes RS256, ES256 and EdDSA, at least one of them".to_owned()));
        }
        match (&self.jwks_file, &self.jwks_url) {
            (Some(_), None) => {}
            (None, Some(url)) if is_safe(url) => {}
            (None, Some(_)) => found.push((
                "jwks_url",
                "must be https, or http on 127.0.0.1: whoever can change the keys can be anybody".to_owned(),
            )),
            _ => found.push(("jwks_url", "give one of jwks_file and jwks_url".to_owned())),
        }
        found
    }

    fn pinned(&self) -> Vec<Algorithm> {
        let known = |name: &String| Algorithm::PUBLIC_KEY.into_iter().find(|one| one.name() == name);
        self.algorithms.iter().filter_map(known).collect()
    }
}

fn is_safe(url: &str) -> bool {
    let Ok(url) = url::Url::parse(url) else { return false };
    let local = matches!(url.host_str(), Some("127.0.0.1" | "[::1]" | "localhost"));
    url.scheme() == "https" || (url.scheme() == "http" && local)
}

/// Whether a credential is worth showing to an identity provider's verifier at all: three parts, the
/// first of which begins a JSON object.
pub(crate) fn looks_like_jwt(credential: &str) -> bool {
    credential.starts_with("eyJ") && credential.bytes().filter(|byte| *byte == b'.').count() == 2
}

#[derive(Debug, thiserror::Error)]
enum KeysError {
    #[error("cannot read {}", .0.display())]
    Read(PathBuf, #[source] std::io::Error),
    #[error("cannot fetch {0}")]
    Fetch(String, #[source] reqwest::Error),
    #[error("{0} answered with {1}")]
    Status(String, http::StatusCode),
    #[error("the key set is too large")]
    TooLarge,
    #[error("the key set cannot be used")]
    Jwks(#[from] JwksError),
    #[error("the settings cannot be used")]
    Policy(#[from] BadPolicy),
}

/// One identity provider.
pub(crate) struct Oidc {
    config: OidcConfig,
    verifier: RwLock<Option<Arc<Verifier>>>,
    // Somebody showed a token whose key is not known: it may be new.
    wanted: Notify,
}

impl Oidc {
    pub(crate) fn new(config: OidcConfig) -> Self {
        Self { config, verifier: RwLock::default(), wanted: Notify::new() }
    }

    /// The caller a token is about and when it ends, if the token holds.
    pub(crate) fn caller(&self, token: &str, now: Timestamp) -> Option<(Principal, Timestamp)> {
        let issuer = &self.config.issuer;
        let Some(verifier) = self.verifier.read().unwrap_or_else(PoisonError::into_inner).clone() else {
            tracing::warn!(issuer, "A token cannot be checked: the keys of its issuer are not known yet.");
            self.wanted.notify_one();
            return None;
        };
        let claims = match verifier.verify(token, now) {
            Ok(claims) => claims,
            Err(error) => {
                tracing::debug!(issuer, %error, "A token was not taken.");
                if error == JwtError::UnknownKey {
                    self.wanted.notify_one();
                }
                return None;
            }
        };
        let caller = self.named(&claims);
        if caller.is_none() {
            tracing::info!(issuer, claim = self.config.name_claim, "A token holds no name that can be used.");
        }
        caller.map(|caller| (caller, claims.expires))
    }

    fn named(&self, claims: &Claims) -> Option<Principal> {
        let OidcConfig { name_claim, groups_claim, prefix, grants, .. } = &self.config;
        let name = match name_claim.as_str() {
            "sub" => claims.subject.clone()?,
            other => claims.get::<String>(other).ok()?,
        };
        let groups = claims.get::<Vec<String>>(groups_claim).unwrap_or_default();
        principal(prefix, &name, &groups, grants)
    }

    /// Keeps the keys as the provider has them, until `stop`.
    pub(crate) async fn keep(&self, stop: CancellationToken) {
        let mut seen = None;
        loop {
            let looked = self.look(&mut seen).await;
            let next = match (&looked, &self.config.jwks_file) {
                (Ok(()), None) => FETCH,
                _ => FILE_CHECK,
            };
            if let Err(error) = looked {
                // What was known stays good: a provider that is away must not lock everybody out.
                tracing::warn!(issuer = self.config.issuer, error = %chain(&error), "The keys of an issuer cannot be had.");
            }
            let asked = async {
                tokio::time::sleep(PAUSE).await;
                self.wanted.notified().await;
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(next) => {}
                () = asked => {}
            }
        }
    }

    async fn look(&self, seen: &mut Option<Vec<u8>>) -> Result<(), KeysError> {
        let document = self.document().await?;
        if seen.as_ref() == Some(&document) {
            return Ok(());
        }
        let keys = Jwks::parse(&document)?;
        let OidcConfig { issuer, audience, .. } = &self.config;
        let ids: Vec<&str> = keys.ids().collect();
        tracing::info!(issuer, keys = ?ids, passed_over = keys.malformed(), "The keys of an issuer were read.");
        let policy = VerifierPolicy {
            issuer: Some(issuer.clone()),
            ..VerifierPolicy::new(audience, self.config.pinned())
        };
        let verifier = Arc::new(Verifier::new(policy, keys)?);
        *self.verifier.write().unwrap_or_else(PoisonError::into_inner) = Some(verifier);
        *seen = Some(document);
        Ok(())
    }

    async fn document(&self) -> Result<Vec<u8>, KeysError> {
        if let Some(file) = &self.config.jwks_file {
            return tokio::fs::read(file).await.map_err(|error| KeysError::Read(file.clone(), error));
        }
        let url = self.config.jwks_url.as_deref().unwrap_or_default();
        let failed = |error: reqwest::Error| KeysError::Fetch(url.to_owned(), error.without_url());
        let mut client =
            reqwest::Client::builder().timeout(TIMEOUT).redirect(reqwest::redirect::Policy::none());
        if let Some(file) = &self.config.ca_file {
            let pem = tokio::fs::read(file).await.map_err(|error| KeysError::Read(file.clone(), error))?;
            client = client.tls_certs_merge(reqwest::Certificate::from_pem_bundle(&pem).map_err(failed)?);
        }
        let mut response = client.build().map_err(failed)?.get(url).send().await.map_err(failed)?;
        if response.status() != http::StatusCode::OK {
            return Err(KeysError::Status(url.to_owned(), response.status()));
        }
        let mut document = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            if document.len() + chunk.len() > MAX_KEYS {
                return Err(KeysError::TooLarge);
            }
            document.extend_from_slice(&chunk);
        }
        Ok(document)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> OidcConfig {
        OidcConfig {
            issuer: "https://id.example.org".into(),
            audience: "tarbet".into(),
            algorithms: vec!["EdDSA".into()],
            jwks_file: Some("keys.json".into()),
            jwks_url: None,
            ca_file: None,
            name_claim: name_claim(),
            groups_claim: groups_claim(),
            prefix: prefix(),
            grants: Vec::new(),
        }
    }

    #[test]
    fn settings_that_would_let_anybody_in_are_refused() {
        let wrong = |change: fn(&mut OidcConfig)| {
            let mut config = config();
            change(&mut config);
            config.mistakes().iter().map(|(setting, _)| *setting).collect::<Vec<_>>()
        };
        assert!(config().mistakes().is_empty());
        assert_eq!(wrong(|config| config.audience.clear()), ["audience"]);
        assert_eq!(wrong(|config| config.algorithms = vec!["none".into()]), ["algorithms"]);
        assert_eq!(wrong(|config| config.algorithms = vec!["HS256".into()]), ["algorithms"]);
        assert_eq!(wrong(|config| config.jwks_file = None), ["jwks_url"]);
        assert_eq!(wrong(|config| config.jwks_url = Some("https://x/".into())), ["jwks_url"]);
        let over = |url: &str| {
            let config = OidcConfig { jwks_file: None, jwks_url: Some(url.into()), ..config() };
            config.mistakes().is_empty()
        };
        assert!(over("https://id.example.org/keys") && over("http://127.0.0.1:80/keys"));
        assert!(!over("http://id.example.org/keys") && !over("ftp://127.0.0.1/") && !over("keys"));
    }

    #[test]
    fn our_own_tokens_are_never_shown_to_a_provider() {
        assert!(looks_like_jwt("eyJhbGciOiJSUzI1NiJ9.e30.c2ln"));
        for other in ["tbu_abc.def.ghi", "", "eyJ.", "eyJ.a.b.c"] {
            assert!(!looks_like_jwt(other), "{other}");
        }
    }
}
