//! Jobs: a public cluster gets work done on a private one, which alone decides what may run.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tarbet_testbed::product::Agent;
use tarbet_testbed::{ControlPlane, Tekton, eventually};

use crate::reach::Scene;
use crate::steps::{Tour, chapter};

const SOON: Duration = Duration::from_mins(1);
const KINDS: [&str; 2] = [
    include_str!("../../../../../deploy/crds/internalrequests.appstudio.redhat.com.yaml"),
    include_str!("../../../../../deploy/crds/internalservicesconfigs.appstudio.redhat.com.yaml"),
];

/// What the chapter leaves running.
pub(crate) struct Stage {
    pub(crate) public: ControlPlane,
    pub(crate) controller: Agent,
    _tekton: Tekton,
}

pub(crate) async fn walk(tour: &mut Tour, scene: &Scene) -> Result<Stage> {
    chapter("Jobs: private pipelines on request, and only those");
    let (private, product) = (&scene.plane, &scene.product);
    let (public, tekton) = tour
        .step("A public cluster, and real Tekton on the private one", "(the test bed starts them)", async {
            let (public, tekton) = tokio::try_join!(private.beside("public"), Tekton::start(private))?;
            Ok(((public, tekton), "public and private, two API servers that share nothing".to_owned()))
        })
        .await?;
    tour.step(
        "The private side offers one pipeline, to one tenant of the public cluster",
        "kubectl apply -f deploy/crds -f offer.yaml        # on the private cluster",
        async {
            for plane in [private, &public] {
                for kind in KINDS {
                    plane.kubectl().run_with_input(&["apply", "-f", "-"], kind).await?;
                }
                let kubectl = plane.kubectl();
                eventually(SOON, "the new kinds", || async {
                    kubectl.run(&["get", "internalrequests", "-A"]).await
                })
                .await?;
            }
            private.kubectl().run(&["create", "namespace", "internal-services"]).await?;
            for object in offer() {
                private.kubectl().apply(&object).await?;
            }
            for tenant in ["team-a", "team-b"] {
                public.kubectl().run(&["create", "namespace", tenant]).await?;
            }
            Ok(((), "pipeline `greet`, allowed for team-a".to_owned()))
        },
    )
    .await?;
    let (near, far) = (private.kubeconfig().display().to_string(), public.kubeconfig().display().to_string());
    let controller = tour
        .step("The controller in the private cluster watches the public one; nothing is opened", "", async {
            let args = [
                "jobs",
                "--kubeconfig",
                &near,
                "--remote-kubeconfig",
                &far,
                "--namespace",
                "internal-services",
            ];
            let controller = product.role("jobs", &args, &[]).await?;
            Ok((controller, "ready".to_owned()))
        })
        .await?;
    tour.step(
        "A request made on the public cluster runs as a Tekton pipeline on the private one",
        "",
        async {
            let args = [
                "request",
                "--kubeconfig",
                &far,
                "-n",
                "team-a",
                "submit",
                "greet",
                "--name",
                "hello",
                "-p",
                "who=world",
                "--wait",
            ];
            let (code, said) = product.command(&args).await?;
            ensure!(code == Some(0), "it ended with {code:?}: {said}");
            Ok(((), said))
        },
    )
    .await?;
    tour.step("Its results and the log of its steps came back", "", async {
        let (code, shown) =
            product.command(&["request", "--kubeconfig", &far, "-n", "team-a", "show", "hello"]).await?;
        ensure!(code == Some(0) && shown.contains("hello world"), "{shown}");
        Ok(((), shown))
    })
    .await?;
    tour.step("Another tenant is refused, and told why; nothing ran", "", async {
        let args =
            ["request", "--kubeconfig", &far, "-n", "team-b", "submit", "greet", "-p", "who=world", "--wait"];
        let (code, said) = product.command(&args).await?;
        ensure!(code == Some(4), "it ended with {code:?}: {said}");
        Ok(((), said))
    })
    .await?;
    Ok(Stage { public, controller, _tekton: tekton })
}

fn offer() -> [Value; 2] {
    let script = "#!/bin/sh\necho \"greeting $WHO\"\nprintf 'hello %s' \"$WHO\" > $(results.said.path)";
    [
        json!({
            "apiVersion": "appstudio.redhat.com/v1alpha1", "kind": "InternalServicesConfig",
            "metadata": {"name": "config", "namespace": "internal-services"},
            "spec": {"allowList": ["team-a"]},
        }),
        json!({
            "apiVersion": "tekton.dev/v1", "kind": "Pipeline",
            "metadata": {"name": "greet", "namespace": "internal-services"},
            "spec": {
                "params": [{"name": "who"}],
                "results": [{"name": "said", "value": "$(tasks.work.results.said)"}],
                "tasks": [{"name": "work", "params": [{"name": "who", "value": "$(params.who)"}], "taskSpec": {
                    "params": [{"name": "who"}], "results": [{"name": "said"}],
                    "steps": [{"name": "greet", "image": "none", "env": [{"name": "WHO", "value": "$(params.who)"}], "script": script}],
                }}],
            },
        }),
    ]
}
