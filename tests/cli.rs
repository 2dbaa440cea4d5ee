//! The binary as a person or a script meets it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use tarbet_testbed::{Terminal, eventually};

fn tarbet(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tarbet"));
    command.args(args).env_remove("TARBET_CONFIG").stdin(Stdio::null());
    command
}

fn output(args: &[&str]) -> Output {
    tarbet(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn explains_every_code_and_refuses_unknown_ones() {
    let list = output(&["explain", "-o", "json"]);
    let codes: Vec<serde_json::Value> = serde_json::from_slice(&list.stdout).unwrap();
    assert!(codes.len() > 20);
    for code in &codes {
        let page = output(&["explain", code["code"].as_str().unwrap()]);
        assert!(page.status.success());
        for field in ["hop", "cause", "try"] {
            let expected = code[field].as_str().unwrap();
            assert!(text(&page.stdout).contains(expected), "{} does not say {field}", code["code"]);
        }
    }
    let unknown = output(&["explain", "TB-9999"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("try:"), "{}", text(&unknown.stderr));
}

#[test]
fn reports_every_mistake_of_a_configuration_and_exits_2() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tarbet.yaml");
    std::fs::write(&file, "log:\n  colour: red\nshutdown:\n  deadline: soon\n").unwrap();
    let file = file.to_str().unwrap();
    for command in [&["config", "check", "-c", file][..], &["up", "-c", file, "--set", "log.filter=]["]] {
        let refused = output(command);
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(
            said.contains("tarbet.yaml:2: log.colour") && said.contains("tarbet.yaml:4: shutdown.deadline"),
            "{said}"
        );
    }
}

#[test]
fn shows_the_settings_in_use_and_their_schema() {
    let shown =
        tarbet(&["config", "show", "-o", "json"]).env("TARBET__LOG__FILTER", "warn").output().unwrap();
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["log"]["filter"], "warn");
    let schema: serde_json::Value = serde_json::from_slice(&output(&["config", "schema"]).stdout).unwrap();
    assert!(schema["properties"]["shutdown"].is_object(), "{schema}");
    let yaml = text(&output(&["config", "show"]).stdout);
    assert!(yaml.contains("deadline: 30s"), "{yaml}");
}

#[tokio::test]
async fn people_are_told_what_could_follow_and_scripts_are_not() {
    let shown = async |args: &[&str]| {
        let words: Vec<&str> =
            std::iter::once(env!("CARGO_BIN_EXE_tarbet")).chain(args.iter().copied()).collect();
        let mut terminal = Terminal::start(&words, (200, 50)).unwrap();
        assert!(
            terminal.ends(Duration::from_secs(30)).await.unwrap().success(),
            "{args:?}: {}",
            terminal.shown()
        );
        terminal
    };
    for args in [&["version"][..], &["explain", "TB-1102"], &["user", "generate"], &["config", "check"]] {
        let terminal = shown(args).await;
        terminal.shows(Duration::from_secs(30), "Next: tarbet ").await.unwrap();
        assert_eq!(terminal.shown().matches("Next: ").count(), 1, "{args:?}: {}", terminal.shown());
        assert!(!shown(&[args, &["-o", "json"]].concat()).await.shown().contains("Next: "));
    }
    let piped = output(&["version"]);
    assert!(!text(&[piped.stdout, piped.stderr].concat()).contains("Next: "));
}

#[test]
fn completes_in_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = output(&["completions", shell]);
        assert!(script.status.success() && text(&script.stdout).contains("explain"), "{shell}");
    }
}

#[tokio::test]
async fn kubectl_finds_it_as_a_plugin() {
    // Only the client is used: nothing is asked of the cluster.
    let kubectl = tarbet_testbed::shared_pair().await.unwrap().private.kubectl();
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_tarbet"), folder.path().join("kubectl-tarbet")).unwrap();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let run = |args: &[&str]| {
        let mut command = Command::new(kubectl.program());
        command.arg("kubectl").args(args).env("PATH", &path).env_remove("TARBET_CONFIG").stdin(Stdio::null());
        command.output().unwrap()
    };
    let listed = run(&["plugin", "list", "--name-only"]);
    assert_eq!(text(&listed.stdout).lines().last(), Some("kubectl-tarbet"), "{}", text(&listed.stderr));
    let version = run(&["tarbet", "version", "-o", "json"]);
    let version: serde_json::Value = serde_json::from_slice(&version.stdout).unwrap();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    // Help and mistakes name what was typed, and the exit code is ours.
    let help = text(&run(&["tarbet", "site", "--help"]).stdout);
    assert!(help.contains("Usage: kubectl tarbet site"), "{help}");
    assert_eq!(run(&["tarbet", "explain", "TB-9999"]).status.code(), Some(2));
}

