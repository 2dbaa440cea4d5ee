//! Requests served by `tarbet jobs` between two real API servers, beside the same writes made by a
//! client that does nothing else. Runs are marked as succeeded by the driver as soon as they appear.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tarbet_cluster::Source;
use tarbet_testbed::product::{Agent, Product};
use tarbet_testbed::{ControlPlane, Pair, Tekton, eventually};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::figure::{Figure, Mark, Section};
use crate::growth::{Growth, SIZES};
use crate::{Bench, cpu};

const CROWD: usize = 200;
const LONE: usize = 15;
const WRITERS: usize = 32;
const SOON: Duration = Duration::from_mins(2);
const PEER: &str = "bare writes";

pub(crate) async fn measure(bench: &Bench) -> Result<Vec<Section>> {
    let bed = Bed::new(&bench.binary).await?;
    let (mut created, mut completed, mut bare) = (vec![], vec![], vec![]);
    let (mut used, mut resident) = (vec![], vec![]);
    for round in 0..bench.scale.rounds {
        let controller = bed.controller().await?;
        let before = cpu::seconds(controller.process.pid())?;
        let crowd = bed.crowd(&format!("crowd-{round}"), CROWD).await?;
        created.push(crowd.0);
        completed.push(crowd.1);
        used.push(cpu::seconds(controller.process.pid())? - before);
        resident.push(cpu::resident_mib(controller.process.pid())?);
        drop(controller);
        bare.push(bed.bare(&format!("bare-{round}")).await?);
    }
    let note = format!(
        "{CROWD} requests created at once by {WRITERS} writers. The peer is one client that makes the same \
         writes at the same API servers in the same order, {WRITERS} at a time, and decides nothing. The original \
         takes 121 s as shipped, and 8.7 s and 10.1 s with its limit of writes lifted, on a calm machine."
    );
    let mut crowd = Section::new("Jobs: many requests at once", &note);
    crowd.push(
        Figure::new("all runs created", "s", created)
            .beside(PEER, bare.iter().copied())
            .mark(Mark::AtMost(5.0)),
    );
    crowd.push(
        Figure::new("all completed", "s", completed)
            .beside(PEER, bare.iter().copied())
            .mark(Mark::AtMost(6.5)),
    );
    crowd.push(Figure::new("CPU of the controller", "s", used).mark(Mark::AtMost(0.7)));
    crowd.push(Figure::new("memory of the controller", "MiB", resident).mark(Mark::AtMost(20.0)));

    let note = "One request on an idle controller, from the answer to its creation, and from the answer to \
                the run's end, until a watch shows it. The peer is one write with the watch event it causes. \
                The original takes 7 to 12 ms and 20 to 46 ms on a calm machine.";
    let mut lone = Section::new("Jobs: one request", note);
    let controller = bed.controller().await?;
    let (begin, end, event) = bed.lone().await?;
    drop(controller);
    lone.push(
        Figure::new("run created", "ms", begin)
            .beside("one write", event.iter().copied())
            .mark(Mark::AtMost(10.0)),
    );
    lone.push(Figure::new("completed", "ms", end).beside("one write", event).mark(Mark::AtMost(20.0)));

    let many = if bench.scale.is_quick() { 1_000 } else { 10_000 };
    let (growth, over) = bed.growth(many).await?;
    bed.fill(many.saturating_sub(over)).await?;
    let there = bed.requests.list_metadata(&ListParams::default()).await?.items.len();
    let note = format!("A controller that starts while {there} completed requests are there.");
    let mut restart = Section::new("Jobs: restart", &note);
    restart.growth = growth;
    let (mut ready, mut memory) = (vec![], vec![]);
    for _ in 0..bench.scale.rounds {
        let begun = Instant::now();
        let controller = bed.controller().await?;
        ready.push(begun.elapsed().as_secs_f64());
        memory.push(cpu::resident_mib(controller.process.pid())?);
    }
    restart.push(Figure::new("ready", "s", ready).mark(Mark::AtMost(10.0)));
    restart.push(Figure::new("memory of the controller", "MiB", memory).mark(Mark::AtMost(60.0)));
    Ok(vec![crowd, lone, restart])
}

