//! A plugin dies after each single effect of making and removing a pod, and is started again: nothing is doubled,
//! lost or left.

use std::fs;

use futures::{StreamExt, stream};
use serde_json::{Value, json};
use tarbet_testbed::{Lease, eventually, verified};

use super::crash::config;
use super::part::{Part, Point, Running};
use super::pods::{PATIENCE, shell, uid_of, with};

/// Plugins at once: each waits more than it works.
const AT_ONCE: usize = 4;

/// What a batch system's plugin does for a new pod.
const BATCH_MAKES: [Point<'_>; 6] = [
    Point("folder made", 1),
    Point("files written", 1),
    Point("script written", 1),
    Point("pod recorded", 1),
    Point("job submitted", 1),
    Point("job noted", 1),
];
/// And to remove one that runs.
const BATCH_REMOVES: [Point<'_>; 5] = [
    Point("deletion marked", 1),
    Point("grace told", 1),
    Point("job cancelled", 1),
    Point("folder set aside", 1),
    Point("folder removed", 1),
];
/// The same with Docker: the holder of the network, the init container and the other.
const DOCKER_MAKES: [Point<'_>; 11] = [
    Point("folder made", 1),
    Point("files written", 1),
    Point("pod recorded", 1),
    Point("container made", 1),
    Point("container started", 1),
    Point("container made", 2),
    Point("start noted", 1),
    Point("container started", 2),
    Point("container made", 3),
    Point("start noted", 2),
    Point("container started", 3),
];
const DOCKER_REMOVES: [Point<'_>; 9] = [
    Point("deletion marked", 1),
    Point("container stopped", 1),
    Point("container removed", 1),
    Point("container stopped", 2),
    Point("container removed", 2),
    Point("container stopped", 3),
    Point("container removed", 3),
    Point("folder set aside", 1),
    Point("folder removed", 1),
];

/// What becomes of a pod.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Life {
    /// Its making is cut off and asked for again.
    MadeAgain,
    /// Its making is cut off and not wanted any more.
    Dropped,
    /// Its removal is cut off.
    Removed,
}

/// What runs the pods.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Process,
    Slurm,
    Docker,
}

struct Bed {
    kind: Kind,
    folder: tempfile::TempDir,
    lease: Lease,
}

impl Bed {
    async fn part(&self) -> Part {
        let mut config = config(self.folder.path(), self.lease.port(0));
        match self.kind {
            Kind::Process => Part::Process(Box::new(config)),
            Kind::Slurm => {
                config.container_runtime = "process".into();
                config.shared_fs = true;
                let conf = super::slurm::cluster().await.config().to_owned();
                Part::Slurm { config: Box::new(config), conf }
            }
            Kind::Docker => {
                config.docker_host = super::docker::daemon().await.url();
                Part::Docker(Box::new(config))
            }
        }
    }

    fn out(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join("out").join(name)).unwrap_or_default()
    }

    /// A pod that leaves a line of a file of its own, and goes on until it is told to end.
    fn pod(&self) -> (String, Value) {
        let files = json!([{"name": "main", "configMaps": [
            {"metadata": {"name": "words", "namespace": "tests"}, "data": {"word": "ran"}},
        ]}]);
        let out = self.folder.path().join("out");
        let pod = with(json!({}), files, json!({}));
        let uid = uid_of(&pod);
        let line = format!(
            "cat /words/word >> /out/{uid}; echo >> /out/{uid}; until [ -e /out/go ]; do sleep 0.1; done"
        );
        let mut main = shell("main", &line);
        main["volumeMounts"] = json!([
            {"name": "out", "mountPath": "/out"}, {"name": "words", "mountPath": "/words"},
            {"name": "scratch", "mountPath": "/scratch"},
        ]);
        let mut init = shell("init", &format!("echo first >> /out/{uid}.init"));
        init["volumeMounts"] = json!([{"name": "out", "mountPath": "/out"}]);
        let mut body = serde_json::to_value(&pod).unwrap();
        body["pod"]["spec"] = json!({
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
            "volumes": [
                {"name": "out", "hostPath": {"path": out}}, {"name": "words", "configMap": {"name": "words"}},
                {"name": "scratch", "emptyDir": {}},
            ],
            "initContainers": [init], "containers": [main],
        });
        (uid, body)
    }

    /// What the plugin and what runs its pods still have of a pod.
    async fn left(&self, uid: &str) -> Vec<String> {
        let data = fs::read_dir(self.folder.path().join("data")).unwrap();
        let names = data.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut left: Vec<String> = names.filter(|name| name.contains(uid)).collect();
        match self.kind {
            // Its script runs in the pod's folder.
            Kind::Process => left.extend(processes(uid)),
            Kind::Slurm => {
                let asked = ["--noheader", "-a", &format!("--name={uid}"), "-o", "%A"];
                let jobs = super::slurm::cluster().await.run("squeue", &asked).await.unwrap();
                left.extend(jobs.lines().map(str::to_owned));
            }
            Kind::Docker => {
                let all =
                    bollard::query_parameters::ListContainersOptions { all: true, ..Default::default() };
                let url = super::docker::daemon().await.url();
                let api = bollard::Docker::connect_with_host(&url).unwrap();
                let containers = api.list_containers(Some(all)).await.unwrap();
                let names = containers.into_iter().flat_map(|container| container.names.unwrap_or_default());
                left.extend(names.filter(|name| name.contains(uid)));
            }
        }
        left
    }
}

