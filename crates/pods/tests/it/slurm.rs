//! Pods as jobs of a real Slurm, and as plain processes.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tarbet_pods::batch::runtime::Runtime;
use tarbet_pods::batch::script::ScriptConfig;
use tarbet_pods::batch::{Batch, BatchConfig, BatchSystem};
use tarbet_pods::plan::Policy;
use tarbet_pods::process::Processes;
use tarbet_pods::runner::Runner;
use tarbet_pods::slurm::flags::FlagConfig;
use tarbet_pods::slurm::{Slurm, SlurmConfig};
use tarbet_pods::wire::{ExecRequest, Frame, RetrievedPod};
use tarbet_testbed::eventually;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use super::pods::{PATIENCE, effort, ended, log, pod, shell, uid_of, until, with, word, words};

/// One cluster for all tests of this file.
pub(crate) async fn cluster() -> &'static tarbet_testbed::Slurm {
    static CLUSTER: OnceCell<tarbet_testbed::Slurm> = OnceCell::const_new();
    CLUSTER.get_or_init(|| async { tarbet_testbed::Slurm::start().await.unwrap() }).await
}

pub(crate) fn config(root: &Path, shared: bool) -> BatchConfig {
    BatchConfig {
        root: root.to_owned(),
        policy: Policy::default(),
        script: ScriptConfig {
            bash: "/bin/bash".into(),
            prefix: String::new(),
            runtime: Runtime::Process { bwrap: "bwrap".into() },
            image_prefix: String::new(),
            shared,
            tsocks: None,
            kill_wait: Duration::from_secs(3),
        },
        flags: FlagConfig::default(),
        interval: Duration::from_millis(500),
        per_container: false,
    }
}

pub(crate) fn programs(conf: &Path) -> SlurmConfig {
    SlurmConfig {
        sbatch: "sbatch".into(),
        scancel: "scancel".into(),
        squeue: "squeue".into(),
        srun: "srun".into(),
        sinfo: "sinfo".into(),
        resources: None,
        environment: vec![
            ("SLURM_CONF".into(), conf.into()),
            ("PATH".into(), std::env::var_os("PATH").unwrap()),
        ],
        all_users: true,
    }
}

struct Bed {
    batch: Arc<Batch>,
    root: tempfile::TempDir,
    stop: CancellationToken,
    system: Arc<dyn BatchSystem>,
    shared: bool,
}

impl Bed {
    async fn slurm(shared: bool) -> Self {
        Self::with(Slurm::new(programs(cluster().await.config())), shared)
    }

    fn with(system: impl BatchSystem, shared: bool) -> Self {
        Self::set(system, shared, false)
    }

    fn set(system: impl BatchSystem, shared: bool, per_container: bool) -> Self {
        let (root, stop) = (tempfile::tempdir().unwrap(), CancellationToken::new());
        let system: Arc<dyn BatchSystem> = Arc::new(system);
        let config = BatchConfig { per_container, ..config(root.path(), shared) };
        let batch = Batch::open(config, Arc::clone(&system), stop.clone()).unwrap();
        Self { batch, root, stop, system, shared }
    }

    async fn start(&self, pod: &RetrievedPod) -> String {
        let reply = self.batch.start(pod.clone()).await.unwrap();
        assert!(!reply.pod_jid.is_empty());
        uid_of(pod)
    }

