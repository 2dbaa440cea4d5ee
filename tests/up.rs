//! `tarbet up` whole: what it starts, what `status`, `check` and `topology` say of it, what `down` leaves.

mod hosts;
mod plans;

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tarbet_testbed::{Folder, Lease, Netlab, Process, Program, eventually, shared_pair};

/// Long on a busy machine, never waited for when all is well.
const SOON: Duration = Duration::from_mins(1);

/// An installation with ports and folders of its own.
pub(super) struct Machine {
    pub(super) folder: Folder,
    ports: Lease,
    config: PathBuf,
    lab: Netlab,
}

impl Machine {
    pub(super) async fn new() -> Self {
        let (folder, ports) = (Folder::new("up").unwrap(), Lease::block(12).unwrap());
        let lab = Netlab::start().await.unwrap();
        let port = |index: u16| ports.port(index);
        let listen = |index: u16| format!("{{listen: '127.0.0.1:{}'}}", port(index));
        let local =
            format!("{{prefix: {0}, wan: {0}-wan, folder: '{1}'}}", lab.prefix(), lab.folder().display());
        let config = format!(
            "console: {}\nobservability: {}\nshutdown: {{deadline: 10s}}\n\
             gateway:\n  agents: {}\n  api: {}\n  kubernetes: {}\n  private: {}\n\
             edge: {{InterlinkPort: {}, DockerHost: 'unix:///nowhere/docker.sock'}}\n\
             nets:\n  server: {{host: 127.0.0.1, port: {}, rpcPort: {}}}\n  tagService: {{host: 127.0.0.1, port: {}}}\n  \
             kvStore: {{host: 127.0.0.1, port: {}}}\n  cloudPlugins: [{{name: local, local: {local}}}]\n\
             node: {{NodeName: up-{}, KubeletListen: '127.0.0.1:{}'}}\n",
            listen(0),
            listen(1),
            listen(2),
            listen(3),
            listen(4),
            listen(5),
            port(6),
            port(7),
            port(8),
            port(9),
            port(10),
            port(11),
            port(11),
        );
        let config = folder.write("up.yaml", &config).unwrap();
        Self { folder, ports, config, lab }
    }

    pub(super) fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    pub(super) fn start(&self) -> Process {
        self.start_with(&[])
    }

    fn start_with(&self, extra: &[&str]) -> Process {
        self.begin(
            Program::new(env!("CARGO_BIN_EXE_tarbet")).args(["up", "--config"]).arg(&self.config).args(extra),
        )
    }

    /// As a container starts it again after a kill: what was left there names the very id that it has.
    fn start_under_the_id_of(&self, left: &Path) -> Process {
        let script = r#"sed "s/\"pid\": [0-9]*/\"pid\": $$/" "$1" > "$2"; shift 2; exec "$@""#;
        let program = Program::new("sh").args(["-c", script, "sh"]).arg(left);
        let program = program.arg(self.state().join("endpoint.json")).arg(env!("CARGO_BIN_EXE_tarbet"));
        self.begin(program.args(["up", "--config"]).arg(&self.config))
    }

    fn begin(&self, program: Program) -> Process {
        let program = program.env("TARBET_STATE", self.state()).env("DOCKER_HOST", "");
        Process::start(&self.folder, "up", program.grace(Duration::from_secs(15))).unwrap()
    }

    pub(super) async fn run(&self, args: &[&str]) -> Output {
        tokio::process::Command::new(env!("CARGO_BIN_EXE_tarbet"))
            .args(args)
            .env("TARBET_STATE", self.state())
            .env("TARBET_CONFIG", &self.config)
            .env("HOME", self.folder.path())
            .env("DOCKER_HOST", "")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .unwrap()
    }

    pub(super) async fn say(&self, args: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.run(args).await;
        assert!(status.success(), "tarbet {args:?}: {}{}", text(&stdout), text(&stderr));
        text(&stdout)
    }

