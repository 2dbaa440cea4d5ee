//! Who Tarbet is to Azure: a service principal, a workload's or a machine's own identity, or whoever
//! did `az login`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderValue, Method};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::Url;

use crate::clouds::auth::{TokenSource, unusable};
use crate::clouds::pace::Clock;
use crate::clouds::rest::{self, Call};
use crate::error::Error;

const AUTHORITY: &str = "https://login.microsoftonline.com/";
/// The metadata service of every machine in Azure.
const METADATA: &str = "http://169.254.169.254/metadata/identity/oauth2/token";
/// Tokens that come without their end are fetched anew after this.
const UNKNOWN_END: Duration = Duration::from_mins(5);

/// Where the identity comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Identity {
    /// The environment if it holds one, then `az login`.
    #[default]
    Auto,
    /// `AZURE_TENANT_ID`, `AZURE_CLIENT_ID` with `AZURE_CLIENT_SECRET` or `AZURE_FEDERATED_TOKEN_FILE`.
    Environment,
    /// `az account get-access-token`.
    Cli,
    /// The identity that Azure gave to this machine.
    Managed,
}

/// What the environment says about identity.
#[derive(Clone, Default)]
pub struct Environment {
    tenant: Option<String>,
    client: Option<String>,
    secret: Option<String>,
    token_file: Option<PathBuf>,
    authority: Option<String>,
    endpoint: Option<String>,
    header: Option<String>,
}

impl Environment {
    /// Reads the variables that Azure's own tools read.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Self {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        Self {
            tenant: get("AZURE_TENANT_ID"),
            client: get("AZURE_CLIENT_ID"),
            secret: get("AZURE_CLIENT_SECRET"),
            token_file: get("AZURE_FEDERATED_TOKEN_FILE").map(PathBuf::from),
            authority: get("AZURE_AUTHORITY_HOST"),
            endpoint: get("IDENTITY_ENDPOINT"),
            header: get("IDENTITY_HEADER"),
        }
    }

    fn is_principal(&self) -> bool {
        self.tenant.is_some() && self.client.is_some() && (self.secret.is_some() || self.token_file.is_some())
    }
}

/// Fetches tokens for Azure's management API.
pub(super) struct Credentials {
    identity: Identity,
    environment: Environment,
    az: String,
    /// Whom the tokens are for, without a slash at the end.
    audience: String,
    http: reqwest::Client,
    clock: Arc<dyn Clock>,
}

impl Credentials {
    pub(super) fn new(
        identity: Identity,
        environment: Environment,
        az: &str,
        audience: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let identity = match identity {
            Identity::Auto if environment.is_principal() => Identity::Environment,
            Identity::Auto if environment.endpoint.is_some() => Identity::Managed,
            Identity::Auto => Identity::Cli,
            chosen => chosen,
        };
        if identity == Identity::Environment && !environment.is_principal() {
            return Err(Error::setting(
                "azure.identity",
                "the environment needs AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET or AZURE_FEDERATED_TOKEN_FILE",
            ));
        }
        let audience = audience.trim_end_matches('/').to_owned();
        Ok(Self { identity, environment, az: az.into(), audience, http: rest::client()?, clock })
    }

    async fn principal(&self) -> Result<(String, Duration), Error> {
        let environment = &self.environment;
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let authority =
            rest::endpoint("AZURE_AUTHORITY_HOST", environment.authority.as_deref().unwrap_or(AUTHORITY))?;
        let path = format!("{}/oauth2/v2.0/token", text(&environment.tenant));
        let url = authority
            .join(&path)
            .map_err(|error| Error::setting("AZURE_TENANT_ID", format!("is not part of a URL: {error}")))?;
        let mut form = vec![
            ("grant_type", "client_credentials".to_owned()),
            ("client_id", text(&environment.client)),
            ("scope", format!("{}/.default", self.audience)),
        ];
        match (&environment.secret, &environment.token_file) {
            (Some(secret), _) => form.push(("client_secret", secret.clone())),
            (None, Some(file)) => {
                let token = tokio::fs::read_to_string(file).await;
                let token =
                    token.map_err(|error| unusable(&file.display().to_string(), &error.to_string()))?;
                let kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
                form.push(("client_assertion_type", kind.into()));
                form.push(("client_assertion", token.trim().to_owned()));
            }
            (None, None) => {}
        }
        let answer = rest::plain(&self.http, &*self.clock, &Call::new(Method::POST, url).form(form)).await?;
        self.token("the service principal", &answer.body)
    }

    async fn managed(&self) -> Result<(String, Duration), Error> {
        let environment = &self.environment;
        let (place, version) = match &environment.endpoint {
            Some(endpoint) => (endpoint.as_str(), "2019-08-01"),
            None => (METADATA, "2018-02-01"),
        };
        let url = Url::parse(place)
            .map_err(|error| Error::setting("IDENTITY_ENDPOINT", format!("is not a URL: {error}")))?;
        let mut call = Call::new(Method::GET, url)
            .query("api-version", version)
            .query("resource", &format!("{}/", self.audience));
        if let Some(client) = &environment.client {
            call = call.query("client_id", client);
        }
        call.headers.insert("metadata", HeaderValue::from_static("true"));
        if let Some(header) = &environment.header {
            let value = HeaderValue::try_from(header.as_str());
            let value =
                value.map_err(|_| Error::setting("IDENTITY_HEADER", "is not the value of a header"))?;
            call.headers.insert("x-identity-header", value);
        }
        let answer = rest::plain(&self.http, &*self.clock, &call).await?;
        self.token("the managed identity", &answer.body)
    }

    async fn cli(&self) -> Result<(String, Duration), Error> {
        let failed = |said: &str| unusable("`az account get-access-token`; try `az login`", said);
        let arguments = ["account", "get-access-token", "--output", "json", "--resource"];
        let run = tokio::process::Command::new(&self.az)
            .args(arguments)
            .arg(format!("{}/", self.audience))
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = run.await.map_err(|error| failed(&error.to_string()))?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).trim()));
        }
        let answer: Value =
            serde_json::from_slice(&output.stdout).map_err(|error| failed(&format!("not JSON: {error}")))?;
        self.token("`az account get-access-token`", &answer)
    }

    /// The token in an answer of any of the three: they spell the end differently.
    fn token(&self, whose: &str, answer: &Value) -> Result<(String, Duration), Error> {
        let token = ["access_token", "accessToken"].iter().find_map(|field| answer[*field].as_str());
        let token = token.ok_or_else(|| unusable(whose, "the answer holds no token"))?;
        let number = |field: &str| {
            let value = &answer[field];
            value.as_u64().or_else(|| value.as_str().and_then(|text| text.parse().ok()))
        };
        let left = number("expires_in")
            .or_else(|| number("expires_on").map(|end| end.saturating_sub(self.clock.unix())));
        Ok((token.to_owned(), left.map_or(UNKNOWN_END, Duration::from_secs)))
    }
}

#[async_trait]
impl TokenSource for Credentials {
    async fn fetch(&self) -> Result<(String, Duration), Error> {
        match self.identity {
            Identity::Environment => self.principal().await,
            Identity::Managed => self.managed().await,
            Identity::Auto | Identity::Cli => self.cli().await,
        }
    }
}
