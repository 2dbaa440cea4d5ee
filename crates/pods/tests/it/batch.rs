//! Jobs of a real Slurm that fail early, end late, share a machine badly or need help to reach the outside.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tarbet_pods::batch::runtime::Runtime;
use tarbet_pods::batch::tsocks::Tsocks;
use tarbet_pods::batch::{Batch, BatchConfig};
use tarbet_pods::runner::Runner;
use tarbet_pods::slurm::Slurm;
use tarbet_pods::wire::{ExecRequest, Frame, RetrievedPod};
use tarbet_testbed::eventually;
use tokio_util::sync::CancellationToken;

use super::pods::{PATIENCE, ended, log, pod, shell, uid, uid_of, until, words};
use super::slurm::{cluster, config, programs};

struct Bed {
    batch: Arc<Batch>,
    root: tempfile::TempDir,
    stop: CancellationToken,
}

impl Bed {
    async fn new(change: impl FnOnce(&mut BatchConfig)) -> Self {
        let (root, stop) = (tempfile::tempdir().unwrap(), CancellationToken::new());
        let mut config = config(root.path(), false);
        change(&mut config);
        let slurm = Slurm::new(programs(cluster().await.config()));
        let batch = Batch::open(config, Arc::new(slurm), stop.clone()).unwrap();
        Self { batch, root, stop }
    }

    async fn start(&self, pod: &RetrievedPod) -> String {
        self.batch.start(pod.clone()).await.unwrap();
        uid_of(pod)
    }

