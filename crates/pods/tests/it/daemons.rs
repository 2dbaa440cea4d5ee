//! Docker's and Slurm's own daemons end and come back under live pods: none is doubled or lost.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tarbet_pods::batch::{Batch, BatchConfig};
use tarbet_pods::docker::Docker;
use tarbet_pods::plan::Policy;
use tarbet_pods::runner::Runner;
use tarbet_pods::slurm::Slurm;
use tarbet_testbed::{Dockerd, eventually, verified};
use tokio_util::sync::CancellationToken;

use super::pods::{PATIENCE, effort, ended, pod, shell, uid_of, until, words};

/// A pod that leaves a line each time it begins, and waits for a word before it ends.
fn spec(folder: &Path, name: &str) -> Value {
    let mut main = shell(
        "main",
        &format!("echo ran >> /out/{name}; until [ -e /out/{name}.end ]; do sleep 0.1; done; exit 4"),
    );
    main["volumeMounts"] = json!([{"name": "out", "mountPath": "/out"}]);
    json!({"containers": [main], "volumes": [{"name": "out", "hostPath": {"path": folder}}]})
}

/// Pods of a runner, and the folder they write to.
struct Crowd<'a, R: Runner + ?Sized> {
    runner: &'a R,
    folder: &'a Path,
    pods: Vec<(String, String)>,
}

impl<'a, R: Runner + ?Sized> Crowd<'a, R> {
    async fn start(runner: &'a R, folder: &'a Path, count: u32, round: u32) -> Self {
        let mut pods = Vec::new();
        for n in 0..count {
            let name = format!("pod-{round}-{n}");
            let pod = pod(spec(folder, &name));
            runner.start(pod.clone()).await.unwrap();
            pods.push((uid_of(&pod), name));
        }
        for (uid, name) in &pods {
            until(runner, uid, "it to run", |text| text == "main=running").await;
            // A job runs a little before what it is for does.
            let begun = || std::future::ready(folder.join(name).exists());
            eventually(PATIENCE, "its line", begun).await.unwrap();
        }
        Self { runner, folder, pods }
    }

    fn uids(&self) -> Vec<String> {
        self.pods.iter().map(|(uid, _)| uid.clone()).collect()
    }

    /// While nothing can be asked, the last states are told with their age, and none has failed.
    async fn is_away(&self) {
        eventually(PATIENCE, "the word that it is away", || async {
            let status = self.runner.ping().await.status;
            if status.starts_with("away") { Ok(()) } else { Err(status) }
        })
        .await
        .unwrap();
        for state in self.runner.status(&self.uids()).await.unwrap() {
            assert!(state.stale_seconds > 0, "{state:?}");
            assert_eq!(words(&state), "main=running", "nothing is known to have failed");
        }
    }

    async fn is_back(&self) {
        eventually(PATIENCE, "it to be back", || async {
            let status = self.runner.ping().await.status;
            if status == "ok" { Ok(()) } else { Err(status) }
        })
        .await
        .unwrap();
    }

    /// They end, each with what `good` finds right; each began once, and is gone when deleted.
    async fn end(self, good: impl Fn(&str) -> bool) {
        for (uid, name) in &self.pods {
            fs::write(self.folder.join(format!("{name}.end")), "").unwrap();
            let state = ended(self.runner, uid).await;
            assert!(good(&words(&state)), "{}", words(&state));
            assert_eq!(state.stale_seconds, 0, "the state is of now");
            assert_eq!(fs::read_to_string(self.folder.join(name)).unwrap(), "ran\n", "{name} ran once");
        }
        for (uid, _) in &self.pods {
            self.runner.delete(uid, None).await.unwrap();
        }
        assert!(self.runner.status(&self.uids()).await.unwrap().is_empty());
    }
}

fn allowed(folder: &Path) -> Policy {
    Policy { allowed_host_paths: vec![folder.to_owned()], ..Policy::default() }
}

#[tokio::test]
async fn pods_of_a_docker_daemon_that_dies_end_once_and_are_not_begun_again() {
    let mut dockerd = Dockerd::start().await.unwrap();
    dockerd.shell_image("shell:1").await.unwrap();
    let (root, out, stop) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), CancellationToken::new());
    let config = super::docker::config(dockerd.url(), root.path());
    let config = tarbet_pods::docker::DockerConfig { policy: allowed(out.path()), ..config };
    let docker: Arc<Docker> = Docker::open(config, stop.clone()).unwrap();
    let rounds = effort(2);
    for round in 0..rounds {
        let crowd = Crowd::start(&*docker, out.path(), 3, round).await;
        // Without a word, and in good order: its containers go with it either way.
        if round % 2 == 0 {
            dockerd.kill9().unwrap();
        } else {
            dockerd.process().stop().await.unwrap();
        }
        crowd.is_away().await;
        dockerd.restart().await.unwrap();
        crowd.is_back().await;
        crowd.end(|words| words.starts_with("main=exit:") && words != "main=exit:0").await;
    }
    let left = dockerd.docker(&["ps", "-aq"]).await.unwrap();
    assert_eq!(left, "", "nothing is left behind");
    stop.cancel();
    verified("the Docker daemon ends under live pods: none doubled or lost", 3 * rounds as usize);
}

