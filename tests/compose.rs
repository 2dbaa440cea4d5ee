//! The compose file that is shipped: its services are started as it says, by the same image, user, commands,
//! variables and mounts, and a first pod runs. `docker compose` itself only reads the file.

use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tarbet_testbed::{Dockerd, Folder, Lease, eventually, shared_pair};

use super::image;

const SOON: Duration = Duration::from_mins(2);

fn examples() -> PathBuf {
    // By the link at the root, as the file itself says.
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

fn yaml(name: &str) -> Result<Value> {
    Ok(serde_saphyr::from_str(&fs::read_to_string(examples().join(name))?)?)
}

fn words(value: &Value) -> impl Iterator<Item = &str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// What stands in the file and what it is here: this machine is not the test's alone.
struct Here {
    replaced: Vec<(String, String)>,
}

impl Here {
    fn place(&self, text: &str) -> String {
        self.replaced.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    }

    /// The words after `docker` that start a service of the file.
    fn start(&self, name: &str, service: &Value) -> Vec<String> {
        let mut said: Vec<String> = ["run", "--detach", "--name", name].map(str::to_owned).to_vec();
        let mut flag = |name: &str, value: &str| said.extend([name.to_owned(), self.place(value)]);
        flag("--network", service["network_mode"].as_str().unwrap_or("bridge"));
        if let Some(user) = service["user"].as_str() {
            flag("--user", user);
        }
        for mount in words(&service["volumes"]) {
            flag("--volume", mount);
        }
        for (variable, value) in service["environment"].as_object().into_iter().flatten() {
            flag("--env", &format!("{variable}={}", value.as_str().unwrap_or_default()));
        }
        // Not of the file: metrics of other tests are on the usual ports.
        flag("--env", "TARBET__OBSERVABILITY__LISTEN=127.0.0.1:0");
        if service["read_only"] == true {
            said.push("--read-only".into());
        }
        said.push(image::NAME.into());
        said.extend(words(&service["command"]).map(|word| self.place(word)));
        said
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_compose_file_runs_a_first_pod() -> Result<()> {
    let plane = &shared_pair().await?.public;
    let (docker, folder, ports) = (Dockerd::start().await?, Folder::new("compose")?, Lease::block(3)?);
    let compose = yaml("docker-compose.yaml")?;
    let services = compose["services"].as_object().context("no services")?;
    for (name, service) in services {
        let image = service["image"].as_str().unwrap_or_default();
        // The one that `tools/package image` makes.
        ensure!(
            image == concat!("${TARBET_IMAGE:-tarbet:", env!("CARGO_PKG_VERSION"), "}"),
            "{name}: {image}"
        );
    }
    image::build(&docker, &folder).await?;
    docker.shell_image("busybox:1.36").await?;

    // A kubeconfig as kubectl writes it: its owner's alone.
    let (data, node) = (folder.path().join("interlink"), format!("compose-{}", std::process::id()));
    fs::copy(plane.kubeconfig(), folder.path().join("kubeconfig"))?;
    fs::set_permissions(folder.path().join("kubeconfig"), Permissions::from_mode(0o600))?;
    let here = Here {
        replaced: [
            ("./", format!("{}/", folder.path().display())),
            ("/var/lib/interlink:/var/lib/interlink", format!("{0}:{0}", data.display())),
            ("/var/run/docker.sock:", format!("{}:", docker.socket().display())),
            ("KUBELET_PORT=5820", format!("KUBELET_PORT={}", ports.port(2))),
            ("tarbet-node", node.clone()),
        ]
        .map(|(from, to)| (from.to_owned(), to))
        .to_vec(),
    };
    let settings = fs::read_to_string(examples().join("InterLinkConfig.yaml"))?
        .replace("\"3000\"", &format!("\"{}\"", ports.port(0)))
        .replace("\"4000\"", &format!("\"{}\"", ports.port(1)))
        .replace("\"/var/lib/interlink\"", &format!("\"{}\"", data.display()));
    // The daemon of the test has no bridge.
    folder.write("InterLinkConfig.yaml", &format!("{settings}DockerNetwork: none\n"))?;

    for (name, service) in services {
        let words = here.start(name, service);
        docker.docker(&words.iter().map(String::as_str).collect::<Vec<_>>()).await?;
    }
    let kubectl = plane.kubectl();
    let namespace = plane.unique_namespace("compose").await?;
    let mut pod = yaml("busyecho_k8s.yaml")?;
    ensure!(pod["spec"]["nodeSelector"] == json!({"kubernetes.io/hostname": "tarbet-node"}), "{pod}");
    pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
    pod["metadata"]["namespace"] = namespace.clone().into();
    kubectl.apply(&pod).await?;
    let ran = eventually(SOON, "busyecho to end well", || async {
        let pod = kubectl.json(&["-n", &namespace, "get", "pod", "busyecho"]).await?;
        ensure!(pod["status"]["phase"] == "Succeeded", "{}", pod["status"]);
        Ok(())
    })
    .await;
    if let Err(error) = ran {
        let mut said = String::new();
        for name in services.keys() {
            let form = "--format={{.State.Status}} {{.State.ExitCode}} {{.State.Error}}";
            let state = docker.docker(&["inspect", form, name]).await?;
            writeln!(said, "{name}: {state}")?;
        }
        return Err(error).context(said);
    }
    for name in services.keys() {
        let runs = docker.docker(&["inspect", "--format", "{{.State.Running}}", name]).await?;
        ensure!(runs == "true", "{name} has ended");
    }
    ensure!(data.join(".deleted").exists(), "the plugin keeps its records where the file says");
    let registered = kubectl.json(&["get", "node", &node]).await?;
    let port = &registered["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"];
    ensure!(*port == ports.port(2), "{port}");
    Ok(())
}
