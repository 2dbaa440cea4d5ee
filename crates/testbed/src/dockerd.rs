//! A real Docker daemon of our own, beside whatever the machine runs.
//!
//! It lives in its own mount and process namespaces with its own `/run`, so that it and every
//! container die together when it is ended, however that happens. There is no bridge and no
//! packet filter: containers have loopback only. Images are made from local files, never pulled.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use tokio::{process::Command, time::timeout};

use crate::{Folder, Process, Program, cgroup::Cgroup, image, tools};

/// The daemon starts containerd first; on a busy machine that takes its time.
const READY: Duration = Duration::from_mins(1);
const COMMAND: Duration = Duration::from_mins(1);
/// Its sockets and pid files go to a private `/run`: the machine's own daemon has its there.
const INSIDE: &str = r#"mount -t tmpfs -o mode=755 tmpfs /run && exec "$@""#;

/// A running daemon with its images; all of it goes when dropped.
#[derive(Debug)]
pub struct Dockerd {
    // In the order they must go.
    process: Process,
    _cgroup: Cgroup,
    client: PathBuf,
    folder: Folder,
}

impl Dockerd {
    /// Starts one and waits until it answers.
    pub async fn start() -> Result<Self> {
        let daemon = tools::docker("dockerd").await?;
        let client = tools::docker("docker").await?;
        let folder = Folder::new("dockerd")?;
        let cgroup = Cgroup::new()?;
        let driver = if has_overlay() { "overlay2" } else { "vfs" };
        let path = |name: &str| folder.path().join(name).display().to_string();
        let program = Program::new("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", INSIDE, "sh"])
            .arg(daemon)
            .args(["--data-root", &path("data"), "--exec-root", "/run/docker"])
            .args(["--pidfile", "/run/docker.pid", "--host", &format!("unix://{}", path("docker.sock"))])
            .args(["--bridge=none", "--iptables=false", "--ip6tables=false", "--log-level=warn"])
            .args([&format!("--storage-driver={driver}"), &format!("--cgroup-parent=/{}", cgroup.name())])
            .grace(Duration::from_secs(5));
        let mut dockerd =
            Self { process: Process::start(&folder, "dockerd", program)?, _cgroup: cgroup, client, folder };
        dockerd.ready().await?;
        Ok(dockerd)
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("docker.sock")
    }

    /// Its address as `DOCKER_HOST` wants it.
    pub fn url(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// The last lines of its log, for a test that waited in vain.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }

    /// Its process, for faults not named here.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Runs a command of the `docker` client and returns its output without the last newline.
    pub async fn docker(&self, words: &[&str]) -> Result<String> {
        docker(&self.client, &self.url(), words).await
    }

    /// Makes the image `name`: a static busybox with all its applets in `/bin`.
    pub async fn shell_image(&self, name: &str) -> Result<()> {
        let root = self.folder.path().join("shell-image");
        image::shell(&root).await?;
        self.import(&root, name).await
    }

    /// Makes the image `name` of the files below `root`.
    pub async fn import(&self, root: &Path, name: &str) -> Result<()> {
        let archive = root.with_extension("tar");
        let packed = Command::new("tar").arg("-C").arg(root).arg("-cf").arg(&archive).arg(".").status().await;
        if !packed.context("run tar")?.success() {
            bail!("tar could not pack {}", root.display());
        }
        let path = archive.display().to_string();
        self.docker(&["import", "--change", "ENV PATH=/bin", "--change", r#"CMD ["sh"]"#, &path, name])
            .await?;
        fs::remove_file(archive).context("remove the packed image")
    }

    /// Ends it if it runs, with all containers, and starts it again on the same data and socket.
    pub async fn restart(&mut self) -> Result<()> {
        self.process.restart().await?;
        self.ready().await
    }

    /// Ends it and all containers as a crash would; [`Dockerd::restart`] brings it back.
    pub fn kill9(&mut self) -> Result<()> {
        self.process.kill9()
    }

    async fn ready(&mut self) -> Result<()> {
        let (client, url) = (self.client.clone(), self.url());
        let words = ["version", "--format", "{{.Server.Version}}"];
        self.process.ready(READY, || docker(&client, &url, &words)).await.map(drop)
    }
}

async fn docker(client: &Path, url: &str, words: &[&str]) -> Result<String> {
    let mut command = Command::new(client);
    command.env_remove("DOCKER_CONTEXT").args(["--host", url]).args(words);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let verb = words.first().copied().unwrap_or_default();
    let output = timeout(COMMAND, command.output()).await;
    let output = output.with_context(|| format!("docker {verb} did not end in {COMMAND:?}"))?;
    let output = output.context("run docker; `tools/install docker` installs it")?;
    if !output.status.success() {
        bail!("docker {verb} failed: {}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

fn has_overlay() -> bool {
    fs::read_to_string("/proc/filesystems")
        .is_ok_and(|text| text.lines().any(|line| line.ends_with("\toverlay")))
}
