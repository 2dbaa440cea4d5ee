//! Nothing outlives its owner: not after a crash, and not after a crash of the watcher.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use tarbet_testbed::{Folder, ProcessId, eventually, sweep, wait_for};

const SOON: Duration = Duration::from_mins(1);

/// Where the run folders of all processes are.
fn home() -> PathBuf {
    let folder = Folder::new("probe").unwrap();
    folder.path().parent().unwrap().parent().unwrap().to_owned()
}

fn identity(child: &Child) -> ProcessId {
    ProcessId::of(child.id()).unwrap()
}

fn sleeper() -> Child {
    Command::new("sleep").arg("600").process_group(0).spawn().unwrap()
}

#[tokio::test]
async fn a_killed_process_leaves_neither_child_nor_folder() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_testbed"));
    let mut owner =
        command.args(["up", "redis"]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(owner.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let pid = line.trim_end().trim_end_matches(')').rsplit(' ').next().unwrap().parse().unwrap();
    let redis = ProcessId::of(pid).unwrap();
    let folder = home().join(identity(&owner).to_string());
    assert!(folder.is_dir());

    owner.kill().unwrap();
    owner.wait().unwrap();
    wait_for(SOON, "the end of the orphaned Redis", || !redis.is_alive()).await.unwrap();
    wait_for(SOON, "the removal of the orphaned folder", || !folder.exists()).await.unwrap();
}

#[tokio::test]
async fn an_interrupted_process_ends_its_children_in_good_order() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_testbed"));
    let mut owner =
        command.args(["up", "redis"]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(owner.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.into_iter().any(|line| line.starts_with("ready")));
    let folder = home().join(identity(&owner).to_string());
    rustix::process::kill_process(rustix::process::Pid::from_child(&owner), rustix::process::Signal::INT)
        .unwrap();
    let status = eventually(SOON, "the end of the program", || std::future::ready(owner.try_wait().unwrap()));
    assert!(status.await.unwrap().success());
    wait_for(SOON, "the removal of the folder", || !folder.exists()).await.unwrap();
}

#[test]
fn a_sweep_removes_what_a_dead_owner_left() {
    let mut dead = sleeper();
    let name = identity(&dead).to_string();
    dead.kill().unwrap();
    dead.wait().unwrap();

    let (mut left, mut stranger) = (sleeper(), sleeper());
    let run = home().join(name);
    let part = run.join("part-1");
    fs::create_dir_all(&part).unwrap();
    fs::write(part.join("left.pid"), identity(&left).to_string()).unwrap();
    // The same id as recorded, but started at another time: somebody else by now.
    fs::write(part.join("reused.pid"), format!("{}-1", stranger.id())).unwrap();

    sweep().unwrap();
    assert!(!run.exists());
    assert!(!left.wait().unwrap().success());
    assert!(stranger.try_wait().unwrap().is_none());
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[test]
fn a_sweep_spares_the_living() {
    let folder = Folder::new("living").unwrap();
    sweep().unwrap();
    assert!(folder.path().is_dir());
}
