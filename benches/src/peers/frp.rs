//! frp: TCP mode and HTTP mode, TLS between client and server.

use std::net::SocketAddr;

use anyhow::Result;
use tarbet_testbed::{Authority, Folder, Lease, Process, Program, Subject};

use super::{Tunnel, built, local, working};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Tcp,
    Http,
}

pub(super) async fn start(mode: Mode, backend: SocketAddr) -> Result<Tunnel> {
    let (folder, ports) = (Folder::new("frp")?, Lease::block(2)?);
    let authority = Authority::new("bench")?;
    let issued = authority.issue(&Subject::loopback("bench"))?;
    let cert = folder.write("cert.pem", &issued.certificate)?;
    let key = folder.write("key.pem", &issued.key)?;
    let ca = folder.write("ca.pem", authority.pem())?;
    let (control, user) = (ports.port(0), ports.port(1));
    // Only the server shows a certificate, as between an agent and a gateway.
    let proof = format!(
        "transport.tls.certFile = \"{}\"\ntransport.tls.keyFile = \"{}\"\n",
        cert.display(),
        key.display()
    );
    let trust = format!("transport.tls.trustedCaFile = \"{}\"\n", ca.display());
    let vhost = if mode == Mode::Http { format!("vhostHTTPPort = {user}\n") } else { String::new() };
    let server = format!(
        "bindAddr = \"127.0.0.1\"\nproxyBindAddr = \"127.0.0.1\"\nbindPort = {control}\n{vhost}log.level = \"error\"\n\
         transport.tls.force = true\n{proof}"
    );
    let (ip, port) = (backend.ip(), backend.port());
    let proxy = match mode {
        Mode::Tcp => format!("type = \"tcp\"\nremotePort = {user}\n"),
        Mode::Http => "type = \"http\"\ncustomDomains = [\"bench\"]\n".to_owned(),
    };
    let client = format!(
        "loginFailExit = false\nserverAddr = \"127.0.0.1\"\nserverPort = {control}\nlog.level = \"error\"\ntransport.tls.enable = true\n\
         transport.tls.serverName = \"localhost\"\n{trust}\n[[proxies]]\nname = \"bench\"\n{proxy}localIP = \"{ip}\"\n\
         localPort = {port}\n"
    );
    let start = |name: &str, config: &str| -> Result<Process> {
        let file = folder.write(&format!("{name}.toml"), config)?;
        Process::start(&folder, name, Program::new(built(&format!("frp/{name}"))?).arg("-c").arg(file))
    };
    let processes = vec![start("frps", &server)?, start("frpc", &client)?];
    working(local(user), &processes).await?;
    let name = if mode == Mode::Tcp { "frp" } else { "frp http" };
    Ok(Tunnel::new(name, local(user), processes, (folder, ports)))
}
