//! Docker: pods from create to running, beside `docker run` itself.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;
use tarbet_testbed::product::Product;
use tarbet_testbed::{Dockerd, eventually};

use super::calls::{Edge, call, pod};
use crate::Bench;
use crate::figure::{Figure, Mark, Section};

const PODS: usize = 50;
const AT_ONCE: usize = 16;
/// What the original does on such a machine, where each pod waits for a daemon of its own.
const ORIGINAL: f64 = 0.5;

pub(super) async fn measure(bench: &Bench) -> Result<Section> {
    let docker = Dockerd::start().await?;
    docker.shell_image("shell:1").await?;
    let product = Product::new(&bench.binary)?;
    let url = docker.url();
    let config = product.folder().write("InterLinkConfig.yaml", "DockerNetwork: none\n")?;
    let words = ["plugin", "docker", "--interlink-config", &config.display().to_string()];
    let edge = Edge::start(&product, &words, &[("DOCKER_HOST", &url)]).await?;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for round in 0..bench.scale.rounds {
        let pods: Vec<Value> =
            (0..PODS).map(|number| pod(round * PODS + number, "shell:1", "sleep 600")).collect();
        let begun = Instant::now();
        edge.create(&pods, AT_ONCE).await?;
        eventually(Duration::from_mins(3), "all pods to run", || async {
            let states = edge.states(&pods).await?;
            let running = |state: &&Value| state["containers"][0]["state"]["running"].is_object();
            let count = states.iter().filter(running).count();
            ensure!(count == PODS, "{count} run");
            Ok(())
        })
        .await?;
        ours.push(PODS as f64 / begun.elapsed().as_secs_f64());
        for pod in &pods {
            call(edge.address, "/delete", &pod.to_string()).await?;
        }
        bare.push(plain(&docker, round).await?);
    }
    let mut section = Section::new(
        "Docker",
        "50 pods of one container that runs once, from the first create until all run, through API server and \
         plugin; beside `docker run` of the same image, as many at a time.",
    );
    section.push(
        Figure::new("pods from create to running", "pods/s", ours)
            .beside("docker run", bare)
            .mark(Mark::AtLeast(5.0 * ORIGINAL))
            .mark(Mark::TimesPeer("docker run".into(), 0.8)),
    );
    Ok(section)
}

async fn plain(docker: &Dockerd, round: usize) -> Result<f64> {
    let begun = Instant::now();
    let names: Vec<String> = (0..PODS).map(|number| format!("bare-{round}-{number}")).collect();
    for lane in names.chunks(AT_ONCE) {
        let run = |name: &String| {
            let name = name.clone();
            async move {
                docker
                    .docker(&["run", "-d", "--network=none", "--name", &name, "shell:1", "sleep", "600"])
                    .await
            }
        };
        let mut started = Vec::new();
        for name in lane {
            started.push(Box::pin(run(name)));
        }
        for done in join(started).await {
            done?;
        }
    }
    let rate = PODS as f64 / begun.elapsed().as_secs_f64();
    let words: Vec<&str> = ["rm", "--force"].into_iter().chain(names.iter().map(String::as_str)).collect();
    docker.docker(&words).await?;
    Ok(rate)
}

/// All of them at the same time, on this task.
async fn join<F: Future + Unpin>(mut futures: Vec<F>) -> Vec<F::Output> {
    let mut done: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, slot) in futures.iter_mut().zip(&mut done) {
            if slot.is_none()
                && let std::task::Poll::Ready(output) = std::pin::Pin::new(future).poll(context)
            {
                *slot = Some(output);
            }
        }
        if done.iter().all(Option::is_some) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}
