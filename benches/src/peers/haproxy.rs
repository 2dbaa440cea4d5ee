//! HAProxy on both sides with TLS between: the hops of a tunnel, without being one.

use std::net::SocketAddr;

use anyhow::Result;
use tarbet_testbed::{Authority, Folder, Lease, Process, Program, Subject};

use super::{Tunnel, local, working};

const DEFAULTS: &str = "global\n  nbthread 1\ndefaults\n  mode http\n  timeout connect 5s\n  timeout client 60s\n  \
                        timeout server 60s\n  http-reuse always\n";

/// Both sides; with `line`, the near one reaches the far one through what that gives for its address.
pub(crate) async fn start(
    backend: SocketAddr,
    line: Option<&dyn Fn(SocketAddr) -> Result<SocketAddr>>,
) -> Result<Tunnel> {
    let (folder, ports) = (Folder::new("haproxy")?, Lease::block(2)?);
    // Another name than the certificate's, which OpenSSL would otherwise take for one signed by itself.
    let authority = Authority::new("bench authority")?;
    let issued = authority.issue(&Subject::loopback("bench"))?;
    let pem = folder.write("pair.pem", &format!("{}{}", issued.certificate, issued.key))?;
    let ca = folder.write("ca.pem", authority.pem())?;
    let (near, far) = (ports.port(0), ports.port(1));
    let (pem, ca) = (pem.display(), ca.display());
    let across = line.map_or(Ok(local(far)), |line| line(local(far)))?;
    let gateway = format!(
        "{DEFAULTS}frontend in\n  bind 127.0.0.1:{near}\n  default_backend out\nbackend out\n  \
         server far {across} ssl verify required ca-file {ca} verifyhost localhost\n"
    );
    let agent = format!(
        "{DEFAULTS}frontend in\n  bind 127.0.0.1:{far} ssl crt {pem}\n  \
         default_backend out\nbackend out\n  server backend {backend}\n"
    );
    let start = |name: &str, config: &str| -> Result<Process> {
        let file = folder.write(&format!("{name}.cfg"), config)?;
        Process::start(&folder, name, Program::new("/usr/sbin/haproxy").args(["-db", "-f"]).arg(file))
    };
    let processes = vec![start("haproxy-gateway", &gateway)?, start("haproxy-agent", &agent)?];
    working(local(near), &processes).await?;
    Ok(Tunnel::new("haproxy, two hops", local(near), processes, (folder, ports)))
}
