//! Talking to the orchestrator, and the two settings that are remembered between commands.

use std::cell::OnceCell;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use reqwest::Method;
use reqwest::header::{AUTHORIZATION, HeaderValue};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tarbet_identity::Secret;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::{ground, nets};
use tarbet_telemetry::problem::chain;
use tarbet_telemetry::supervisor::Signals;

use super::GlideArgs;
use crate::cli::endpoint::{Endpoint, state_folder};
use crate::output::{Format, INTERRUPTED, end_with, note};

/// What is said of a plan without calls.
pub const NOTHING_TO_DO: &str = "Nothing to do: everything is so already.";

/// Who waits longer is told how far it got.
const SILENT_FOR: &str = "1s";

/// What was noted, and nothing else.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    pub server_addr: Option<String>,
    pub active_namespace: Option<String>,
}

/// The original's own file, so that both programs agree. The original takes what is not in it for empty, so both keys
/// are always there; which of them nobody noted only this program knows.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Written {
    server_addr: String,
    active_namespace: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_noted: Vec<String>,
}

const SERVER: &str = "serverAddr";
const NAMESPACE: &str = "activeNamespace";

impl Written {
    /// With the values in effect where none was noted.
    fn of(settings: &Settings) -> Self {
        let noted =
            [(SERVER, settings.server_addr.is_some()), (NAMESPACE, settings.active_namespace.is_some())];
        let not_noted = noted.into_iter().filter(|(_, noted)| !noted).map(|(key, _)| key.to_owned());
        Self {
            server_addr: settings.server(),
            active_namespace: settings.namespace(),
            not_noted: not_noted.collect(),
        }
    }

    fn noted(self) -> Settings {
        let Self { server_addr, active_namespace, not_noted } = self;
        let noted = |key: &str, value: String| {
            Some(value).filter(|value| !value.is_empty() && !not_noted.iter().any(|other| other == key))
        };
        Settings {
            server_addr: noted(SERVER, server_addr),
            active_namespace: noted(NAMESPACE, active_namespace),
        }
    }
}

const USUAL_SERVER: &str = "http://localhost:8080";
const USUAL_NAMESPACE: &str = "default";

impl Settings {
    fn path() -> Option<PathBuf> {
        std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".paraglider/settings.json"))
    }

    /// As noted; nothing where nothing was.
    pub fn read() -> Result<Self, Problem> {
        Self::path().map_or_else(|| Ok(Self::default()), |path| Self::read_from(&path))
    }

    /// A file that cannot be read is a mistake: commands would go to another orchestrator than the one it names.
    fn read_from(path: &Path) -> Result<Self, Problem> {
        let wrong = |cause: String| {
            Problem::new(&ground::CONFIG_INVALID, format!("{} cannot be read.", path.display()))
                .at("tarbet glide → ~/.paraglider/settings.json")
                .because(cause)
                .advising("mend the file or remove it")
        };
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(wrong(error.to_string())),
        };
        let written: Written = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        Ok(written.noted())
    }

    /// The orchestrator: the noted one, else that of `tarbet up` on this machine, else the usual address.
    pub fn server(&self) -> String {
        let up = || Endpoint::read(&state_folder()).and_then(|endpoint| endpoint.nets);
        self.server_addr.clone().or_else(up).unwrap_or_else(|| USUAL_SERVER.into())
    }

    fn namespace(&self) -> String {
        self.active_namespace.clone().unwrap_or_else(|| USUAL_NAMESPACE.into())
    }

    pub fn write(&self) -> Result<(), Problem> {
        let failed = |cause: String| {
            Problem::new(&ground::INTERNAL, "The setting cannot be noted.")
                .at("tarbet glide → ~/.paraglider/settings.json")
                .because(cause)
                .advising("check that the folder can be written, or use --server and --namespace")
        };
        let path = Self::path().ok_or_else(|| failed("HOME is not set".into()))?;
        let write = || -> std::io::Result<()> {
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)?;
            }
            std::fs::write(&path, serde_json::to_vec_pretty(&Written::of(self))?)
        };
        write().map_err(|error| failed(error.to_string()))
    }
}

