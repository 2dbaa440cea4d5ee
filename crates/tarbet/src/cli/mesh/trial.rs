//! `tarbet mesh test`: one call to an imported service, step by step.
//!
//! With the certificate of a workload it does what a caller's proxy does: asks the gateway for the
//! service by its server name, proves who it is, and believes only the identities that the other
//! mesh told. Without one, the proxy beside it has to, and only the outcome is seen.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use jiff::Timestamp;
use serde_json::{Value, json};
use tarbet_identity::tls::{CaSource, ClientTls, CredentialSource};
use tarbet_mesh::{Callee, callee};
use tarbet_telemetry::codes::mesh;
use tarbet_telemetry::{Coded, Problem, problem};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::output::Format;
use crate::roles::jobs::{connect, source};

pub const EXAMPLES: &str = "Examples:
  tarbet mesh test --to pay.shop                   from a pod with a sidecar, which does mutual TLS
  tarbet mesh test --to pay.shop --identity /etc/istio-certs
  tarbet mesh test --to pay.shop --identity DIR --gateway 192.0.2.10:15443

The folder holds cert-chain.pem, key.pem and root-cert.pem, as Istio's agent writes them where
OUTPUT_CERTS says.";

/// One step may take this long.
const PATIENCE: Duration = Duration::from_secs(10);
/// What Istio's gateways ask for.
const PROTOCOL: &str = "istio";

#[derive(Debug, Args)]
pub struct TestArgs {
    /// The service: its whole name, or the beginning of it
    #[arg(long, value_name = "SERVICE")]
    to: String,
    /// Its port; the first if absent
    #[arg(long)]
    port: Option<u32>,
    /// The page to ask for
    #[arg(long, default_value = "/")]
    path: String,
    /// The folder with the certificate of a workload of this mesh
    #[arg(long, value_name = "DIR")]
    identity: Option<PathBuf>,
    /// The gateway to go through; those of the import if absent
    #[arg(long, value_name = "ADDR", requires = "identity")]
    gateway: Option<SocketAddr>,
}

/// The steps so far.
#[derive(Default)]
struct Steps(Vec<Value>);

impl Steps {
    fn add(&mut self, step: &str, begun: Instant, outcome: Result<String, String>) -> bool {
        let millis = begun.elapsed().as_millis();
        let (so, detail) = match outcome {
            Ok(detail) => (true, detail),
            Err(detail) => (false, detail),
        };
        self.0.push(json!({ "step": step, "ok": so, "ms": millis, "detail": detail }));
        so
    }
}

pub async fn run(kubeconfig: Option<PathBuf>, args: TestArgs, format: Format) -> Result<(), Problem> {
    let client = connect(&source(kubeconfig.as_deref())?).await?;
    let mut steps = Steps::default();
    let begun = Instant::now();
    let found = callee(&client, &args.to, args.port).await.map_err(|error| error.problem())?;
    let Some(callee) = found else {
        return Err(Problem::new(
            &mesh::NOT_IMPORTED,
            format!("No imported service is called `{}`.", args.to),
        ));
    };
    let from = format!("{} port {} of {}", callee.host, callee.port, callee.meshes.join(", "));
    steps.add("import", begun, Ok(from));
    steps.add("dns", Instant::now(), resolve(&callee).await);
    match &args.identity {
        Some(folder) => as_proxy(&mut steps, &callee, &args, folder).await,
        None => through_proxy(&mut steps, &callee, &args.path).await,
    }
    let failed = steps.0.iter().find(|step| step["ok"] == false).cloned();
    format.rows(&["step", "ok", "ms", "detail"], &["step", "ok", "ms", "detail"], &steps.0)?;
    match failed {
        None => Ok(()),
        Some(step) => {
            let (name, detail) = (step["step"].as_str().unwrap_or(""), step["detail"].as_str().unwrap_or(""));
            Err(Problem::new(&mesh::TRIAL_FAILED, format!("The step `{name}` failed."))
                .because(detail.to_owned()))
        }
    }
}