/// Waits until the controller has written all it knows: it does so some seconds late, and what it loses
/// when it is killed before that is lost by Slurm itself.
async fn written(cluster: &tarbet_testbed::Slurm, job: &str, mark: &str) {
    let (job, comment) = (format!("JobId={job}"), format!("Comment={mark}"));
    cluster.run("scontrol", &["update", &job, &comment]).await.unwrap();
    let state = cluster.folder().join("ctld/job_state");
    let kept = || {
        let bytes = fs::read(&state).unwrap_or_default();
        std::future::ready(bytes.windows(mark.len()).any(|window| window == mark.as_bytes()))
    };
    eventually(PATIENCE, "the controller to write its state", kept).await.unwrap();
}

#[tokio::test]
async fn jobs_go_on_while_the_controller_of_slurm_is_away() {
    let mut cluster = tarbet_testbed::Slurm::start().await.unwrap();
    let (root, out, stop) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), CancellationToken::new());
    let system = Slurm::new(super::slurm::programs(cluster.config()));
    let config = BatchConfig { policy: allowed(out.path()), ..super::slurm::config(root.path(), true) };
    let batch: Arc<Batch> = Batch::open(config, Arc::new(system), stop.clone()).unwrap();
    let rounds = effort(1);
    for round in 0..rounds {
        let crowd = Crowd::start(&*batch, out.path(), 3, round).await;
        let before = batch.status(&crowd.uids()).await.unwrap();
        written(&cluster, &before[0].jid, &format!("seen in round {round}")).await;
        if round % 2 == 0 {
            cluster.controller().kill9().unwrap();
        } else {
            cluster.controller().stop().await.unwrap();
        }
        crowd.is_away().await;
        let refused = batch.start(pod(json!({"containers": [shell("main", "true")]}))).await;
        assert!(refused.is_err(), "a job that nobody took is not told as begun");
        cluster.controller().restart().await.unwrap();
        crowd.is_back().await;
        // The jobs never noticed.
        for (uid, was) in crowd.uids().iter().zip(&before) {
            let now = until(&*batch, uid, "it to run", |text| text == "main=running").await;
            assert_eq!(now.jid, was.jid);
            let name = format!("--name={uid}");
            let jobs =
                cluster.run("squeue", &["--noheader", "--states=all", &name, "-o", "%A"]).await.unwrap();
            assert_eq!(jobs.lines().count(), 1, "one job: {jobs}");
        }
        crowd.end(|words| words == "main=exit:4").await;
    }
    stop.cancel();
    verified("the controller of Slurm ends under live pods: none doubled or lost", 3 * rounds as usize);
}

#[tokio::test]
async fn jobs_of_a_node_of_slurm_that_dies_end_once_and_are_not_begun_again() {
    let mut cluster = tarbet_testbed::Slurm::start().await.unwrap();
    let (root, out, stop) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), CancellationToken::new());
    let system = Slurm::new(super::slurm::programs(cluster.config()));
    let config = BatchConfig { policy: allowed(out.path()), ..super::slurm::config(root.path(), true) };
    let batch: Arc<Batch> = Batch::open(config, Arc::new(system), stop.clone()).unwrap();
    let crowd = Crowd::start(&*batch, out.path(), 3, 0).await;
    // The jobs die with the daemon, and Slurm is told so at once instead of finding out in minutes.
    cluster.node().kill9().unwrap();
    let name = format!("NodeName={}", cluster.run("sinfo", &["--noheader", "-o", "%n"]).await.unwrap());
    cluster.run("scontrol", &["update", &name, "State=DOWN", "Reason=died"]).await.unwrap();
    for (uid, _) in &crowd.pods {
        ended(&*batch, uid).await;
    }
    // A node that is back begins none of them again, and takes new ones.
    cluster.node().restart().await.unwrap();
    cluster.run("scontrol", &["update", &name, "State=RESUME"]).await.unwrap();
    Crowd::start(&*batch, out.path(), 1, 1).await.end(|words| words == "main=exit:4").await;
    let pods = crowd.pods.len();
    crowd.end(|words| words.starts_with("main=exit:") && words != "main=exit:0").await;
    stop.cancel();
    verified("a node of Slurm dies under live pods: none doubled or lost", pods);
}
