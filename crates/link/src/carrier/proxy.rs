//! Reaching a gateway through an HTTP proxy.

use std::fmt;
use std::io;
use std::net::IpAddr;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::{Buf, BytesMut};
use ipnet::IpNet;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use url::Url;
use zeroize::Zeroizing;

use crate::duplex::Prefixed;
use crate::target::Address;

/// The longest answer head a proxy may give.
const MAX_HEAD: usize = 16 * 1024;

/// A proxy.
#[derive(Clone, PartialEq, Eq)]
pub struct ProxyUrl {
    /// Whether the connection to the proxy itself is encrypted.
    pub tls: bool,
    /// Where the proxy is.
    pub address: Address,
    // The value of Proxy-Authorization.
    authorization: Option<Zeroizing<String>>,
}

/// Why a text does not name a proxy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadProxy {
    /// Not a URL, or without a host.
    #[error("the proxy is not a URL such as `http://proxy.example.org:3128`")]
    Form,
    /// A kind of proxy we do not speak to.
    #[error("`{0}` proxies are not supported: use an http or https proxy")]
    Scheme(String),
}

impl ProxyUrl {
    /// Reads `http://user:password@host:port`; the scheme may be left out.
    pub fn parse(text: &str) -> Result<Self, BadProxy> {
        let text = text.trim();
        let url = if text.contains("://") { Url::parse(text) } else { Url::parse(&format!("http://{text}")) };
        let url = url.map_err(|_| BadProxy::Form)?;
        let tls = match url.scheme() {
            "http" => false,
            "https" => true,
            other => return Err(BadProxy::Scheme(other.chars().take(20).collect())),
        };
        let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let port = url.port_or_known_default().unwrap_or(80);
        let address = Address::new(host, port).map_err(|_| BadProxy::Form)?;
        let authorization = (!url.username().is_empty()).then(|| {
            let pair =
                format!("{}:{}", unescape(url.username()), unescape(url.password().unwrap_or_default()));
            Zeroizing::new(format!("Basic {}", BASE64_STANDARD.encode(Zeroizing::new(pair).as_bytes())))
        });
        Ok(Self { tls, address, authorization })
    }
}

fn unescape(text: &str) -> String {
    let query = format!("x={}", text.replace('+', "%2B"));
    url::form_urlencoded::parse(query.as_bytes())
        .next()
        .map(|(_, value)| value.into_owned())
        .unwrap_or_default()
}

impl fmt::Debug for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProxyUrl({})", self.address)
    }
}

/// Which connections go through which proxy: the values of the usual three variables.
#[derive(Debug, Clone, Default)]
pub struct ProxySettings {
    http: Option<ProxyUrl>,
    https: Option<ProxyUrl>,
    exceptions: Vec<Exception>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Exception {
    Everything,
    Network(IpNet),
    // A name and everything below it, or only what is below it.
    Name { name: String, port: Option<u16>, below_only: bool },
}

impl ProxySettings {
    /// From `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`; an empty value is none.
    pub fn new(http: Option<&str>, https: Option<&str>, none: Option<&str>) -> Result<Self, BadProxy> {
        let read = |text: Option<&str>| {
            text.map(str::trim).filter(|text| !text.is_empty()).map(ProxyUrl::parse).transpose()
        };
        let exceptions = none.unwrap_or_default().split(',').filter_map(exception).collect();
        Ok(Self { http: read(http)?, https: read(https)?, exceptions })
    }

    /// The proxy for a connection, if it needs one. Loopback never does.
    pub fn choose(&self, tls: bool, address: &Address) -> Option<&ProxyUrl> {
        let host = address.host().trim_end_matches('.').to_ascii_lowercase();
        let ip = host.parse::<IpAddr>().ok();
        if host == "localhost" || ip.is_some_and(|ip| ip.is_loopback()) {
            return None;
        }
        let spared = self.exceptions.iter().any(|exception| match exception {
            Exception::Everything => true,
            Exception::Network(network) => ip.is_some_and(|ip| network.contains(&ip)),
            Exception::Name { name, port, below_only } => {
                let below = host.strip_suffix(name.as_str()).is_some_and(|rest| rest.ends_with('.'));
                (below || (!below_only && host == *name)) && port.is_none_or(|port| port == address.port())
            }
        });
        if spared {
            None
        } else if tls {
            self.https.as_ref()
        } else {
            self.http.as_ref()
        }
    }
}

fn exception(text: &str) -> Option<Exception> {
    let text = text.trim().to_ascii_lowercase();
    if text == "*" {
        return Some(Exception::Everything);
    }
    if let Ok(network) = text.parse::<IpNet>() {
        return Some(Exception::Network(network));
    }
    if let Ok(ip) = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        return Some(Exception::Network(ip.into()));
    }
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) => (name.to_owned(), Some(port.parse().ok()?)),
        None => (text, None),
    };
    let below_only = name.starts_with('.') || name.starts_with("*.");
    let name = name.trim_start_matches('*').trim_matches('.').to_owned();
    (!name.is_empty()).then_some(Exception::Name { name, port, below_only })
}

