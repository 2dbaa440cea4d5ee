//! Google's application default credentials: a key file, a login of gcloud, or the machine's own account.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderValue, Method};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde::Deserialize;
use serde_json::json;
use url::Url;

use super::GcpConfig;
use crate::clouds::auth::{TokenSource, unusable};
use crate::clouds::pace::Clock;
use crate::clouds::rest::{Call, endpoint, plain};
use crate::error::Error;

const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";
const TOKENS: &str = "https://oauth2.googleapis.com/token";
const LIFE: u64 = 3600;

pub(super) struct Google {
    file: Option<PathBuf>,
    tokens: Option<Url>,
    metadata: Url,
    http: reqwest::Client,
    clock: Arc<dyn Clock>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Credentials {
    ServiceAccount {
        client_email: String,
        private_key: String,
        private_key_id: Option<String>,
        token_uri: Option<String>,
    },
    AuthorizedUser {
        client_id: String,
        client_secret: String,
        refresh_token: String,
    },
}

impl Google {
    pub(super) fn new(
        config: &GcpConfig,
        http: reqwest::Client,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let tokens =
            config.token_endpoint.as_deref().map(|text| token_url("tokenEndpoint", text)).transpose()?;
        // The metadata server has no TLS, and is given no secret.
        let metadata = Url::parse(&config.metadata)
            .map_err(|error| Error::setting("metadata", format!("is not a URL: {error}")))?;
        Ok(Self { file: config.credentials_file.clone(), tokens, metadata, http, clock })
    }

    fn call(&self) -> Result<Call, Error> {
        let Some(file) = &self.file else {
            let mut url = self.metadata.clone();
            url.set_path("/computeMetadata/v1/instance/service-accounts/default/token");
            let mut call = Call::new(Method::GET, url);
            call.headers.insert("metadata-flavor", HeaderValue::from_static("Google"));
            return Ok(call);
        };
        let at = file.display().to_string();
        let text = std::fs::read_to_string(file).map_err(|error| unusable(&at, &error.to_string()))?;
        // The reader's own words may quote a secret: only the place is told.
        let wrong = |error: serde_json::Error| {
            let said = format!("line {} is not as in a key file or a login", error.line());
            unusable(&at, &said)
        };
        match serde_json::from_str(&text).map_err(wrong)? {
            Credentials::AuthorizedUser { client_id, client_secret, refresh_token } => {
                let url = self.tokens.clone().map_or_else(|| token_url("token_uri", TOKENS), Ok)?;
                Ok(Call::new(Method::POST, url).form([
                    ("grant_type", "refresh_token"),
                    ("client_id", &client_id),
                    ("client_secret", &client_secret),
                    ("refresh_token", &refresh_token),
                ]))
            }
            Credentials::ServiceAccount { client_email, private_key, private_key_id, token_uri } => {
                let named = token_uri.as_deref().unwrap_or(TOKENS);
                let url = self.tokens.clone().map_or_else(|| token_url("token_uri", named), Ok)?;
                let now = self.clock.unix();
                let claims = json!({
                    "iss": client_email, "scope": SCOPE, "aud": url.as_str(), "iat": now, "exp": now + LIFE,
                });
                let wrong = |_| unusable(&at, "private_key is not an RSA key in PEM");
                let key = EncodingKey::from_rsa_pem(private_key.as_bytes()).map_err(wrong)?;
                let header = Header { kid: private_key_id, ..Header::new(Algorithm::RS256) };
                let signed = jsonwebtoken::encode(&header, &claims, &key).map_err(wrong)?;
                let grant = "urn:ietf:params:oauth:grant-type:jwt-bearer";
                Ok(Call::new(Method::POST, url).form([("grant_type", grant), ("assertion", &signed)]))
            }
        }
    }
}

/// As [`endpoint`], without the slash that paths are joined behind.
fn token_url(setting: &str, text: &str) -> Result<Url, Error> {
    endpoint(setting, text)?;
    Url::parse(text).map_err(|error| Error::setting(setting, error.to_string()))
}

#[async_trait]
impl TokenSource for Google {
    async fn fetch(&self) -> Result<(String, Duration), Error> {
        let answer = plain(&self.http, &*self.clock, &self.call()?).await?.body;
        let token = answer["access_token"].as_str();
        let token = token.ok_or_else(|| unusable("Google", "the answer has no token"))?.to_owned();
        Ok((token, Duration::from_secs(answer["expires_in"].as_u64().unwrap_or(300))))
    }
}
