//! The product itself as a part: its binary, run as users run it, on leased ports.

use std::borrow::Cow;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::process::Command;

use crate::typed::line;
use crate::{Folder, Lease, Process, Program};

/// How long a role may take to be ready on a busy machine.
const READY: Duration = Duration::from_mins(1);
/// Longer than any part of the product takes to leave by itself.
const GRACE: Duration = Duration::from_secs(70);
/// An account with no power that every machine has.
const NOBODY: u32 = 65534;
/// What people call the program.
const NAME: &str = "tarbet";

/// An installation: one binary, one folder, one certificate authority, one secret among gateways.
pub struct Product {
    binary: PathBuf,
    folder: Folder,
    /// Who is told each command as it is run.
    tell: Option<fn(&str)>,
    /// The gateway and the token that were told last.
    exported: Mutex<String>,
}

impl Product {
    /// An installation of the binary at this path.
    pub fn new(binary: impl Into<PathBuf>) -> Result<Self> {
        let folder = Folder::new("product")?;
        // Any 32 bytes will do; it protects loopback for the length of a test.
        folder.write("gateways.secret", "dGFyYmV0LXRlc3QtYmVkLXNlY3JldC0wMTIzNDU2Nzg=\n")?;
        Ok(Self { binary: binary.into(), folder, tell: None, exported: Mutex::default() })
    }

    /// The same installation, whose commands are told as they are run, as a person would type them.
    #[must_use]
    pub fn telling(mut self, tell: fn(&str)) -> Self {
        self.tell = Some(tell);
        self
    }

    fn told(&self, words: &[&str]) {
        if let Some(tell) = self.tell {
            tell(&line([], [NAME].iter().chain(words).map(|word| Cow::from(*word))));
        }
    }

    /// What commands find in their environment is told when it is another than before.
    fn tell_environment(&self, variables: &[(&str, String)]) {
        let Some(tell) = self.tell else { return };
        let variables = variables.iter().map(|(name, value)| (Cow::from(*name), Cow::from(value)));
        let now = format!("export {}", line(variables, []));
        let mut exported = self.exported.lock().unwrap_or_else(PoisonError::into_inner);
        if *exported != now {
            tell(&now);
            *exported = now;
        }
    }

    fn start(&self, name: &str, program: Program) -> Result<Process> {
        if let Some(tell) = self.tell {
            tell(&program.typed(NAME));
        }
        Process::start(&self.folder, name, program.grace(GRACE))
    }

    /// The same installation with another binary, such as a script around the first.
    #[must_use]
    pub fn with_binary(mut self, binary: impl Into<PathBuf>) -> Self {
        self.binary = binary.into();
        self
    }

    /// Its binary.
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// Its folder.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// The certificate of its authority, once a gateway has run.
    pub fn authority(&self) -> PathBuf {
        self.folder.path().join("authority/ca.crt")
    }

    /// The administrator's token, once a gateway has run.
    pub fn admin_token(&self) -> PathBuf {
        self.folder.path().join("admin.token")
    }

    /// Runs a command against a gateway, as its administrator, and gives what it prints.
    pub async fn run(&self, gateway: &Gateway, args: &[&str]) -> Result<String> {
        self.run_as(gateway, &self.admin_token(), args).await
    }

