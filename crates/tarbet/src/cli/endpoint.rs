//! Which gateway a command talks to, and as whom.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tarbet_identity::{PublicKey, Secret};
use tarbet_reach::client::{Client, ClientFiles, Prove};
use tarbet_reach::names::SiteName;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::{ground, reach};
use tarbet_telemetry::problem::chain;

use super::caller::Voucher;
use crate::roles::up::served;

/// Flags of every command that talks to a gateway, before or after the words that follow it.
#[derive(Debug, Clone, Args)]
pub struct ServerArgs {
    /// The gateway's API listener; the local `tarbet up` if absent
    #[arg(long, global = true, env = "TARBET_SERVER", value_name = "URL")]
    server: Option<String>,
    /// The file with your token
    #[arg(long, global = true, env = "TARBET_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The authority of the gateway's certificate, besides those of the system
    #[arg(long, global = true, env = "TARBET_CA_FILE", value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// A certificate by which the gateway knows you, instead of a token
    #[arg(long, global = true, env = "TARBET_CLIENT_CERTIFICATE", value_name = "FILE")]
    client_certificate: Option<PathBuf>,
    /// Its key
    #[arg(long, global = true, env = "TARBET_CLIENT_KEY", value_name = "FILE")]
    client_key: Option<PathBuf>,
    /// The key of one who vouches for callers, by which sites know who calls
    #[arg(long, global = true, env = "TARBET_CALLER_KEY", value_name = "FILE")]
    caller_key: Option<PathBuf>,
    /// Who calls, as the rules of sites name them
    #[arg(long, global = true, env = "TARBET_CALLER", value_name = "NAME")]
    caller: Option<String>,
}

/// What `tarbet up` leaves in its state folder for commands on the same machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Endpoint {
    /// The API listener.
    pub api: String,
    /// The Kubernetes listener.
    pub kubernetes: String,
    /// Where agents dial.
    pub agents: String,
    /// The administrator's token.
    pub token_file: PathBuf,
    /// The authority of all three.
    pub ca_file: Option<PathBuf>,
    /// Metrics and probes.
    #[serde(default)]
    pub observability: Option<String>,
    /// The web page.
    #[serde(default)]
    pub console: Option<String>,
    /// interLink's API, if pods can be run.
    #[serde(default)]
    pub interlink: Option<String>,
    /// The orchestrator of networks, if it runs.
    #[serde(default)]
    pub nets: Option<String>,
    /// The record of who asked for what.
    #[serde(default)]
    pub audit_file: Option<PathBuf>,
    /// What each optional part turned out to be, in words.
    #[serde(default)]
    pub parts: std::collections::BTreeMap<String, String>,
    /// The process.
    #[serde(default)]
    pub pid: u32,
}

impl Endpoint {
    const FILE: &str = "endpoint.json";

    /// Leaves it for others.
    pub fn write(&self, folder: &Path) -> std::io::Result<()> {
        std::fs::write(folder.join(Self::FILE), serde_json::to_vec_pretty(self)?)
    }

    /// Takes it away again.
    pub fn remove(folder: &Path) {
        // It may be gone already.
        let _ = std::fs::remove_file(folder.join(Self::FILE));
    }

    /// What the last one left.
    pub fn read(folder: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(folder.join(Self::FILE)).ok()?).ok()
    }
}

/// A client for the parts that run on this machine, whose authority is that of the local `tarbet up`.
pub fn local_http(endpoint: Option<&Endpoint>, patience: Duration) -> reqwest::Client {
    tarbet_identity::tls::install_default_provider();
    let mut client = reqwest::Client::builder().timeout(patience).no_proxy();
    let authority = endpoint.and_then(|endpoint| std::fs::read(endpoint.ca_file.as_ref()?).ok());
    let certificates = authority.and_then(|pem| reqwest::Certificate::from_pem_bundle(&pem).ok());
    for certificate in certificates.into_iter().flatten() {
        client = client.add_root_certificate(certificate);
    }
    client.build().unwrap_or_default()
}

/// Whether a process of this id is another `tarbet up`: ids are given out again, in a container to the very
/// process that asks.
pub fn is_running(pid: u32) -> bool {
    if pid == std::process::id() {
        return false;
    }
    is_up(&std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default())
}

/// Whether a command line, as the kernel tells it, is that of `tarbet up`, also as `kubectl tarbet up`.
fn is_up(words: &[u8]) -> bool {
    let mut words = words.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let program = words.next().unwrap_or_default();
    let name = program.rsplit('/').next().unwrap_or_default();
    name.contains("tarbet") && words.any(|word| word == "up")
}

