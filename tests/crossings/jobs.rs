//! Jobs across the link, and jobs on virtual nodes.

use serde_json::{Value, json};
use tarbet_testbed::product::{Gateway, Product};
use tarbet_testbed::{
    Behind, ControlPlane, Dockerd, Edge, Folder, Kubectl, Process, Slurm, Tekton, eventually, shared_pair,
};

use crate::jobs::{Flow, SOON, private_with_tekton};

const GREET: &str = "#!/bin/sh\necho \"greeting $WHO\"\nprintf 'hello %s' \"$WHO\" > $(results.said.path)";
/// Long enough for a link to be lost meanwhile.
const NAP: &str = "#!/bin/sh\nsleep 4\nprintf 'slept well, %s' \"$WHO\" > $(results.said.path)";

/// A gateway between both sides, the public side's agent, and a caller's token for the private one.
struct Neck {
    product: Product,
    gateway: Gateway,
    site_token: String,
    /// What the public side's agent may do there: what the controller needs and no more.
    account: String,
    account_token: String,
    caller: String,
}

impl Neck {
    async fn new(public: &ControlPlane, tenant: &str) -> Self {
        let product = Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap();
        let gateway = product.gateway("neck", "{kind: memory}", &[]).await.unwrap();
        let added = product.run(&gateway, &["site", "add", "public", "-o", "json"]).await.unwrap();
        let added: Value = serde_json::from_str(&added).unwrap();
        let site_token = added["token"]["token"].as_str().unwrap().to_owned();
        let add = ["user", "add", "jobs-controller", "--role", "user", "--site", "public"];
        let caller = product.run(&gateway, &add).await.unwrap();
        let caller = product.folder().write("jobs-controller.token", &caller).unwrap();

        let rights = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/jobs/remote/rights.yaml");
        let kubectl = public.kubectl();
        kubectl.run(&["apply", "-f", rights]).await.unwrap();
        kubectl.run(&["create", "serviceaccount", "agent", "-n", tenant]).await.unwrap();
        let subject = format!("--serviceaccount={tenant}:agent");
        let bind = ["create", "rolebinding", "agent", "-n", tenant, "--clusterrole=tarbet-jobs-requests"];
        kubectl.run(&[&bind[..], &[&subject]].concat()).await.unwrap();
        let token = public.service_account_token(tenant, "agent").await.unwrap();
        let account = public.kubeconfig_with_token(&token).unwrap().display().to_string();
        Self {
            product,
            gateway,
            site_token,
            account,
            account_token: token,
            caller: caller.display().to_string(),
        }
    }

    async fn agent(&self, name: &str) -> tarbet_testbed::product::Agent {
        let args = ["--kubeconfig", &self.account];
        self.product.agent(name, &self.site_token, &[&self.gateway], &args).await.unwrap()
    }

    /// The flags by which a role finds the public side by its name alone.
    fn by_name(&self) -> Vec<String> {
        let authority = self.product.authority().display().to_string();
        let flags =
            ["--remote-site", "public", "--server", &self.gateway.api(), "--token-file", &self.caller];
        flags.iter().chain(["--ca-file", &authority].iter()).map(|flag| (*flag).to_owned()).collect()
    }
}

fn borrowed(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

/// Everything that the process was given and has written: its command, environment and folders.
fn possessions(process: &Process, folder: &Folder) -> String {
    let pid = process.pid();
    let mut all = String::new();
    for file in ["cmdline", "environ"] {
        all += &String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/{file}")).unwrap());
    }
    let mut folders = vec![folder.path().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            if entry.path().is_dir() {
                folders.push(entry.path());
            } else if let Ok(bytes) = std::fs::read(entry.path()) {
                all += &String::from_utf8_lossy(&bytes);
            }
        }
    }
    all
}