    /// Runs a command against a gateway with the token in this file.
    pub async fn run_as(&self, gateway: &Gateway, token: &Path, args: &[&str]) -> Result<String> {
        let variables = [
            ("TARBET_SERVER", gateway.api()),
            ("TARBET_KUBERNETES", gateway.kubernetes()),
            ("TARBET_TOKEN_FILE", token.display().to_string()),
            ("TARBET_CA_FILE", self.authority().display().to_string()),
        ];
        self.tell_environment(&variables);
        self.told(args);
        let output =
            Command::new(&self.binary).args(args).envs(variables).kill_on_drop(true).output().await?;
        if !output.status.success() {
            bail!(
                "tarbet {} ended with {}: {}",
                args.join(" "),
                output.status,
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Starts a gateway. `store` is its section in YAML flow style, such as `{kind: memory}`.
    pub async fn gateway(&self, name: &str, store: &str, extra: &[&str]) -> Result<Gateway> {
        let ports = Lease::block(6)?;
        let folder = self.folder.path();
        let tls = format!("{{authority_folder: {}}}", folder.join("authority").display());
        let config = format!(
            "store: {store}\n\
             observability: {{listen: '127.0.0.1:{observe}'}}\n\
             console: {{listen: '127.0.0.1:{console}'}}\n\
             shutdown: {{deadline: 10s}}\n\
             gateway:\n  name: {name}\n  admin_token_file: {token}\n  recheck: 1s\n  \
             agents: {{listen: '127.0.0.1:{agents}', tls: {tls}}}\n  \
             api: {{listen: '127.0.0.1:{api}', tls: {tls}}}\n  \
             kubernetes: {{listen: '127.0.0.1:{kubernetes}', tls: {tls}}}\n  \
             private: {{listen: '127.0.0.1:{private}', secret_file: {secret}}}\n",
            observe = ports.port(0),
            agents = ports.port(1),
            api = ports.port(2),
            kubernetes = ports.port(3),
            private = ports.port(4),
            console = ports.port(5),
            token = self.admin_token().display(),
            secret = folder.join("gateways.secret").display(),
        );
        let file = self.folder.write(&format!("{name}.yaml"), &config)?;
        let program = Program::new(&self.binary).args(["gateway", "--config"]).arg(file).args(extra);
        let process = self.start(name, program)?;
        let mut gateway = Gateway { process, ports };
        gateway.ready().await.with_context(|| format!("the gateway {name} did not become ready"))?;
        Ok(gateway)
    }

    /// Starts an agent with this token that dials these gateways, and waits until it has a link.
    pub async fn agent(
        &self,
        name: &str,
        token: &str,
        gateways: &[&Gateway],
        extra: &[&str],
    ) -> Result<Agent> {
        let ports = Lease::block(1)?;
        let token = self.folder.write(&format!("{name}.token"), token)?;
        let observe = format!("127.0.0.1:{}", ports.port(0));
        let mut program = Program::new(&self.binary)
            .args(["agent", "--name", name, "--observability-listen", &observe, "--token-file"])
            .arg(token)
            .arg("--ca-file")
            .arg(self.authority());
        for gateway in gateways {
            program = program.args(["--gateway", &gateway.agents()]);
        }
        let process = self.start(name, program.args(extra))?;
        let mut agent = Agent { process, ports };
        agent.ready().await.with_context(|| format!("the agent {name} did not become ready"))?;
        Ok(agent)
    }

    /// Starts an agent as an ordinary user with a folder of their own, `FOLDER/NAME`, as on the login
    /// node of a cluster. `extra` is given that folder.
    pub async fn agent_as_ordinary_user(
        &self,
        name: &str,
        token: &str,
        gateway: &Gateway,
        extra: impl FnOnce(&Path) -> Vec<String>,
        environment: &[(&str, &str)],
    ) -> Result<Agent> {
        let (ports, home) = (Lease::block(1)?, self.folder.path().join(name));
        std::fs::create_dir_all(&home)?;
        let file = |file: &str| home.join(file);
        // A checkout may lie where only its owner can look.
        std::fs::copy(&self.binary, file("tarbet"))?;
        std::fs::copy(self.authority(), file("ca.crt"))?;
        std::fs::write(file("token"), token)?;
        std::fs::set_permissions(file("token"), std::fs::Permissions::from_mode(0o600))?;
        for path in [home.clone(), file("tarbet"), file("ca.crt"), file("token")] {
            chown(path, Some(NOBODY), Some(NOBODY))?;
        }
        let (id, observe) = (NOBODY.to_string(), format!("127.0.0.1:{}", ports.port(0)));
        let mut program = Program::new("setpriv")
            .args(["--reuid", &id, "--regid", &id, "--clear-groups", "--pdeathsig", "KILL", "--"])
            .arg(file("tarbet"))
            .args(["agent", "--name", name, "--observability-listen", &observe, "--token-file"])
            .arg(file("token"))
            .arg("--ca-file")
            .arg(file("ca.crt"))
            .args(["--gateway", &gateway.agents()])
            .args(extra(&home))
            .env("HOME", &home);
        for (variable, value) in environment {
            program = program.env(variable, value);
        }
        if let Some(tell) = self.tell {
            tell(&program.typed("setpriv"));
        }
        let process = Process::start(&self.folder, name, program.grace(GRACE))?;
        let mut agent = Agent { process, ports };
        agent.ready().await.with_context(|| format!("the agent {name} did not become ready"))?;
        Ok(agent)
    }

    /// Starts any other role with these arguments and variables, and waits until it is ready.
    pub async fn role(&self, name: &str, args: &[&str], environment: &[(&str, &str)]) -> Result<Agent> {
        let ports = Lease::block(1)?;
        let observe = format!("127.0.0.1:{}", ports.port(0));
        let mut program = Program::new(&self.binary).args(args).args(["--observability-listen", &observe]);
        for (variable, value) in environment {
            program = program.env(variable, value);
        }
        let process = self.start(name, program)?;
        let mut role = Agent { process, ports };
        role.ready().await.with_context(|| format!("the role {name} did not become ready"))?;
        Ok(role)
    }

    /// Runs a command that needs no gateway, and gives its exit code and what it prints.
    pub async fn command(&self, args: &[&str]) -> Result<(Option<i32>, String)> {
        self.told(args);
        let output = Command::new(&self.binary).args(args).kill_on_drop(true).output().await?;
        // What a command says beside its answer, such as how far it is, is no part of that.
        let answered = output.status.success() && !output.stdout.is_empty();
        let said = if answered { output.stdout } else { [output.stdout, output.stderr].concat() };
        Ok((output.status.code(), String::from_utf8_lossy(&said).trim_end().to_owned()))
    }
}

/// A running gateway.
pub struct Gateway {
    /// Its process.
    pub process: Process,
    ports: Lease,
}

impl Gateway {
    /// Where agents dial.
    pub fn agents(&self) -> String {
        format!("grpcs://127.0.0.1:{}", self.ports.port(1))
    }

    /// Where agents dial through WebSocket.
    pub fn agents_websocket(&self) -> String {
        format!("wss://127.0.0.1:{}/", self.ports.port(1))
    }

    /// The API listener.
    pub fn api(&self) -> String {
        format!("https://127.0.0.1:{}", self.ports.port(2))
    }

    /// The Kubernetes listener.
    pub fn kubernetes(&self) -> String {
        format!("https://127.0.0.1:{}", self.ports.port(3))
    }

    /// The listener of other gateways.
    pub fn private(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.port(4))
    }

    /// The console, if it was started with `--console`.
    pub fn console(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.port(5))
    }

    /// What the console answers at this path.
    pub async fn console_page(&self, path: &str) -> Result<String> {
        crate::http::get(self.ports.port(5), path).await
    }

    /// A number on its metrics page: the sum of all lines whose name begins so.
    pub async fn metric(&self, name: &str) -> Result<f64> {
        metric(self.ports.port(0), name).await
    }

    /// Metrics and probes.
    pub fn observability(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.port(0))
    }