/// The original notes a server without a scheme and means HTTP.
fn with_scheme(server: String) -> String {
    if server.contains("://") { server } else { format!("http://{server}") }
}

/// What the orchestrator is believed by, and what it is shown.
struct Trust {
    authority: Option<PathBuf>,
    identity: Option<PathBuf>,
    token: Option<PathBuf>,
}

impl Trust {
    fn of(args: &GlideArgs) -> Self {
        Self {
            authority: args.ca_file.clone(),
            identity: args.identity_file.clone(),
            token: args.token_file.clone(),
        }
    }

    fn of_environment() -> Self {
        let file = |name: &str| std::env::var_os(name).map(PathBuf::from);
        Self {
            authority: file("TARBET_NETS_CA_FILE"),
            identity: file("TARBET_NETS_IDENTITY_FILE"),
            token: file("TARBET_NETS_TOKEN_FILE"),
        }
    }

    fn client(&self, server: &str) -> Result<reqwest::Client, Problem> {
        let failed = |what: &str, cause: String| {
            Problem::new(&ground::CONFIG_INVALID, format!("{what} cannot be used.")).because(cause)
        };
        let mut client = reqwest::Client::builder();
        if let Some(path) = &self.authority {
            let what = "The authority of the orchestrator";
            let pem = std::fs::read(path).map_err(|error| failed(what, error.to_string()))?;
            let found = reqwest::Certificate::from_pem_bundle(&pem);
            for certificate in found.map_err(|error| failed(what, chain(&error)))? {
                client = client.add_root_certificate(certificate);
            }
        }
        if let Some(path) = &self.identity {
            let what = "Your certificate";
            let pem = Secret::from_file(path).map_err(|error| failed(what, chain(&error)))?;
            let identity = reqwest::Identity::from_pem(pem.expose().as_bytes());
            client = client.identity(identity.map_err(|error| failed(what, chain(&error)))?);
        }
        if let Some(path) = &self.token {
            let what = "Your token";
            let near = ["http://127.0.0.1", "http://localhost", "http://[::1]"];
            if !server.starts_with("https://") && !near.iter().any(|near| server.starts_with(near)) {
                return Err(failed(what, format!("{server} is neither TLS nor on this machine")));
            }
            let token = Secret::from_file(path).map_err(|error| failed(what, chain(&error)))?;
            let value = HeaderValue::from_str(&format!("Bearer {}", token.expose()));
            let mut value = value.map_err(|_| failed(what, "it has odd characters".into()))?;
            value.set_sensitive(true);
            client = client.default_headers([(AUTHORIZATION, value)].into_iter().collect());
        }
        client.build().map_err(|error| failed("The client", chain(&error)))
    }
}

/// A conversation with one orchestrator.
pub struct Glide {
    pub server: String,
    pub namespace: String,
    pub format: Format,
    how: Vec<(&'static str, String)>,
    pub plan: bool,
    detach: bool,
    /// The orchestrator that was named, which the next command must be told, too.
    named: Option<String>,
    http: reqwest::Client,
}

impl Glide {
    pub fn new(args: &GlideArgs, settings: &Settings, format: Format) -> Result<Self, Problem> {
        let mut how = Vec::new();
        if args.plan {
            how.push(("plan", "true".to_owned()));
        }
        if args.detach {
            how.push(("async", "true".to_owned()));
        }
        if let Some(digest) = &args.expect {
            how.push(("expect", digest.clone()));
        }
        let server = with_scheme(args.server.clone().unwrap_or_else(|| settings.server()));
        Ok(Self {
            server: server.trim_end_matches('/').to_owned(),
            namespace: args.namespace.clone().unwrap_or_else(|| settings.namespace()),
            format,
            how,
            plan: args.plan,
            detach: args.detach,
            named: args.server.clone(),
            http: Trust::of(args).client(&server)?,
        })
    }

