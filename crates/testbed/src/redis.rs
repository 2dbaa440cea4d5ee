//! A real `redis-server` on loopback.

use std::{ffi::OsString, fmt::Write as _, process::Stdio, time::Duration};

use anyhow::{Context, Result, bail};
use tokio::{process::Command, time::timeout};

use crate::{Authority, CertificateFiles, Folder, Lease, Process, Program, Subject, tools};

/// Starting takes milliseconds; loading a large append-only file on a busy machine may not.
const READY: Duration = Duration::from_mins(1);
/// A command that takes longer meets a paused server.
const COMMAND: Duration = Duration::from_mins(1);

/// What survives the end of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Persistence {
    /// Nothing.
    #[default]
    Off,
    /// A snapshot, written when the server is asked to end; a crash loses it all.
    Snapshot,
    /// Every acknowledged write: an append-only file, synced before each answer.
    AppendOnly,
}

/// Whether the server speaks TLS, and as whom.
#[derive(Clone, Debug, Default)]
pub enum TlsMode {
    /// Plain TCP.
    #[default]
    Off,
    /// TLS with a certificate for `localhost` and `127.0.0.1` made on the spot.
    Made,
    /// TLS with these files.
    Files(CertificateFiles),
}

/// How to start a [`Redis`].
#[derive(Clone, Debug, Default)]
pub struct RedisOptions {
    /// The password that clients must give (letters and digits: it becomes part of the URL).
    pub password: Option<String>,
    /// Plain or TLS.
    pub tls: TlsMode,
    /// What survives a restart.
    pub persistence: Persistence,
    /// Further lines of `redis.conf`.
    pub config: Vec<String>,
}

/// One server with its folder and port; it goes when dropped.
#[derive(Debug)]
pub struct Redis {
    // In the order they must go.
    process: Process,
    password: Option<String>,
    tls: Option<CertificateFiles>,
    lease: Lease,
    _folder: Folder,
}

impl Redis {
    /// A plain server without persistence.
    pub async fn start() -> Result<Self> {
        Self::start_with(RedisOptions::default()).await
    }

    /// A server with options, once it answers.
    pub async fn start_with(options: RedisOptions) -> Result<Self> {
        let folder = Folder::new("redis")?;
        let lease = Lease::block(1)?;
        let tls = match options.tls {
            TlsMode::Off => None,
            TlsMode::Files(files) => Some(files),
            TlsMode::Made => {
                let authority = Authority::new("Redis of the test bed")?;
                Some(authority.issue_files(&Subject::loopback("redis"), folder.path(), "redis")?)
            }
        };
        let mut config = listen(lease.port(0), tls.as_ref());
        let _ =
            write!(config, "bind 127.0.0.1\ndir \"{}\"\nenable-debug-command yes\n", folder.path().display());
        config.push_str(match options.persistence {
            Persistence::Off => "save \"\"\n",
            Persistence::Snapshot => "save 3600 1\n",
            Persistence::AppendOnly => "save \"\"\nappendonly yes\nappendfsync always\n",
        });
        if let Some(password) = &options.password {
            let _ = write!(config, "requirepass {password}\nmasterauth {password}\n");
        }
        for line in &options.config {
            let _ = writeln!(config, "{line}");
        }
        let config = folder.write("redis.conf", &config)?;
        let process =
            Process::start(&folder, "redis", Program::new(tools::redis("redis-server").await?).arg(config))?;
        let mut redis = Self { process, password: options.password, tls, lease, _folder: folder };
        redis.ready().await?;
        Ok(redis)
    }

    /// The URL with scheme (`redis` or `rediss`) and password.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "rediss" } else { "redis" };
        let secret = self.password.as_ref().map_or_else(String::new, |password| format!(":{password}@"));
        format!("{scheme}://{secret}127.0.0.1:{}", self.port())
    }

    /// Its port on 127.0.0.1; the same after a restart.
    pub fn port(&self) -> u16 {
        self.lease.port(0)
    }

    /// Its certificate and authority, if it speaks TLS.
    pub fn tls(&self) -> Option<&CertificateFiles> {
        self.tls.as_ref()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Its process, for faults not named here.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Runs one command and returns its answer, a line for each element.
    pub async fn command(&self, words: &[&str]) -> Result<String> {
        command(self.port(), self.tls.as_ref(), self.password.as_deref(), words).await
    }

    /// Removes every key.
    pub async fn flush(&self) -> Result<()> {
        self.command(&["FLUSHALL"]).await.map(drop)
    }

    /// Ends it in good order if it still runs, and starts it again on the same port and files.
    pub async fn restart(&mut self) -> Result<()> {
        self.process.restart().await?;
        self.ready().await
    }

    /// Ends it in good order; [`Redis::restart`] brings it back.
    pub async fn stop(&mut self) -> Result<()> {
        self.process.stop().await
    }

    /// Ends it as a crash would; [`Redis::restart`] brings it back.
    pub fn kill9(&mut self) -> Result<()> {
        self.process.kill9()
    }

    /// Freezes it: connections stay open and nothing is answered.
    pub fn pause(&self) -> Result<()> {
        self.process.pause()
    }

    /// Thaws it.
    pub fn resume(&self) -> Result<()> {
        self.process.resume()
    }

    async fn ready(&mut self) -> Result<()> {
        let (port, tls, password) = (self.port(), self.tls.clone(), self.password.clone());
        self.process.ready(READY, || answers(port, tls.as_ref(), password.as_deref())).await
    }
}

/// The lines that say where to listen.
pub(crate) fn listen(port: u16, tls: Option<&CertificateFiles>) -> String {
    let Some(files) = tls else { return format!("port {port}\n") };
    format!(
        "port 0\ntls-port {port}\ntls-auth-clients optional\ntls-replication yes\n\
         tls-ca-cert-file \"{}\"\ntls-cert-file \"{}\"\ntls-key-file \"{}\"\n",
        files.authority.display(),
        files.certificate.display(),
        files.key.display(),
    )
}

/// Ok once a PING is answered: not while data is being loaded.
pub(crate) async fn answers(port: u16, tls: Option<&CertificateFiles>, password: Option<&str>) -> Result<()> {
    let answer = command(port, tls, password, &["PING"]).await?;
    if answer == "PONG" { Ok(()) } else { bail!("it answered {answer:?} to a PING") }
}

/// Runs one command through `redis-cli`, which comes with the server and speaks its TLS.
pub(crate) async fn command(
    port: u16,
    tls: Option<&CertificateFiles>,
    password: Option<&str>,
    words: &[&str],
) -> Result<String> {
    let mut cli = Command::new("redis-cli");
    cli.args(["-e", "-h", "127.0.0.1", "-p", &port.to_string()]);
    if let Some(files) = tls {
        cli.args([OsString::from("--tls"), "--cacert".into(), files.authority.clone().into()]);
    }
    // By environment, where a list of processes does not show it.
    cli.env_remove("REDISCLI_AUTH").envs(password.map(|password| ("REDISCLI_AUTH", password)));
    cli.args(words).stdin(Stdio::null()).kill_on_drop(true);
    let verb = words.first().copied().unwrap_or_default();
    let output = timeout(COMMAND, cli.output()).await;
    let output =
        output.with_context(|| format!("Redis on port {port} did not answer {verb} in {COMMAND:?}"))?;
    let output = output.context("run redis-cli; `tools/install redis` installs it")?;
    let text = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        bail!("Redis on port {port} refused {verb}: {} {}", text, error.trim_end());
    }
    Ok(text)
}