/// Why a proxy did not let us through.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// The connection to it broke.
    #[error("the connection to the proxy broke")]
    Io(#[source] io::Error),
    /// It answered something that is not HTTP.
    #[error("the proxy did not answer in HTTP")]
    Malformed,
    /// It said no.
    #[error("the proxy answered {status} to CONNECT {target}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// What was asked for.
        target: Address,
    },
}

/// Asks the proxy at the other end of `stream` for a tunnel to `target`.
pub async fn tunnel<S>(mut stream: S, target: &Address, proxy: &ProxyUrl) -> Result<Prefixed<S>, ProxyError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut request = Zeroizing::new(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n"));
    if let Some(authorization) = &proxy.authorization {
        request.push_str("Proxy-Authorization: ");
        request.push_str(authorization);
        request.push_str("\r\n");
    }
    request.push_str("\r\n");
    stream.write_all(request.as_bytes()).await.map_err(ProxyError::Io)?;
    stream.flush().await.map_err(ProxyError::Io)?;
    let mut head = BytesMut::with_capacity(512);
    loop {
        if let Some((status, length)) = answer(&head)? {
            if !(200..300).contains(&status) {
                return Err(ProxyError::Refused { status, target: target.clone() });
            }
            head.advance(length);
            return Ok(Prefixed::new(head.freeze(), stream));
        }
        if stream.read_buf(&mut head).await.map_err(ProxyError::Io)? == 0 {
            return Err(ProxyError::Io(io::ErrorKind::UnexpectedEof.into()));
        }
    }
}

// The status of a proxy's answer and the length of its head, once all of it is there.
fn answer(head: &[u8]) -> Result<Option<(u16, usize)>, ProxyError> {
    let form = b"HTTP/1.";
    let known = head.len().min(form.len());
    if head[..known] != form[..known] {
        return Err(ProxyError::Malformed);
    }
    let Some(end) = head.windows(4).position(|window| window == b"\r\n\r\n") else {
        return if head.len() > MAX_HEAD { Err(ProxyError::Malformed) } else { Ok(None) };
    };
    let status = head.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok());
    let status = status.and_then(|digits| digits.parse().ok()).ok_or(ProxyError::Malformed)?;
    Ok(Some((status, end + 4)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn settings(none: &str) -> ProxySettings {
        ProxySettings::new(Some("http://p:1"), Some("http://s:2"), Some(none)).unwrap()
    }

    #[test]
    fn exceptions_are_read_as_everybody_does() {
        let settings = settings("example.org, .corp , 10.0.0.0/8,::2,db:5432,*.wild.net,");
        for (host, port, direct) in [
            ("example.org", 443, true),
            ("a.example.org", 443, true),
            ("badexample.org", 443, false),
            ("corp", 443, false),
            ("gw.corp", 443, true),
            ("10.2.3.4", 443, true),
            ("11.2.3.4", 443, false),
            ("::2", 443, true),
            ("db", 5432, true),
            ("db", 5433, false),
            ("x.wild.net", 1, true),
            ("wild.net", 1, false),
            ("LOCALHOST", 1, true),
            ("127.9.9.9", 1, true),
            ("gw.net", 1, false),
        ] {
            let address = Address::new(host, port).unwrap();
            assert_eq!(settings.choose(true, &address).is_none(), direct, "{host}:{port}");
        }
        assert!(self::settings("*").choose(false, &Address::new("x", 1).unwrap()).is_none());
    }

    #[test]
    fn each_kind_of_connection_has_its_proxy() {
        let address = Address::new("gw", 1).unwrap();
        assert_eq!(settings("").choose(true, &address).unwrap().address.host(), "s");
        assert_eq!(settings("").choose(false, &address).unwrap().address.host(), "p");
        let none = ProxySettings::new(Some(" "), None, None).unwrap();
        assert!(none.choose(false, &address).is_none());
    }

    #[test]
    fn a_password_is_decoded_and_never_printed() {
        let proxy = ProxyUrl::parse("http://us%20er:p%40ss+@proxy:3128").unwrap();
        let value = proxy.authorization.as_ref().unwrap();
        assert_eq!(value.as_str(), format!("Basic {}", BASE64_STANDARD.encode("us er:p@ss+")));
        assert_eq!(format!("{proxy:?}"), "ProxyUrl(proxy:3128)");
        assert_eq!(ProxyUrl::parse("proxy:3128").unwrap().address.port(), 3128);
        assert_eq!(ProxyUrl::parse("socks5://p:1"), Err(BadProxy::Scheme("socks5".into())));
    }

    proptest! {
        #[test]
        fn any_answer_is_read_without_panic(head in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = answer(&head);
            let mut http = b"HTTP/1.1 ".to_vec();
            http.extend(head);
            http.extend(b"\r\n\r\n");
            let _ = answer(&http);
        }
    }
}
