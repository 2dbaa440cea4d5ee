//! Where a controller tells how it is: two listeners, one for metrics and one for probes, as programs
//! made with controller-runtime have them.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};

use clap::Args;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;

use crate::config::Observability;

const METRICS: u16 = 8080;
const PROBES: u16 = 8081;

/// The flags of both.
#[derive(Debug, Clone, Default, Args)]
pub struct ListenArgs {
    /// Address of the metrics listener, such as :8080, or 0 for none. If absent it is on port 8080: of
    /// all interfaces in a pod, of loopback elsewhere
    #[arg(long, value_parser = bind_address, value_name = "ADDR")]
    metrics_bind_address: Option<Bind>,
    /// Address of the probe listener, such as :8081, or 0 for none. If absent it is on port 8081: of
    /// all interfaces in a pod, where the kubelet asks, of loopback elsewhere
    #[arg(long, value_parser = bind_address, value_name = "ADDR")]
    health_probe_bind_address: Option<Bind>,
}

/// What a flag says of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bind {
    /// There is none.
    Off,
    /// It is there.
    At(SocketAddr),
}

impl Bind {
    fn address(self) -> Option<SocketAddr> {
        match self {
            Self::Off => None,
            Self::At(address) => Some(address),
        }
    }
}

/// Where the two are; one that is not there is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listeners {
    /// Metrics, and probes too.
    pub metrics: Option<SocketAddr>,
    /// Whether nobody said where metrics are, so that another place will do as well.
    pub usual: bool,
    /// Probes alone.
    pub probes: Option<SocketAddr>,
}

impl Listeners {
    /// Where metrics are if somebody said so: there and nowhere else.
    pub fn chosen(&self) -> Option<SocketAddr> {
        self.metrics.filter(|_| !self.usual)
    }
}

impl ListenArgs {
    /// Chooses among these flags, the setting `observability.listen`, and what is usual.
    pub fn choose(&self, setting: &Observability, in_a_pod: bool) -> Result<Listeners, Problem> {
        let host = if in_a_pod { Ipv4Addr::UNSPECIFIED } else { Ipv4Addr::LOCALHOST };
        let usual = |port: u16| Some(SocketAddr::from((host, port)));
        if self.metrics_bind_address.is_some() && setting.listen_by_flag {
            let message = "--metrics-bind-address and observability.listen cannot both be given by flags.";
            return Err(Problem::new(&ground::CONFIG_INVALID, message)
                .at("tarbet command line")
                .because("both say where metrics are")
                .advising("give one of them"));
        }
        let probes = self.health_probe_bind_address.map(Bind::address);
        Ok(match (self.metrics_bind_address, setting.listen) {
            (Some(told), _) => Listeners {
                metrics: told.address(),
                usual: false,
                probes: probes.unwrap_or_else(|| usual(PROBES)),
            },
            // That listener has the probes as well.
            (None, Some(listen)) => {
                Listeners { metrics: Some(listen), usual: false, probes: probes.flatten() }
            }
            (None, None) => Listeners {
                metrics: usual(METRICS),
                usual: true,
                probes: probes.unwrap_or_else(|| usual(PROBES)),
            },
        })
    }
}

/// Whether this process runs in a pod.
pub fn in_a_pod() -> bool {
    std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}

/// A listener as Go programs name it: `0` is none.
fn bind_address(text: &str) -> Result<Bind, String> {
    if text == "0" { Ok(Bind::Off) } else { address(text).map(Bind::At) }
}

/// An address as Go programs write it: `:8080` is every interface.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    if let Some(port) = text.strip_prefix(':') {
        let port: u16 = port.parse().map_err(|error: std::num::ParseIntError| error.to_string())?;
        return Ok((Ipv4Addr::UNSPECIFIED, port).into());
    }
    let mut found = text.to_socket_addrs().map_err(|error| error.to_string())?;
    found.next().ok_or_else(|| "no address has this name".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Option<SocketAddr> {
        text.parse().ok()
    }

    fn flags(metrics: Option<&str>, probes: Option<&str>) -> ListenArgs {
        let read = |text: Option<&str>| text.map(|text| bind_address(text).unwrap());
        ListenArgs { metrics_bind_address: read(metrics), health_probe_bind_address: read(probes) }
    }

    fn setting(listen: Option<&str>, listen_by_flag: bool) -> Observability {
        Observability { listen: listen.and_then(at), listen_by_flag, ..Observability::default() }
    }

    #[test]
    fn addresses_are_read_as_go_programs_write_them() {
        assert_eq!(address(":8080"), Ok("0.0.0.0:8080".parse().unwrap()));
        assert_eq!(address("127.0.0.1:1"), Ok("127.0.0.1:1".parse().unwrap()));
        assert_eq!(address("[::1]:1"), Ok("[::1]:1".parse().unwrap()));
        assert!(address("host").is_err() && address(":x").is_err());
        assert_eq!(bind_address("0"), Ok(Bind::Off));
    }

    #[test]
    fn without_a_word_the_kubelet_reaches_both_in_a_pod_and_nobody_else_elsewhere() {
        let (none, nothing) = (flags(None, None), setting(None, false));
        let pod = none.choose(&nothing, true).unwrap();
        assert_eq!((pod.metrics, pod.probes), (at("0.0.0.0:8080"), at("0.0.0.0:8081")));
        let machine = none.choose(&nothing, false).unwrap();
        assert_eq!((machine.metrics, machine.probes), (at("127.0.0.1:8080"), at("127.0.0.1:8081")));
        assert_eq!([pod.chosen(), machine.chosen()], [None, None]);
    }

    #[test]
    fn a_flag_wins_over_the_file_and_zero_is_off() {
        let file = setting(Some("127.0.0.1:7000"), false);
        let told = flags(Some(":8080"), None).choose(&file, true).unwrap();
        assert_eq!((told.chosen(), told.probes), (at("0.0.0.0:8080"), at("0.0.0.0:8081")));
        let off = flags(Some("0"), Some("0")).choose(&file, true).unwrap();
        assert_eq!((off.metrics, off.chosen(), off.probes), (None, None, None));
        // One listener with everything, unless another is asked for.
        let one = flags(None, None).choose(&file, true).unwrap();
        assert_eq!((one.chosen(), one.probes), (at("127.0.0.1:7000"), None));
        let two = flags(None, Some(":8081")).choose(&file, true).unwrap();
        assert_eq!((two.chosen(), two.probes), (at("127.0.0.1:7000"), at("0.0.0.0:8081")));
    }

    #[test]
    fn two_flags_for_one_listener_are_refused() {
        let flagged = setting(Some("127.0.0.1:7000"), true);
        assert!(flags(Some(":8080"), None).choose(&flagged, false).is_err());
        let told = flags(None, None).choose(&flagged, false).unwrap();
        assert_eq!(told.metrics, at("127.0.0.1:7000"));
    }
}