/// The folder in which `tarbet up` keeps its state.
pub fn state_folder() -> PathBuf {
    let from = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    from("TARBET_STATE")
        .or_else(|| from("XDG_STATE_HOME").map(|path| path.join("tarbet")))
        .or_else(|| from("HOME").map(|path| path.join(".local/state/tarbet")))
        .unwrap_or_else(|| PathBuf::from("/var/lib/tarbet"))
}

/// The file by which a state folder is known as one that `tarbet up` made.
const MADE_BY_UP: &str = "made-by-up";
/// The file by which it is known as one that others used before.
const SHARED_WITH_UP: &str = "shared-with-up";
/// What only `tarbet up` puts there. The token of its site is issued anew where it is missing; the site's key
/// stays where the store stays, because others remember it.
const OF_UP_ALONE: [&str; 6] =
    [Endpoint::FILE, served::FILE, "here.token", "here.policy.yaml", "pods", "clouds"];

/// Notes at the first start whose this folder is, once and for all: of `tarbet up`, unless another role had a
/// store here before. Later nobody could tell, because `tarbet up` leaves its own things in either.
pub fn mark_as_ups(folder: &Path) -> std::io::Result<()> {
    if is_ups(folder) || folder.join(SHARED_WITH_UP).exists() {
        return Ok(());
    }
    let (mark, text) = if holds_store(folder)? {
        (SHARED_WITH_UP, "`tarbet down` removes only what is `tarbet up`'s own.\n")
    } else {
        (MADE_BY_UP, "`tarbet down` may remove this folder.\n")
    };
    std::fs::write(folder.join(mark), text)
}

