//! Secrets of every kind go through every path that takes them, well and badly, and are found in nothing that is
//! written, counted, traced or answered.

mod jobs;
mod mesh;
mod nets;
mod pods;
mod reach;
mod tunnels;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::Response;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use tarbet_testbed::{Folder, Process, Program, eventually};
use tokio::net::TcpListener;

const SOON: Duration = Duration::from_mins(1);
/// Everything that anybody of ours or below us would ever say.
const LOUD: [&str; 2] = ["--set", "log.filter=trace"];

/// Secrets, each in the spellings in which it might slip out.
#[derive(Default)]
struct Canaries {
    known: Mutex<Vec<(String, Vec<String>)>>,
}

impl Canaries {
    /// A new secret of this kind, unlike any other text.
    fn hatch(&self, what: &str) -> String {
        let text = format!("canary{}{}", what.replace(['-', ' '], ""), uuid::Uuid::new_v4().simple());
        self.watch(what, &text);
        text
    }

    /// Watches for a secret that somebody else made.
    fn watch(&self, what: &str, secret: &str) {
        let bytes = secret.as_bytes();
        let hex = bytes.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
        // A run of bytes as debugging prints it is as good as the text.
        let listed = format!("{bytes:?}");
        let spellings = vec![
            secret.to_owned(),
            STANDARD.encode(bytes).trim_end_matches('=').to_owned(),
            URL_SAFE_NO_PAD.encode(bytes),
            hex,
            listed.trim_matches(['[', ']']).to_owned(),
        ];
        self.known.lock().unwrap_or_else(PoisonError::into_inner).push((what.to_owned(), spellings));
    }

    /// Fails if a secret stands in this text.
    fn search(&self, place: &str, text: &str) -> Result<()> {
        for (what, spellings) in &*self.known.lock().unwrap_or_else(PoisonError::into_inner) {
            for spelling in spellings {
                if let Some(at) = text.find(spelling.as_str()) {
                    let begin = text[..at].rfind('\n').map_or(0, |line| line + 1);
                    let line: String = text[begin..].chars().take(600).collect();
                    anyhow::bail!("{place} shows the {what}: {line}");
                }
            }
        }
        Ok(())
    }

    fn count(&self) -> usize {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Everything that the parts of this folder wrote; how many they are.
    fn search_logs(&self, folder: &Path) -> Result<usize> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let spellings: Vec<String> = known.into_iter().flat_map(|(_, spellings)| spellings).collect();
        let patterns = folder.join("spellings");
        std::fs::write(&patterns, spellings.join("\n"))?;
        let mut found = 0;
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_none_or(|end| end != "log") {
                continue;
            }
            ensure!(path.metadata()?.len() > 0, "{} is empty", path.display());
            // Loud logs are long: a program made for it looks through them, and we say what it found.
            let looked = Command::new("grep").args(["-aqF", "-f"]).arg(&patterns).arg(&path).status()?;
            if looked.code() != Some(1) {
                let text = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
                self.search(&path.display().to_string(), &text)?;
                anyhow::bail!("grep says {looked} of {}", path.display());
            }
            found += 1;
        }
        Ok(found)
    }

    /// Runs a command to its end, which must be a failure or not, and searches what it prints.
    async fn run(&self, args: &[&str], environment: &[(&str, &str)], well: bool) -> Result<()> {
        let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_tarbet"))
            .args(args)
            .envs(environment.iter().copied())
            .kill_on_drop(true)
            .output()
            .await?;
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        ensure!(output.status.success() == well, "{args:?}: {said}");
        ensure!(!said.is_empty(), "{args:?} says nothing");
        self.search(&format!("tarbet {}", args.join(" ")), &said)
    }
}

/// A process that cannot do its work: it is left to try until it has said so, and then killed.
async fn complains(folder: &Folder, name: &str, program: Program, word: &str) -> Result<()> {
    let mut process = Process::start(folder, name, program)?;
    let log = folder.path().join(format!("{name}.log"));
    let said = || async {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        if text.contains(word) { Ok(()) } else { Err(text.lines().last().unwrap_or_default().to_owned()) }
    };
    eventually(SOON, &format!("{name} to say `{word}`"), said).await?;
    process.kill9()
}

/// Sends a signal by name.
fn signal(process: &Process, name: &str) -> Result<()> {
    let sent = Command::new("kill").args([&format!("-{name}"), &process.pid().to_string()]).status()?;
    ensure!(sent.success(), "the signal {name} could not be sent");
    Ok(())
}

/// Ends it as a failed assertion in C would, and waits for the end.
async fn abort(process: &mut Process) -> Result<()> {
    signal(process, "ABRT")?;
    eventually(SOON, "the end of the process", || std::future::ready(!process.is_running())).await?;
    process.exited()?.context("it did not end").map(drop)
}

/// A collector of traces that keeps what it is sent.
struct Collector {
    url: String,
    received: Arc<Mutex<Vec<u8>>>,
}

impl Collector {
    async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (url, received) =
            (format!("http://{}", listener.local_addr()?), Arc::<Mutex<Vec<u8>>>::default());
        let kept = Arc::clone(&received);
        let take = async move |request: Request| {
            let bytes = to_bytes(request.into_body(), usize::MAX).await.unwrap_or_default();
            kept.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&bytes);
            let head =
                Response::builder().header("content-type", "application/grpc").header("grpc-status", "0");
            head.body(Body::empty()).unwrap_or_default()
        };
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(take)).await });
        Ok(Self { url, received })
    }

    fn text(&self) -> String {
        let bytes = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// A file with a secret, for its owner alone.
fn secret_file(folder: &Folder, name: &str, text: &str) -> Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.write(name, text)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    Ok(path)
}

#[test]
fn a_canary_is_found_in_every_spelling() {
    let canaries = Canaries::default();
    let secret = canaries.hatch("token");
    let spelt = [STANDARD.encode(&secret), secret.clone(), format!("{:?}", secret.as_bytes())];
    for text in spelt {
        assert!(canaries.search("a text", &format!("some\nwords {text} and more")).is_err(), "{text}");
    }
    assert!(canaries.search("a text", "nothing to hide").is_ok());
}