    /// What a command in the only container writes.
    async fn inside(&self, uid: &str, line: &str) -> String {
        let command = ["sh", "-c", line].map(str::to_owned).to_vec();
        let request = ExecRequest { pod_uid: uid.to_owned(), command, ..Default::default() };
        let mut session = self.batch.exec(request).await.unwrap();
        let mut text = String::new();
        while let Some(frame) = session.output.recv().await {
            if let Frame::Stdout(bytes) = frame {
                text.push_str(&String::from_utf8_lossy(&bytes));
            }
        }
        text
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn program(path: &Path, text: &str) -> PathBuf {
    fs::write(path, format!("#!/bin/bash\n{text}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_owned()
}

fn more(mut container: Value, more: &Value) -> Value {
    container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    container
}

#[tokio::test]
async fn a_pod_has_the_address_of_the_machine_of_its_job() -> anyhow::Result<()> {
    let said = String::from_utf8(Command::new("hostname").arg("-I").output()?.stdout)?;
    let first =
        said.split_whitespace().find(|address| !address.contains(':') && !address.starts_with("169.254."));
    let first = first.map(str::to_owned);
    let folder = tempfile::tempdir()?;
    let node = super::node::Bed::on_slurm(folder.path()).await?;
    node.pod("placed", json!({"containers": [shell("main", "sleep 1000")]})).await?;
    // A machine that has no address but loopback has none to tell.
    eventually(PATIENCE, "the address", || async {
        let status = node.get("placed").await?["status"].clone();
        anyhow::ensure!(status["phase"] == "Running", "{status}");
        anyhow::ensure!(status["podIP"].as_str() == first.as_deref(), "{status}");
        Ok(())
    })
    .await?;
    node.run(&["delete", "pod", "placed", "--wait=true", "--timeout=60s"]).await.map(drop)
}

#[tokio::test]
async fn each_job_asks_for_what_its_own_containers_need() {
    let bed = Bed::new(|config| config.per_container = true).await;
    let needs = |name: &str, cpu: &str, memory: &str| {
        more(shell(name, "true"), &json!({"resources": {"limits": {"cpu": cpu, "memory": memory}}}))
    };
    let spec = json!({
        "initContainers": [needs("first", "4", "8Mi")],
        "containers": [needs("a", "2", "64Mi"), needs("b", "3", "32Mi")],
    });
    let uid = bed.start(&pod(spec)).await;
    for (name, wanted) in [(uid.clone(), "4|64M"), (format!("{uid}.1"), "3|32M")] {
        let name = format!("--name={name}");
        let asked = ["--noheader", "--states=all", "-a", &name, "-o", "%C|%m"];
        assert_eq!(cluster().await.run("squeue", &asked).await.unwrap().trim(), wanted);
    }
    assert_eq!(words(&ended(&*bed.batch, &uid).await), "first=exit:0 a=exit:0 b=exit:0");
    bed.batch.delete(&uid, None).await.unwrap();
}

#[tokio::test]
async fn a_job_that_gives_up_early_says_why() {
    for (prefix, code, said) in [
        ("echo module x is unknown; exit 3", 3, "module x is unknown"),
        ("mkdir() { return 1; }", 125, "cannot make the folder of volumes"),
    ] {
        let bed = Bed::new(|config| config.script.prefix = prefix.into()).await;
        let uid = bed.start(&pod(json!({"containers": [shell("main", "true")]}))).await;
        // Followed from the beginning: it ends with the job, although the container never began.
        let (followed, state) =
            tokio::join!(log(&*bed.batch, &uid, "main", json!({"Follow": true})), ended(&*bed.batch, &uid));
        assert!(followed.contains(said), "{followed}");
        let end = state.containers[0].state.clone().unwrap().terminated.unwrap();
        assert_eq!(end.exit_code, code);
        let message = end.message.unwrap_or_default();
        assert!(message.starts_with("the job ended without a word") && message.contains(said), "{message}");
        bed.batch.delete(&uid, None).await.unwrap();
    }
}

#[tokio::test]
async fn a_machine_that_does_not_see_the_data_root_is_told_from_a_second_job() {
    let bed = Bed::new(|_| {}).await;
    // Jobs and the node's daemon share a view of the file system, which is not the plugin's.
    let root = bed.root.path().canonicalize().unwrap().display().to_string();
    cluster().await.run("srun", &["mount", "-t", "tmpfs", "none", &root]).await.unwrap();
    let uid = bed.start(&pod(json!({"containers": [shell("main", "true")]}))).await;
    let state = ended(&*bed.batch, &uid).await;
    let end = state.containers[0].state.clone().unwrap().terminated.unwrap();
    assert_eq!((end.exit_code, end.reason.as_deref()), (76, Some("DataRootNotVisible")), "{end:?}");
    assert!(end.message.unwrap_or_default().contains("DataRootFolder"));
    bed.batch.delete(&uid, None).await.unwrap();
    cluster().await.run("srun", &["umount", &root]).await.unwrap();
}

#[tokio::test]
async fn containers_reach_the_outside_through_the_login_node() {
    let tools = tempfile::tempdir().unwrap();
    program(&tools.path().join("ssh"), "printf '%s ' \"$@\" >\"${0%/*}/asked\"; exec sleep 1000");
    let library = tools.path().join("libtsocks.so");
    let built = Command::new("cc").args(["-shared", "-xc", "/dev/null", "-o"]).arg(&library).status();
    assert!(built.unwrap().success());
    let bed = Bed::new(|config| {
        config.script.prefix = format!("PATH={}:$PATH", tools.path().display());
        config.script.tsocks = Some(Tsocks { library: library.clone(), login_node: "login01".into() });
    })
    .await;
    let line = "cat \"$TSOCKS_CONF_FILE\"; grep -q libtsocks.so /proc/self/maps && echo loaded";
    let mounts = json!({"volumeMounts": [{"name": "w", "mountPath": "/w"}]});
    let spec = json!({"volumes": [{"name": "w", "emptyDir": {}}],
        "containers": [shell("plain", line), more(shell("viewed", line), &mounts)]});
    let uid = bed.start(&pod(spec)).await;
    assert_eq!(words(&ended(&*bed.batch, &uid).await), "plain=exit:0 viewed=exit:0");
    for name in ["plain", "viewed"] {
        let text = log(&*bed.batch, &uid, name, json!({})).await;
        assert!(text.contains("server = 127.0.0.1\n") && text.ends_with("loaded\n"), "{name}: {text}");
    }
    let asked = fs::read_to_string(tools.path().join("asked")).unwrap();
    assert!(asked.contains("-D 127.0.0.1:") && asked.ends_with("-- login01 "), "{asked}");
    bed.batch.delete(&uid, None).await.unwrap();
}

#[tokio::test]
async fn a_pod_is_gone_when_its_processes_are() {
    let bed = Bed::new(|_| {}).await;
    let held = bed.root.path().join("held");
    let line = format!(
        "exec 7>{}; flock 7; trap '' TERM; echo held; while :; do sleep 0.1 7>&-; done",
        held.display()
    );
    let uid = bed.start(&pod(json!({"containers": [shell("main", &line)]}))).await;
    until(&*bed.batch, &uid, "it to run", |text| text == "main=running").await;
    eventually(PATIENCE, "the lock", || async { log(&*bed.batch, &uid, "", json!({})).await == "held\n" })
        .await
        .unwrap();
    bed.batch.delete(&uid, None).await.unwrap();
    let free = Command::new("flock").arg("--nonblock").arg(&held).arg("true").status().unwrap();
    assert!(free.success(), "its process was still there when the call was answered");
}

#[tokio::test]
async fn the_end_of_the_log_is_the_last_message_of_a_failure_and_all_have_a_limit() {
    let bed = Bed::new(|_| {}).await;
    let fall_back = json!({"terminationMessagePolicy": "FallbackToLogsOnError"});
    let long = |name: &str| {
        let line = "head -c 5000 /dev/zero | tr '\\0' x > /m/last";
        more(shell(name, line), &json!({"terminationMessagePath": "/m/last"}))
    };
    let bad = "i=0; while [ $i -lt 200 ]; do echo line $i; i=$((i + 1)); done; exit 3";
    let spec = json!({"containers": [
        more(shell("good", "echo fine"), &fall_back), more(shell("bad", bad), &fall_back), shell("other", bad),
    ]});
    let uid = bed.start(&pod(spec)).await;
    let state = ended(&*bed.batch, &uid).await;
    let message = |at: usize| state.containers[at].state.clone().unwrap().terminated.unwrap().message;
    let lines: Vec<String> = (120..200).map(|n| format!("line {n}")).collect();
    let wanted = lines.join("\n") + "\n";
    assert_eq!((message(0), message(1), message(2)), (None, Some(wanted), None));
    bed.batch.delete(&uid, None).await.unwrap();

    let uid = bed.start(&pod(json!({"containers": [long("a"), long("b"), long("c"), long("d")]}))).await;
    let state = ended(&*bed.batch, &uid).await;
    let message = |at: usize| state.containers[at].state.clone().unwrap().terminated.unwrap().message;
    let lengths: Vec<usize> = (0..4).map(|at| message(at).unwrap_or_default().len()).collect();
    assert_eq!(lengths, [4096, 4096, 4096, 0]);
    bed.batch.delete(&uid, None).await.unwrap();
}

/// Does what enroot's commands do, with folders instead of images: an import replaces no file, and a
/// root file system is replaced by force only.
const ENROOT: &str = r#"set -e
store=${0%/*}/roots verb=$1
shift
case $verb in
import) [ "$1" = --output ] && [ ! -e "$2" ] && echo "$3" >"$2" && echo "$3" >>"$store.imports" ;;
create)
  force= && [ "$1" != --force ] || { force=1 && shift; }
  [ "$1" = --name ] && [ -e "$3" ]
  [ ! -d "$store/$2" ] || [ -n "$force" ]
  rm -rf "$store/$2" && mkdir -p "$store/$2" ;;
start) [ -d "$store/$1" ] && shift && exec "$@" ;;
remove) [ "$1" = --force ] && rm -rf "$store/$2" ;;
esac"#;

#[tokio::test]
async fn a_container_of_enroot_begins_again_and_leaves_no_root_behind() {
    let tools = tempfile::tempdir().unwrap();
    let path = program(&tools.path().join("enroot"), ENROOT).display().to_string();
    let bed = Bed::new(|config| config.script.runtime = Runtime::Enroot { path, options: vec![] }).await;
    let runs = tools.path().join("runs");
    let line = format!("echo run >> {0}; [ $(wc -l < {0}) -ge 2 ]", runs.display());
    let container = more(shell("main", &line), &json!({"image": "registry.example/a/b:1"}));
    let uid = bed.start(&pod(json!({"restartPolicy": "OnFailure", "containers": [container]}))).await;
    let state = ended(&*bed.batch, &uid).await;
    let said = log(&*bed.batch, &uid, "main", json!({})).await;
    assert_eq!((words(&state).as_str(), state.containers[0].restart_count), ("main=exit:0", 1), "{said}");
    let imports = fs::read_to_string(tools.path().join("roots.imports")).unwrap();
    assert_eq!(imports, "docker://registry.example#a/b:1\n", "once");
    let root = tools.path().join(format!("roots/main-{uid}"));
    eventually(PATIENCE, "its root to go", || std::future::ready(!root.exists())).await.unwrap();
    bed.batch.delete(&uid, None).await.unwrap();
}

#[tokio::test]
async fn commands_run_in_the_container_that_runs() {
    run_inside(&Bed::new(|_| {}).await).await;
}

#[tokio::test]
async fn commands_run_in_the_container_of_another_user() {
    // Whoever is not root makes a view of the file system in a user namespace.
    let bed = Bed::new(|config| config.flags.default_uid = Some(65534)).await;
    fs::set_permissions(bed.root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    run_inside(&bed).await;
}

/// Runs commands in a container with a view of its own.
async fn run_inside(bed: &Bed) {
    let main = more(
        shell("main", "echo inside > /tmp/mark; while :; do sleep 0.2; done"),
        &json!({"volumeMounts": [{"name": "w", "mountPath": "/w"}], "workingDir": "/w",
            "env": [{"name": "ODD.NAME", "value": "odd"}, {"name": "GREETING", "value": "it's"}]}),
    );
    let spec = json!({"volumes": [{"name": "w", "emptyDir": {}}], "containers": [main]});
    let uid = bed.start(&pod(spec)).await;
    until(&*bed.batch, &uid, "it to run", |text| text == "main=running").await;
    eventually(PATIENCE, "the mark of the container", || async {
        let line =
            "cat /tmp/mark; pwd; echo \"$GREETING\"; grep -ac ODD.NAME=odd /proc/$$/environ; env | grep -c SLURM";
        let text = bed.inside(&uid, line).await;
        if text == "inside\n/w\nit's\n1\n0\n" { Ok(()) } else { Err(text) }
    })
    .await
    .unwrap();
    // What a command leaves there the next one finds.
    bed.inside(&uid, "echo left > /tmp/left").await;
    assert_eq!(bed.inside(&uid, "cat /tmp/left").await, "left\n");
    bed.batch.delete(&uid, None).await.unwrap();
}

#[tokio::test]
async fn what_a_killed_job_left_on_its_machine_goes_with_the_next_job() {
    let bed = Bed::new(|_| {}).await;
    let leave = || {
        let folder = PathBuf::from(format!("/tmp/tarbet-{}", uid()));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("secret"), "s3cr3t").unwrap();
        let alive = fs::File::create(folder.join(".alive")).unwrap();
        alive.set_modified(SystemTime::now() - Duration::from_hours(1)).unwrap();
        (folder, alive)
    };
    let ((dead, _), (living, alive)) = (leave(), leave());
    alive.lock().unwrap();
    let uid = bed.start(&pod(json!({"containers": [shell("main", "true")]}))).await;
    assert_eq!(words(&ended(&*bed.batch, &uid).await), "main=exit:0");
    assert!(!dead.exists(), "whoever made it is gone");
    assert!(living.join("secret").exists(), "whoever made it is there");
    fs::remove_dir_all(living).unwrap();
    bed.batch.delete(&uid, None).await.unwrap();
}
