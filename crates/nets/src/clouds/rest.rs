//! Calls to a cloud's REST API: authorized, repeated while the cloud asks for patience, free of secrets when told.
//!
//! Every call may reach the cloud twice (an answer can be lost), so callers take "is there already" and
//! "is gone already" as success.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method, StatusCode};
use serde_json::Value;
use url::Url;

use super::auth::Authorize;
use super::pace::{Clock, Patience, Pauses, retry_after};
use crate::error::Error;

/// Long polls hold a call for two minutes.
const TIMEOUT: Duration = Duration::from_secs(150);
/// Longest text of a cloud that is passed on.
const SAID_MAX: usize = 500;
/// Fields whose values are never told.
const SECRET_FIELDS: &[&str] = &[
    "sharedsecret",
    "sharedkey",
    "psk",
    "presharedkey",
    "pre_shared_key",
    "shared_key",
    "apikey",
    "access_token",
    "refresh_token",
    "client_secret",
    "client_assertion",
    "assertion",
    "password",
    "adminpassword",
    "private_key",
    "secret",
    "value",
];

/// One call, ready to be made any number of times.
#[derive(Debug, Clone)]
pub struct Call {
    /// What for.
    pub method: Method,
    /// Where, with the query.
    pub url: Url,
    /// Beyond what is always sent.
    pub headers: HeaderMap,
    /// What.
    pub body: Body,
}

/// What a call carries.
#[derive(Debug, Clone, Default)]
pub enum Body {
    /// Nothing.
    #[default]
    Empty,
    /// JSON.
    Json(Value),
    /// A form.
    Form(Vec<(String, String)>),
}

impl Call {
    /// A call without a body.
    pub fn new(method: Method, url: Url) -> Self {
        Self { method, url, headers: HeaderMap::new(), body: Body::Empty }
    }

    /// With a body of JSON.
    #[must_use]
    pub fn json(mut self, body: Value) -> Self {
        self.body = Body::Json(body);
        self
    }

    /// With a form.
    #[must_use]
    pub fn form<K: Into<String>, V: Into<String>>(
        mut self,
        fields: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.body = Body::Form(fields.into_iter().map(|(key, value)| (key.into(), value.into())).collect());
        self
    }

    /// With a parameter in the query.
    #[must_use]
    pub fn query(mut self, key: &str, value: &str) -> Self {
        self.url.query_pairs_mut().append_pair(key, value);
        self
    }

    fn named(&self) -> String {
        format!("{} {}", self.method, self.url.path())
    }

    fn secrets(&self) -> Vec<String> {
        let mut found = Vec::new();
        match &self.body {
            Body::Empty => {}
            Body::Json(value) => collect(value, false, &mut found),
            Body::Form(fields) => {
                found.extend(fields.iter().filter(|(key, _)| is_secret(key)).map(|(_, value)| value.clone()));
            }
        }
        found
    }
}

fn is_secret(field: &str) -> bool {
    // `value` alone is a secret in Azure's shared keys, and too common a word elsewhere to hurt.
    let field = field.to_ascii_lowercase();
    SECRET_FIELDS.iter().any(|secret| field == *secret || field.ends_with(&format!(".{secret}")))
}

fn collect(value: &Value, secret: bool, found: &mut Vec<String>) {
    match value {
        Value::String(text) if secret => found.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| collect(item, secret, found)),
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| collect(value, secret || is_secret(name), found));
        }
        _ => {}
    }
}

/// A text without the secrets.
fn redact(mut text: String, secrets: &[String]) -> String {
    for secret in secrets.iter().filter(|secret| secret.len() > 3) {
        text = text.replace(secret.as_str(), "…");
    }
    text
}

/// What a cloud answered.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body as it came.
    pub text: String,
    /// The body read as JSON; null if it is none.
    pub body: Value,
}

impl Answer {
    /// A header, if it is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The pause the cloud asks for.
    pub fn pause(&self, clock: &dyn Clock) -> Option<Duration> {
        retry_after(self.header("retry-after")?, clock.unix())
    }