    /// Waits until it is ready.
    pub async fn ready(&mut self) -> Result<()> {
        let port = self.ports.port(0);
        self.process.ready(READY, || ready(port)).await
    }
}

/// A running agent, or any other role that only has probes.
pub struct Agent {
    /// Its process.
    pub process: Process,
    ports: Lease,
}

impl Agent {
    /// A number on its metrics page: the sum of all lines whose name begins so.
    pub async fn metric(&self, name: &str) -> Result<f64> {
        metric(self.ports.port(0), name).await
    }

    /// The port of its probes.
    pub fn probes(&self) -> u16 {
        self.ports.port(0)
    }

    /// Waits until it has a link.
    pub async fn ready(&mut self) -> Result<()> {
        let port = self.ports.port(0);
        self.process.ready(READY, || ready(port)).await
    }
}

async fn metric(port: u16, name: &str) -> Result<f64> {
    let page = crate::http::get(port, "/metrics").await?;
    let lines = page.lines().filter(|line| line.starts_with(name));
    Ok(lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum())
}

/// Asks a readiness page with the plainest HTTP there is.
async fn ready(port: u16) -> Result<()> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    if answer.starts_with("HTTP/1.1 200") {
        Ok(())
    } else {
        bail!("{}", answer.lines().last().unwrap_or_default())
    }
}
