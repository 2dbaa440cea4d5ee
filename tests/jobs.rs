//! Private pipelines on request, with the binary as people run it: the controller as a role, the
//! requester's commands, and a cluster that is reached only through a gateway.

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tarbet_testbed::{
    ControlPlane, Folder, Kubectl, Lease, Process, Program, Tekton, eventually, shared_pair,
};
use tokio::process::Command;
use tokio::sync::OnceCell;

pub(crate) const SOON: Duration = Duration::from_mins(2);

/// One tenant of a public cluster, and the namespace of a controller on a private one.
pub(crate) struct Flow {
    pub(crate) folder: Folder,
    pub(crate) namespace: String,
    pub(crate) tenant: String,
    pub(crate) private: Kubectl,
    pub(crate) public: Kubectl,
}

/// A private cluster with real Tekton, started by the first test that asks.
pub(crate) async fn private_with_tekton() -> &'static ControlPlane {
    static PLANE: OnceCell<(ControlPlane, Tekton)> = OnceCell::const_new();
    let start = || async {
        let plane = shared_pair().await.unwrap().private.beside("jobs-tekton").await.unwrap();
        let tekton = Tekton::start(&plane).await.unwrap();
        (plane, tekton)
    };
    &PLANE.get_or_init(start).await.0
}

impl Flow {
    pub(crate) async fn new(private: &ControlPlane, public: &ControlPlane) -> Self {
        let deploy = format!("{}/../../deploy/crds", env!("CARGO_MANIFEST_DIR"));
        for plane in [private, public] {
            let kubectl = plane.kubectl();
            for kind in ["internalrequests", "internalservicesconfigs"] {
                let file = format!("{deploy}/{kind}.appstudio.redhat.com.yaml");
                kubectl.run(&["apply", "--server-side", "-f", &file]).await.unwrap();
                let list = ["get", kind, "-A"];
                eventually(SOON, kind, || kubectl.run(&list)).await.unwrap();
            }
        }
        Self {
            folder: Folder::new("jobs").unwrap(),
            namespace: private.unique_namespace("service").await.unwrap(),
            tenant: public.unique_namespace("tenant").await.unwrap(),
            private: private.kubectl(),
            public: public.kubectl(),
        }
    }

    pub(crate) async fn configure(&self, spec: Value) {
        let config = json!({
            "apiVersion": "appstudio.redhat.com/v1alpha1", "kind": "InternalServicesConfig",
            "metadata": { "name": "config", "namespace": self.namespace }, "spec": spec,
        });
        self.private.apply(&config).await.unwrap();
    }

    pub(crate) async fn pipeline(&self, name: &str, script: &str) {
        let task = json!({ "name": "work", "params": [{ "name": "who", "value": "$(params.who)" }], "taskSpec": {
            "params": [{ "name": "who" }], "results": [{ "name": "said" }],
            "steps": [{ "name": "say", "image": "none", "env": [{ "name": "WHO", "value": "$(params.who)" }], "script": script }],
        } });
        let pipeline = json!({
            "apiVersion": "tekton.dev/v1", "kind": "Pipeline",
            "metadata": { "name": name, "namespace": self.namespace },
            "spec": { "params": [{ "name": "who", "default": "you" }], "tasks": [task],
                      "results": [{ "name": "said", "value": "$(tasks.work.results.said)" }] },
        });
        self.private.apply(&pipeline).await.unwrap();
    }

    /// Starts `tarbet jobs` with these flags besides the usual ones, and waits until it is ready.
    pub(crate) async fn jobs(&self, args: &[&str]) -> (Process, String) {
        let (mut process, url) = self.start_jobs(args);
        let ready = || async {
            reqwest::get(format!("{url}/readyz")).await.and_then(reqwest::Response::error_for_status)
        };
        process.ready(SOON, ready).await.unwrap();
        (process, url)
    }

    /// The same without waiting until it is ready.
    pub(crate) fn start_jobs(&self, args: &[&str]) -> (Process, String) {
        let ports = Lease::block(1).unwrap();
        let listen = format!("127.0.0.1:{}", ports.port(0));
        let program = Program::new(env!("CARGO_BIN_EXE_tarbet"))
            .args(["jobs", "--observability-listen", &listen, "--kubeconfig"])
            .arg(self.private.kubeconfig())
            .args(args)
            .env("SERVICE_NAMESPACE", &self.namespace)
            .env("TARBET_STATE", self.folder.path().join("state"));
        let process = Process::start(&self.folder, &format!("jobs-{}", ports.port(0)), program).unwrap();
        // The port stays ours as long as the folder does.
        std::mem::forget(ports);
        (process, format!("http://{listen}"))
    }