    /// The cloud's words about what went wrong, as each cloud says it.
    fn said(&self) -> String {
        let places =
            ["/error/message", "/errors/0/message", "/error_description", "/errorMessage", "/message"];
        let found = places.iter().find_map(|place| self.body.pointer(place)?.as_str());
        found.unwrap_or(&self.text).chars().take(SAID_MAX).collect()
    }
}

/// Reads what a cloud says of a failure and of the pause it wants, as fuzzing does.
pub(crate) fn read_answer(text: &str, body: Value) {
    let answer =
        Answer { status: StatusCode::BAD_REQUEST, headers: HeaderMap::new(), text: text.into(), body };
    drop((answer.said(), retry_after(text, 0)));
}

/// One cloud's API.
#[derive(Clone)]
pub struct Rest {
    cloud: Arc<str>,
    http: reqwest::Client,
    auth: Arc<dyn Authorize>,
    clock: Arc<dyn Clock>,
}

impl Rest {
    /// A client. Nothing is asked of the cloud yet.
    pub fn new(cloud: &str, auth: Arc<dyn Authorize>, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        Ok(Self { cloud: cloud.into(), http: client()?, auth, clock })
    }

    /// What the cloud is called.
    pub fn cloud(&self) -> &str {
        &self.cloud
    }

    /// The time it goes by.
    pub fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// Makes a call; the caller judges the answer. Throttling, failures of the cloud itself and of the way
    /// to it are waited out.
    pub async fn call(&self, call: &Call) -> Result<Answer, Error> {
        let mut pauses = Pauses::new(&*self.clock);
        let mut renewed = false;
        loop {
            let (asked, failure) = match self.once(call).await {
                Ok(answer) if answer.status == StatusCode::UNAUTHORIZED && !renewed => {
                    renewed = true;
                    self.auth.refused().await;
                    (Some(Duration::ZERO), self.refusal(call, &answer))
                }
                Ok(answer) if !is_passing(answer.status) => return Ok(answer),
                Ok(answer) => (answer.pause(&*self.clock), self.refusal(call, &answer)),
                Err(Failed::Way(error)) => (None, error),
                Err(Failed::Credentials(error)) => return Err(error),
            };
            if !pauses.pause(&self.cloud, &call.named(), asked).await {
                return Err(failure);
            }
        }
    }

    /// Makes a call once, for what would be made twice if it were asked for twice.
    pub async fn attempt(&self, call: &Call) -> Result<Attempt, Error> {
        let mut renewed = false;
        loop {
            return Ok(match self.once(call).await {
                Ok(answer) if answer.status == StatusCode::UNAUTHORIZED && !renewed => {
                    renewed = true;
                    self.auth.refused().await;
                    continue;
                }
                Ok(answer) if !is_passing(answer.status) => Attempt::Answered(answer),
                Ok(answer) => {
                    let (asked, failure) = (answer.pause(&*self.clock), self.refusal(call, &answer));
                    Attempt::Unknown { asked, failure, answer: Some(answer) }
                }
                Err(Failed::Way(failure)) => Attempt::Unknown { asked: None, failure, answer: None },
                Err(Failed::Credentials(error)) => return Err(error),
            });
        }
    }

    /// Makes a call whose answer must be a success.
    pub async fn must(&self, call: &Call) -> Result<Answer, Error> {
        let answer = self.call(call).await?;
        if answer.status.is_success() { Ok(answer) } else { Err(self.refusal(call, &answer)) }
    }

    /// Reads an object; nothing if there is none.
    pub async fn get(&self, url: Url) -> Result<Option<Value>, Error> {
        let call = Call::new(Method::GET, url);
        let answer = self.call(&call).await?;
        match answer.status {
            StatusCode::NOT_FOUND => Ok(None),
            status if status.is_success() => Ok(Some(answer.body)),
            _ => Err(self.refusal(&call, &answer)),
        }
    }

