//! The tour that stays: its console answers until Ctrl-C, and then nothing of it is left.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tarbet_testbed::{Folder, ProcessId, eventually, wait_for};

const SOON: Duration = Duration::from_mins(1);

/// Every process whose id was recorded below the folder.
fn recorded(folder: &Path) -> Vec<ProcessId> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.path()) {
        if path.is_dir() {
            found.extend(recorded(&path));
        } else if path.extension().is_some_and(|end| end == "pid") {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let pid = text.trim().split('-').next().and_then(|pid| pid.parse().ok());
            found.extend(pid.and_then(ProcessId::of));
        }
    }
    found
}

#[tokio::test]
async fn a_tour_that_stays_shows_its_console_and_leaves_nothing() {
    let probe = Folder::new("probe").unwrap();
    let home: PathBuf = probe.path().parent().unwrap().parent().unwrap().to_owned();
    let program = Path::new(env!("CARGO_BIN_EXE_tour"));
    let tarbet = program.with_file_name("tarbet");
    assert!(tarbet.exists(), "the tour needs the product: cargo build --package tarbet");
    let mut command = Command::new(program);
    command.arg(tarbet).arg("reach").env("KEEP", "1").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut tour = command.spawn().unwrap();
    let mut lines = BufReader::new(tour.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut told = Vec::new();
    let console = lines.by_ref().find_map(|line| {
        let address = line.trim().strip_prefix("console: http://").map(str::to_owned);
        told.push(line);
        address
    });
    let console = console.unwrap_or_else(|| panic!("no console:\n{}", told.join("\n")));

    let mut asked = TcpStream::connect(&console).unwrap();
    write!(asked, "GET /api/sites HTTP/1.1\r\nHost: {console}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    asked.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"lab\""), "{answer}");

    let folder = home.join(ProcessId::of(tour.id()).unwrap().to_string());
    let parts = recorded(&folder);
    assert!(parts.iter().filter(|part| part.is_alive()).count() > 3, "{parts:?} in {}", folder.display());
    kill_process(Pid::from_child(&tour), Signal::INT).unwrap();
    let rest: Vec<String> = lines.collect();
    let ended = eventually(SOON, "the end of the tour", || std::future::ready(tour.try_wait().unwrap()));
    assert!(ended.await.unwrap().success(), "{}", rest.join("\n"));
    assert!(rest.iter().any(|line| line.contains("Everything it started has been removed")), "{rest:?}");
    wait_for(SOON, "the end of every part", || !parts.iter().any(|part| part.is_alive())).await.unwrap();
    wait_for(SOON, "the removal of the folder", || !folder.exists()).await.unwrap();
}
