//! The URL by which other gateways reach this one. Pure: environment and addresses come in.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

/// What the environment says: `OWN_PRIVATE_API_` and the name in capitals.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnUrlSettings {
    /// The whole URL.
    pub url: Option<String>,
    /// The network whose address is ours.
    pub cidr: Option<String>,
    /// The scheme for that address; `grpc` if absent.
    pub scheme: Option<String>,
    /// The port for that address; the listener's if absent.
    pub port: Option<String>,
    /// The name in our certificate, for `grpcs`.
    pub host: Option<String>,
}

/// Where other gateways reach this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnUrl {
    /// `grpc://`, `grpcs://` or `unix://`.
    pub url: String,
    /// The name in the certificate, if it is not the one in the URL.
    pub host: Option<String>,
}

/// Why there is no such URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OwnUrlError {
    /// Two settings that exclude each other.
    #[error("OWN_PRIVATE_API_URL and OWN_PRIVATE_API_CIDR exclude each other; set one of them")]
    Both,
    /// A scheme that gateways do not speak.
    #[error("`{0}` is not one of the schemes grpc, grpcs and unix")]
    Scheme(String),
    /// Not a network.
    #[error("OWN_PRIVATE_API_CIDR `{0}` is not a network such as 10.0.0.0/8")]
    Cidr(String),
    /// Not a port.
    #[error("OWN_PRIVATE_API_PORT `{0}` is not a port")]
    Port(String),
    /// No address of this machine is in the network.
    #[error("no address of this machine is in OWN_PRIVATE_API_CIDR {0}")]
    NoAddress(String),
    /// The listener binds every address, so none of them is the one.
    #[error(
        "the private API listens on every address; set OWN_PRIVATE_API_URL to the one others reach it by"
    )]
    Wildcard,
}

/// Works out our own URL from the environment, the private listener's address and our own addresses.
pub fn own_url(
    settings: &OwnUrlSettings,
    listener: SocketAddr,
    addresses: &[IpAddr],
) -> Result<OwnUrl, OwnUrlError> {
    let host = settings.host.clone().filter(|host| !host.is_empty());
    let given = |value: &Option<String>| value.clone().filter(|text| !text.is_empty());
    match (given(&settings.url), given(&settings.cidr)) {
        (Some(_), Some(_)) => Err(OwnUrlError::Both),
        (Some(url), None) => {
            let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
            known(scheme)?;
            Ok(OwnUrl { url, host })
        }
        (None, Some(cidr)) => {
            let network: IpNet = cidr.parse().map_err(|_| OwnUrlError::Cidr(cidr.clone()))?;
            let address = addresses.iter().find(|address| network.contains(*address));
            let address = address.ok_or_else(|| OwnUrlError::NoAddress(cidr.clone()))?;
            let scheme = given(&settings.scheme).unwrap_or_else(|| "grpc".into());
            known(&scheme)?;
            let port = match given(&settings.port) {
                Some(text) => text.parse().map_err(|_| OwnUrlError::Port(text))?,
                None => listener.port(),
            };
            Ok(OwnUrl { url: format!("{scheme}://{}", SocketAddr::new(*address, port)), host })
        }
        (None, None) if listener.ip().is_unspecified() => Err(OwnUrlError::Wildcard),
        (None, None) => Ok(OwnUrl { url: format!("grpc://{listener}"), host }),
    }
}

fn known(scheme: &str) -> Result<(), OwnUrlError> {
    if matches!(scheme, "grpc" | "grpcs" | "unix") { Ok(()) } else { Err(OwnUrlError::Scheme(scheme.into())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(settings: OwnUrlSettings, listener: &str) -> Result<String, OwnUrlError> {
        let addresses = ["127.0.0.1", "10.1.2.3", "fd00::7"].map(|text| text.parse().unwrap());
        own_url(&settings, listener.parse().unwrap(), &addresses).map(|own| own.url)
    }

    #[test]
    fn each_way_to_say_it() {
        let none = OwnUrlSettings::default();
        assert_eq!(of(none.clone(), "10.1.2.3:8155").unwrap(), "grpc://10.1.2.3:8155");
        assert_eq!(of(none.clone(), "0.0.0.0:8155"), Err(OwnUrlError::Wildcard));
        let url = OwnUrlSettings { url: Some("grpcs://kas-1:9000".into()), ..none.clone() };
        assert_eq!(of(url.clone(), "0.0.0.0:8155").unwrap(), "grpcs://kas-1:9000");
        let cidr = |text: &str| OwnUrlSettings { cidr: Some(text.into()), ..none.clone() };
        assert_eq!(of(cidr("10.0.0.0/8"), "0.0.0.0:8155").unwrap(), "grpc://10.1.2.3:8155");
        let full =
            OwnUrlSettings { scheme: Some("grpcs".into()), port: Some("9".into()), ..cidr("fd00::/8") };
        assert_eq!(of(full, "[::]:8155").unwrap(), "grpcs://[fd00::7]:9");
        assert_eq!(
            of(cidr("192.168.0.0/16"), "0.0.0.0:1"),
            Err(OwnUrlError::NoAddress("192.168.0.0/16".into()))
        );
        assert!(matches!(of(cidr("10/8x"), "0.0.0.0:1"), Err(OwnUrlError::Cidr(_))));
        let both = OwnUrlSettings { cidr: Some("10.0.0.0/8".into()), ..url };
        assert_eq!(of(both, "0.0.0.0:1"), Err(OwnUrlError::Both));
        let odd = OwnUrlSettings { url: Some("http://x".into()), ..none };
        assert_eq!(of(odd, "0.0.0.0:1"), Err(OwnUrlError::Scheme("http".into())));
    }
}