    /// For asking again and again how an operation stands.
    pub fn waiting<'a>(&'a self, what: &'a str) -> Waiting<'a> {
        Waiting { rest: self, what, attempt: 0, end: self.clock.now() + Patience::OPERATION.limit }
    }

    /// An answer that was not hoped for, as an error.
    pub fn refusal(&self, call: &Call, answer: &Answer) -> Error {
        let said = redact(format!("{}: {}", answer.status, answer.said()), &call.secrets());
        self.failed(&call.named(), &said)
    }

    /// An error of the cloud.
    pub fn failed(&self, what: &str, said: &str) -> Error {
        Error::Cloud { cloud: self.cloud.to_string(), what: what.into(), said: said.into() }
    }

    async fn once(&self, call: &Call) -> Result<Answer, Failed> {
        let mut request = build(&self.http, call).map_err(|error| Failed::Way(self.lost(call, &error)))?;
        self.auth.authorize(&mut request).await.map_err(Failed::Credentials)?;
        let begun = self.clock.now();
        let answer = send(&self.http, request).await.map_err(|error| Failed::Way(self.lost(call, &error)))?;
        let took_ms = u64::try_from(self.clock.now().saturating_sub(begun).as_millis()).unwrap_or(u64::MAX);
        tracing::debug!(
            cloud = %self.cloud, method = %call.method, path = call.url.path(), status = answer.status.as_u16(), took_ms,
            "A cloud was called."
        );
        Ok(answer)
    }

    fn lost(&self, call: &Call, error: &reqwest::Error) -> Error {
        let said = redact(tarbet_telemetry::problem::chain(error), &call.secrets());
        self.failed(&call.named(), &said)
    }
}

/// What became of a call that was made once.
pub enum Attempt {
    /// The cloud says so.
    Answered(Answer),
    /// The cloud failed, or the way to it: what was asked for may have been done or not.
    Unknown {
        /// The pause the cloud asks for.
        asked: Option<Duration>,
        /// What to tell if it stays so.
        failure: Error,
        /// What the cloud answered, if it did.
        answer: Option<Answer>,
    },
}

/// The pauses between questions about one operation.
pub struct Waiting<'a> {
    rest: &'a Rest,
    what: &'a str,
    attempt: u32,
    end: Duration,
}

impl Waiting<'_> {
    /// Waits before the next question, as long as the cloud asked for if it did; an error when it is enough.
    pub async fn pause(&mut self, asked: Option<Duration>) -> Result<(), Error> {
        let clock = self.rest.clock();
        let pause = Patience::OPERATION.pause(self.attempt, asked, rand::random());
        if clock.now() + pause > self.end {
            let minutes = Patience::OPERATION.limit.as_secs() / 60;
            return Err(self.rest.failed(self.what, &format!("it did not end within {minutes} minutes")));
        }
        self.attempt += 1;
        clock.wait(pause).await;
        Ok(())
    }
}

enum Failed {
    Way(Error),
    Credentials(Error),
}

/// A bare client, for those who fetch tokens.
pub fn client() -> Result<reqwest::Client, Error> {
    let client =
        reqwest::Client::builder().timeout(TIMEOUT).redirect(reqwest::redirect::Policy::none()).build();
    client.map_err(|error| Error::Internal(format!("no HTTP client: {error}")))
}

fn build(http: &reqwest::Client, call: &Call) -> Result<reqwest::Request, reqwest::Error> {
    let builder = http.request(call.method.clone(), call.url.clone()).headers(call.headers.clone());
    match &call.body {
        Body::Empty if call.method == Method::GET => builder,
        Body::Empty => builder.header(http::header::CONTENT_LENGTH, "0"),
        Body::Json(value) => builder.json(value),
        Body::Form(fields) => {
            builder.header(http::header::CONTENT_TYPE, "application/x-www-form-urlencoded").body(form(fields))
        }
    }
    .build()
}

fn form(fields: &[(String, String)]) -> String {
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish()
}