    fn reopen(&mut self) {
        self.stop.cancel();
        self.stop = CancellationToken::new();
        let config = config(self.root.path(), self.shared);
        self.batch = Batch::open(config, Arc::clone(&self.system), self.stop.clone()).unwrap();
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// How many jobs of this name Slurm has or had.
async fn jobs(uid: &str) -> usize {
    let name = format!("--name={uid}");
    let text = cluster()
        .await
        .run("squeue", &["--noheader", "--states=all", "-a", &name, "-o", "%A"])
        .await
        .unwrap();
    text.lines().filter(|line| !line.is_empty()).count()
}

/// A pod with everything that a job can carry.
fn rich() -> RetrievedPod {
    let mounts = json!([
        {"name": "cfg", "mountPath": "/cfg"}, {"name": "sec", "mountPath": "/var/run/secrets/x", "readOnly": true},
        {"name": "scratch", "mountPath": "/scratch"}, {"name": "cfg", "mountPath": "/one", "subPath": "key1"},
    ]);
    let mut init = shell("prep", "echo init done > /scratch/x");
    init["volumeMounts"] = mounts.clone();
    let script = "cat /cfg/key1 /var/run/secrets/x/pw /scratch/x /one; wc -c < /cfg/bin; echo \"$GREETING\"; pwd; \
                  env | grep -c SLURM; printf 'the result' > /tekton/termination; exit 7";
    let mut main = shell("main", script);
    main["volumeMounts"] = mounts;
    main["env"] = json!([{"name": "GREETING", "value": "it's $HOME `id` \"quoted\" \\ and\nmore"}]);
    main["workingDir"] = json!("/not/there/yet");
    main["terminationMessagePath"] = json!("/tekton/termination");
    main["resources"] = json!({"limits": {"cpu": "1500m", "memory": "64Mi"}});
    let spec = json!({
        "volumes": [
            {"name": "cfg", "configMap": {"name": "settings"}},
            {"name": "sec", "secret": {"secretName": "mysecret"}},
            {"name": "scratch", "emptyDir": {}},
        ],
        "initContainers": [init],
        "containers": [main, shell("other", "echo other")],
    });
    let data = json!([{"name": "main",
        "configMaps": [{"metadata": {"name": "settings"}, "data": {"key1": "value 'one'\n"}, "binaryData": {"bin": "AAECAwD/"}}],
        "secrets": [{"metadata": {"name": "mysecret"}, "data": {"pw": "czNjcjN0Cg=="}}]}]);
    with(spec, data, json!({"annotations": {"slurm-job.vk.io/flags": "--time=00:10:00"}}))
}

async fn check_rich(bed: &Bed) {
    let pod = rich();
    let uid = bed.start(&pod).await;
    let state = ended(&*bed.batch, &uid).await;
    assert_eq!(
        words(&state),
        "prep=exit:0 main=exit:7 other=exit:0",
        "{}",
        log(&*bed.batch, &uid, "main", json!({})).await
    );
    let text = log(&*bed.batch, &uid, "main", json!({})).await;
    let greeting = "it's $HOME `id` \"quoted\" \\ and\nmore";
    assert_eq!(
        text,
        format!("value 'one'\ns3cr3t\ninit done\nvalue 'one'\n6\n{greeting}\n/not/there/yet\n0\n")
    );
    let end = state.containers[0].state.clone().unwrap().terminated.unwrap();
    assert_eq!((end.reason.as_deref(), end.message.as_deref()), (Some("Error"), Some("the result")));
    assert!(end.started_at.is_some() && end.finished_at.is_some());
    assert_eq!(log(&*bed.batch, &uid, "other", json!({})).await, "other\n");
    bed.batch.delete(&uid, None).await.unwrap();
    assert_eq!(fs::read_dir(bed.root.path()).unwrap().count(), 1, "only the marks of deletions stay");
    let work: PathBuf = format!("/tmp/tarbet-{uid}").into();
    eventually(PATIENCE, "its volumes to go", || std::future::ready(!work.exists())).await.unwrap();
}

#[tokio::test]
async fn a_job_carries_files_variables_and_messages() {
    check_rich(&Bed::slurm(false).await).await;
    check_rich(&Bed::slurm(true).await).await;
}

#[tokio::test]
async fn plain_processes_do_the_same() {
    let root = tempfile::tempdir().unwrap();
    let (stop, path) = (CancellationToken::new(), root.path().canonicalize().unwrap());
    let system: Arc<dyn BatchSystem> = Arc::new(Processes::new(path, "/bin/bash".into()));
    let batch = Batch::open(config(root.path(), false), Arc::clone(&system), stop.clone()).unwrap();
    let mut bed = Bed { batch, root, stop, system, shared: false };
    check_rich(&bed).await;
    // What runs goes on without the plugin, and is ended with the pod.
    let pod = pod(json!({"containers": [shell("main", "echo begun; sleep 1000")]}));
    let uid = bed.start(&pod).await;
    until(&*bed.batch, &uid, "it to run", |text| text == "main=running").await;
    bed.reopen();
    until(&*bed.batch, &uid, "it to be known", |text| text == "main=running").await;
    let id = bed.batch.start(pod).await.unwrap().pod_jid;
    bed.batch.delete(&uid, Some(Duration::from_secs(5))).await.unwrap();
    let pid: PathBuf = format!("/proc/{}", id.split('-').next().unwrap()).into();
    eventually(PATIENCE, "the end of the process", || std::future::ready(!pid.exists())).await.unwrap();
}

#[tokio::test]
async fn a_failing_init_container_ends_the_job() {
    let bed = Bed::slurm(false).await;
    let pod = pod(
        json!({"initContainers": [shell("bad", "exit 3")], "containers": [shell("main", "touch /tmp/never")]}),
    );
    let uid = bed.start(&pod).await;
    let state = until(&*bed.batch, &uid, "the end", |text| text.contains("bad=exit:3 main=exit:")).await;
    assert_ne!(word(&state.containers[0]), "exit:0");
    bed.batch.delete(&uid, None).await.unwrap();
}

#[tokio::test]
async fn logs_are_followed_and_commands_run_inside() {
    let bed = Bed::slurm(false).await;
    let spec = json!({"volumes": [{"name": "w", "emptyDir": {}}], "containers": [{
        "name": "main", "image": "none", "command": ["sh", "-c"],
        "args": ["echo tick 1; echo tick 2; until [ -e /w/go ]; do sleep 0.1; done; echo tick 3"],
        "volumeMounts": [{"name": "w", "mountPath": "/w"}]}]});
    let uid = bed.start(&pod(spec)).await;
    until(&*bed.batch, &uid, "it to run", |text| text == "main=running").await;
    let follow = log(&*bed.batch, &uid, "main", json!({"Follow": true}));
    let run = async |line: &str| {
        let command = ["sh", "-c", line].map(str::to_owned).to_vec();
        let request = ExecRequest { pod_uid: uid.clone(), command, stdin: true, ..Default::default() };
        let mut session = bed.batch.exec(request).await.unwrap();
        session.input.send(Frame::Stdin(Bytes::from_static(b"typed"))).await.unwrap();
        session.input.send(Frame::Stdin(Bytes::new())).await.unwrap();
        let mut seen = Vec::new();
        while let Some(frame) = session.output.recv().await {
            seen.push(frame);
        }
        seen
    };
    let command = async {
        let seen = run("cat > /w/typed; ls /w; exit 5").await;
        // Not before it is over: with the job goes whatever runs inside.
        run("cat > /w/go").await;
        seen
    };
    let (whole, seen) = tokio::join!(follow, command);
    assert_eq!(whole, "tick 1\ntick 2\ntick 3\n");
    assert!(seen.contains(&Frame::Stdout(Bytes::from_static(b"typed\n"))), "{seen:?}");
    assert_eq!(seen.last(), Some(&Frame::Exit(5)));
    assert_eq!(log(&*bed.batch, &uid, "", json!({"Tail": 1})).await, "tick 3\n");
    assert_eq!(log(&*bed.batch, &uid, "", json!({"Bytes": 8})).await, "tick 1\nt");
    bed.batch.delete(&uid, None).await.unwrap();
}

#[tokio::test]
async fn a_deleted_pod_takes_its_job_along_and_leaves_no_secret() {
    let bed = Bed::slurm(false).await;
    let mut main = shell("main", "trap '' TERM; cat /sec/pw; sleep 1000");
    main["volumeMounts"] = json!([{"name": "sec", "mountPath": "/sec"}]);
    let spec = json!({"volumes": [{"name": "sec", "secret": {"secretName": "s"}}], "containers": [main]});
    let data =
        json!([{"name": "main", "secrets": [{"metadata": {"name": "s"}, "data": {"pw": "czNjcjN0Cg=="}}]}]);
    let uid = bed.start(&with(spec, data, json!({}))).await;
    until(&*bed.batch, &uid, "it to run", |text| text == "main=running").await;
    let work: PathBuf = format!("/tmp/tarbet-{uid}").into();
    eventually(PATIENCE, "its files", || std::future::ready(work.exists())).await.unwrap();
    bed.batch.delete(&uid, None).await.unwrap();
    eventually(PATIENCE, "its files to go", || std::future::ready(!work.exists())).await.unwrap();
    let state = eventually(PATIENCE, "the end of the job", || async {
        let name = format!("--name={uid}");
        let state = cluster()
            .await
            .run("squeue", &["--noheader", "--states=all", "-a", &name, "-o", "%t"])
            .await
            .unwrap();
        ["CA", "CD", "F"].contains(&state.as_str()).then_some(state)
    });
    state.await.unwrap();
    assert!(bed.batch.status(&[uid]).await.unwrap().is_empty());
}

#[tokio::test]
async fn pods_are_taken_up_again_and_submitted_once() {
    let mut bed = Bed::slurm(false).await;
    let long = pod(json!({"containers": [shell("main", "sleep 1000")]}));
    let uid = uid_of(&long);
    for reply in futures::future::join_all((0..6).map(|_| bed.batch.start(long.clone()))).await {
        reply.unwrap();
    }
    until(&*bed.batch, &uid, "it to run", |text| text == "main=running").await;
    // As if the plugin had died between the submission and its record.
    fs::remove_file(bed.root.path().join(format!("tests-{uid}/JobID.jid"))).unwrap();
    bed.reopen();
    let state = eventually(PATIENCE, "the job to be found", || async {
        let states = bed.batch.status(std::slice::from_ref(&uid)).await.unwrap();
        states.into_iter().find(|state| !state.jid.is_empty())
    });
    assert_eq!(words(&state.await.unwrap()), "main=running");
    bed.batch.start(long).await.unwrap();
    assert_eq!(jobs(&uid).await, 1);
    bed.batch.delete(&uid, None).await.unwrap();
}

/// A program that stands before a real one.
fn wrapper(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/bash\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[tokio::test]
async fn a_lost_answer_of_sbatch_is_not_a_second_job() {
    let tools = tempfile::tempdir().unwrap();
    let mut programs = programs(cluster().await.config());
    let lost =
        "sbatch \"$@\" >/dev/null; echo 'sbatch: error: Socket timed out on send/recv operation' >&2; exit 1";
    programs.sbatch = wrapper(tools.path(), "sbatch-lost", lost);
    let bed = Bed::with(Slurm::new(programs), false);
    let uid = bed.start(&pod(json!({"containers": [shell("main", "echo ran")]}))).await;
    ended(&*bed.batch, &uid).await;
    assert_eq!((jobs(&uid).await, log(&*bed.batch, &uid, "", json!({})).await.as_str()), (1, "ran\n"));
    bed.batch.delete(&uid, None).await.unwrap();
}

#[tokio::test]
async fn refusals_of_sbatch_are_passed_on() {
    let bed = Bed::slurm(false).await;
    let notes = |flags: &str| json!({"annotations": {"slurm-job.vk.io/flags": flags}});
    let spec = || json!({"containers": [shell("main", "true")]});
    let error = bed.batch.start(with(spec(), json!([]), notes("--partition=nowhere"))).await.unwrap_err();
    assert!(error.to_string().contains("invalid partition"), "{error}");
    let error = bed.batch.start(with(spec(), json!([]), notes("--wrap=id"))).await.unwrap_err();
    assert!(error.to_string().contains("does not allow the sbatch option `wrap`"), "{error}");
    let shell_note = json!({"annotations": {"slurm-job.vk.io/pre-exec": "touch /tmp/x"}});
    let error = bed.batch.start(with(spec(), json!([]), shell_note)).await.unwrap_err();
    assert!(error.to_string().contains("pre-exec"), "{error}");
    assert_eq!(fs::read_dir(bed.root.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn a_queue_that_cannot_be_read_fails_no_pod() {
    let tools = tempfile::tempdir().unwrap();
    let mut programs = programs(cluster().await.config());
    let switch = tools.path().join("mode");
    fs::write(&switch, "ok").unwrap();
    let text = format!(
        "case $(cat {}) in ok) exec squeue \"$@\" ;; garbage) echo '<html>oops</html>' ;; empty) exit 1 ;; hang) exec sleep 60 ;; esac",
        switch.display()
    );
    programs.squeue = wrapper(tools.path(), "squeue-moody", &text);
    let bed = Bed::with(Slurm::new(programs), false);
    let uid = bed.start(&pod(json!({"containers": [shell("main", "sleep 1000")]}))).await;
    until(&*bed.batch, &uid, "it to run", |text| text == "main=running").await;
    for mode in ["garbage", "empty", "hang"] {
        fs::write(&switch, mode).unwrap();
        eventually(PATIENCE, "the word", || async { bed.batch.ping().await.status.starts_with("away") })
            .await
            .unwrap();
        let state = &bed.batch.status(std::slice::from_ref(&uid)).await.unwrap()[0];
        assert_eq!(words(state), "main=running");
        assert!(state.stale_seconds > 0);
        fs::write(&switch, "ok").unwrap();
        eventually(PATIENCE, "the word", || async { bed.batch.ping().await.status == "ok" }).await.unwrap();
    }
    bed.batch.delete(&uid, None).await.unwrap();
}

#[tokio::test]
async fn many_pods_share_few_questions() {
    let tools = tempfile::tempdir().unwrap();
    let mut programs = programs(cluster().await.config());
    let count = tools.path().join("count");
    programs.squeue = wrapper(
        tools.path(),
        "squeue-counted",
        &format!("echo x >> {}; exec squeue \"$@\"", count.display()),
    );
    let bed = Bed::with(Slurm::new(programs), false);
    let begun = std::time::Instant::now();
    let pods: Vec<RetrievedPod> = (0..effort(20))
        .map(|n| pod(json!({"containers": [shell("main", &format!("exit {}", n % 3))]})))
        .collect();
    let replies = futures::future::join_all(pods.iter().map(|pod| bed.batch.start(pod.clone()))).await;
    let ids: BTreeSet<String> = replies.into_iter().map(|reply| reply.unwrap().pod_jid).collect();
    assert_eq!(ids.len(), pods.len());
    for (n, pod) in pods.iter().enumerate() {
        let state: Value = serde_json::to_value(ended(&*bed.batch, &uid_of(pod)).await).unwrap();
        assert_eq!(state["containers"][0]["state"]["terminated"]["exitCode"], n % 3);
    }
    let questions = fs::read_to_string(&count).unwrap_or_default().lines().count() as u128;
    assert!(questions <= begun.elapsed().as_millis() / 500 + 2, "{questions} questions");
    for pod in &pods {
        bed.batch.delete(&uid_of(pod), None).await.unwrap();
    }
}

#[tokio::test]
async fn each_container_can_have_a_job_of_its_own() {
    let mut bed = Bed::set(Slurm::new(programs(cluster().await.config())), true, true);
    let mounts = json!([{"name": "scratch", "mountPath": "/scratch"}]);
    let with_scratch = |name: &str, line: &str| {
        let mut container = shell(name, line);
        container["volumeMounts"] = mounts.clone();
        container
    };
    let spec = json!({
        "volumes": [{"name": "scratch", "emptyDir": {}}],
        "initContainers": [with_scratch("first", "echo made > /scratch/word")],
        "containers": [
            with_scratch("a", "cat /scratch/word; echo $SLURM_JOB_ID > /scratch/a; until [ -e /scratch/go ]; do sleep 0.1; done"),
            with_scratch("b", "cat /scratch/word; until [ -e /scratch/a ]; do sleep 0.1; done; touch /scratch/go; exit 4"),
        ],
    });
    let pod = pod(spec);
    let reply = bed.batch.start(pod.clone()).await.unwrap();
    let uid = uid_of(&pod);
    assert_eq!(reply.pod_jid.split(',').count(), 2, "{}", reply.pod_jid);
    assert_eq!((jobs(&uid).await, jobs(&format!("{uid}.1")).await), (1, 1));
    // Whoever comes back knows both jobs, whatever it is told now.
    bed.reopen();
    let state = ended(&*bed.batch, &uid).await;
    assert_eq!(words(&state), "first=exit:0 a=exit:0 b=exit:4");
    assert_eq!(state.jid, reply.pod_jid);
    for name in ["a", "b"] {
        assert_eq!(log(&*bed.batch, &uid, name, json!({})).await, "made\n");
    }
    bed.batch.delete(&uid, None).await.unwrap();
    assert_eq!((jobs(&uid).await, jobs(&format!("{uid}.1")).await), (1, 1), "submitted once");
}

#[tokio::test]
async fn a_container_whose_image_changes_is_ended_and_the_job_goes_on() {
    let bed = Bed::slurm(true).await;
    let spec = json!({"containers": [
        shell("step", "while [ ! -e /tmp/never ]; do sleep 0.2; done"), shell("helper", "while :; do sleep 0.2; done"),
    ]});
    let mut pod = pod(spec);
    let uid = bed.start(&pod).await;
    until(&*bed.batch, &uid, "both to run", |text| text == "step=running helper=running").await;
    pod.pod.spec.as_mut().unwrap().containers[1].image = Some("nop:1".into());
    bed.batch.update(pod.clone()).await.unwrap();
    until(&*bed.batch, &uid, "the helper to end", |text| text.starts_with("step=running helper=exit:")).await;
    // Told again, nothing more happens.
    bed.batch.update(pod).await.unwrap();
    bed.batch.delete(&uid, None).await.unwrap();
}

#[tokio::test]
async fn the_summary_of_machines_is_told() {
    let bed = Bed::slurm(false).await;
    let info = bed.batch.system_info().await.unwrap();
    assert!(info.slurm_connected && info.sinfo_output.contains("debug"), "{info:?}");
    assert_eq!(info.status, "ok");
}

#[tokio::test]
async fn resources_are_told_with_a_ping() {
    let bed = Bed::slurm(false).await;
    let told =
        eventually(PATIENCE, "the resources", || async { bed.batch.ping().await.resources }).await.unwrap();
    assert!(told.cpu.parse::<u64>().unwrap() > 0 && told.memory.ends_with("Mi"), "{told:?}");
    // A site's own program goes before sinfo.
    let tools = tempfile::tempdir().unwrap();
    let mut programs = programs(cluster().await.config());
    let answer = r#"{"status":"ok","resources":{"cpu":"64","memory":"11334Mi"},"taints":[{"key":"slurm.example/maint","value":"no","effect":"PreferNoSchedule"}]}"#;
    programs.resources = Some(wrapper(tools.path(), "resources", &format!("echo '{answer}'")));
    let bed = Bed::with(Slurm::new(programs), false);
    let whole = |text: String| (text == answer).then_some(());
    eventually(PATIENCE, "the site's word", || async {
        whole(serde_json::to_string(&bed.batch.ping().await).unwrap())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn files_change_while_a_job_runs_without_a_shared_file_system() {
    let bed = Bed::slurm(false).await;
    // Volumes change one after the other.
    let line = "until grep -q READY /down/ready && [ ! -e /cfg/a ]; do sleep 0.1; done; ls /cfg; cat /cfg/b";
    let mut main = shell("main", line);
    main["volumeMounts"] =
        json!([{"name": "down", "mountPath": "/down"}, {"name": "cfg", "mountPath": "/cfg"}]);
    let spec = json!({
        "volumes": [
            {"name": "down", "downwardAPI": {"items": [
                {"path": "ready", "fieldRef": {"fieldPath": "metadata.annotations['tekton.dev/ready']"}}]}},
            {"name": "cfg", "configMap": {"name": "cm"}},
        ],
        "containers": [main],
    });
    let data =
        |files: Value| json!([{"name": "main", "configMaps": [{"metadata": {"name": "cm"}, "data": files}]}]);
    let mut pod = with(spec, data(json!({"a": "1"})), json!({}));
    let uid = bed.start(&pod).await;
    until(&*bed.batch, &uid, "it to run", |text| text == "main=running").await;
    let later = serde_json::from_value(data(json!({"b": "it's $(touch /tmp/never)\n"}))).unwrap();
    pod.containers = later;
    pod.pod.metadata.annotations = Some([("tekton.dev/ready".to_owned(), "READY".to_owned())].into());
    bed.batch.update(pod).await.unwrap();
    assert_eq!(words(&ended(&*bed.batch, &uid).await), "main=exit:0");
    assert_eq!(log(&*bed.batch, &uid, "main", json!({})).await, "b\nit's $(touch /tmp/never)\n");
    bed.batch.delete(&uid, None).await.unwrap();
    let work: PathBuf = format!("/tmp/tarbet-{uid}").into();
    eventually(PATIENCE, "its volumes to go", || std::future::ready(!work.exists())).await.unwrap();
}

#[tokio::test]
async fn a_job_that_waits_begins_with_the_newest_files() {
    let bed = Bed::slurm(false).await;
    let mut main = shell("main", "cat /down/ready");
    main["volumeMounts"] = json!([{"name": "down", "mountPath": "/down"}]);
    let spec = json!({
        "volumes": [{"name": "down", "downwardAPI": {"items": [
            {"path": "ready", "fieldRef": {"fieldPath": "metadata.annotations['note']"}}]}}],
        "containers": [main],
    });
    let later =
        json!({"annotations": {"slurm-job.vk.io/flags": "--begin=now+1hour --comment='one two' -J other"}});
    let mut pod = with(spec, json!([]), later);
    let uid = bed.start(&pod).await;
    pod.pod.metadata.annotations.get_or_insert_default().insert("note".into(), "newest\n".into());
    bed.batch.update(pod).await.unwrap();
    let name = format!("--name={uid}");
    let job = cluster().await.run("squeue", &["--noheader", "-a", &name, "-o", "%A|%k"]).await.unwrap();
    let (id, comment) = job.trim().split_once('|').unwrap();
    assert_eq!(comment, "one two", "as the pod wrote it");
    cluster().await.run("scontrol", &["update", &format!("jobid={id}"), "StartTime=now"]).await.unwrap();
    assert_eq!(words(&ended(&*bed.batch, &uid).await), "main=exit:0");
    assert_eq!(log(&*bed.batch, &uid, "main", json!({})).await, "newest\n");
    bed.batch.delete(&uid, None).await.unwrap();
}

#[tokio::test]
async fn a_job_of_another_user_reads_its_files_and_leaves_its_word() {
    const NOBODY: u32 = 65534;
    let (root, stop) = (tempfile::tempdir().unwrap(), CancellationToken::new());
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut settings = config(root.path(), false);
    settings.flags.default_uid = Some(NOBODY);
    let system: Arc<dyn BatchSystem> = Arc::new(Slurm::new(programs(cluster().await.config())));
    let batch = Batch::open(settings, Arc::clone(&system), stop.clone()).unwrap();
    let mut main = shell("main", "id -u; cat /cfg/a");
    main["volumeMounts"] = json!([{"name": "cfg", "mountPath": "/cfg"}]);
    let spec = json!({"volumes": [{"name": "cfg", "configMap": {"name": "cm"}}], "containers": [main]});
    let data = json!([{"name": "main", "configMaps": [{"metadata": {"name": "cm"}, "data": {"a": "1\n"}}]}]);
    let pod = with(spec, data, json!({}));
    let uid = uid_of(&pod);
    batch.start(pod).await.unwrap();
    assert_eq!(words(&ended(&*batch, &uid).await), "main=exit:0");
    assert_eq!(log(&*batch, &uid, "main", json!({})).await, "65534\n1\n");
    let record = fs::metadata(root.path().join(format!("tests-{uid}/pod.json"))).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&record), 0, "what is believed stays ours");
    batch.delete(&uid, None).await.unwrap();
    stop.cancel();
}