    pub(super) fn console(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.port(0))
    }

    pub(super) fn observability(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.port(1))
    }

    /// Waits until every part that needs no cluster is ready.
    pub(super) async fn ready(&self) {
        self.ready_with_nets("ready").await;
    }

    /// The same, with networks in this state.
    async fn ready_with_nets(&self, nets: &str) {
        eventually(SOON, "everything to be ready", || async {
            let rows = self.rows(&["status"]).await;
            let wanted = ["process", "reach", "pods", "tags", "console", "audit"].map(|name| (name, "ready"));
            let wanted = wanted.into_iter().chain([("nets", nets)]);
            let away: Vec<_> = wanted.filter(|(name, wanted)| state(&rows, name) != *wanted).collect();
            if away.is_empty() { Ok(()) } else { Err(format!("{away:?}")) }
        })
        .await
        .unwrap();
    }

    async fn rows(&self, args: &[&str]) -> Vec<Value> {
        let args = [args, &["-o", "json"]].concat();
        // Nothing is printed while nothing runs.
        serde_json::from_slice(&self.run(&args).await.stdout).unwrap_or_default()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn state<'a>(rows: &'a [Value], capability: &str) -> &'a str {
    rows.iter()
        .find(|row| row["capability"] == capability)
        .and_then(|row| row["state"].as_str())
        .unwrap_or("absent")
}

#[tokio::test(flavor = "multi_thread")]
async fn one_command_starts_all_and_one_removes_all() {
    let machine = Machine::new().await;
    let nothing = machine.run(&["status"]).await;
    assert_eq!(nothing.status.code(), Some(2));
    assert!(text(&nothing.stderr).contains("start `tarbet up`"), "{}", text(&nothing.stderr));
    let pre = machine.run(&["check", "--pre", "-o", "json"]).await;
    let pre: Vec<Value> = serde_json::from_slice(&pre.stdout).unwrap();
    assert!(pre.len() >= 40, "{}", pre.len());

    let mut up = machine.start();
    machine.ready().await;
    let rows = machine.rows(&["status"]).await;
    assert_eq!((state(&rows, "jobs"), state(&rows, "mesh"), state(&rows, "node")), ("off", "off", "off"));
    assert!(machine.say(&["status"]).await.trim_end().lines().last().unwrap().starts_with("Next: tarbet "));

    // Each part does its work: this machine is a site, a pod runs, a machine of the local cloud is made.
    assert!(machine.say(&["site", "list"]).await.contains("here"));
    assert!(machine.say(&["topology"]).await.contains("● here"));
    assert!(machine.say(&["topology", "-o", "svg"]).await.contains("<title>Who reaches whom"));
    assert_eq!(
        machine.say(&["pods", "run", "none", "--", "echo", "carried across"]).await.trim(),
        "carried across"
    );
    // Variables and words arrive as they were typed.
    let line = r#"printf '%s|%s|%s' "$P" '$(P)' '$$'"#;
    assert_eq!(
        machine.say(&["pods", "run", "-e", "P=5$ $(P) $$", "none", "--", "sh", "-c", line]).await.trim(),
        "5$ $(P) $$|$(P)|$$"
    );
    machine.say(&["pods", "run", "--detach", "--name", "stays", "none", "--", "sleep", "600"]).await;
    pods_are_neither_taken_by_accident_nor_left_behind(&machine).await;
    a_pod_is_entered_with_a_terminal(&machine).await;
    let again = machine.run(&["up"]).await;
    let told = text(&again.stderr);
    assert_eq!(again.status.code(), Some(1), "{told}");
    assert!(told.contains("runs already") && told.contains("tarbet status"), "{told}");
    let description = machine.folder.write("web.json", "{}").unwrap().display().to_string();
    let planned = machine.say(&["glide", "resource", "create", "local", "web", &description, "--plan"]).await;
    assert!(planned.contains("CreateResource"), "{planned}");
    let made = machine.say(&["glide", "resource", "create", "local", "web", &description]).await;
    assert!(made.contains("default.local.web") && made.contains("Next:"), "{made}");
    assert!(machine.say(&["topology", "--nets"]).await.contains("default.local.web"));
    assert!(!machine.lab.namespaces().is_empty());

    // Plans change nothing; changes are recorded; the doctor finds nothing wrong.
    assert!(machine.say(&["site", "remove", "here", "--plan"]).await.contains("Nothing was changed"));
    assert!(machine.say(&["site", "list"]).await.contains("here"));
    machine.say(&["site", "add", "lab"]).await;
    // What a script reads is data, also after a change.
    machine.say(&["site", "add", "gone"]).await;
    let removed = machine.say(&["site", "remove", "gone", "-o", "json"]).await;
    assert_eq!(serde_json::from_str::<Value>(&removed).unwrap()["removed"], true);
    let audit = machine.state().join("audit.log").display().to_string();
    eventually(SOON, "the change to be on record", || async {
        machine.say(&["audit", "tail", &audit]).await.contains("POST /v1/sites")
    })
    .await
    .unwrap();
    machine.say(&["audit", "verify", &audit]).await;
    let found = machine.rows(&["check"]).await;
    let wrong: Vec<_> = found.iter().filter(|row| row["result"] == "wrong").collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    let away = found.iter().find(|row| row["check"] == "reach.connected").unwrap();
    assert_eq!((away["result"].as_str(), away["try"].as_str().unwrap().is_empty()), (Some("warning"), false));

    let plan = machine.say(&["down", "--plan"]).await;
    assert!(plan.contains("end process") && machine.state().exists(), "{plan}");
    let down = machine.say(&["down"]).await;
    assert!(down.contains("Removed 1 pod.") && down.contains("Next: tarbet up"), "{down}");
    assert!(!machine.state().exists());
    assert_eq!(machine.lab.namespaces(), Vec::<String>::new());
    up.stop().await.unwrap();
    assert!(machine.say(&["down"]).await.contains("nothing to end"));
}

