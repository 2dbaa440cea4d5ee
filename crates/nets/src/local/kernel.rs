//! Acting on the kernel through its own tools, and looking at what is there.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::plan::{Seen, Step};
use crate::error::Error;

const NETNS: &str = "/run/netns";

/// Whether this process may make namespaces at all.
pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Carries out steps in order; the first that fails ends it.
pub(super) async fn carry_out(steps: Vec<Step>) -> Result<(), Error> {
    if steps.is_empty() {
        return Ok(());
    }
    blocking(move || {
        let mut batch = Vec::new();
        for step in &steps {
            // Neighbouring `ip` commands go through one process.
            if let Step::Ip(args) = step {
                batch.push(args.clone());
                continue;
            }
            ip_batch(&std::mem::take(&mut batch))?;
            match step {
                Step::Set { netns, key, value } => set(netns, key, value)?,
                Step::Filter { netns, rules } => filter(netns, rules)?,
                Step::Try(args) => drop(ip_batch(std::slice::from_ref(args))),
                Step::Ip(_) => {}
            }
        }
        ip_batch(&batch)
    })
    .await
}

/// Loads filter rules into a namespace, all or none.
pub(super) async fn load_filter(netns: String, rules: String) -> Result<(), Error> {
    blocking(move || filter(&netns, &rules)).await
}

/// All namespaces whose name begins so, and the interfaces in those that are named.
pub(super) async fn look(prefix: String, into: Vec<String>) -> Result<Seen, Error> {
    blocking(move || {
        let mut seen = Seen { netns: names(&prefix), ..Seen::default() };
        for netns in into {
            if seen.netns.contains(&netns) {
                let links = links(&netns)?;
                seen.links.insert(netns, links);
            }
        }
        Ok(seen)
    })
    .await
}

/// Ends what runs in a namespace and removes it. Nothing happens if it is not there.
pub(super) async fn remove(netns: String) -> Result<(), Error> {
    blocking(move || {
        if !Path::new(NETNS).join(&netns).exists() {
            return Ok(());
        }
        for pid in pids(&netns)? {
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                // It may have ended by itself meanwhile.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        ip_batch(&[vec!["netns".into(), "del".into(), netns]])
    })
    .await
}

/// Runs a program inside a namespace and gives back what it printed.
pub(super) async fn run(
    netns: Option<String>,
    program: &'static str,
    args: Vec<String>,
) -> Result<String, Error> {
    blocking(move || {
        let mut command = Command::new(program);
        command.args(&args);
        let shown = format!("{program} {}", args.join(" "));
        let output = match netns {
            Some(netns) => inside(&netns, move || finish(command, None))?,
            None => finish(command, None),
        };
        checked(&shown, output)
    })
    .await
}

/// Work that waits for other processes does not belong on the runtime's threads.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| Error::Internal("a task of the local cloud panicked".into()))?
}

/// Namespaces that begin so.
pub(super) fn names(prefix: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(NETNS).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(prefix))
        .collect()
}

/// Interfaces of a namespace, with what is written beside them.
pub(super) fn described_links(netns: &str) -> Result<Vec<(String, Option<String>)>, Error> {
    let mut command = Command::new("ip");
    command.args(["-j", "-n", netns, "link", "show"]);
    let text = checked(&format!("ip -n {netns} link show"), finish(command, None))?;
    let list: Vec<serde_json::Value> = if text.trim().is_empty() {
        Vec::new()
    } else {
        serde_json::from_str(&text)
            .map_err(|error| Error::Internal(format!("`ip -j link` is not JSON: {error}")))?
    };
    let one = |link: &serde_json::Value| {
        let name = link["ifname"].as_str()?.to_owned();
        Some((name, link["ifalias"].as_str().map(str::to_owned)))
    };
    Ok(list.iter().filter_map(one).collect())
}

/// Whether a namespace is there.
pub(super) fn has(netns: &str) -> bool {
    Path::new(NETNS).join(netns).exists()
}

/// What `ip` tells of the interfaces of a namespace and of their addresses; without a name, of this machine's own.
pub(super) fn told_links(netns: Option<&str>) -> Result<serde_json::Value, Error> {
    let mut command = Command::new("ip");
    command.args(["-j", "-d"]);
    if let Some(netns) = netns {
        command.args(["-n", netns]);
    }
    command.args(["address", "show"]);
    let shown =
        netns.map_or_else(|| "ip address show".to_owned(), |netns| format!("ip -n {netns} address show"));
    read_json(&shown, &checked(&shown, finish(command, None))?)
}

