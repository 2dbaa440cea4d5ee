//! What people would use instead, from Debian's packages.

use std::net::SocketAddr;

use anyhow::Result;
use tarbet_testbed::{Authority, Folder, Lease, Process, Program, Subject, eventually};

/// HAProxy on both sides with mutual TLS between: the hops of a tunnel, without being one.
pub(crate) struct TwoHaproxies {
    _folder: Folder,
    _ports: Lease,
    pub(crate) processes: [Process; 2],
    pub(crate) address: SocketAddr,
}

impl TwoHaproxies {
    pub(crate) async fn start(backend: SocketAddr) -> Result<Self> {
        let (folder, ports) = (Folder::new("haproxy")?, Lease::block(2)?);
        let authority = Authority::new("bench")?;
        let issued = authority.issue(&Subject::loopback("bench"))?;
        let pem = folder.write("pair.pem", &format!("{}{}", issued.certificate, issued.key))?;
        let ca = folder.write("ca.pem", authority.pem())?;
        let (near, far) = (ports.port(0), ports.port(1));
        let common = "global\n  nbthread 1\ndefaults\n  mode http\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n  http-reuse always\n";
        let (pem, ca) = (pem.display(), ca.display());
        let gateway = format!(
            "{common}frontend in\n  bind 127.0.0.1:{near}\n  default_backend out\nbackend out\n  \
             server far 127.0.0.1:{far} ssl verify required ca-file {ca} crt {pem} sni str(localhost)\n"
        );
        let agent = format!(
            "{common}frontend in\n  bind 127.0.0.1:{far} ssl crt {pem} ca-file {ca} verify required\n  default_backend out\nbackend out\n  \
             server backend {backend}\n"
        );
        let start = |name: &str, config: &str| -> Result<Process> {
            let file = folder.write(&format!("{name}.cfg"), config)?;
            Process::start(&folder, name, Program::new("/usr/sbin/haproxy").args(["-db", "-f"]).arg(file))
        };
        let processes = [start("haproxy-agent", &agent)?, start("haproxy-gateway", &gateway)?];
        let address = SocketAddr::from(([127, 0, 0, 1], near));
        eventually(std::time::Duration::from_secs(10), "haproxy", || tokio::net::TcpStream::connect(address))
            .await?;
        Ok(Self { _folder: folder, _ports: ports, processes, address })
    }
}
