//! agentk's flags about its probes.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tarbet_reach::config::TlsFiles;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;

use crate::config::Observability;

const PORT: u16 = 8080;

/// Where agentk's flags say that probes and metrics are.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_field_names, reason = "they are called as their flags")]
pub struct ProbeArgs {
    /// Which kind of address --observability-listen-address is
    #[arg(long, value_name = "NETWORK", value_enum)]
    observability_listen_network: Option<Network>,
    /// As --observability-listen, in agentk's form: host:port, or :port for all addresses
    #[arg(long, value_name = "ADDR")]
    observability_listen_address: Option<String>,
    /// The certificate of probes and metrics, for TLS
    #[arg(long, value_name = "FILE", requires = "observability_key_file")]
    observability_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "observability_cert_file")]
    observability_key_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Network {
    Tcp,
    Tcp4,
    Tcp6,
}

impl ProbeArgs {
    /// Lays the flags over what is written elsewhere; --observability-listen is a flag, too, and our own.
    pub fn lay_over(&self, settings: &mut Observability) -> Result<(), Problem> {
        if let (Some(address), false) = (self.address()?, settings.listen_by_flag) {
            settings.listen = Some(address);
            settings.socket = None;
        }
        if self.observability_cert_file.is_some() {
            let (cert_file, key_file) =
                (self.observability_cert_file.clone(), self.observability_key_file.clone());
            settings.tls = Some(TlsFiles { cert_file, key_file, ..TlsFiles::default() });
        }
        Ok(())
    }

    /// The address that the flags name, if they do.
    pub fn address(&self) -> Result<Option<SocketAddr>, Problem> {
        let network = self.observability_listen_network.unwrap_or(Network::Tcp);
        let Some(text) = &self.observability_listen_address else { return Ok(None) };
        let wrong = || {
            Problem::new(
                &ground::CONFIG_INVALID,
                format!("`{text}` is no address for --observability-listen-address."),
            )
            .advising("write host:port, or :port for all addresses of this machine")
        };
        if let Some(port) = text.strip_prefix(':') {
            let port = port.parse().map_err(|_| wrong())?;
            return Ok(Some(everywhere(network, port)));
        }
        let fits = |found: &SocketAddr| match network {
            Network::Tcp => true,
            Network::Tcp4 => found.is_ipv4(),
            Network::Tcp6 => found.is_ipv6(),
        };
        let mut found = text.to_socket_addrs().map_err(|_| wrong())?;
        found.find(fits).map(Some).ok_or_else(wrong)
    }
}

fn everywhere(network: Network, port: u16) -> SocketAddr {
    match network {
        Network::Tcp6 => (Ipv6Addr::UNSPECIFIED, port).into(),
        Network::Tcp | Network::Tcp4 => (Ipv4Addr::UNSPECIFIED, port).into(),
    }
}

/// Where probes are unless anybody says so. In the place of an agentk in a pod the kubelet comes from
/// outside; everywhere else only this machine looks.
pub fn usual(in_place_of_agentk: bool, in_a_pod: bool) -> SocketAddr {
    let at = if in_place_of_agentk && in_a_pod { Ipv4Addr::UNSPECIFIED } else { Ipv4Addr::LOCALHOST };
    SocketAddr::from((at, PORT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_agentk_reads_them() {
        let read = |network, text: Option<&str>| {
            let args = ProbeArgs {
                observability_listen_network: network,
                observability_listen_address: text.map(str::to_owned),
                observability_cert_file: None,
                observability_key_file: None,
            };
            args.address().map(|found| found.map(|found| found.to_string())).map_err(|problem| problem.code)
        };
        assert_eq!(read(None, None).unwrap(), None);
        assert_eq!(read(None, Some(":8080")).unwrap().as_deref(), Some("0.0.0.0:8080"));
        assert_eq!(read(Some(Network::Tcp6), Some(":8080")).unwrap().as_deref(), Some("[::]:8080"));
        assert_eq!(read(None, Some("127.0.0.1:81")).unwrap().as_deref(), Some("127.0.0.1:81"));
        for (network, text) in [(None, "8080"), (None, ":x"), (Some(Network::Tcp6), "127.0.0.1:81")] {
            assert!(read(network, Some(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn flags_win_over_the_file() {
        let mut args = ProbeArgs {
            observability_listen_network: None,
            observability_listen_address: Some("127.0.0.1:81".into()),
            observability_cert_file: Some("flag.crt".into()),
            observability_key_file: Some("flag.key".into()),
        };
        let file = || Observability {
            listen: "127.0.0.1:7000".parse().ok(),
            socket: Some("/run/observe.sock".into()),
            tls: Some(TlsFiles { authority_folder: Some("own".into()), ..TlsFiles::default() }),
            ..Observability::default()
        };
        let mut settings = file();
        args.lay_over(&mut settings).unwrap();
        assert_eq!(settings.listen, "127.0.0.1:81".parse().ok());
        assert_eq!(settings.socket, None);
        let tls = settings.tls.unwrap();
        assert_eq!((tls.cert_file, tls.authority_folder), (Some("flag.crt".into()), None));

        // Our own flag has put its address there.
        let mut ours = Observability { listen_by_flag: true, ..file() };
        args.lay_over(&mut ours).unwrap();
        assert_eq!(ours.listen, "127.0.0.1:7000".parse().ok());

        (args.observability_listen_address, args.observability_cert_file) = (None, None);
        let mut settings = file();
        args.lay_over(&mut settings).unwrap();
        assert!(settings.listen == file().listen && settings.socket.is_some());
        assert!(settings.tls.unwrap().authority_folder.is_some());
    }

    #[test]
    fn only_a_pod_in_the_place_of_an_agentk_answers_from_outside() {
        assert_eq!(usual(true, true).to_string(), "0.0.0.0:8080");
        for (agentk, pod) in [(true, false), (false, true), (false, false)] {
            assert!(usual(agentk, pod).ip().is_loopback());
        }
    }
}