/// The processes whose command line names a pod.
pub(crate) fn processes(uid: &str) -> Vec<String> {
    let lines = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let text = fs::read(entry.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&text).replace('\0', " "))
    });
    // This test's own shells apart, which were not made by a plugin.
    lines.filter(|line| line.contains(uid) && line.contains(".sh")).collect()
}

/// Asks until there is an answer or the plugin has died.
async fn ask(url: &str, path: &str, body: &Value) -> Result<Value, String> {
    let answer = reqwest::Client::new().post(format!("{url}{path}")).json(body).send().await;
    let answer = answer.map_err(|error| error.to_string())?;
    let (status, text) = (answer.status(), answer.text().await.map_err(|error| error.to_string())?);
    if status.is_success() || status.as_u16() == 410 {
        return Ok(serde_json::from_str(&text).unwrap_or(Value::Null));
    }
    Err(format!("{status} {text}"))
}

async fn insist(url: &str, path: &str, body: &Value) -> Value {
    eventually(PATIENCE, path, || ask(url, path, body)).await.unwrap()
}

async fn run(kind: Kind, point: Point<'_>, life: Life) {
    let when = format!("{kind:?} {life:?} after {point:?}");
    let bed = Bed { kind, folder: tempfile::tempdir().unwrap(), lease: Lease::block(1).unwrap() };
    fs::create_dir(bed.folder.path().join("out")).unwrap();
    let url = format!("http://127.0.0.1:{}", bed.lease.port(0));
    let (uid, body) = bed.pod();
    let runs = || async {
        eventually(PATIENCE, &format!("the pod runs: {when}"), || async {
            let states = ask(&url, "/status", &json!([body["pod"]])).await?;
            let runs = states[0]["containers"][0]["state"]["running"].is_object();
            if runs && !bed.out(&uid).is_empty() { Ok(()) } else { Err(states.to_string()) }
        })
        .await
        .unwrap();
    };
    let part = bed.part().await;
    let (path, asked) = match life {
        Life::MadeAgain | Life::Dropped => ("/create", &body),
        Life::Removed => {
            let mut first = Running::start(part.clone());
            insist(&url, "/create", &body).await;
            runs().await;
            first.kill().await;
            ("/delete", &body["pod"])
        }
    };
    let mut plugin = Running::start_until(part, Some(point));
    let asking = async {
        insist(&url, path, asked).await;
        // What comes after the answer is done beside it.
        std::future::pending::<()>().await;
    };
    let died = tokio::time::timeout(PATIENCE, async {
        tokio::select! {
            () = plugin.died() => {}
            () = asking => {}
        }
    });
    assert!(died.await.is_ok(), "it never comes there: {when}");
    plugin.revive();
    if life == Life::MadeAgain {
        insist(&url, "/create", &body).await;
        runs().await;
        fs::write(bed.folder.path().join("out/go"), "").unwrap();
        eventually(PATIENCE, &format!("the end of the pod: {when}"), || async {
            let states = ask(&url, "/status", &json!([body["pod"]])).await?;
            let code = &states[0]["containers"][0]["state"]["terminated"]["exitCode"];
            if *code == 0 { Ok(()) } else { Err(states.to_string()) }
        })
        .await
        .unwrap();
    }
    if life == Life::Removed {
        // Without being asked again: it has said to itself that it is to be done.
        gone(&bed, &uid, &when).await;
    }
    insist(&url, "/delete", &body["pod"]).await;
    gone(&bed, &uid, &when).await;
    assert_eq!(insist(&url, "/status", &json!([body["pod"]])).await, json!([]), "{when}");
    // A create that was late on its way.
    insist(&url, "/create", &body).await;
    gone(&bed, &uid, &when).await;
    plugin.kill().await;
    let once = |name: &str, line: &str| {
        let said = bed.out(name);
        let may_be_cut_off = life == Life::Dropped && said.is_empty();
        assert!(may_be_cut_off || said == line, "{when}: {said:?}");
    };
    once(&uid, "ran\n");
    once(&format!("{uid}.init"), "first\n");
}

async fn gone(bed: &Bed, uid: &str, when: &str) {
    eventually(PATIENCE, &format!("nothing is left: {when}"), || async {
        let left = bed.left(uid).await;
        if left.is_empty() { Ok(()) } else { Err(left.join(", ")) }
    })
    .await
    .unwrap();
}

async fn all(kind: Kind, makes: &[Point<'static>], removes: &[Point<'static>]) {
    let lives = [Life::MadeAgain, Life::Dropped].into_iter();
    let made = lives.flat_map(|life| makes.iter().map(move |point| (*point, life)));
    let cases: Vec<_> = made.chain(removes.iter().map(|point| (*point, Life::Removed))).collect();
    let count = cases.len();
    let runs = cases.into_iter().map(|(point, life)| run(kind, point, life));
    stream::iter(runs).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
    verified("kill -9 of a plugin after each effect: nothing is doubled, lost or left", count);
}

#[tokio::test]
async fn processes_are_made_once_and_removed_wherever_the_plugin_dies() {
    all(Kind::Process, &BATCH_MAKES, &BATCH_REMOVES).await;
}

#[tokio::test]
async fn slurm_jobs_are_made_once_and_removed_wherever_the_plugin_dies() {
    all(Kind::Slurm, &BATCH_MAKES, &BATCH_REMOVES).await;
}

#[tokio::test]
async fn containers_are_made_once_and_removed_wherever_the_plugin_dies() {
    all(Kind::Docker, &DOCKER_MAKES, &DOCKER_REMOVES).await;
}
