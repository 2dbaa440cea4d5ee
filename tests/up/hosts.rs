//! `tarbet up` on the machines that people have: without root, and with Docker.

use std::os::unix::fs::chown;

use tarbet_testbed::{Dockerd, Process, Program, eventually};

use super::{Machine, SOON, text};

/// An account with no power that every machine has.
const NOBODY: u32 = 65534;

/// What a row of `tarbet status` says of a part.
async fn detail(machine: &Machine, part: &str) -> String {
    let rows = machine.rows(&["status"]).await;
    let row = rows.iter().find(|row| row["capability"] == part);
    row.and_then(|row| row["detail"].as_str()).unwrap_or_default().to_owned()
}

/// Starts it as somebody who has only a folder for its state.
fn start_as_nobody(machine: &Machine) -> Process {
    let home = machine.folder.path().join("nobody");
    for folder in [&home, &machine.state()] {
        std::fs::create_dir_all(folder).unwrap();
        chown(folder, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    // A checkout may lie where only its owner can look.
    for (from, to) in [(env!("CARGO_BIN_EXE_tarbet").into(), "tarbet"), (machine.config.clone(), "up.yaml")] {
        std::fs::copy(from, home.join(to)).unwrap();
        chown(home.join(to), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let id = NOBODY.to_string();
    let program = Program::new("setpriv")
        .args(["--reuid", &id, "--regid", &id, "--clear-groups", "--pdeathsig", "KILL", "--"])
        .arg(home.join("tarbet"))
        .args(["up", "--config"])
        .arg(home.join("up.yaml"))
        .env("HOME", &home);
    machine.begin(program)
}

#[tokio::test(flavor = "multi_thread")]
async fn without_root_all_of_it_works_but_networks_which_are_only_planned() {
    let machine = Machine::new().await;
    let mut up = start_as_nobody(&machine);
    machine.ready_with_nets("planning").await;
    let nets = detail(&machine, "nets").await;
    assert!(nets.contains("planning only") && nets.contains("needs root"), "{nets}");
    let description = machine.folder.write("web.json", "{}").unwrap().display().to_string();
    let create = ["glide", "resource", "create", "local", "web", &description];
    let planned = machine.say(&[&create[..], &["--plan"]].concat()).await;
    assert!(planned.contains("CreateResource"), "{planned}");
    let refused = machine.run(&create).await;
    assert!(!refused.status.success() && text(&refused.stderr).contains("TB-4301"), "{refused:?}");
    assert_eq!(machine.lab.namespaces(), Vec::<String>::new());

    // Pods run with no more power than who started it.
    assert_eq!(machine.say(&["pods", "run", "none", "--", "id", "-u"]).await.trim(), NOBODY.to_string());
    assert!(machine.say(&["topology"]).await.contains("● here"));
    machine.say(&["down"]).await;
    up.stop().await.unwrap();
    assert!(!machine.state().exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn with_docker_pods_are_containers_and_none_is_left() {
    let (machine, docker) = (Machine::new().await, Dockerd::start().await.unwrap());
    docker.shell_image("shell:1").await.unwrap();
    let there = format!("edge.DockerHost={}", docker.url());
    let mut up = machine.start_with(&["--set", &there]);
    machine.ready().await;
    let pods = detail(&machine, "pods").await;
    assert!(pods.contains("on Docker"), "{pods}");
    let run = ["pods", "run", "--pull", "Never"];
    let said = machine.say(&[&run[..], &["shell:1", "--", "echo", "carried across"]].concat()).await;
    assert_eq!(said.trim(), "carried across");
    machine.say(&[&run[..], &["--detach", "shell:1", "--", "sleep", "600"]].concat()).await;
    let containers = async || docker.docker(&["ps", "--all", "--quiet"]).await.unwrap();
    // A pod that nobody waits for is made after it was taken in.
    eventually(SOON, "its containers", || async { !containers().await.trim().is_empty() }).await.unwrap();

    let down = machine.say(&["down", "--set", &there]).await;
    up.stop().await.unwrap();
    assert!(down.contains("Removed 1 pod."), "{down}");
    assert_eq!(containers().await.trim(), "");
}
