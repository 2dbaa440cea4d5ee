//! Leases never clash, within a process or across many.

use std::{
    collections::HashSet,
    fs::File,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use tarbet_testbed::{Lease, wait_for};

/// How many takers: more with `EFFORT`.
fn takers() -> usize {
    20 * tarbet_testbed::effort()
}

fn lease_elsewhere() -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_testbed"));
    command.args(["lease", "3"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

fn first_port(process: &mut Child) -> u16 {
    let mut line = String::new();
    BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn the_lease_of_a_killed_process_frees_itself() {
    let mut process = lease_elsewhere();
    let user = rustix::process::getuid().as_raw();
    let lock = std::env::temp_dir().join(format!("tarbet-ports-{user}/{}", first_port(&mut process)));
    let lock = File::open(lock).unwrap();
    assert!(lock.try_lock().is_err());
    process.kill().unwrap();
    process.wait().unwrap();
    wait_for(Duration::from_mins(1), "the dead owner's lock", || lock.try_lock().is_ok()).await.unwrap();
}

#[test]
fn parallel_takers_never_share_a_port() {
    // All are started before the first is read, so that they race; all hold until the end.
    let mut processes: Vec<Child> = (0..takers()).map(|_| lease_elsewhere()).collect();
    let threads: Vec<_> = (0..takers()).map(|_| std::thread::spawn(|| Lease::block(3).unwrap())).collect();
    let leases: Vec<Lease> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();

    let mut ports: Vec<u16> = leases.iter().flat_map(Lease::ports).collect();
    for process in &mut processes {
        let mut line = String::new();
        BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        ports.extend(line.split_whitespace().map(|port| port.parse::<u16>().unwrap()));
    }
    for mut process in processes {
        drop(process.stdin.take());
        assert!(process.wait().unwrap().success());
    }
    assert_eq!(ports.len(), takers() * 2 * 3);
    assert!(ports.iter().all(|port| *port < 32768));
    assert_eq!(ports.iter().collect::<HashSet<_>>().len(), ports.len(), "{ports:?}");
}
