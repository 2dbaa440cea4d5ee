//! This machine once more, booted by systemd: what is installed there is gone with it.
//!
//! An overlay of the file system, with namespaces of its own for processes, mounts, the network and control
//! groups, in which systemd is the first process. It needs root.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
    process::{Pid, PidfdFlags, Signal, getuid, kill_process, pidfd_open},
};
use tokio::process::Command;

use crate::{Folder, Process, Program, cgroup::Cgroup, tools};

/// On a shared machine all that systemd starts by itself takes a while.
const BOOT: Duration = Duration::from_mins(2);

/// Runs in the new namespaces; `$1` is a folder of its own, `$2` what is seen inside as it is outside. What
/// belongs to the kernel, and so to everybody, can only be read.
const INSIDE: &str = r#"
set -e
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
root="$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$root"
mount -t proc proc "$root/proc"
mount --bind -o ro "$root/proc/sys" "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty; do
  touch "$root/dev/$device" && mount --bind "/dev/$device" "$root/dev/$device"
done
ln -s pts/ptmx "$root/dev/ptmx"
mkdir -p "$root$2" && mount --bind -o ro "$2" "$root$2"
ip link set lo up
printf '[Unit]\nDescription=Ready for a test\n' > "$root/etc/systemd/system/ready.target"
for unit in systemd-journald-audit.socket systemd-tmpfiles-setup.service systemd-tmpfiles-clean.timer; do
  ln -s /dev/null "$root/etc/systemd/system/$unit"
done
exec chroot "$root" env -i container=other PATH="$PATH" /lib/systemd/systemd --unit=ready.target
"#;

/// The machine; gone when it is dropped.
#[derive(Debug)]
pub struct Booted {
    // In the order they must go.
    process: Process,
    _cgroup: Cgroup,
    _folder: Folder,
}

impl Booted {
    /// Boots it; `seen` is a folder that is the same inside.
    pub async fn start(seen: &Path) -> Result<Self> {
        ensure!(getuid().is_root(), "a machine within the machine needs root: run the tests as root");
        tools::systemd("systemd-analyze").await?;
        let folder = Folder::new("booted")?;
        let layers = folder.path().join("layers");
        fs::create_dir(&layers)?;
        let cgroup = Cgroup::new()?;
        let program = Program::new("sh")
            .args(["-c", r#"echo $$ > "$0" && exec unshare "$@""#])
            .arg(cgroup.unified()?)
            .args(["--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child=KILL"])
            .args(["sh", "-c", INSIDE, "sh"])
            .args([&layers, seen])
            // The first process of a namespace does not end by itself.
            .grace(Duration::ZERO);
        let mut process = Process::start(&folder, "systemd", program)?;
        let pid = process.pid();
        process.ready(BOOT, || async move { run(pid, "systemctl is-active ready.target").await }).await?;
        Ok(Self { process, _cgroup: cgroup, _folder: folder })
    }

    /// Runs a script of the shell inside, in root's own folder; what it printed.
    pub async fn run(&self, script: &str) -> Result<String> {
        run(self.process.pid(), script).await
    }
}

impl Drop for Booted {
    /// With its first process all others inside end, and only then its control groups are empty.
    fn drop(&mut self) {
        let first = first(self.process.pid()).ok().and_then(|pid| Pid::from_raw(pid.parse().ok()?));
        let Some((first, descriptor)) =
            first.and_then(|pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?)))
        else {
            return;
        };
        let _ = kill_process(first, Signal::KILL);
        let patience = Timespec { tv_sec: 10, tv_nsec: 0 };
        let _ = retry_on_intr(|| poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&patience)));
    }
}

/// The first process inside, as it is called outside.
fn first(unshared: u32) -> Result<String> {
    let children = fs::read_to_string(format!("/proc/{unshared}/task/{unshared}/children"))?;
    Ok(children.split_whitespace().next().context("nothing runs inside yet")?.to_owned())
}

async fn run(unshared: u32, script: &str) -> Result<String> {
    let first = &first(unshared)?;
    // The current folder is one of outside until it is changed.
    let inside = ["--target", first, "--all", "--root", "sh", "-ec", r#"cd /root; eval "$0""#, script];
    let output = Command::new("nsenter").args(inside).output().await?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ensure!(output.status.success(), "{script}\n{}{}", text(&output.stdout), text(&output.stderr));
    Ok(text(&output.stdout))
}