    /// Runs `tarbet request …` as the requester: exit code, output, error output.
    pub(crate) async fn request(&self, args: &[&str]) -> (i32, String, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_tarbet"))
            .arg("request")
            .args(args)
            .args(["-n", &self.tenant, "--kubeconfig"])
            .arg(self.public.kubeconfig())
            .env_remove("KUBECONFIG")
            .env("TARBET_STATE", self.folder.path().join("requester"))
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_submitted_followed_and_read_with_the_binary() {
    let pair = shared_pair().await.unwrap();
    let flow = Flow::new(private_with_tekton().await, &pair.public).await;
    flow.configure(json!({ "allowList": [flow.tenant], "watchScope": "allowed" })).await;
    flow.pipeline("greet", "#!/bin/sh\necho token=abcdef\necho \"hello $WHO\"\nprintf 'hello %s' \"$WHO\" > $(results.said.path)").await;
    flow.pipeline("break", "#!/bin/sh\necho broken\nexit 3").await;
    flow.pipeline("slow", "#!/bin/sh\nsleep 600").await;
    let remote = flow.public.kubeconfig().display().to_string();
    let (_jobs, url) = flow.jobs(&["--remote-cluster-config-file", &remote, "--leader-elect"]).await;

    let (code, out, progress) = flow
        .request(&["submit", "greet", "-p", "who=world", "--wait", "--timeout", "3m", "--name", "first"])
        .await;
    assert_eq!((code, out.as_str()), (0, "said=hello world\n"), "{progress}");
    for expected in ["submitted", "running as ", "first: work/say | hello world", "first: succeeded"] {
        assert!(progress.contains(expected), "{expected} is missing in\n{progress}");
    }
    assert!(!progress.contains("abcdef"), "{progress}");
    let (code, out, _) = flow.request(&["logs", "first"]).await;
    assert_eq!((code, out.as_str()), (0, "=== work / say\ntoken=[redacted]\nhello world\n"));
    let kubeconfig = flow.private.kubeconfig().display().to_string();
    let (code, out, error) = flow.request(&["logs", "first", "--private-kubeconfig", &kubeconfig]).await;
    assert_eq!((code, out.as_str()), (0, "=== work / say\ntoken=[redacted]\nhello world\n"), "{error}");

    let (code, _, error) = flow.request(&["submit", "break", "--wait", "--name", "second"]).await;
    assert_eq!(code, 1, "{error}");
    assert!(
        error.contains("TB-2102") && error.contains("work/say | broken") && error.contains("try:"),
        "{error}"
    );
    let (code, _, error) = flow.request(&["submit", "nothing", "--wait"]).await;
    assert_eq!(code, 4, "{error}");
    assert!(error.contains("No endpoint to handle 'nothing' requests"), "{error}");
    let (code, _, error) =
        flow.request(&["submit", "slow", "--wait", "--timeout", "3s", "--name", "third"]).await;
    assert_eq!(code, 5, "{error}");

    // Its time may have been over before its run began.
    eventually(SOON, "all four in their states", || async {
        let (_, list, _) = flow.request(&["list", "-o", "json"]).await;
        let list: Vec<Value> = serde_json::from_str(&list)?;
        let states: Vec<&str> = list.iter().filter_map(|row| row["state"].as_str()).collect();
        let wanted = ["succeeded", "rejected", "running"];
        anyhow::ensure!(states.len() == 4 && wanted.iter().all(|state| states.contains(state)), "{list:?}");
        Ok(())
    })
    .await
    .unwrap();
    let (_, shown, _) = flow.request(&["show", "first"]).await;
    assert!(shown.contains("State      succeeded") && shown.contains("said=hello world"), "{shown}");
    assert_eq!(flow.request(&["cancel", "third"]).await.0, 0);
    let gone = || async { flow.request(&["show", "third"]).await.0 == 3 };
    eventually(SOON, "the cancelled request to go", gone).await.unwrap();

    let page = reqwest::get(format!("{url}/metrics")).await.unwrap().text().await.unwrap();
    assert!(page.contains("internal_request_attempt_total{request=\"greet\""), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_remote_it_says_what_to_give() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_tarbet")).arg("jobs").stdin(Stdio::null()).output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("TB-2201") && said.contains("--remote-kubeconfig"), "{said}");
}