    /// A conversation that only asks.
    pub fn reading(server: Option<String>) -> Result<Self, Problem> {
        let settings = Settings::read()?;
        let server = with_scheme(server.unwrap_or_else(|| settings.server()));
        Ok(Self {
            server: server.trim_end_matches('/').to_owned(),
            namespace: settings.namespace(),
            format: Format::Table,
            how: Vec::new(),
            plan: false,
            detach: false,
            named: None,
            http: Trust::of_environment().client(&server)?,
        })
    }

    /// A command that finds the same orchestrator.
    fn next(&self, words: &str) -> String {
        again(words, "--server", self.named.as_deref())
    }

    pub fn picture(&self) -> String {
        again("topology --nets", "--nets-server", self.named.as_deref())
    }

    /// One request; nothing is a body that is null.
    pub async fn ask(&self, method: Method, path: &str, body: Value) -> Result<Value, Problem> {
        self.send(method, path, &[], body).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        query: &[(&'static str, String)],
        body: Value,
    ) -> Result<Value, Problem> {
        let hop = format!("tarbet glide → orchestrator at {}", self.server);
        let unreachable = |error: reqwest::Error| {
            let message = format!("The orchestrator at {} does not answer.", self.server);
            Problem::new(&nets::ORCHESTRATOR_UNREACHABLE, message).at(hop.clone()).because(chain(&error))
        };
        let pairs: Vec<String> =
            query.iter().map(|(key, value)| format!("{key}={}", escape(value))).collect();
        let mark = if pairs.is_empty() { "" } else { "?" };
        let url = format!("{}{path}{mark}{}", self.server, pairs.join("&"));
        let request = self.http.request(method, url);
        let request = if body.is_null() { request } else { request.json(&body) };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let text = response.text().await.map_err(unreachable)?;
        let value: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        if status.is_success() {
            return Ok(value);
        }
        // Ours says all of it; the original only says what went wrong.
        Err(serde_json::from_value(value.clone()).unwrap_or_else(|_| {
            let said = value["error"].as_str().unwrap_or(&text).to_owned();
            Problem::new(&nets::CLOUD_FAILED, format!("The orchestrator refused the request ({status})."))
                .at(hop.clone())
                .because(if said.is_empty() { status.to_string() } else { said })
        }))
    }

    /// A change of the record alone, which no cloud takes part in: made at once, or planned.
    pub async fn record(
        &self,
        method: Method,
        path: &str,
        more: &[(&'static str, String)],
    ) -> Result<Value, Problem> {
        if self.detach {
            return Err(Problem::new(&ground::BAD_REQUEST, "This is done at once.")
                .because("--detach is for what a cloud takes its time for")
                .advising("leave out --detach"));
        }
        let query = [self.how.as_slice(), more].concat();
        self.send(method, path, &query, Value::Null).await
    }

    /// A change: made, planned or begun, as the flags say. What came of it, unless that was printed already.
    pub async fn changed(&self, method: Method, path: &str, body: Value) -> Result<Option<Value>, Problem> {
        let mut how = self.how.clone();
        if !self.plan && !self.detach {
            how.push(("wait", SILENT_FOR.to_owned()));
        }
        if self.plan {
            return self.show_plan(&self.send(method, path, &how, body).await?).map(|()| None);
        }
        let begun = OnceCell::new();
        let work = async {
            let answer = self.send(method, path, &how, body).await?;
            if self.detach || !answer["operation"].is_object() {
                return Ok(answer);
            }
            let operation = begun.get_or_init(|| answer["operation"].clone());
            super::progress::watch(self, operation.clone()).await
        };
        let signals = Signals::listen().map_err(|error| {
            Problem::new(&ground::INTERNAL, "The command cannot listen for signals.")
                .because(error.to_string())
        })?;
        let answer = tokio::select! {
            answer = work => answer?,
            () = signals.next() => {
                note(&self.left_alone(begun.get()));
                end_with(INTERRUPTED)
            }
        };
        if self.detach {
            return self.show_operation(&answer["operation"]).map(|()| None);
        }
        Ok(Some(answer))
    }

    /// What a change would do.
    pub async fn plan_of(&self, method: Method, path: &str) -> Result<Value, Problem> {
        self.send(method, path, &[("plan", "true".to_owned())], Value::Null).await
    }

    /// A change, told in a few words.
    pub async fn change(&self, method: Method, path: &str, body: Value, done: &str) -> Result<(), Problem> {
        let Some(answer) = self.changed(method, path, body).await? else { return Ok(()) };
        let unneeded = lines(&answer["unneeded"]);
        match &answer {
            _ if !unneeded.is_empty() && self.format == Format::Table => {
                let told: Vec<String> = unneeded.iter().map(|link| self.idle(link, "now")).collect();
                self.format.text(&format!("{done}\n{}", told.join("\n")))
            }
            _ if !unneeded.is_empty() => self.format.value(&json!({ "done": true, "unneeded": unneeded })),
            Value::Object(fields) if fields.contains_key("name") && self.format == Format::Table => {
                self.rows(&json!([answer]), &["name", "ip", "uri"], "")?;
                self.format.text(&format!("Next: {}", self.picture()))
            }
            Value::Object(fields) if fields.contains_key("name") => self.format.value(&answer),
            _ if self.format == Format::Table => {
                self.format.text(&format!("{done} Next: {}", self.picture()))
            }
            _ => self.format.value(&json!({ "done": true })),
        }
    }

    pub fn show_plan(&self, plan: &Value) -> Result<(), Problem> {
        if self.format != Format::Table {
            return self.format.value(plan);
        }
        let calls = lines(&plan["calls"]);
        if calls.is_empty() {
            return self.format.text(NOTHING_TO_DO);
        }
        let digest = plan["digest"].as_str().unwrap_or_default();
        let mut calls = calls;
        for link in lines(&plan["unneeded"]) {
            calls.push(format!("\n{}", self.idle(&link, "then")));
        }
        let prices = lines(&plan["prices"]);
        if !prices.is_empty() {
            calls.push(format!("\nPaid for:\n  {}", prices.join("\n  ")));
        }
        self.format.text(&format!(
            "{}\n\nTo make exactly these calls, repeat with --expect {digest}",
            calls.join("\n")
        ))
    }

    pub fn show_operation(&self, operation: &Value) -> Result<(), Problem> {
        if self.format != Format::Table || operation.is_null() {
            return self.format.value(operation);
        }
        let done = operation["done"].as_u64().unwrap_or_default() as usize;
        let calls = lines(&operation["calls"]);
        let marked = calls
            .iter()
            .enumerate()
            .map(|(index, call)| format!("  {} {call}", if index < done { "✓" } else { "·" }));
        let text = |field: &str| operation[field].as_str().unwrap_or_default().to_owned();
        let mut page = format!("{}: {}, {}\n", text("id"), text("title"), text("state"));
        page.extend(marked.map(|line| line + "\n"));
        page.extend(lines(&operation["steps"]).into_iter().map(|step| format!("      {step}\n")));
        if let Some(problem) = operation["problem"]["message"].as_str() {
            page.push_str(problem);
        }
        self.format.text(page.trim_end())
    }

    /// A list, or a sentence if there is nothing in it.
    pub fn rows(&self, list: &Value, columns: &[&str], nothing: &str) -> Result<(), Problem> {
        let rows = list.as_array().map(Vec::as_slice).unwrap_or_default();
        if rows.is_empty() && self.format == Format::Table {
            return self.format.text(nothing);
        }
        self.format.rows(columns, columns, rows)
    }

    /// What becomes of a change whose caller leaves: the orchestrator goes on with it.
    fn left_alone(&self, operation: Option<&Value>) -> String {
        match operation.and_then(|operation| operation["id"].as_str()) {
            Some(id) => {
                let cancel = self.next(&format!("glide operation cancel {id}"));
                format!("The operation {id} goes on. Next: {cancel}")
            }
            None => format!("What was begun goes on. Next: {}", self.next("glide operation list")),
        }
    }

    /// What nobody needs any more costs money all the same.
    fn idle(&self, link: &str, when: &str) -> String {
        let prune = self.next("glide prune");
        format!("The connection {link} is needed by nothing {when}: `{prune}` removes it.")
    }
}

fn again(words: &str, flag: &str, server: Option<&str>) -> String {
    let flag = server.map(|server| format!(" {flag} {server}")).unwrap_or_default();
    format!("tarbet {words}{flag}")
}

pub fn lines(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(|line| line.as_str().map(str::to_owned)).collect()
}

/// The path of the resources in a cloud.
pub fn resources(namespace: &str, cloud: &str) -> String {
    format!("/namespaces/{}/clouds/{}/resources", escape(namespace), escape(cloud))
}

/// The path of one of them.
pub fn resource(namespace: &str, cloud: &str, name: &str) -> String {
    format!("{}/{}", resources(namespace, cloud), escape(name))
}

/// For a part of a path or query: prefixes hold slashes.
pub fn escape(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~');
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if plain(byte) {
            escaped.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_leaves_is_told_what_goes_on() {
        tarbet_identity::tls::install_default_provider();
        let mut glide = Glide::reading(None).unwrap();
        let told = glide.left_alone(Some(&json!({ "id": "7f3a" })));
        assert!(told.ends_with("tarbet glide operation cancel 7f3a"), "{told}");
        assert!(glide.left_alone(None).ends_with("tarbet glide operation list"));
        // Where the orchestrator was named, it must be named again.
        glide.named = Some("http://10.0.0.1:8080".into());
        assert!(glide.left_alone(None).ends_with("operation list --server http://10.0.0.1:8080"));
        assert!(glide.idle("a-b", "now").contains("`tarbet glide prune --server http://10.0.0.1:8080`"));
        assert_eq!(glide.picture(), "tarbet topology --nets --nets-server http://10.0.0.1:8080");
    }

    #[test]
    fn both_keys_are_in_the_file_and_only_what_was_noted_counts() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("settings.json");
        assert_eq!(Settings::read_from(&file).unwrap(), Settings::default());
        // A key that is missing or empty was not noted.
        for text in [r#"{"activeNamespace":"other"}"#, r#"{"serverAddr":"","activeNamespace":"other"}"#] {
            std::fs::write(&file, text).unwrap();
            let noted = Settings::read_from(&file).unwrap();
            assert_eq!((noted.server_addr.as_deref(), noted.namespace().as_str()), (None, "other"));
        }
        let again = |settings: &Settings| {
            std::fs::write(&file, serde_json::to_vec(&Written::of(settings)).unwrap()).unwrap();
            let text: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
            (text, Settings::read_from(&file).unwrap())
        };
        let noted = Settings { active_namespace: Some("other".into()), server_addr: None };
        let (text, read) = again(&noted);
        assert_eq!(
            (&text["serverAddr"], &text["activeNamespace"]),
            (&json!(noted.server()), &json!("other"))
        );
        assert_eq!(read, noted, "another `tarbet up` is found elsewhere");
        // The usual values, once they are noted, are no less noted than others.
        let noted = Settings {
            server_addr: Some(USUAL_SERVER.into()),
            active_namespace: Some(USUAL_NAMESPACE.into()),
        };
        let (text, read) = again(&noted);
        assert_eq!(text, json!({ "serverAddr": USUAL_SERVER, "activeNamespace": USUAL_NAMESPACE }));
        assert_eq!(read, noted);
        std::fs::write(&file, "{").unwrap();
        assert!(Settings::read_from(&file).unwrap_err().message.contains("settings.json"));
    }

    #[test]
    fn a_server_without_a_scheme_is_meant_as_http() {
        for (noted, meant) in [
            ("localhost:8080", "http://localhost:8080"),
            ("http://10.0.0.1:8080", "http://10.0.0.1:8080"),
            ("https://nets.example", "https://nets.example"),
        ] {
            assert_eq!(with_scheme(noted.to_owned()), meant);
        }
    }
}