/// Two control planes with all kinds, one tenant, one Pipeline.
struct Bed {
    pair: Pair,
    product: Product,
    requests: Api<DynamicObject>,
    runs: Api<DynamicObject>,
}

/// What happened to objects, in order: name, whether Succeeded is true, when.
type Sightings = mpsc::UnboundedReceiver<(String, bool, Instant)>;

struct Watching(JoinHandle<()>);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Bed {
    async fn new(binary: &std::path::Path) -> Result<Self> {
        let pair = Pair::start().await?;
        for plane in [&pair.private, &pair.public] {
            install(plane).await?;
        }
        Tekton::install_kinds(&pair.private).await?;
        pair.public.kubectl().run(&["create", "namespace", "team-a"]).await?;
        pair.private.kubectl().run(&["create", "namespace", "internal-services"]).await?;
        let service = json!({ "namespace": "internal-services", "name": "config" });
        let config = json!({ "apiVersion": "appstudio.redhat.com/v1alpha1", "kind": "InternalServicesConfig",
                             "metadata": service, "spec": { "allowList": ["team-a"] } });
        pair.private.kubectl().apply(&config).await?;
        let step = json!({ "name": "s", "image": "none", "script": "true" });
        let pipeline = json!({ "apiVersion": "tekton.dev/v1", "kind": "Pipeline",
                               "metadata": { "namespace": "internal-services", "name": "build" },
                               "spec": { "tasks": [{ "name": "t", "taskSpec": { "steps": [step] } }] } });
        pair.private.kubectl().apply(&pipeline).await?;
        let requests = kind("appstudio.redhat.com", "v1alpha1", "InternalRequest", "internalrequests");
        let runs = kind("tekton.dev", "v1", "PipelineRun", "pipelineruns");
        let requests = Api::namespaced_with(client(&pair.public).await?, "team-a", &requests);
        let runs = Api::namespaced_with(client(&pair.private).await?, "internal-services", &runs);
        Ok(Self { product: Product::new(binary)?, pair, requests, runs })
    }

    async fn controller(&self) -> Result<Agent> {
        let path = |path: PathBuf| path.display().to_string();
        let (near, far) = (path(self.pair.private.kubeconfig()), path(self.pair.public.kubeconfig()));
        let args =
            ["jobs", "--namespace", "internal-services", "--kubeconfig", &near, "--remote-kubeconfig", &far];
        self.product.role("jobs", &args, &[]).await
    }

    /// What each of 10, 100 and more requests costs that are made at once, up to so many; and how many were
    /// completed. The few are repeated, for a processor's time is told in hundredths of a second.
    async fn growth(&self, most: usize) -> Result<(Vec<Growth>, usize)> {
        let mut wait = Growth::new("a request made at once with so many, until all are completed", "ms");
        let mut work = Growth::new("the same, CPU of the controller", "ms");
        let mut over = 0;
        for size in SIZES.into_iter().filter(|size| *size <= most) {
            let controller = self.controller().await?;
            let before = cpu::seconds(controller.process.pid())?;
            let (times, mut seconds) = (CROWD.div_ceil(size), 0.0);
            for time in 0..times {
                seconds += self.crowd(&format!("of-{size}-{time}"), size).await?.1;
            }
            let used = cpu::seconds(controller.process.pid())? - before;
            let count = times * size;
            wait.at(size, seconds * 1e3 / count as f64);
            work.at(size, used * 1e3 / count as f64);
            over += count;
        }
        Ok((vec![wait, work], over))
    }