/// The tables of the packet filter in a namespace.
pub(super) fn tables(netns: &str) -> Result<serde_json::Value, Error> {
    let output = inside(netns, || {
        let mut command = Command::new("nft");
        command.args(["-j", "list", "tables"]);
        finish(command, None)
    })?;
    let shown = format!("[{netns}] nft -j list tables");
    read_json(&shown, &checked(&shown, output)?)
}

fn read_json(command: &str, text: &str) -> Result<serde_json::Value, Error> {
    if text.trim().is_empty() {
        return Ok(serde_json::Value::Null);
    }
    serde_json::from_str(text).map_err(|error| Error::Internal(format!("`{command}` is not JSON: {error}")))
}

pub(super) fn links(netns: &str) -> Result<BTreeSet<String>, Error> {
    Ok(described_links(netns)?.into_iter().map(|(name, _)| name).collect())
}

fn pids(netns: &str) -> Result<Vec<i32>, Error> {
    let mut command = Command::new("ip");
    command.args(["netns", "pids", netns]);
    let text = checked(&format!("ip netns pids {netns}"), finish(command, None))?;
    Ok(text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}

pub(super) fn ip_batch(batch: &[Vec<String>]) -> Result<(), Error> {
    // `-n` belongs to the process, not to a line of a batch, so neighbours of one namespace go together.
    let mut rest = batch;
    while let Some(first) = rest.first() {
        let netns = netns_of(first);
        let count = rest.iter().take_while(|args| netns_of(args) == netns).count();
        let (group, more) = rest.split_at(count);
        rest = more;
        let lines: Vec<String> =
            group.iter().map(|args| args[if netns.is_some() { 2 } else { 0 }..].join(" ")).collect();
        let mut command = Command::new("ip");
        if let Some(netns) = netns {
            command.args(["-n", netns]);
        }
        command.args(["-batch", "-"]);
        let shown = format!("ip {}", lines.join("; ip "));
        let shown = netns.map_or(shown.clone(), |netns| format!("[{netns}] {shown}"));
        checked(&shown, finish(command, Some(lines.join("\n").as_bytes())))?;
    }
    Ok(())
}

fn netns_of(args: &[String]) -> Option<&str> {
    match args {
        [flag, netns, ..] if flag == "-n" => Some(netns),
        _ => None,
    }
}

pub(super) fn set(netns: &str, key: &str, value: &'static str) -> Result<(), Error> {
    let path = format!("/proc/sys/net/{key}");
    let shown = format!("[{netns}] echo {value} > {path}");
    inside(netns, move || fs::write(path, value))?
        .map_err(|error| Error::Tool { command: shown, said: error.to_string() })
}

fn filter(netns: &str, rules: &str) -> Result<(), Error> {
    let rules = rules.to_owned();
    let output = inside(netns, move || {
        let mut command = Command::new("nft");
        command.args(["-f", "-"]);
        finish(command, Some(rules.as_bytes()))
    })?;
    checked(&format!("[{netns}] nft -f -"), output).map(drop)
}

/// What a filter reads like once it is loaded, from a namespace that is there for nothing else.
pub(super) async fn rendered(rules: String) -> Result<String, Error> {
    blocking(move || {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "nft -f - && nft -j list ruleset"]);
        checked("unshare --net nft -f -", finish(command, Some(rules.as_bytes())))
    })
    .await
}

/// Does something with the thread moved into a namespace. The thread is not used again.
pub(super) fn inside<T: Send + 'static>(
    netns: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let name = netns.to_owned();
    let moved = std::thread::spawn(move || -> io::Result<T> {
        let file = fs::File::open(Path::new(NETNS).join(&name))?;
        move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), Some(LinkNameSpaceType::Network))?;
        Ok(work())
    })
    .join();
    let failed = |said: String| Error::Tool { command: format!("enter the namespace {netns}"), said };
    moved.map_err(|_| failed("the thread panicked".into()))?.map_err(|error| failed(error.to_string()))
}

fn finish(mut command: Command, input: Option<&[u8]>) -> io::Result<Output> {
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    if let (Some(input), Some(mut pipe)) = (input, child.stdin.take()) {
        pipe.write_all(input)?;
    }
    child.wait_with_output()
}

fn checked(command: &str, output: io::Result<Output>) -> Result<String, Error> {
    let failed = |said: String| Error::Tool { command: command.to_owned(), said };
    let output = output.map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}
