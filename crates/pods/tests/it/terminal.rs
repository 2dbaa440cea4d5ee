//! Terminals in containers: by kubectl in a real terminal, and below it by what runs pods.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Result, ensure};
use bytes::Bytes;
use serde_json::json;
use tarbet_pods::batch::{Batch, BatchSystem};
use tarbet_pods::process::Processes;
use tarbet_pods::runner::{Runner, Session};
use tarbet_pods::slurm::Slurm;
use tarbet_pods::wire::{ExecRequest, Frame};
use tarbet_testbed::{Terminal, eventually};
use tokio_util::sync::CancellationToken;

use super::node::{Bed, shell};
use super::pods::{PATIENCE, pod, uid_of, until};
use super::slurm::{cluster, config, programs};

/// Types the same again and again until something is shown: what comes too soon, shells may drop.
async fn until_shown(terminal: &Terminal, typed: &str, wanted: &str) -> Result<()> {
    eventually(PATIENCE, &format!("{wanted:?} to be shown"), || async {
        terminal.type_in(typed)?;
        ensure!(terminal.shown().contains(wanted), "{:?}", terminal.shown());
        Ok(())
    })
    .await
}

/// What a person does with a shell: looks at its size, changes it, interrupts something, leaves with a code.
async fn converse(bed: &Bed) -> Result<()> {
    bed.pod("desk", json!({"containers": [shell("main", "sleep 1000")]})).await?;
    bed.phase("desk", "Running").await?;
    let kubectl = bed.kubectl();
    let (program, config) = (kubectl.program().display(), kubectl.kubeconfig().display());
    let (program, config) = (program.to_string(), config.to_string());
    let words = [&program, "kubectl", "--kubeconfig", &config, "--namespace", &bed.namespace, "exec", "-it"];
    let words = [&words[..], &["desk", "--", "env", "PS1=ready> ", "sh"]].concat();
    let mut terminal = Terminal::start(&words, (101, 37))?;
    terminal.shows(PATIENCE, "ready> ").await?;
    let asked = "stty size; test -t 0 && test -t 1 && echo kind-$TERM\n";
    until_shown(&terminal, asked, "37 101").await?;
    terminal.shows(PATIENCE, "kind-xterm").await?;
    terminal.resize(123, 45)?;
    until_shown(&terminal, "stty size\n", "45 123").await?;
    terminal.type_in("sh -c 'echo busy-$((1 + 1)); cat'\n")?;
    terminal.shows(PATIENCE, "busy-2").await?;
    terminal.type_in("\u{3}")?;
    until_shown(&terminal, "echo free-$((40 + 2))\n", "free-42").await?;
    terminal.type_in("exit 9\n")?;
    let end = terminal.ends(PATIENCE).await?;
    ensure!(end.code() == Some(9), "{end}: {:?}", terminal.shown());
    bed.run(&["delete", "pod", "desk", "--wait=true", "--timeout=60s"]).await.map(drop)
}

#[tokio::test]
async fn kubectl_has_a_shell_in_a_container_of_docker() -> Result<()> {
    converse(&Bed::new().await?).await
}

#[tokio::test]
async fn kubectl_has_a_shell_in_a_job_of_slurm() -> Result<()> {
    let images = tempfile::tempdir()?;
    converse(&Bed::on_slurm(images.path()).await?).await
}

/// Hears a session until it says this.
async fn hears(session: &mut Session, wanted: &str) {
    let mut heard = String::new();
    while !heard.contains(wanted) {
        match tokio::time::timeout(PATIENCE, session.output.recv()).await {
            Ok(Some(Frame::Stdout(bytes) | Frame::Stderr(bytes))) => {
                heard.push_str(&String::from_utf8_lossy(&bytes));
            }
            other => panic!("{other:?} after {heard:?} instead of {wanted:?}"),
        }
    }
}

async fn exec(batch: &Batch, uid: &str, tty: bool, words: &[&str]) -> Session {
    let command = words.iter().map(|word| (*word).to_owned()).collect();
    let request = ExecRequest { pod_uid: uid.to_owned(), command, stdin: true, tty, ..Default::default() };
    batch.exec(request).await.unwrap()
}

/// Whether nobody holds the lock on a file.
fn is_free(file: &Path) -> bool {
    Command::new("flock").arg("--nonblock").arg(file).arg("true").status().unwrap().success()
}

async fn check<S: BatchSystem>(system: impl FnOnce(&Path) -> S) {
    let (root, stop) = (tempfile::tempdir().unwrap(), CancellationToken::new());
    let path = root.path().canonicalize().unwrap();
    let batch = Batch::open(config(&path, false), Arc::new(system(&path)), stop.clone()).unwrap();
    let pod = pod(json!({"containers": [{"name": "main", "image": "none", "command": ["sleep", "1000"]}]}));
    let uid = uid_of(&pod);
    batch.start(pod).await.unwrap();
    until(&*batch, &uid, "it to run", |text| text == "main=running").await;

    // The size that comes first is there from the beginning, and the end of input ends what reads it.
    let mut session = exec(&batch, &uid, true, &["sh", "-c", "stty size; cat; exit 5"]).await;
    session.input.send(Frame::Resize(90, 33)).await.unwrap();
    hears(&mut session, "33 90").await;
    session.input.send(Frame::Stdin(Bytes::from_static(b"a line\n"))).await.unwrap();
    hears(&mut session, "a line\r\na line\r\n").await;
    session.input.send(Frame::Stdin(Bytes::new())).await.unwrap();
    let mut last = None;
    while let Some(frame) = session.output.recv().await {
        last = Some(frame);
    }
    assert_eq!(last, Some(Frame::Exit(5)));

    // A caller who leaves takes the command along, with a terminal and without.
    for tty in [true, false] {
        let held = path.join(format!("held-{tty}"));
        fs::write(&held, "").unwrap();
        let line = format!("exec 7<{}; flock 7; echo held; cat", held.display());
        let mut session = exec(&batch, &uid, tty, &["sh", "-c", &line]).await;
        hears(&mut session, "held").await;
        assert!(!is_free(&held));
        drop(session);
        eventually(PATIENCE, "the command to end", || async { is_free(&held) }).await.unwrap();
    }
    batch.delete(&uid, None).await.unwrap();
    stop.cancel();
}

#[tokio::test]
async fn commands_in_jobs_have_terminals_and_end_with_their_callers() {
    let conf = cluster().await.config();
    check(|_| Slurm::new(programs(conf))).await;
}

#[tokio::test]
async fn commands_of_plain_processes_have_them_too() {
    check(|root| Processes::new(root.to_owned(), "/bin/bash".into())).await;
}
