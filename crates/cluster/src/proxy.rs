//! Reaching an API server through an HTTP proxy, as a kubeconfig or the usual variables name it.

use std::io;
use std::net::IpAddr;

use http::Uri;
use k8s_openapi::ByteString;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::connector::Stream;

/// No proxy has more to say before the bytes begin.
const MAX_HEAD: usize = 16 * 1024;

/// Whether connections to this host are made without the proxy of the environment: loopback always, and what
/// `NO_PROXY` lists (names with all below them, addresses, networks, or `*`).
pub(crate) fn is_spared(host: &str, listed: &str) -> bool {
    let host = host.trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase();
    let address = host.parse::<IpAddr>().ok();
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return true;
    }
    listed.split(',').map(|entry| entry.trim().to_ascii_lowercase()).filter(|entry| !entry.is_empty()).any(
        |entry| match (address, entry.split_once('/')) {
            _ if entry == "*" => true,
            (Some(address), Some((network, bits))) => within(address, network, bits).unwrap_or(false),
            (Some(address), None) => entry.parse() == Ok(address),
            (None, _) => {
                let name = entry.trim_start_matches("*.").trim_start_matches('.');
                host.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }
        },
    )
}

fn within(address: IpAddr, network: &str, bits: &str) -> Option<bool> {
    let (network, bits) = (network.parse::<IpAddr>().ok()?, bits.parse::<u32>().ok()?);
    let number = |address: IpAddr| match address {
        IpAddr::V4(four) => (u128::from(four.to_bits()) << 96, 32),
        IpAddr::V6(six) => (six.to_bits(), 128),
    };
    let ((ours, size), (theirs, other)) = (number(address), number(network));
    if size != other || bits > size {
        return None;
    }
    Some(bits == 0 || (ours ^ theirs) >> (128 - bits) == 0)
}

/// Asks a proxy, connected by `stream`, for a way to the host of `target`.
pub(crate) async fn tunnel(stream: &mut Box<dyn Stream>, proxy: &Uri, target: &Uri) -> io::Result<()> {
    let host = target.host().ok_or_else(|| io::Error::other("the cluster's URL has no host"))?;
    let port = target.port_u16().unwrap_or(if target.scheme_str() == Some("http") { 80 } else { 443 });
    let known = credentials(proxy).map(|known| format!("Proxy-Authorization: Basic {known}\r\n"));
    let known = known.unwrap_or_default();
    let head = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n{known}\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream.flush().await?;
    let mut answer = Vec::with_capacity(256);
    while !answer.ends_with(b"\r\n\r\n") {
        if answer.len() >= MAX_HEAD {
            return Err(io::Error::other("the proxy's answer has no end"));
        }
        // Byte by byte: what follows the head belongs to the cluster.
        match stream.read_u8().await {
            Ok(byte) => answer.push(byte),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(io::Error::other("the proxy closed the connection without an answer"));
            }
            Err(error) => return Err(error),
        }
    }
    let line = String::from_utf8_lossy(answer.split(|byte| *byte == b'\r').next().unwrap_or_default());
    let status = line.split(' ').nth(1).unwrap_or_default();
    if line.starts_with("HTTP/1.") && status.len() == 3 && status.starts_with('2') {
        return Ok(());
    }
    let line: String = line.chars().filter(|letter| !letter.is_control()).take(200).collect();
    Err(io::Error::other(format!("the proxy does not connect to {host}:{port}: {line}")))
}

/// `user:password` of the proxy's URL as the header wants it.
fn credentials(proxy: &Uri) -> Option<String> {
    let (pair, _) = proxy.authority()?.as_str().rsplit_once('@')?;
    let pair = if pair.contains(':') { unescaped(pair) } else { unescaped(&format!("{pair}:")) };
    // This type is base64 where it is written down.
    serde_json::to_value(ByteString(pair)).ok()?.as_str().map(str::to_owned)
}

fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = (*first == b'%').then(|| after.get(..2)).flatten();
        let code = code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &after[2..] } else { after };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_spared_as_everywhere() {
        let listed = "example.org, .corp,10.0.0.0/8,192.0.2.7,fd00::/8";
        for host in [
            "localhost",
            "127.0.0.9",
            "[::1]",
            "example.org",
            "api.Example.org.",
            "x.corp",
            "10.9.8.7",
            "192.0.2.7",
            "[fd00::7]",
        ] {
            assert!(is_spared(host, listed), "{host}");
        }
        for host in
            ["badexample.org", "example.org.evil.net", "11.0.0.1", "192.0.2.8", "[fe80::1]", "corp.net"]
        {
            assert!(!is_spared(host, listed), "{host}");
        }
        assert!(
            is_spared("anything", "*") && !is_spared("anything", "") && !is_spared("10.0.0.1", "10.0.0.0/99")
        );
    }

    #[test]
    fn credentials_are_those_of_the_url() {
        let of = |text: &str| credentials(&text.parse().unwrap());
        assert_eq!(of("http://proxy:3128"), None);
        // ann:p@ss and ann: without a password.
        assert_eq!(of("http://ann:p%40ss@proxy:3128").as_deref(), Some("YW5uOnBAc3M="));
        assert_eq!(of("http://ann@proxy:3128").as_deref(), Some("YW5uOg=="));
    }
}
