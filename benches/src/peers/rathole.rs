//! rathole with TLS.

use std::net::SocketAddr;
use std::process::Command;

use anyhow::{Result, ensure};
use tarbet_testbed::{Authority, Folder, Lease, Process, Program, Subject};

use super::{Tunnel, built, local, working};

pub(super) async fn start(backend: SocketAddr) -> Result<Tunnel> {
    let (folder, ports) = (Folder::new("rathole")?, Lease::block(2)?);
    let authority = Authority::new("bench")?;
    let issued = authority.issue(&Subject::loopback("localhost"))?;
    let cert = folder.write("cert.pem", &issued.certificate)?;
    let key = folder.write("key.pem", &issued.key)?;
    let ca = folder.write("ca.pem", authority.pem())?;
    let bundle = folder.path().join("pair.p12");
    let made = Command::new("openssl")
        .args(["pkcs12", "-export", "-passout", "pass:bench", "-out"])
        .arg(&bundle)
        .arg("-inkey")
        .arg(key)
        .arg("-in")
        .arg(cert)
        .arg("-certfile")
        .arg(&ca)
        .output()?;
    ensure!(made.status.success(), "openssl pkcs12: {}", String::from_utf8_lossy(&made.stderr));
    let (bundle, ca) = (bundle.display(), ca.display());
    let (control, user) = (ports.port(0), ports.port(1));
    let server = format!(
        "[server]\nbind_addr = \"127.0.0.1:{control}\"\ndefault_token = \"bench\"\n[server.transport]\ntype = \"tls\"\n\
         [server.transport.tls]\npkcs12 = \"{bundle}\"\npkcs12_password = \"bench\"\n\
         [server.services.bench]\nbind_addr = \"127.0.0.1:{user}\"\n"
    );
    let client = format!(
        "[client]\nremote_addr = \"127.0.0.1:{control}\"\ndefault_token = \"bench\"\n[client.transport]\ntype = \"tls\"\n\
         [client.transport.tls]\ntrusted_root = \"{ca}\"\nhostname = \"localhost\"\n\
         [client.services.bench]\nlocal_addr = \"{backend}\"\n"
    );
    let start = |role: &str, config: &str| -> Result<Process> {
        let file = folder.write(&format!("{role}.toml"), config)?;
        let program = Program::new(built("rathole/bin/rathole")?).arg(format!("--{role}")).arg(file);
        Process::start(&folder, &format!("rathole-{role}"), program.env("RUST_LOG", "error"))
    };
    let processes = vec![start("server", &server)?, start("client", &client)?];
    working(local(user), &processes).await?;
    Ok(Tunnel::new("rathole", local(user), processes, (folder, ports)))
}