async fn reason(kubectl: &Kubectl, tenant: &str, name: &str) -> anyhow::Result<String> {
    let path = "jsonpath={.status.conditions[0].reason}";
    kubectl.run(&["get", "internalrequest", name, "-n", tenant, "-o", path]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_controller_reaches_the_public_cluster_by_the_name_of_its_site_alone() {
    let (private, public) = (private_with_tekton().await, &shared_pair().await.unwrap().public);
    let flow = Flow::new(private, public).await;
    flow.configure(json!({ "allowList": [flow.tenant], "watchScope": "allowed" })).await;
    flow.pipeline("greet", GREET).await;
    flow.pipeline("nap", NAP).await;
    let neck = Neck::new(public, &flow.tenant).await;
    let mut agent = neck.agent("public-agent").await;

    // An agent that holds another key than the one expected is not spoken to: TLS ends at the agent.
    let (by_name, stranger) = (neck.by_name(), format!("sha256:{}", "0".repeat(64)));
    let wrong = [borrowed(&by_name), vec!["--remote-site-key", &stranger]].concat();
    let (mut refused, url) = flow.start_jobs(&wrong);
    eventually(SOON, "the word about the unknown key", || async {
        let page = reqwest::get(format!("{url}/readyz")).await?;
        anyhow::ensure!(!page.status().is_success(), "it is ready with an agent it must not trust");
        let said = page.text().await?;
        anyhow::ensure!(said.contains("did not prove that it holds a known key"), "{said}");
        Ok(())
    })
    .await
    .unwrap();
    refused.kill9().unwrap();

    let (jobs, url) = flow.jobs(&borrowed(&by_name)).await;
    let submit = ["submit", "greet", "-p", "who=neighbour", "--wait", "--timeout", "3m", "--name", "first"];
    let (code, out, progress) = flow.request(&submit).await;
    assert_eq!((code, out.as_str()), (0, "said=hello neighbour\n"), "{progress}");
    assert!(progress.contains("work/say | greeting neighbour"), "{progress}");

    // Nothing of the public cluster is kept on the private side.
    let all = possessions(&jobs, &flow.folder);
    for secret in [public.server().as_str(), &neck.account_token, &neck.account] {
        assert!(!all.contains(secret), "{secret} is known to the private side");
    }
    assert!(all.contains("known-sites") || all.contains("sha256:"), "the agent's key is remembered");

    // In the other direction the whole log is read by the name of the private site.
    let added = neck.product.run(&neck.gateway, &["site", "add", "private", "-o", "json"]).await.unwrap();
    let added: Value = serde_json::from_str(&added).unwrap();
    let (token, near) = (added["token"]["token"].as_str().unwrap(), private.kubeconfig());
    let near = ["--kubeconfig", near.to_str().unwrap()];
    let _near = neck.product.agent("private-agent", token, &[&neck.gateway], &near).await.unwrap();
    let (server, authority) = (neck.gateway.api(), neck.product.authority().display().to_string());
    let admin = neck.product.admin_token().display().to_string();
    let whole = ["logs", "first", "--private-site", "private", "--server", &server];
    let (code, log, error) =
        flow.request(&[&whole[..], &["--token-file", &admin, "--ca-file", &authority]].concat()).await;
    assert_eq!((code, log.as_str()), (0, "=== work / say\ngreeting neighbour\n"), "{error}");

    // The link is lost while a run goes on; what it brought is delivered when the link is back.
    let (code, _, error) = flow.request(&["submit", "nap", "-p", "who=you", "--name", "second"]).await;
    assert_eq!(code, 0, "{error}");
    eventually(SOON, "the second to run", || async {
        let reason = reason(&flow.public, &flow.tenant, "second").await?;
        anyhow::ensure!(reason == "Running", "{reason}");
        Ok(())
    })
    .await
    .unwrap();
    agent.process.kill9().unwrap();
    eventually(SOON, "the run to end", || async {
        let runs = flow.private.json(&["get", "pipelineruns", "-n", &flow.namespace]).await?;
        let status = runs["items"][0]["status"]["conditions"][0]["status"].clone();
        anyhow::ensure!(status == "True", "{status}");
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(reason(&flow.public, &flow.tenant, "second").await.unwrap(), "Running");
    // The same place, so the same key: another one would not be trusted.
    let agent = neck.agent("public-agent").await;
    eventually(SOON, "the result", || async {
        let reason = reason(&flow.public, &flow.tenant, "second").await?;
        anyhow::ensure!(reason == "Succeeded", "{reason}");
        Ok(())
    })
    .await
    .unwrap();
    // The controller hears of its own last write a little later.
    eventually(SOON, "nothing to be under way", || async {
        let page = reqwest::get(format!("{url}/metrics")).await?.text().await?;
        anyhow::ensure!(page.contains("internal_request_attempt_concurrent_requests 0"), "{page}");
        Ok(())
    })
    .await
    .unwrap();
    drop((jobs, agent));
}

/// A pipeline whose one step says what it sees.
fn pipeline(flow: &Flow, name: &str) -> Value {
    let script =
        "#!/bin/sh\nset -e\necho \"working for $WHO\"\nprintf 'done for %s' \"$WHO\" > $(results.said.path)";
    let task = json!({ "name": "work", "params": [{ "name": "who", "value": "$(params.who)" }], "taskSpec": {
        "params": [{ "name": "who" }], "results": [{ "name": "said" }],
        "steps": [{ "name": "say", "image": Tekton::IMAGE, "imagePullPolicy": "Never",
                    "env": [{ "name": "WHO", "value": "$(params.who)" }], "script": script }],
    } });
    json!({
        "apiVersion": "tekton.dev/v1", "kind": "Pipeline",
        "metadata": { "name": name, "namespace": flow.namespace },
        "spec": { "params": [{ "name": "who" }], "tasks": [task],
                  "results": [{ "name": "said", "value": "$(tasks.work.results.said)" }] },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_requested_pipeline_runs_as_pods_of_virtual_nodes_on_docker_and_on_slurm() {
    let (private, public) = (private_with_tekton().await, &shared_pair().await.unwrap().public);
    let flow = Flow::new(private, public).await;
    let (docker, slurm) = tokio::try_join!(Dockerd::start(), Slurm::start()).unwrap();
    let images = Folder::new("images").unwrap();
    let root = images.path().join(Tekton::IMAGE);
    Tekton::image_root(&root).await.unwrap();
    docker.import(&root, Tekton::IMAGE).await.unwrap();
    let product = Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap();
    let (harbour, mill) = (format!("harbour-{}", flow.namespace), format!("mill-{}", flow.namespace));
    let _edges = tokio::try_join!(
        Edge::start(&product, private, &harbour, Behind::Docker(&docker)),
        Edge::start(&product, private, &mill, Behind::Slurm(&slurm, images.path())),
    )
    .unwrap();

    // The private side says where each pipeline runs; the requester only names it.
    let offers = json!([
        { "pipeline": "ship", "podTemplate": Edge::pod_template(&harbour), "params": [{ "name": "who" }] },
        { "pipeline": "grind", "podTemplate": Edge::pod_template(&mill), "params": [{ "name": "who" }] },
    ]);
    // Runs are kept, so that it can be seen where their pods were.
    let config =
        json!({ "allowList": [flow.tenant], "watchScope": "allowed", "debug": true, "offers": offers });
    flow.configure(config).await;
    for name in ["ship", "grind"] {
        flow.private.apply(&pipeline(&flow, name)).await.unwrap();
    }
    let remote = public.kubeconfig().display().to_string();
    let _jobs = flow.jobs(&["--remote-kubeconfig", &remote]).await;
    let ask = |name: &'static str| {
        let flow = &flow;
        async move {
            let args = ["submit", name, "-p", "who=all", "--wait", "--timeout", "4m", "--name", name];
            flow.request(&args).await
        }
    };
    let (shipped, ground) = tokio::join!(ask("ship"), ask("grind"));
    for (name, (code, out, progress)) in [("ship", shipped), ("grind", ground)] {
        let pods = flow
            .private
            .run(&["get", "pods", "-n", &flow.namespace, "-o", "jsonpath={.items[*].status}"])
            .await;
        assert_eq!((code, out.as_str()), (0, "said=done for all\n"), "{name}: {progress}\n{pods:?}");
        assert!(progress.contains("work/say | working for all"), "{name}: {progress}");
    }
    // Each pod ran where its offer said: one as a container, one as a job of Slurm.
    let pods = flow.private.json(&["get", "pods", "-n", &flow.namespace]).await.unwrap();
    let place = |pipeline: &str| {
        let pods = pods["items"].as_array().unwrap();
        let of = |pod: &&Value| pod["metadata"]["labels"]["tekton.dev/pipeline"] == pipeline;
        pods.iter().find(of).map(|pod| pod["spec"]["nodeName"].clone()).unwrap()
    };
    assert_eq!((place("ship"), place("grind")), (json!(harbour), json!(mill)));
    let jobs = slurm.run("squeue", &["--noheader", "--states=all", "-a", "-o", "%A"]).await.unwrap();
    assert_eq!(jobs.lines().count(), 1, "{jobs}");
    let containers = docker.docker(&["ps", "--all", "--format", "{{.Image}}"]).await.unwrap();
    assert!(containers.contains(Tekton::IMAGE), "{containers}");
    flow.private.run(&["delete", "pods", "--all", "-n", &flow.namespace, "--grace-period=1"]).await.unwrap();
}
