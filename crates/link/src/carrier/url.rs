//! Where a gateway is and how it is spoken to.

use std::fmt;
use std::str::FromStr;

use url::Url;

use crate::target::Address;

/// The port of a gateway's agent listener.
const AGENT_PORT: u16 = 8150;

/// The address of a gateway: `grpc://`, `grpcs://`, `ws://`, `wss://` or `https://`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GatewayUrl {
    scheme: &'static str,
    tls: bool,
    websocket: bool,
    address: Address,
    path: String,
}

/// Why a text is not the address of a gateway.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadGatewayUrl {
    /// Not a URL at all.
    #[error("`{0}` is not a URL such as `grpcs://gateway.example.org:8150`")]
    Form(String),
    /// A scheme no gateway speaks.
    #[error("`{0}` is not one of the schemes grpc, grpcs, ws, wss and https")]
    Scheme(String),
    /// A URL with a name, a password or a fragment: a token belongs into its own file.
    #[error("the URL of a gateway holds no user, password or fragment; give the token by itself")]
    Extras,
}

// Scheme, TLS, WebSocket, port when none is given.
const SCHEMES: [(&str, bool, bool, u16); 5] = [
    ("grpc", false, false, AGENT_PORT),
    ("grpcs", true, false, AGENT_PORT),
    ("https", true, false, 443),
    ("ws", false, true, 80),
    ("wss", true, true, 443),
];

impl GatewayUrl {
    /// Whether the connection is encrypted.
    pub fn tls(&self) -> bool {
        self.tls
    }

    /// Whether the bytes go in a WebSocket.
    pub fn websocket(&self) -> bool {
        self.websocket
    }

    /// The host and port to connect to.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The path and query of the WebSocket.
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl FromStr for GatewayUrl {
    type Err = BadGatewayUrl;

    fn from_str(text: &str) -> Result<Self, BadGatewayUrl> {
        let form = || BadGatewayUrl::Form(text.chars().take(80).collect());
        let url = Url::parse(text).map_err(|_| form())?;
        let Some((scheme, tls, websocket, port)) =
            SCHEMES.into_iter().find(|(scheme, ..)| *scheme == url.scheme())
        else {
            return Err(BadGatewayUrl::Scheme(url.scheme().chars().take(20).collect()));
        };
        if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
            return Err(BadGatewayUrl::Extras);
        }
        let host = url.host_str().ok_or_else(form)?.trim_start_matches('[').trim_end_matches(']');
        let address = Address::new(host, url.port().unwrap_or(port)).map_err(|_| form())?;
        let path = match (url.path(), url.query()) {
            ("", None) => "/".to_owned(),
            (path, None) => path.to_owned(),
            (path, Some(query)) => format!("{path}?{query}"),
        };
        Ok(Self { scheme, tls, websocket, address, path })
    }
}

impl fmt::Display for GatewayUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = if self.websocket { &self.path } else { "" };
        write!(f, "{}://{}{path}", self.scheme, self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_all_schemes_with_their_ports() {
        for (text, printed, tls, websocket) in [
            ("grpc://gw", "grpc://gw:8150", false, false),
            ("grpcs://gw.example.org:9000", "grpcs://gw.example.org:9000", true, false),
            ("https://gw", "https://gw:443", true, false),
            ("ws://127.0.0.1:80/agents?x=1", "ws://127.0.0.1:80/agents?x=1", false, true),
            ("wss://[::1]/", "wss://[::1]:443/", true, true),
        ] {
            let url: GatewayUrl = text.parse().unwrap();
            assert_eq!(
                (url.to_string().as_str(), url.tls, url.websocket),
                (printed, tls, websocket),
                "{text}"
            );
            assert_eq!(url.to_string().parse::<GatewayUrl>().unwrap().to_string(), printed);
        }
    }

    #[test]
    fn refuses_what_is_no_gateway() {
        for text in ["", "gw:8150", "http://gw", "tcp://gw", "grpcs://", "wss://user:token@gw", "wss://gw#x"]
        {
            assert!(text.parse::<GatewayUrl>().is_err(), "{text}");
        }
    }
}