    /// Seconds until all runs were there, and until all of so many requests were completed.
    async fn crowd(&self, name: &str, count: usize) -> Result<(f64, f64)> {
        let (_runs_watch, mut runs) = watch(self.runs.clone()).await?;
        let (_requests_watch, mut ends) = watch(self.requests.clone()).await?;
        let begun = Instant::now();
        let create = stream::iter(0..count).map(Ok::<_, anyhow::Error>).try_for_each_concurrent(
            WRITERS,
            |n| async move {
                self.requests.create(&PostParams::default(), &request(&format!("{name}-{n}"))?).await?;
                Ok(())
            },
        );
        let finish = async {
            let mut seen: HashMap<String, Instant> = HashMap::new();
            let mut ending = stream::FuturesUnordered::new();
            while seen.len() < count {
                tokio::select! {
                    run = runs.recv() => {
                        let (run, over, at) = run.context("the watch of runs ended")?;
                        if !over && !seen.contains_key(&run) {
                            seen.insert(run.clone(), at);
                            ending.push(succeed(&self.runs, run));
                        }
                    }
                    Some(ended) = ending.next() => ended?,
                }
            }
            ending.try_collect::<()>().await?;
            anyhow::Ok(seen.into_values().max().unwrap_or(begun))
        };
        let collect = async {
            let mut done: HashMap<String, Instant> = HashMap::new();
            while done.len() < count {
                let (request, over, at) = ends.recv().await.context("the watch of requests ended")?;
                if over && request.starts_with(name) {
                    done.entry(request).or_insert(at);
                }
            }
            anyhow::Ok(done.into_values().max().unwrap_or(begun))
        };
        let all = async { tokio::try_join!(create, finish, collect) };
        let ((), created, completed) = tokio::time::timeout(SOON * (1 + count as u32 / 1_000), all)
            .await
            .context("the crowd was not served")??;
        Ok(((created - begun).as_secs_f64(), (completed - begun).as_secs_f64()))
    }

    /// The same writes without anybody who decides: request, finalizer, run, status, end of the
    /// run, status, and the run deleted and freed.
    async fn bare(&self, name: &str) -> Result<f64> {
        let begun = Instant::now();
        stream::iter(0..CROWD)
            .map(Ok::<_, anyhow::Error>)
            .try_for_each_concurrent(WRITERS, |n| async move {
                let name = format!("{name}-{n}");
                // No controller runs meanwhile, and one that comes later finds it completed.
                self.requests.create(&PostParams::default(), &request(&name)?).await?;
                let hold = json!({ "metadata": { "finalizers": ["tarbet.dev/bench"] } });
                merge(&self.requests, &name, &hold).await?;
                let run: DynamicObject = serde_json::from_value(json!({
                    "apiVersion": "tekton.dev/v1", "kind": "PipelineRun",
                    "metadata": { "name": name, "finalizers": ["tarbet.dev/bench"] },
                    "spec": { "pipelineRef": { "name": "build" } },
                }))?;
                self.runs.create(&PostParams::default(), &run).await?;
                status(&self.requests, &name, "False", "Running").await?;
                succeed(&self.runs, name.clone()).await?;
                status(&self.requests, &name, "True", "Succeeded").await?;
                self.runs.delete(&name, &DeleteParams::background()).await?;
                merge(&self.runs, &name, &json!({ "metadata": { "finalizers": null } })).await?;
                Ok(())
            })
            .await?;
        Ok(begun.elapsed().as_secs_f64())
    }

    /// Milliseconds until the run was seen, until the end was seen, and of one bare write until it was seen.
    async fn lone(&self) -> Result<(Vec<f64>, Vec<f64>, Vec<f64>)> {
        let (_runs_watch, mut runs) = watch(self.runs.clone()).await?;
        let (_requests_watch, mut ends) = watch(self.requests.clone()).await?;
        let (mut begin, mut end, mut event) = (vec![], vec![], vec![]);
        let millis = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64() * 1e3;
        for n in 0..LONE {
            let name = format!("lone-{n}");
            self.requests.create(&PostParams::default(), &request(&name)?).await?;
            let asked = Instant::now();
            let (run, seen) = next(&mut runs, |_, over| !over).await?;
            begin.push(millis(asked, seen));
            // Past the write that says it runs, so that the controller is idle again.
            let api = &self.requests;
            eventually(SOON, "the request to run", || async {
                let reason = api.get(&name).await?.data["status"]["conditions"][0]["reason"].clone();
                ensure!(reason == "Running", "{reason}");
                Ok(())
            })
            .await?;
            succeed(&self.runs, run).await?;
            let told = Instant::now();
            let (_, seen) = next(&mut ends, |request, over| over && request == name).await?;
            end.push(millis(told, seen));
            eventually(SOON, "the run to go", || async {
                let left = self.runs.list_metadata(&kube::api::ListParams::default()).await?.items.len();
                ensure!(left == 0, "{left} runs are left");
                Ok(())
            })
            .await?;
            while runs.try_recv().is_ok() || ends.try_recv().is_ok() {}
            let note = json!({ "metadata": { "annotations": { "bench": n.to_string() } } });
            let told = Instant::now();
            merge(&self.requests, &name, &note).await?;
            let (_, seen) = next(&mut ends, |request, _| request == name).await?;
            event.push(millis(told, seen));
        }
        Ok((begin, end, event))
    }