/// Somebody at a terminal has one in the pod, of the same size, and gets the own one back as it was.
async fn a_pod_is_entered_with_a_terminal(machine: &Machine) {
    use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
    use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let theirs = ioctl_tiocgptpeer(&ours, flags).unwrap();
    let sized =
        |ws_col, ws_row| tcsetwinsize(&ours, Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    sized(132, 43);
    let modes = || format!("{:?}", tcgetattr(&theirs).unwrap());
    let before = modes();
    let said = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
    let (heard, screen) = (std::sync::Arc::clone(&said), ours.try_clone().unwrap());
    let reading = std::thread::spawn(move || {
        let mut buffer = [0; 1024];
        // It ends when nobody holds the other side any more.
        while let Ok(count @ 1..) = rustix::io::read(&screen, &mut buffer) {
            heard.lock().unwrap().push_str(&text(&buffer[..count]));
        }
    });
    let shows = async |what: &str| {
        eventually(SOON, what, || async {
            let said = said.lock().unwrap().clone();
            if said.contains(what) { Ok(()) } else { Err(said) }
        })
        .await
        .unwrap();
    };
    let line = r#"stty size; read a; echo "heard $a"; until [ "$(stty size)" = "50 100" ]; do :; done; echo grew; exit 7"#;
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_tarbet"));
    command.args(["pods", "exec", "-it", "stays", "--", "sh", "-c", line]);
    command.env("TARBET_STATE", machine.state()).env("TARBET_CONFIG", &machine.config);
    let end = || Stdio::from(theirs.try_clone().unwrap());
    let mut child = command.stdin(end()).stdout(end()).stderr(end()).kill_on_drop(true).spawn().unwrap();
    drop(command);
    shows("43 132").await;
    assert_ne!(modes(), before, "keys are passed on as they are");
    rustix::io::write(&ours, b"hello\r").unwrap();
    shows("heard hello").await;
    sized(100, 50);
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::WINCH).unwrap();
    shows("grew").await;
    assert_eq!(child.wait().await.unwrap().code(), Some(7));
    assert_eq!(modes(), before);
    drop(theirs);
    reading.join().unwrap();
    // Without one, it is told.
    let ran = machine.run(&["pods", "exec", "-t", "stays", "--", "echo", "plain"]).await;
    assert_eq!((text(&ran.stdout).as_str(), ran.status.code()), ("plain\n", Some(0)));
    assert!(text(&ran.stderr).contains("is no terminal"), "{}", text(&ran.stderr));
}

