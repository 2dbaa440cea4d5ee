//! Asks one question of a container.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::connect;
use crate::plan::probe::Check;
use crate::runner::Runner;
use crate::wire::{ExecRequest, Frame};

/// A connection inside a pod is refused at once or made; one that still stands after this is made.
const STANDS: Duration = Duration::from_millis(300);
/// What is read of a page's head, and kept of a command's words.
const HEAD: usize = 1024;

/// Whether the answer is good; otherwise what was said. The caller limits the time.
pub(super) async fn ask(
    runner: &dyn Runner,
    uid: &str,
    container: &str,
    check: &Check,
    address: Option<IpAddr>,
) -> Result<(), String> {
    let exec = |command: Vec<String>, stdin: bool| {
        let request = ExecRequest {
            pod_uid: uid.into(),
            container: container.into(),
            command,
            stdin,
            ..Default::default()
        };
        runner.exec(request)
    };
    match (check, address) {
        (Check::Sleep(time), _) => {
            tokio::time::sleep(*time).await;
            Ok(())
        }
        (Check::Command(words), _) => {
            let mut session = exec(words.clone(), false).await.map_err(|error| error.to_string())?;
            let mut said = Vec::new();
            loop {
                match session.output.recv().await {
                    Some(Frame::Stdout(bytes) | Frame::Stderr(bytes)) => keep(&mut said, &bytes),
                    Some(Frame::Exit(0)) => return Ok(()),
                    Some(Frame::Exit(code)) => {
                        return Err(format!("code {code}: {}", String::from_utf8_lossy(&said).trim()));
                    }
                    Some(Frame::Failed(reason)) => return Err(reason),
                    Some(Frame::Stdin(_) | Frame::Resize(..)) => {}
                    None => return Err("the command left no word of its end".into()),
                }
            }
        }
        (Check::Connect(port), Some(address)) => {
            let stream = TcpStream::connect(SocketAddr::new(address, *port)).await;
            stream.map(drop).map_err(|error| error.to_string())
        }
        (Check::Connect(port), None) => {
            let mut session = exec(connect::command(*port), true).await.map_err(|error| error.to_string())?;
            let end = async {
                loop {
                    match session.output.recv().await {
                        Some(Frame::Exit(code)) if code != 0 => return Err(format!("refused (code {code})")),
                        Some(Frame::Failed(reason)) => return Err(reason),
                        Some(Frame::Stderr(_)) => {}
                        _ => return Ok(()),
                    }
                }
            };
            tokio::time::timeout(STANDS, end).await.unwrap_or(Ok(()))
        }
        (Check::Page { port, request }, Some(address)) => {
            let mut stream = TcpStream::connect(SocketAddr::new(address, *port))
                .await
                .map_err(|error| error.to_string())?;
            stream.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
            let mut head = Vec::new();
            let mut piece = [0; HEAD];
            while !complete(&head) {
                match stream.read(&mut piece).await {
                    Ok(0) | Err(_) => break,
                    Ok(count) => keep(&mut head, &piece[..count]),
                }
            }
            judge(&head)
        }
        (Check::Page { port, request }, None) => {
            let mut session = exec(connect::command(*port), true).await.map_err(|error| error.to_string())?;
            let sent = session.input.send(Frame::Stdin(Bytes::from(request.clone()))).await;
            sent.map_err(|_| "the connection ended".to_owned())?;
            let mut head = Vec::new();
            while !complete(&head) {
                match session.output.recv().await {
                    Some(Frame::Stdout(bytes)) => keep(&mut head, &bytes),
                    Some(Frame::Stderr(_)) => {}
                    _ => break,
                }
            }
            judge(&head)
        }
    }
}

fn keep(kept: &mut Vec<u8>, bytes: &[u8]) {
    kept.extend_from_slice(&bytes[..bytes.len().min(HEAD.saturating_sub(kept.len()))]);
}

fn complete(head: &[u8]) -> bool {
    head.contains(&b'\n') || head.len() >= HEAD
}

/// Kubernetes takes codes from 200 to 399 for good.
fn judge(head: &[u8]) -> Result<(), String> {
    let line =
        String::from_utf8_lossy(head.split(|&byte| byte == b'\n').next().unwrap_or_default()).into_owned();
    let code = line.strip_prefix("HTTP/").and_then(|rest| rest.split(' ').nth(1)?.parse::<u16>().ok());
    match code {
        Some(200..400) => Ok(()),
        Some(code) => Err(format!("the page answered {code}")),
        None => Err("no page answered".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_judged_as_kubelets_do() {
        for (head, good) in [
            ("HTTP/1.1 200 OK\r\n", true),
            ("HTTP/1.0 302 Found\r\n", true),
            ("HTTP/1.1 404 Not Found\r\n", false),
            ("HTTP/1.1 99 x\r\n", false),
            ("SSH-2.0-x\r\n", false),
            ("", false),
        ] {
            assert_eq!(judge(head.as_bytes()).is_ok(), good, "{head:?}");
        }
    }
}