    /// So many requests that are over.
    async fn fill(&self, count: usize) -> Result<()> {
        stream::iter(0..count)
            .map(Ok::<_, anyhow::Error>)
            .try_for_each_concurrent(WRITERS, |n| async move {
                let name = format!("old-{n}");
                self.requests.create(&PostParams::default(), &request(&name)?).await?;
                status(&self.requests, &name, "True", "Succeeded").await
            })
            .await
    }
}

async fn next(sightings: &mut Sightings, wanted: impl Fn(&str, bool) -> bool) -> Result<(String, Instant)> {
    let look = async {
        loop {
            let (name, over, at) = sightings.recv().await.context("the watch ended")?;
            if wanted(&name, over) {
                return anyhow::Ok((name, at));
            }
        }
    };
    tokio::time::timeout(SOON, look).await.context("nothing was seen")?
}

async fn install(plane: &ControlPlane) -> Result<()> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/crds");
    let kubectl = plane.kubectl();
    for kind in ["internalrequests", "internalservicesconfigs"] {
        let file = format!("{folder}/{kind}.appstudio.redhat.com.yaml");
        kubectl.run(&["apply", "-f", &file]).await?;
        let list = ["get", kind, "-A"];
        eventually(SOON, kind, || kubectl.run(&list)).await?;
    }
    Ok(())
}

async fn client(plane: &ControlPlane) -> Result<Client> {
    Ok(tarbet_cluster::connect(&Source::file(plane.kubeconfig())).await?)
}

fn kind(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

fn request(name: &str) -> Result<DynamicObject> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "appstudio.redhat.com/v1alpha1", "kind": "InternalRequest",
        "metadata": { "name": name }, "spec": { "request": "build", "params": { "image": "quay.io/a/b:c" } },
    }))?)
}

async fn merge(api: &Api<DynamicObject>, name: &str, patch: &Value) -> Result<()> {
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

async fn status(api: &Api<DynamicObject>, name: &str, word: &str, reason: &str) -> Result<()> {
    let condition = json!({ "type": "Succeeded", "status": word, "reason": reason, "message": "",
                            "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let patch = json!({ "status": { "startTime": "2026-01-01T00:00:00Z", "conditions": [condition] } });
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
    Ok(())
}

/// Ends a run as Tekton would.
async fn succeed(runs: &Api<DynamicObject>, run: String) -> Result<()> {
    let condition = json!({ "type": "Succeeded", "status": "True", "reason": "Succeeded", "message": "" });
    let results = json!([{ "name": "digest", "value": "sha256:00" }]);
    let patch = json!({ "status": { "conditions": [condition], "results": results } });
    runs.patch_status(&run, &PatchParams::default(), &Patch::Merge(&patch)).await?;
    Ok(())
}

/// Tells what changes from now on.
async fn watch(api: Api<DynamicObject>) -> Result<(Watching, Sightings)> {
    let (tell, sightings) = mpsc::unbounded_channel();
    let (listed, ready) = tokio::sync::oneshot::channel();
    let task = tokio::spawn(async move {
        let (mut listed, mut events) =
            (Some(listed), std::pin::pin!(watcher(api, watcher::Config::default())));
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Apply(object)) => {
                    let conditions = object.data["status"]["conditions"].as_array();
                    let over = conditions.is_some_and(|list| {
                        list.iter().any(|one| one["type"] == "Succeeded" && one["status"] == "True")
                    });
                    // Nobody listens any more once the round is over.
                    let _ = tell.send((object.name_any(), over, Instant::now()));
                }
                Ok(watcher::Event::InitDone) => {
                    if let Some(listed) = listed.take() {
                        let _ = listed.send(());
                    }
                }
                _ => {}
            }
        }
    });
    ready.await?;
    Ok((Watching(task), sightings))
}