#[test]
fn manual_pages_are_printed_and_written() {
    let page = text(&output(&["man"]).stdout);
    assert!(page.contains(".TH tarbet 1"), "{page}");
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    let dir = pages.to_str().unwrap();
    let planned = output(&["man", "--dir", dir, "--plan"]);
    assert!(text(&planned.stdout).contains("tarbet-site-add.1") && !pages.exists());
    assert!(output(&["man", "--dir", dir]).status.success());
    let written = std::fs::read_to_string(pages.join("tarbet-site-add.1")).unwrap();
    assert!(written.contains("tarbet site add"), "{written}");
}

/// A running `tarbet up` that is ended by its own pid.
struct Up {
    child: Child,
    address: String,
}

impl Up {
    async fn start(folder: &std::path::Path) -> Self {
        let state = format!("store.path={}", folder.join("tarbet.redb").display());
        let mut args = vec!["up", "--observability-listen", "127.0.0.1:0", "--set", &state];
        let listeners = ["console", "gateway.agents", "gateway.api", "gateway.kubernetes", "gateway.private"];
        let anywhere = listeners.map(|listener| format!("{listener}.listen=127.0.0.1:0"));
        args.extend(anywhere.iter().flat_map(|set| ["--set", set]));
        let mut command = tarbet(&args);
        let command = command.env("TARBET_STATE", folder).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = loop {
            let line = lines.next().expect("the log ended before the listener was bound").unwrap();
            let entry: serde_json::Value = serde_json::from_str(&line).expect("a log line that is not JSON");
            if entry["listener"] == "observability" {
                break entry["address"].as_str().unwrap().to_owned();
            }
        };
        // The rest of the log must be read, or the process blocks on a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let up = Self { child, address };
        eventually(Duration::from_mins(1), "tarbet up to be ready", || async {
            up.get("/readyz").await.filter(|a| a.0 == 200)
        })
        .await
        .unwrap();
        up
    }

    async fn get(&self, path: &str) -> Option<(u16, String)> {
        let answer = reqwest::get(format!("http://{}{path}", self.address)).await.ok()?;
        Some((answer.status().as_u16(), answer.text().await.ok()?))
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn up_is_observable_and_ends_in_order_on_either_signal() {
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let folder = tempfile::tempdir().unwrap();
        let mut up = Up::start(folder.path()).await;
        let (status, page) = up.get("/metrics").await.unwrap();
        assert_eq!(status, 200);
        assert!(page.contains("tarbet_build_info{role=\"up\""), "{page}");
        up.signal(signal);
        let ended = up.child.wait().unwrap();
        assert_eq!(ended.code(), Some(0), "ended by {signal:?}");
    }
}

#[test]
fn a_taken_address_is_named_with_its_hop_and_remedy() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut child =
        tarbet(&["up", "--observability-listen", &address]).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(said.contains("TB-0201") && said.contains(&address) && said.contains("try:"), "{said}");
}

#[tokio::test]
async fn the_doctor_says_what_redis_may_lose() {
    let careless = tarbet_testbed::Redis::start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("redis.yaml");
    std::fs::write(&file, format!("store: {{kind: redis, url: '{}'}}\n", careless.url())).unwrap();
    let found = output(&["check", "--pre", "-o", "json", "-c", file.to_str().unwrap()]);
    let rows: Vec<serde_json::Value> = serde_json::from_slice(&found.stdout).unwrap();
    let row = rows.iter().find(|row| row["check"] == "store.redis").unwrap();
    assert_eq!(row["result"], "warning", "{row}");
    assert!(row["found"].as_str().unwrap().contains("appendonly"), "{row}");
}