/// An argument that is empty or too short means no pod, a name is used once, and Ctrl-C removes what was begun.
async fn pods_are_neither_taken_by_accident_nor_left_behind(machine: &Machine) {
    let listed = async || machine.say(&["pods", "list", "-o", "json"]).await;
    for (args, code) in [
        (&["pods", "delete", ""][..], 2),
        (&["pods", "run", "--name", "stays", "none", "--", "true"], 2),
        (&["pods", "run", "none"], 2),
        (&["pods", "run", "--memory", "2XB", "none", "--", "true"], 2),
        (&["pods", "run", "--pull", "Sometimes", "none", "--", "true"], 2),
    ] {
        let refused = machine.run(args).await;
        assert_eq!(refused.status.code(), Some(code), "{args:?}: {}", text(&refused.stderr));
    }
    let pods: Vec<Value> = serde_json::from_str(&listed().await).unwrap();
    assert_eq!(pods.len(), 1, "{pods:?}");
    let digit = &pods[0]["uid"].as_str().unwrap()[..1];
    assert_eq!(machine.run(&["pods", "delete", digit]).await.status.code(), Some(3));
    let ran = machine.run(&["pods", "run", "none", "--", "true"]).await;
    assert!(text(&ran.stderr).contains("The image is not used"), "{}", text(&ran.stderr));

    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_tarbet"));
    command.args(["pods", "run", "--name", "interrupted", "none", "--", "sleep", "600"]);
    let command = command.env("TARBET_STATE", machine.state()).env("TARBET_CONFIG", &machine.config);
    let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    eventually(SOON, "the pod to run", || async {
        let said = machine.say(&["pods", "list"]).await;
        let line = said.lines().find(|line| line.contains("interrupted")).unwrap_or_default().to_owned();
        if line.contains("running") { Ok(()) } else { Err(line) }
    })
    .await
    .unwrap();
    let pid = i32::try_from(child.id().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let ended = child.wait_with_output().await.unwrap();
    assert_eq!(ended.status.code(), Some(130));
    assert!(text(&ended.stderr).contains("Interrupted: deleting interrupted"), "{}", text(&ended.stderr));
    assert!(!listed().await.contains("interrupted"));
}

#[tokio::test(flavor = "multi_thread")]
async fn down_leaves_what_another_role_made() {
    let machine = Machine::new().await;
    std::fs::create_dir_all(machine.state()).unwrap();
    let store = machine.state().join("tarbet.redb");
    // A backup makes no store where there is none.
    let set = format!("store.path={}", store.display());
    let refused = machine.run(&["store", "backup", "nothing.tbk", "--set", &set]).await;
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
    assert!(!store.exists());
    let backup = machine.folder.path().join("empty.tbk").display().to_string();
    machine.say(&["store", "backup", &backup, "--set", "store.kind=memory"]).await;
    machine.say(&["store", "restore", &backup, "--set", &set]).await;
    assert!(store.exists());
    let kept = machine.say(&["down"]).await;
    assert!(kept.contains("stays") && store.exists(), "{kept}");

    // Nor does a `tarbet up` that came later make it its own, however often it comes; only its own things go.
    for _ in 0..2 {
        let mut up = machine.start();
        machine.ready().await;
        machine.say(&["pods", "run", "--detach", "none", "--", "sleep", "600"]).await;
        let down = machine.say(&["down"]).await;
        up.stop().await.unwrap();
        assert!(down.contains("Removed 1 pod.") && down.contains("stays"), "{down}");
        assert!(store.exists());
        for own in ["here.token", "pods"] {
            assert!(!machine.state().join(own).exists(), "{own} stays");
        }
    }
    let kept = machine.say(&["down"]).await;
    assert!(kept.contains("nothing of `tarbet up`") && store.exists(), "{kept}");
}

#[tokio::test(flavor = "multi_thread")]
async fn state_that_is_kept_is_found_again() {
    let machine = Machine::new().await;
    let mut first = machine.start();
    eventually(SOON, "the first start", || async {
        machine.run(&["site", "add", "lab"]).await.status.success()
    })
    .await
    .unwrap();
    let left = std::fs::read_to_string(machine.state().join("endpoint.json")).unwrap();
    let left = machine.folder.write("left.json", &left).unwrap();
    machine.say(&["down", "--keep-state"]).await;
    first.stop().await.unwrap();
    let mut second = machine.start_under_the_id_of(&left);
    eventually(SOON, "the site of before", || async {
        text(&machine.run(&["site", "list"]).await.stdout).contains("lab")
    })
    .await
    .unwrap();
    eventually(SOON, "this machine to be a site again", || async {
        state(&machine.rows(&["status"]).await, "process") == "ready"
    })
    .await
    .unwrap();
    machine.say(&["down"]).await;
    second.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_cluster_it_is_a_node_of_it_too() {
    let plane = &shared_pair().await.unwrap().private;
    let machine = Machine::new().await;
    let kubeconfig = plane.kubeconfig().display().to_string();
    let mut up = machine.start_with(&["--kubeconfig", &kubeconfig]);
    let (kubectl, node) = (plane.kubectl(), format!("up-{}", machine.ports.port(11)));
    let ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
    eventually(SOON, "the node to be ready", || async {
        kubectl.run(&["get", "node", &node, "-o", ready]).await.is_ok_and(|said| said == "True")
    })
    .await
    .unwrap();
    // Its parts are called ready once the whole process is.
    let rows = eventually(SOON, "the node's row", || async {
        let rows = machine.rows(&["status"]).await;
        if state(&rows, "node") == "ready" { Ok(rows) } else { Err(format!("{rows:?}")) }
    })
    .await
    .unwrap();
    // Without their kinds in the cluster the controllers are left out, and it is said why.
    let jobs = rows.iter().find(|row| row["capability"] == "jobs").unwrap();
    assert!(jobs["state"] == "ready" || jobs["detail"].as_str().unwrap().contains("deploy/crds"), "{jobs}");
    let namespace = plane.unique_namespace("up").await.unwrap();
    let pod = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "hello", "namespace": namespace},
        "spec": {
            "nodeName": node, "restartPolicy": "Never", "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": "none", "command": ["echo", "carried across"]}],
        },
    });
    kubectl.apply(&pod).await.unwrap();
    eventually(SOON, "the pod to have run", || async {
        let phase =
            kubectl.run(&["get", "pod", "hello", "-n", &namespace, "-o", "jsonpath={.status.phase}"]).await;
        phase.is_ok_and(|phase| phase == "Succeeded")
    })
    .await
    .unwrap();
    let plan = machine.say(&["down", "--plan"]).await;
    assert!(plan.contains(&format!("delete the node {node}")), "{plan}");
    let down = machine.say(&["down"]).await;
    up.stop().await.unwrap();
    assert!(down.contains(&format!("Deleted the node {node}")), "{down}");
    let gone = kubectl.run(&["get", "node", &node, "--ignore-not-found", "-o", "name"]).await.unwrap();
    let lease = ["get", "lease", &node, "-n", "kube-node-lease", "--ignore-not-found", "-o", "name"];
    assert_eq!((gone.as_str(), kubectl.run(&lease).await.unwrap().as_str()), ("", ""));
}