async fn send(http: &reqwest::Client, request: reqwest::Request) -> Result<Answer, reqwest::Error> {
    let response = http.execute(request).await?;
    let (status, headers) = (response.status(), response.headers().clone());
    let text = response.text().await?;
    let body = serde_json::from_str(&text).unwrap_or(Value::Null);
    Ok(Answer { status, headers, text, body })
}

/// Makes a call without credentials: how tokens are fetched. Throttling and failures of the service are
/// waited out. No way to it is told at once: so a machine learns that it has no metadata service.
pub async fn plain(http: &reqwest::Client, clock: &dyn Clock, call: &Call) -> Result<Answer, Error> {
    let host = call.url.host_str().unwrap_or_default();
    let unusable = |said: String| super::auth::unusable(host, &redact(said, &call.secrets()));
    let failed = |error: reqwest::Error| unusable(tarbet_telemetry::problem::chain(&error));
    let mut pauses = Pauses::new(clock);
    loop {
        let answer = send(http, build(http, call).map_err(failed)?).await.map_err(failed)?;
        if answer.status.is_success() {
            return Ok(answer);
        }
        if !is_passing(answer.status) || !pauses.pause(host, &call.named(), answer.pause(clock)).await {
            return Err(unusable(format!("{}: {}", answer.status, answer.said())));
        }
    }
}

/// Whether the same call may succeed in a while.
fn is_passing(status: StatusCode) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS
        || status == StatusCode::REQUEST_TIMEOUT
        || (status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED)
}

/// Reads the address of an API. Credentials go there, so without TLS it must be this machine.
pub fn endpoint(setting: &str, text: &str) -> Result<Url, Error> {
    let mut url = Url::parse(text)
        .map_err(|error| Error::setting(setting, format!("`{text}` is not a URL: {error}")))?;
    let near = match url.host() {
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        Some(url::Host::Domain(name)) => name == "localhost",
        None => false,
    };
    if url.scheme() != "https" && !(url.scheme() == "http" && near) {
        return Err(Error::setting(
            setting,
            "must begin with https://; only this machine may be spoken to without",
        ));
    }
    // Paths are joined behind it.
    if !url.path().ends_with('/') {
        url.set_path(&format!("{}/", url.path()));
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn secrets_are_not_told() {
        let call = Call::new(Method::POST, Url::parse("http://127.0.0.1/x").unwrap()).json(
            json!({ "name": "t", "properties": { "sharedKey": "hunter22" }, "list": [{ "psk": "abcdef" }] }),
        );
        assert_eq!(redact("bad hunter22 and abcdef of t".into(), &call.secrets()), "bad … and … of t");
        let call = call.form([("TunnelOptions.1.PreSharedKey", "swordfish"), ("Action", "CreateVpn")]);
        assert_eq!(call.secrets(), ["swordfish"]);
        let principal =
            json!({ "properties": { "servicePrincipalProfile": { "clientId": "c", "secret": "s3cret" } } });
        assert_eq!(call.json(principal).secrets(), ["s3cret"]);
    }

    #[test]
    fn credentials_travel_encrypted() {
        assert_eq!(endpoint("x", "https://a.example/v1").unwrap().as_str(), "https://a.example/v1/");
        assert!(endpoint("x", "http://127.0.0.1:9/").is_ok() && endpoint("x", "http://[::1]:9").is_ok());
        for bad in ["http://a.example", "ftp://127.0.0.1", "a.example", "http://127.0.0.1.example"] {
            assert!(endpoint("x", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_passes_is_tried_again() {
        let tried: Vec<u16> =
            (200..600).filter(|code| is_passing(StatusCode::from_u16(*code).unwrap())).collect();
        assert!(
            tried.contains(&429) && tried.contains(&503) && tried.contains(&500) && !tried.contains(&501)
        );
        assert!(!tried.iter().any(|code| [400, 401, 403, 404, 409, 412].contains(code)));
    }
}
