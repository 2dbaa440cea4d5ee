//! Finds the outside programs, and installs one that is missing.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use tokio::{process::Command, sync::Mutex};

/// One program of Redis.
pub(crate) async fn redis(program: &str) -> Result<PathBuf> {
    installed("redis", || on_path(program)).await
}

/// Debian's etcd.
pub(crate) async fn etcd() -> Result<PathBuf> {
    installed("etcd", || on_path("etcd")).await
}

/// One program of Docker.
pub(crate) async fn docker(program: &str) -> Result<PathBuf> {
    installed("docker", || on_path(program)).await
}

/// A busybox that needs no libraries.
pub(crate) async fn busybox() -> Result<PathBuf> {
    installed("docker", || on_path("busybox")).await
}

/// Debian's Chromium.
pub(crate) async fn chromium() -> Result<PathBuf> {
    installed("chromium", || on_path("chromium")).await
}

/// What counts instructions and allocations.
pub async fn valgrind() -> Result<PathBuf> {
    installed("valgrind", || on_path("valgrind")).await
}

/// The library that, loaded before all others, gives a program another time of day.
pub async fn faketime() -> Result<PathBuf> {
    let find = || {
        let machines = std::fs::read_dir("/usr/lib").ok()?;
        let files = machines.flatten().map(|folder| folder.path().join("faketime/libfaketime.so.1"));
        files.into_iter().find(|file| file.is_file())
    };
    installed("faketime", find).await
}

/// One program of Slurm or munge.
pub(crate) async fn slurm(program: &str) -> Result<PathBuf> {
    installed("slurm", || on_path(program)).await
}

/// One program that networks are made with.
pub(crate) async fn netlab(program: &str) -> Result<PathBuf> {
    installed("netlab", || on_path(program)).await
}

/// One program of systemd.
pub(crate) async fn systemd(program: &str) -> Result<PathBuf> {
    installed("systemd", || on_path(program)).await
}

/// The one program that is apiserver, controller-manager, scheduler and kubectl.
pub(crate) async fn kube() -> Result<PathBuf> {
    let program = cache()?.join("kube/kube");
    installed("kube", || program.is_file().then(|| program.clone())).await
}

/// The folder with Tekton's program, the programs of its images and its manifests.
pub(crate) async fn tekton() -> Result<PathBuf> {
    let home = cache()?.join("tekton");
    installed("tekton", || home.join("tekton").is_file().then(|| home.clone())).await
}

/// The folder with `pilot-discovery`, `pilot-agent`, `istioctl` and `crds.yaml`.
pub(crate) async fn istio() -> Result<PathBuf> {
    let home = cache()?.join("istio");
    installed("istio", || home.join("istioctl").is_file().then(|| home.clone())).await
}

/// Helm.
pub(crate) async fn helm() -> Result<PathBuf> {
    let program = cache()?.join("helm/helm");
    installed("helm", || program.is_file().then(|| program.clone())).await
}

/// Envoy.
pub(crate) async fn envoy() -> Result<PathBuf> {
    let program = cache()?.join("envoy/envoy");
    installed("envoy", || program.is_file().then(|| program.clone())).await
}

/// Python with a cloud's own SDK, such as `azure`; the parts of `tools/install` are called so.
pub async fn vendor_python(part: &str) -> Result<PathBuf> {
    let python = cache()?.join(part).join("venv/bin/python");
    installed(part, || python.is_file().then(|| python.clone())).await
}

/// Where built programs are.
fn cache() -> Result<PathBuf> {
    match (env::var_os("TARBET_CACHE"), env::var_os("HOME")) {
        (Some(cache), _) => Ok(PathBuf::from(cache)),
        (None, Some(home)) => Ok(Path::new(&home).join(".cache/tarbet")),
        (None, None) => {
            bail!("neither TARBET_CACHE nor HOME is set, so there is no folder for built programs")
        }
    }
}

/// The program as `find` sees it, after `tools/install PART` if it had to be.
async fn installed(part: &str, find: impl Fn() -> Option<PathBuf>) -> Result<PathBuf> {
    // Two parts that start at once must not install the same program twice.
    static INSTALLING: Mutex<()> = Mutex::const_new(());
    if let Some(program) = find() {
        return Ok(program);
    }
    let _turn = INSTALLING.lock().await;
    if let Some(program) = find() {
        return Ok(program);
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/install");
    let advice = || format!("{part} is not installed; run `tools/install {part}` in the checkout");
    let status = Command::new(&script).arg(part).kill_on_drop(true).status().await.with_context(advice)?;
    match find() {
        Some(program) => Ok(program),
        None => bail!("{} (tried it: {status})", advice()),
    }
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(["/usr/sbin", "/usr/bin"].map(PathBuf::from));
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}
