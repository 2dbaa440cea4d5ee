//! Crossings: jobs by the name of a site alone, and jobs whose pods run on Docker and on Slurm.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tarbet_testbed::product::Agent;
use tarbet_testbed::{Behind, ControlPlane, Edge, Folder, Slurm, Tekton};

use crate::jobs::Stage;
use crate::pods;
use crate::reach::Scene;
use crate::steps::{Tour, chapter};

/// What the chapter leaves running.
pub(crate) struct Crossings {
    _public: ControlPlane,
    _controller: Agent,
    _agent: Agent,
    _mill: Edge,
    _slurm: Slurm,
    _images: Folder,
}

pub(crate) async fn walk(
    tour: &mut Tour,
    scene: &Scene,
    stage: Stage,
    edge: &pods::Edge,
) -> Result<Crossings> {
    chapter("Crossings: jobs through the link, and jobs on virtual nodes");
    let Scene { plane: private, product, gateway, .. } = scene;
    let Stage { public, mut controller, .. } = stage;
    let (near, far) = (private.kubeconfig().display().to_string(), public.kubeconfig().display().to_string());
    let (agent, token) = tour
        .step(
            "The public cluster becomes a site too: its agent dials out, and the controller gets a caller's token",
            "",
            async {
                let said = product.run(gateway, &["site", "add", "public", "-o", "json"]).await?;
                let site: Value = serde_json::from_str(&said)?;
                let token = site["token"]["token"].as_str().unwrap_or_default();
                let agent = product.agent("public-agent", token, &[gateway], &["--kubeconfig", &far]).await?;
                let add = ["user", "add", "jobs", "--role", "user", "--site", "public"];
                let token = product.folder().write("jobs.token", &product.run(gateway, &add).await?)?;
                Ok(((agent, token.display().to_string()), product.run(gateway, &["site", "list"]).await?))
            },
        )
        .await?;
    let controller = tour
        .step(
            "Now the controller knows the public cluster by its name alone; TLS ends at the agent there",
            "",
            async {
                controller.process.stop().await?;
                let authority = product.authority().display().to_string();
                let state = product.folder().path().join("jobs-state").display().to_string();
                let args = ["jobs", "--kubeconfig", &near, "--namespace", "internal-services"];
                let by_name = ["--remote-site", "public", "--server", &gateway.api(), "--token-file", &token];
                let args = [&args[..], &by_name, &["--ca-file", &authority]].concat();
                let controller = product.role("jobs-by-name", &args, &[("TARBET_STATE", &state)]).await?;
                let known = std::fs::read_to_string(format!("{state}/known-sites.json"))?;
                Ok((controller, format!("the key of the agent is remembered: {}", known.trim())))
            },
        )
        .await?;
    let ask = async |args: &[&str]| {
        let args = [&["request", "--kubeconfig", &far, "-n", "team-a", "submit"], args, &["--wait"]].concat();
        let (code, said) = product.command(&args).await?;
        ensure!(code == Some(0), "it ended with {code:?}: {said}");
        anyhow::Ok(said)
    };
    tour.step("No kubeconfig of either side is on the other, and the result comes back", "", async {
        Ok(((), ask(&["greet", "--name", "by-name", "-p", "who=neighbour"]).await?))
    })
    .await?;

    let (slurm, images, mill) = tour
        .step("A Slurm cluster, and a virtual node whose pods are its jobs", "", async {
            let (slurm, images) = (Slurm::start().await?, Folder::new("images")?);
            let root = images.path().join(Tekton::IMAGE);
            Tekton::image_root(&root).await?;
            edge.docker.import(&root, Tekton::IMAGE).await?;
            let mill = Edge::start(product, private, "mill", Behind::Slurm(&slurm, images.path())).await?;
            let nodes = private.kubectl().run(&["get", "nodes"]).await?;
            Ok(((slurm, images, mill), nodes))
        })
        .await?;
    tour.step(
        "The private side offers two pipelines and says where each runs: one on Docker, one on Slurm",
        "kubectl apply -f offers.yaml        # offers: [{pipeline: ship, podTemplate: …}, {pipeline: grind, …}]",
        async {
            for object in offers() {
                private.kubectl().apply(&object).await?;
            }
            Ok(((), "ship → node edge (Docker), grind → node mill (Slurm)".to_owned()))
        },
    )
    .await?;
    for (pipeline, proves) in [
        ("ship", "Request → offer → PipelineRun → TaskRun → pod → container → result"),
        ("grind", "Request → offer → PipelineRun → TaskRun → pod → sbatch → result"),
    ] {
        tour.step(proves, "", async {
            let said = ask(&[pipeline, "--name", pipeline, "-p", "who=all"]).await?;
            ensure!(said.contains("done for all"), "{said}");
            Ok(((), said))
        })
        .await?;
    }
    tour.step("Slurm remembers the job", "squeue --states=all -a -o '%A %j %T'", async {
        let jobs = slurm.run("squeue", &["--states=all", "-a", "-o", "%A %j %T"]).await?;
        ensure!(jobs.lines().count() == 2, "{jobs}");
        Ok(((), jobs))
    })
    .await?;
    Ok(Crossings {
        _public: public,
        _controller: controller,
        _agent: agent,
        _mill: mill,
        _slurm: slurm,
        _images: images,
    })
}

fn offers() -> Vec<Value> {
    let script =
        "#!/bin/sh\nset -e\necho \"working for $WHO\"\nprintf 'done for %s' \"$WHO\" > $(results.said.path)";
    let pipeline = |name: &str| {
        let task = json!({ "name": "work", "params": [{ "name": "who", "value": "$(params.who)" }], "taskSpec": {
            "params": [{ "name": "who" }], "results": [{ "name": "said" }],
            "steps": [{ "name": "say", "image": Tekton::IMAGE, "imagePullPolicy": "Never",
                        "env": [{ "name": "WHO", "value": "$(params.who)" }], "script": script }],
        } });
        json!({
            "apiVersion": "tekton.dev/v1", "kind": "Pipeline",
            "metadata": { "name": name, "namespace": "internal-services" },
            "spec": { "params": [{ "name": "who" }], "tasks": [task],
                      "results": [{ "name": "said", "value": "$(tasks.work.results.said)" }] },
        })
    };
    let offers = json!([
        { "pipeline": "greet" },
        { "pipeline": "ship", "podTemplate": Edge::pod_template("edge") },
        { "pipeline": "grind", "podTemplate": Edge::pod_template("mill") },
    ]);
    let config = json!({
        "apiVersion": "appstudio.redhat.com/v1alpha1", "kind": "InternalServicesConfig",
        "metadata": { "name": "config", "namespace": "internal-services" },
        "spec": { "allowList": ["team-a"], "offers": offers },
    });
    vec![config, pipeline("ship"), pipeline("grind")]
}