async fn resolve(callee: &Callee) -> Result<String, String> {
    let port = u16::try_from(callee.port).unwrap_or(0);
    let looking = tokio::net::lookup_host((callee.host.as_str(), port));
    match timeout(PATIENCE, looking).await {
        Ok(Ok(found)) => Ok(found.map(|address| address.ip().to_string()).collect::<Vec<_>>().join(", ")),
        Ok(Err(error)) => {
            Err(format!("{error}; names that exist only elsewhere need ISTIO_META_DNS_CAPTURE in the mesh"))
        }
        Err(_) => Err("no answer from the name server".to_owned()),
    }
}

/// Mutual TLS with the service itself, through a gateway, and a request over it.
async fn as_proxy(steps: &mut Steps, callee: &Callee, args: &TestArgs, folder: &Path) {
    let gateways: Vec<String> = match args.gateway {
        Some(one) => vec![one.to_string()],
        None => callee.gateways.iter().map(ToString::to_string).collect(),
    };
    if gateways.is_empty() {
        let why = "a local Service has the name too: call it as any other, or name a --gateway";
        steps.add("mtls", Instant::now(), Err(why.to_owned()));
        return;
    }
    for gateway in gateways {
        let begun = Instant::now();
        let shaken = timeout(PATIENCE, handshake(callee, &gateway, folder));
        match shaken.await.unwrap_or_else(|_| Err("no answer in time".to_owned())) {
            Err(why) => drop(steps.add("mtls", begun, Err(format!("{gateway}: {why}")))),
            Ok((stream, who)) => {
                steps.add("mtls", begun, Ok(format!("{gateway} led to {who}")));
                let begun = Instant::now();
                steps.add("http", begun, ask(stream, callee, &args.path).await);
            }
        }
    }
}

async fn handshake(
    callee: &Callee,
    gateway: &str,
    folder: &Path,
) -> Result<(impl AsyncRead + AsyncWrite + Unpin + use<>, String), String> {
    if callee.identities.is_empty() {
        return Err("the other mesh tells no identity of the service: it has no ready pod".to_owned());
    }
    let authorities = CaSource::File(folder.join("root-cert.pem"));
    let credential =
        CredentialSource::Files { certificate: folder.join("cert-chain.pem"), key: folder.join("key.pem") };
    let connector = ClientTls::workload(authorities, callee.identities.clone())
        .credential(credential)
        .alpn([PROTOCOL])
        .build(Timestamp::now())
        .map_err(|error| problem::chain(&error))?;
    let stream = TcpStream::connect(gateway).await.map_err(|error| error.to_string())?;
    let stream =
        connector.connect(&callee.server_name, stream).await.map_err(|error| problem::chain(&error))?;
    Ok((stream, callee.identities.join(" or ")))
}

/// A plain request that the proxy beside us takes over.
async fn through_proxy(steps: &mut Steps, callee: &Callee, path: &str) {
    let begun = Instant::now();
    let port = u16::try_from(callee.port).unwrap_or(0);
    let opened = timeout(PATIENCE, TcpStream::connect((callee.host.as_str(), port))).await;
    let outcome = match opened {
        Err(_) => Err("no connection in time".to_owned()),
        Ok(Err(error)) => Err(error.to_string()),
        Ok(Ok(stream)) => ask(stream, callee, path).await,
    };
    // Where the proxy does mutual TLS, an answer is the only proof from here.
    steps.add("http", begun, outcome.map(|answer| format!("{answer}; mutual TLS is the proxy's part")));
}

async fn ask(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    callee: &Callee,
    path: &str,
) -> Result<String, String> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", callee.host);
    let asking = async {
        stream.write_all(request.as_bytes()).await?;
        let mut answer = vec![0; 4096];
        let mut read = 0;
        while read < answer.len() && !answer[..read].windows(2).any(|end| end == b"\r\n") {
            match stream.read(&mut answer[read..]).await? {
                0 => break,
                more => read += more,
            }
        }
        answer.truncate(read);
        std::io::Result::Ok(answer)
    };
    let answer = timeout(PATIENCE, asking).await.map_err(|_| "no answer in time".to_owned())?;
    let answer = answer.map_err(|error| error.to_string())?;
    let line = String::from_utf8_lossy(&answer);
    let line = line.lines().next().unwrap_or_default().to_owned();
    let status = line.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1)).unwrap_or("");
    match status.parse::<u16>() {
        Ok(status) if status < 500 => Ok(line),
        Ok(_) => Err(line),
        Err(_) => Err("the answer is not HTTP, or the connection was closed".to_owned()),
    }
}