fn holds_store(folder: &Path) -> std::io::Result<bool> {
    for entry in std::fs::read_dir(folder)? {
        if Path::new(&entry?.file_name()).extension().is_some_and(|end| end == "redb") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether `tarbet up` made it, so that `tarbet down` may remove it.
pub fn is_ups(folder: &Path) -> bool {
    folder.join(MADE_BY_UP).exists() && !folder.join(SHARED_WITH_UP).exists()
}

/// What is `tarbet up`'s own in a folder that it shares with others.
pub fn of_up_alone(folder: &Path) -> Vec<PathBuf> {
    OF_UP_ALONE.iter().map(|name| folder.join(name)).filter(|path| path.exists()).collect()
}

/// What a command shows for itself.
pub enum Proof {
    /// A token.
    Token(Secret),
    /// A certificate and its key, in files.
    Certificate(PathBuf, PathBuf),
}

/// A gateway that can be asked.
pub struct Server {
    /// The API listener.
    pub url: String,
    /// Who we are.
    pub proof: Proof,
    /// The authority, if it is not one of the system's.
    pub ca_file: Option<PathBuf>,
    /// What the local `tarbet up` said, if it is that one.
    pub local: Option<Endpoint>,
    /// Who can prove to sites who calls.
    pub voucher: Option<Voucher>,
    http: reqwest::Client,
}

impl ServerArgs {
    /// The gateway of the local `tarbet up`.
    pub fn local() -> Self {
        Self {
            server: None,
            token_file: None,
            ca_file: None,
            client_certificate: None,
            client_key: None,
            caller_key: None,
            caller: None,
        }
    }

    /// Whether sites shall be told who calls.
    pub fn vouches(&self) -> bool {
        self.caller_key.is_some()
    }

    /// Says which flag is missing beside another. They may stand at different words of the command, which is
    /// why it is not said sooner.
    fn check_pairs(&self) -> Result<(), Problem> {
        let pairs = [
            (
                "--client-certificate",
                self.client_certificate.is_some(),
                "--client-key",
                self.client_key.is_some(),
            ),
            ("--caller-key", self.caller_key.is_some(), "--caller", self.caller.is_some()),
        ];
        for (one, has_one, other, has_other) in pairs {
            if has_one != has_other {
                let (given, missing) = if has_one { (one, other) } else { (other, one) };
                return Err(Problem::new(&ground::BAD_REQUEST, format!("{given} needs {missing} as well."))
                    .at("tarbet command line")
                    .because("one counts only together with the other")
                    .advising(format!("give {missing}, too")));
            }
        }
        Ok(())
    }

    /// The one who can prove to sites who calls, if a key is named.
    fn voucher(&self) -> Result<Option<Voucher>, Problem> {
        match (&self.caller_key, &self.caller) {
            (Some(key), Some(name)) => Voucher::open(key, name).map(Some),
            _ => Ok(None),
        }
    }

    /// Whether a gateway was named.
    pub fn named(&self) -> bool {
        self.server.is_some()
    }

    /// Finds the gateway and reads the token.
    pub fn connect(&self) -> Result<Server, Problem> {
        self.check_pairs()?;
        let local = if self.server.is_none() { Endpoint::read(&state_folder()) } else { None };
        let url = self.server.clone().or_else(|| local.as_ref().map(|local| local.api.clone())).ok_or_else(
            || {
                Problem::new(
                    &ground::BAD_REQUEST,
                    "No gateway is named, and no `tarbet up` runs on this machine.",
                )
                .at("tarbet command line")
                .because("neither --server nor TARBET_SERVER is set")
                .advising("start `tarbet up`, or give --server URL --token-file FILE")
            },
        )?;
        must_be_url(&url)?;
        let ca_file = self.ca_file.clone().or_else(|| local.as_ref().and_then(|local| local.ca_file.clone()));
        let proof = self.proof(local.as_ref())?;
        let http = http_client(ca_file.as_deref(), &proof)?;
        let (url, voucher) = (url.trim_end_matches('/').to_owned(), self.voucher()?);
        Ok(Server { url, proof, ca_file, local, voucher, http })
    }

    /// The certificate that is named; else the token, or that of the local `tarbet up`.
    fn proof(&self, local: Option<&Endpoint>) -> Result<Proof, Problem> {
        if let (Some(certificate), Some(key)) = (&self.client_certificate, &self.client_key) {
            return Ok(Proof::Certificate(certificate.clone(), key.clone()));
        }
        let token_file = self.token_file.clone().or_else(|| local.map(|local| local.token_file.clone()));
        let token_file = token_file.ok_or_else(|| {
            Problem::new(&reach::CREDENTIALS_MISSING, "No token is named.")
                .at("tarbet command line")
                .advising("give --token-file FILE, or --client-certificate FILE and --client-key FILE")
        })?;
        Secret::from_file(&token_file).map(Proof::Token).map_err(|error| {
            Problem::new(
                &ground::SECRET_UNREADABLE,
                format!("The token in {} cannot be read.", token_file.display()),
            )
            .because(chain(&error))
        })
    }
}

fn http_client(ca_file: Option<&Path>, proof: &Proof) -> Result<reqwest::Client, Problem> {
    let unusable = |cause: String| {
        Problem::new(&ground::CERTIFICATE_UNUSABLE, "A certificate cannot be used.").because(cause)
    };
    let read =
        |file: &Path| std::fs::read(file).map_err(|error| unusable(format!("{}: {error}", file.display())));
    tarbet_identity::tls::install_default_provider();
    let mut client = reqwest::Client::builder().no_proxy();
    if let Some(file) = ca_file {
        let pem = read(file)?;
        for certificate in
            reqwest::Certificate::from_pem_bundle(&pem).map_err(|error| unusable(chain(&error)))?
        {
            client = client.add_root_certificate(certificate);
        }
    }
    if let Proof::Certificate(certificate, key) = proof {
        let pair = [read(certificate)?, b"\n".to_vec(), read(key)?].concat();
        let pair = reqwest::Identity::from_pem(&pair).map_err(|error| unusable(chain(&error)))?;
        client = client.identity(pair);
    }
    client.build().map_err(|error| unusable(chain(&error)))
}

/// What is wrong if no answer comes: nobody is there, or somebody whom one does not believe or understand.
fn unusable_answer(url: &str, cause: &str) -> Problem {
    let about = |message: String, remedy: &str| {
        Problem::new(&reach::GATEWAY_UNREACHABLE, message)
            .at("this machine → gateway")
            .because(cause)
            .advising(remedy)
    };
    if cause.contains("UnknownIssuer") {
        let remedy = "give --ca-file FILE with the authority of its certificate";
        return about(format!("The gateway at {url} is not believed."), remedy);
    }
    if cause.contains("invalid peer certificate") {
        let remedy = "use a URL with a name of the certificate, and check that it is still valid";
        return about(format!("The certificate of the gateway at {url} is not accepted."), remedy);
    }
    if cause.contains("HTTP version") || cause.contains("frame") || cause.contains("CorruptMessage") {
        let remedy = "name its API listener (port 8153), with https:// if it has a certificate";
        return about(format!("What listens at {url} does not speak as a gateway's API does."), remedy);
    }
    let remedy = "check the URL, and that the gateway runs: its readiness is on its observability port";
    about(format!("The gateway at {url} does not answer."), remedy)
}

/// A URL that can be asked at all.
fn must_be_url(url: &str) -> Result<(), Problem> {
    if ["http://", "https://"].iter().any(|scheme| url.starts_with(scheme)) {
        return Ok(());
    }
    Err(Problem::new(&ground::BAD_REQUEST, format!("`{url}` is not the URL of a gateway."))
        .at("tarbet command line")
        .because("it does not begin with https:// or http://")
        .advising("write it as https://HOST:8153"))
}

impl Server {
    /// What proves to a site who calls; nothing if nobody said who does.
    pub fn prove(&self, site: &SiteName) -> Result<Prove, Problem> {
        match &self.voucher {
            Some(voucher) => voucher.prove(site),
            None => Ok(Arc::new(|| None)),
        }
    }

    /// The key of the one who vouches for callers from here.
    pub fn issuer(&self) -> Option<PublicKey> {
        self.voucher.as_ref().map(|voucher| voucher.public)
    }

    /// The same gateway as a way to sites.
    pub fn client(&self) -> Result<Client, Problem> {
        match &self.proof {
            Proof::Token(token) => Client::new(&self.url, token.clone(), self.ca_file.as_deref()),
            Proof::Certificate(certificate, key) => {
                Client::certified(&self.url, ClientFiles { certificate, key }, self.ca_file.as_deref())
            }
        }
    }

    /// Asks, and reads the answer.
    pub async fn ask<T: DeserializeOwned>(
        &self,
        method: reqwest::Method,
        path: &str,
        body: Option<serde_json::Value>,
    ) -> Result<T, Problem> {
        let bytes = self.send(method, path, body).await?;
        serde_json::from_slice(&bytes).map_err(|error| {
            Problem::new(&reach::PROTOCOL_VIOLATION, "The gateway's answer is not understood.")
                .at(format!("gateway at {}", self.url))
                .because(error.to_string())
        })
    }

    /// Asks for something that has no answer but that it was done.
    pub async fn tell(&self, method: reqwest::Method, path: &str) -> Result<(), Problem> {
        self.send(method, path, None).await.map(drop)
    }

    async fn send(
        &self,
        method: reqwest::Method,
        path: &str,
        body: Option<serde_json::Value>,
    ) -> Result<Vec<u8>, Problem> {
        let unreachable = |error: reqwest::Error| unusable_answer(&self.url, &chain(&error.without_url()));
        let mut request = self.http.request(method, format!("{}{path}", self.url));
        if let Proof::Token(token) = &self.proof {
            request = request.bearer_auth(token.expose());
        }
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await.map_err(unreachable)?;
        let status = answer.status();
        let bytes = answer.bytes().await.map_err(unreachable)?;
        if status.is_success() {
            return Ok(bytes.to_vec());
        }
        Err(serde_json::from_slice(&bytes).unwrap_or_else(|_| {
            Problem::new(
                &reach::PROTOCOL_VIOLATION,
                format!("The gateway answered {status} and did not say why."),
            )
            .at(format!("gateway at {}", self.url))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_answer_is_told_from_whom_one_does_not_believe() {
        for (cause, remedy) in [
            ("client error (Connect): invalid peer certificate: UnknownIssuer", "--ca-file"),
            ("invalid peer certificate: NotValidForName", "a name of the certificate"),
            ("invalid HTTP version parsed", "https://"),
            ("a frame was malformed", "8153"),
            ("tcp connect error: Connection refused", "that the gateway runs"),
        ] {
            let problem = unusable_answer("https://gw:8153", cause);
            assert!(problem.remedy.contains(remedy), "{cause}: {}", problem.remedy);
        }
        assert!(must_be_url("127.0.0.1:8153").unwrap_err().remedy.contains("https://"));
        must_be_url("https://gw:8153").unwrap();
    }

    #[test]
    fn up_is_known_by_any_name_of_the_program() {
        for words in ["tarbet\0up\0", "/usr/local/bin/kubectl-tarbet\0up\0", "./tarbet-0.1\0-c\0f\0up\0"] {
            assert!(is_up(words.as_bytes()), "{words:?}");
        }
        for words in ["tarbet\0down\0", "vim\0tarbet\0up\0", ""] {
            assert!(!is_up(words.as_bytes()), "{words:?}");
        }
    }

    #[test]
    fn a_folder_of_another_role_is_not_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tarbet.redb"), "").unwrap();
        mark_as_ups(folder.path()).unwrap();
        assert!(!is_ups(folder.path()) && of_up_alone(folder.path()).is_empty());
        // Also at the next start, when `tarbet up` has things of its own there.
        let token = folder.path().join("here.token");
        std::fs::write(&token, "").unwrap();
        mark_as_ups(folder.path()).unwrap();
        assert!(!is_ups(folder.path()));
        assert_eq!(of_up_alone(folder.path()), [token]);
    }

    #[test]
    fn a_folder_of_its_own_stays_its_own() {
        let folder = tempfile::tempdir().unwrap();
        mark_as_ups(folder.path()).unwrap();
        std::fs::write(folder.path().join("tarbet.redb"), "").unwrap();
        mark_as_ups(folder.path()).unwrap();
        assert!(is_ups(folder.path()));
    }
}
