//! `ssh -R`: Debian's sshd, for one user on loopback.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use anyhow::{Result, ensure};
use tarbet_testbed::{Folder, Lease, Process, Program};

use super::{Tunnel, local, working};

pub(super) async fn start(backend: SocketAddr) -> Result<Tunnel> {
    let (folder, ports) = (Folder::new("ssh")?, Lease::block(2)?);
    let (control, user) = (ports.port(0), ports.port(1));
    for name in ["host", "user"] {
        let made = Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-f"])
            .arg(folder.path().join(name))
            .output()?;
        ensure!(made.status.success(), "ssh-keygen: {}", String::from_utf8_lossy(&made.stderr));
    }
    let at = |name: &str| folder.path().join(name).display().to_string();
    let keys = folder.path().join("keys");
    std::fs::copy(folder.path().join("user.pub"), &keys)?;
    std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(0o600))?;
    let config = format!(
        "Port {control}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\n\
         PidFile none\nPasswordAuthentication no\nPermitRootLogin yes\nLogLevel ERROR\n",
        at("host"),
        at("keys")
    );
    let file = folder.write("sshd_config", &config)?;
    let sshd = Program::new("/usr/sbin/sshd").args(["-D", "-e", "-f"]).arg(file);
    // It insists on this folder, which packages make at boot.
    let _ = std::fs::create_dir_all("/run/sshd");
    let server = Process::start(&folder, "sshd", sshd)?;
    tarbet_testbed::eventually(std::time::Duration::from_secs(10), "sshd", || {
        tokio::net::TcpStream::connect(local(control))
    })
    .await?;
    let client = Program::new("ssh")
        .args(["-N", "-p", &control.to_string(), "-i", &at("user")])
        .args([
            "-o",
            "StrictHostKeyChecking=no",
            "-o",
            "UserKnownHostsFile=/dev/null",
            "-o",
            "LogLevel=ERROR",
        ])
        .args(["-o", "ExitOnForwardFailure=yes", "-R", &format!("127.0.0.1:{user}:{backend}"), "127.0.0.1"]);
    let processes = vec![server, Process::start(&folder, "ssh", client)?];
    working(local(user), &processes).await?;
    Ok(Tunnel::new("ssh -R", local(user), processes, (folder, ports)))
}
