//! Jobs of which it is not clear whether Slurm took them, and what a restart finds unfinished.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::FutureExt;
use serde_json::json;
use tarbet_pods::batch::{Batch, BatchConfig, BatchSystem};
use tarbet_pods::process::Processes;
use tarbet_pods::runner::Runner;
use tarbet_pods::slurm::Slurm;
use tarbet_testbed::eventually;
use tokio_util::sync::CancellationToken;

use super::pods::{PATIENCE, ended, log, pod, shell, uid_of, until, words};
use super::slurm::{cluster, config, programs};

/// A data root, and Slurm behind programs that a test can bend.
struct Bed {
    tools: tempfile::TempDir,
    root: tempfile::TempDir,
    system: Arc<dyn BatchSystem>,
    batch: Arc<Batch>,
    stop: CancellationToken,
}

impl Bed {
    /// `sbatch` and `squeue` are lines of shell, which run in the folder of the tools.
    async fn bent(sbatch: &str, squeue: &str) -> Self {
        let (tools, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut programs = programs(cluster().await.config());
        programs.sbatch = program(tools.path(), "sbatch-bent", sbatch);
        programs.squeue = program(tools.path(), "squeue-bent", squeue);
        let (system, stop): (Arc<dyn BatchSystem>, _) =
            (Arc::new(Slurm::new(programs)), CancellationToken::new());
        let batch = Batch::open(config(root.path(), false), Arc::clone(&system), stop.clone()).unwrap();
        Self { tools, root, system, batch, stop }
    }

    /// The same, with a job for each container.
    async fn bent_apart(sbatch: &str, squeue: &str) -> Self {
        let mut bed = Self::bent(sbatch, squeue).await;
        bed.stop.cancel();
        bed.stop = CancellationToken::new();
        let config = BatchConfig { per_container: true, ..config(bed.root.path(), false) };
        bed.batch = Batch::open(config, Arc::clone(&bed.system), bed.stop.clone()).unwrap();
        bed
    }

    fn note(&self, name: &str, text: &str) {
        fs::write(self.tools.path().join(name), text).unwrap();
    }

    fn lines(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.tools.path().join(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn reopen(&mut self) {
        self.stop.cancel();
        self.stop = CancellationToken::new();
        let config = config(self.root.path(), false);
        self.batch = Batch::open(config, Arc::clone(&self.system), self.stop.clone()).unwrap();
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn program(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/bash\nT=${{0%/*}}\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

async fn state_of(job: &str) -> String {
    let asked = ["--noheader", "--states=all", "-a", "-j", job, "-o", "%t"];
    cluster().await.run("squeue", &asked).await.unwrap().trim().to_owned()
}

#[tokio::test]
async fn of_two_jobs_after_a_lost_answer_the_one_that_runs_the_pod_is_believed_and_both_end_with_it() {
    // The first answer is lost, and the job does not come to light while the plugin looks for it.
    let bed = Bed::bent(
        "sbatch -H \"$@\" >>$T/ids || exit; [ -e $T/first ] && { tail -n1 $T/ids; exit; }
         touch $T/first; echo 'sbatch: error: Socket timed out on send/recv operation' >&2; exit 1",
        "[ -e $T/light ] || exit 0; exec squeue \"$@\"",
    )
    .await;
    let pod = pod(json!({"containers": [shell("main", "echo ran; sleep 1000")]}));
    let uid = uid_of(&pod);
    bed.batch.start(pod).await.unwrap();
    let second = eventually(PATIENCE, "the second job", || async {
        let state = bed.batch.status(std::slice::from_ref(&uid)).await.unwrap().remove(0);
        (!state.jid.is_empty()).then_some(state.jid)
    });
    let second = second.await.unwrap();
    let ids = bed.lines("ids");
    assert_eq!(ids.len(), 2, "{ids:?}");
    assert_eq!(ids[1], second);
    bed.note("light", "");
    let first = &ids[0];
    cluster().await.run("scontrol", &["release", first]).await.unwrap();
    until(&*bed.batch, &uid, "it to run", |text| text == "main=running").await;
    cluster().await.run("scontrol", &["release", &second]).await.unwrap();
    let gave_way = eventually(PATIENCE, "the second job to give way", || async {
        let state = state_of(&second).await;
        if state == "F" { Ok(()) } else { Err(state) }
    });
    gave_way.await.unwrap();
    let told = eventually(PATIENCE, "the first job to be believed", || async {
        let state = bed.batch.status(std::slice::from_ref(&uid)).await.unwrap().remove(0);
        if state.jid == *first { Ok(state) } else { Err(state.jid) }
    });
    assert_eq!(words(&told.await.unwrap()), "main=running");
    assert_eq!(log(&*bed.batch, &uid, "main", json!({})).await, "ran\n");
    bed.batch.delete(&uid, None).await.unwrap();
    for id in &ids {
        let over = eventually(PATIENCE, "the end of both", || async {
            let state = state_of(id).await;
            if ["CA", "CD", "F"].contains(&state.as_str()) { Ok(()) } else { Err(state) }
        });
        over.await.unwrap();
    }
}

#[tokio::test]
async fn a_job_that_is_refused_after_a_restart_keeps_no_other_waiting() {
    let mut bed = Bed::bent(
        "[ -e $T/back ] || { echo 'sbatch: error: Unable to contact slurm controller (receive failure)' >&2; exit 1; }
         while read -r uid; do case $* in *$uid*)
           echo 'sbatch: error: Invalid account or account/partition combination' >&2; exit 1 ;; esac
         done <$T/refused
         exec sbatch \"$@\"",
        "exec squeue \"$@\"",
    )
    .await;
    let mut uids = Vec::new();
    for _ in 0..6 {
        let pod = pod(json!({"containers": [shell("main", "true")]}));
        bed.batch.start(pod.clone()).await.unwrap();
        uids.push(uid_of(&pod));
    }
    // Folders are found in any order: with so many bad ones some come before the others.
    let (bad, rest) = uids.split_at(4);
    let [good, gone] = rest else { panic!("{rest:?}") };
    bed.stop.cancel();
    bed.note("refused", &(bad.join("\n") + "\n"));
    bed.note("back", "");
    fs::write(bed.root.path().join(".deleted").join(gone), "").unwrap();
    bed.reopen();
    assert_eq!(words(&ended(&*bed.batch, good).await), "main=exit:0");
    let folder = bed.root.path().join(format!("tests-{gone}"));
    eventually(PATIENCE, "the deleted one to go", || std::future::ready(!folder.exists())).await.unwrap();
    for uid in bad {
        let state = ended(&*bed.batch, uid).await;
        let end = state.containers[0].state.clone().unwrap().terminated.unwrap();
        assert_ne!(end.exit_code, 0);
        assert!(end.message.as_deref().unwrap_or_default().contains("Invalid account"), "{end:?}");
    }
    for uid in bad.iter().chain([good]) {
        bed.batch.delete(uid, None).await.unwrap();
    }
}

#[tokio::test]
async fn where_slurm_goes_away_between_the_jobs_of_a_pod_the_rest_follows() {
    let bed = Bed::bent_apart(
        "[ ! -e $T/ids ] || [ -e $T/back ] || {
           echo 'sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)' >&2; exit 1; }
         sbatch \"$@\" | tee -a $T/ids",
        "exec squeue \"$@\"",
    )
    .await;
    let pod = pod(json!({"containers": [shell("one", "echo 1; sleep 1000"), shell("two", "echo 2")]}));
    let uid = uid_of(&pod);
    bed.batch.start(pod).await.unwrap();
    let half = |text: &str| text.starts_with("one=running two=waiting");
    until(&*bed.batch, &uid, "the first to run alone", half).await;
    let first = bed.lines("ids");
    assert_eq!(first.len(), 1, "{first:?}");
    bed.note("back", "");
    until(&*bed.batch, &uid, "the second", |text| text == "one=running two=exit:0").await;
    let ids = bed.lines("ids");
    assert_eq!((ids.len(), &ids[0]), (2, &first[0]), "{ids:?}");
    assert_eq!(state_of(&first[0]).await, "R", "it was never ended");
    bed.batch.delete(&uid, None).await.unwrap();
}

#[tokio::test]
async fn a_job_of_somebody_else_that_has_the_name_of_ours_is_not_ours() {
    // What they have ended so, or runs, and ours waits.
    let bed = Bed::bent(
        "sbatch -H \"$@\" | tee -a $T/ids",
        "squeue \"$@\" || exit; [ -e $T/uid ] || exit 0
         echo \"999998|4242|$(cat $T/uid)|F|256|NonZeroExitCode|\"; echo \"999999|4242|$(cat $T/uid)|R|0|None|\"",
    )
    .await;
    let pod = pod(json!({"containers": [shell("main", "true")]}));
    let uid = uid_of(&pod);
    bed.note("uid", &uid);
    let id = bed.batch.start(pod).await.unwrap().pod_jid;
    until(&*bed.batch, &uid, "it to wait in the queue", |text| text.contains("JobPending")).await;
    let state = bed.batch.status(std::slice::from_ref(&uid)).await.unwrap().remove(0);
    assert_eq!(state.jid, id);
    cluster().await.run("scontrol", &["release", &id]).await.unwrap();
    assert_eq!(words(&ended(&*bed.batch, &uid).await), "main=exit:0");
    bed.batch.delete(&uid, None).await.unwrap();
}

#[tokio::test]
async fn a_job_of_which_nobody_heard_ends_with_the_pod_that_was_given_up() {
    let bed = Bed::bent(
        "[ ! -e $T/first ] || { echo 'sbatch: error: Batch job submission failed: Invalid account' >&2; exit 1; }
         sbatch -H \"$@\" >>$T/ids || exit; touch $T/first
         echo 'sbatch: error: Socket timed out on send/recv operation' >&2; exit 1",
        "[ -e $T/light ] || exit 0; exec squeue \"$@\"",
    )
    .await;
    let pod = pod(json!({"containers": [shell("main", "true")]}));
    let uid = uid_of(&pod);
    bed.batch.start(pod).await.unwrap();
    let state = ended(&*bed.batch, &uid).await;
    let end = state.containers[0].state.clone().unwrap().terminated.unwrap();
    assert!(end.message.as_deref().unwrap_or_default().contains("Invalid account"), "{end:?}");
    let ids = bed.lines("ids");
    assert_eq!(ids.len(), 1, "{ids:?}");
    let cancelled = eventually(PATIENCE, "its end", || async {
        let state = state_of(&ids[0]).await;
        if state == "CA" { Ok(()) } else { Err(state) }
    });
    cancelled.await.unwrap();
    bed.note("light", "");
    bed.batch.delete(&uid, None).await.unwrap();
}

#[tokio::test]
async fn a_pod_begins_although_its_caller_left() {
    let (root, stop) = (tempfile::tempdir().unwrap(), CancellationToken::new());
    let path = root.path().canonicalize().unwrap();
    let system: Arc<dyn BatchSystem> = Arc::new(Processes::new(path.clone(), "/bin/bash".into()));
    let batch = Batch::open(config(&path, false), system, stop.clone()).unwrap();
    let pod = pod(json!({"containers": [shell("main", "echo ran")]}));
    let uid = uid_of(&pod);
    assert!(batch.start(pod.clone()).now_or_never().is_none(), "it was begun and left");
    // Asked again in the middle of it, as a node does, it is the same pod.
    batch.start(pod).await.unwrap();
    assert_eq!(words(&ended(&*batch, &uid).await), "main=exit:0");
    assert_eq!(log(&*batch, &uid, "main", json!({})).await, "ran\n");
    batch.delete(&uid, None).await.unwrap();
    stop.cancel();
}

#[tokio::test]
async fn a_process_whose_plugin_died_before_it_noted_it_ends_with_its_deleted_pod() {
    let (root, stop) = (tempfile::tempdir().unwrap(), CancellationToken::new());
    let path = root.path().canonicalize().unwrap();
    let system: Arc<dyn BatchSystem> = Arc::new(Processes::new(path.clone(), "/bin/bash".into()));
    let batch = Batch::open(config(&path, false), Arc::clone(&system), stop.clone()).unwrap();
    let pod = pod(json!({"containers": [shell("main", "sleep 1000")]}));
    let uid = uid_of(&pod);
    let id = batch.start(pod).await.unwrap().pod_jid;
    until(&*batch, &uid, "it to run", |text| text == "main=running").await;
    stop.cancel();
    let folder = path.join(format!("tests-{uid}"));
    fs::remove_file(folder.join("JobID.jid")).unwrap();
    fs::write(path.join(".deleted").join(&uid), "").unwrap();
    let stop = CancellationToken::new();
    let _batch = Batch::open(config(&path, false), system, stop.clone()).unwrap();
    eventually(PATIENCE, "its folder to go", || std::future::ready(!folder.exists())).await.unwrap();
    let process: PathBuf = format!("/proc/{}", id.split('-').next().unwrap()).into();
    eventually(PATIENCE, "its process to end", || std::future::ready(!process.exists())).await.unwrap();
    stop.cancel();
}
