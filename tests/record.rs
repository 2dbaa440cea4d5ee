//! The record of requests: in the file before a request goes on, whatever becomes of the process and of the disk.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use tarbet_link::{Body, Caller, LinkError, Target};
use tarbet_reach::audit;
use tarbet_reach::client::RemoteSite;
use tarbet_telemetry::RequestId;
use tarbet_telemetry::codes::reach::{LINK_LOST, SITE_NOT_CONNECTED};
use tarbet_testbed::product::{Gateway, Product};
use tarbet_testbed::{Disk, Folder, effort, eventually, verified};
use tokio::sync::mpsc;

use super::asking;

const SOON: Duration = Duration::from_mins(1);
const UNWRITABLE: &str = "TB-1403";

struct World {
    product: Product,
    gateway: Gateway,
    token: String,
}

impl World {
    /// A gateway with its log there, and a site.
    async fn with_log_at(log: &Path) -> Self {
        let product = Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap();
        let store = format!("{{kind: redb, path: {}}}", product.folder().path().join("store.redb").display());
        let setting = format!("gateway.audit.file={}", log.display());
        // A refusal of the only agent is told when no other has come in this time.
        let extra = ["--set", &setting, "--set", "gateway.max_wait=10s"];
        let gateway = product.gateway("gateway", &store, &extra).await.unwrap();
        let token = asking::add_site(&product, &gateway, "paris").await.unwrap();
        Self { product, gateway, token }
    }

    fn site(&self) -> RemoteSite {
        asking::client(&self.product, &self.gateway).site("paris".parse().unwrap())
    }
}

/// Asks the site under an id of the caller's choice.
async fn asks(site: &RemoteSite, id: RequestId) -> Result<(), LinkError> {
    let request = http::Request::get("/").header("traceparent", id.traceparent());
    let mut request = request.body(Body::empty()).unwrap();
    request.extensions_mut().insert(Target::service("info").unwrap());
    site.call(request).await.map(drop)
}

/// A machine that stalls loses links, which come back: whoever asks again is answered.
fn is_lost(error: &LinkError) -> bool {
    match error {
        LinkError::Denied(denial) => [LINK_LOST.id, SITE_NOT_CONNECTED.id].contains(&denial.code.as_str()),
        other => {
            !matches!(other, LinkError::Request(_) | LinkError::RequestBody(_) | LinkError::Unsupported(_))
        }
    }
}

/// Asks, each time anew, until a request is refused because it cannot be recorded. Gives those that were
/// answered until then.
async fn asks_until_refused(site: &RemoteSite) -> Vec<RequestId> {
    let mut answered = Vec::new();
    loop {
        let id = RequestId::fresh();
        match asks(site, id).await {
            Ok(()) => answered.push(id),
            Err(LinkError::Denied(denial)) if denial.code == UNWRITABLE => return answered,
            Err(error) => assert!(is_lost(&error), "{error:?}"),
        }
        // The last page of the file still has room for some records.
        assert!(answered.len() < 200, "a full disk takes no more requests");
    }
}

/// What is on record, after the chain was found whole.
fn records(log: &Path) -> Vec<audit::Entry> {
    let lines = std::io::BufReader::new(std::fs::File::open(log).unwrap());
    audit::verify(lines, audit::read_head(log).unwrap()).unwrap();
    audit::tail(log, usize::MAX).unwrap()
}

/// Every one of these is on record at both ends; at the site perhaps more than once, if it was tried again.
fn all_are_recorded(answered: &[RequestId], gateways: &Path, sites: &Path) {
    let times =
        |records: &[audit::Entry], id| records.iter().filter(|entry| entry.event.request == Some(id)).count();
    let (gateways, sites) = (records(gateways), records(sites));
    for id in answered {
        assert_eq!(times(&gateways, *id), 1, "{id} was answered, and is on the gateway's record");
        assert!(times(&sites, *id) >= 1, "{id} was answered, and is on the site's record");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_gateway_has_recorded_all_that_it_answered() {
    let folder = Folder::new("killed").unwrap();
    let log = folder.path().join("audit.log");
    let mut world = World::with_log_at(&log).await;
    let site_log = folder.path().join("site.log");
    let extra = ["--audit-file", site_log.to_str().unwrap()];
    let mut agent = world.product.agent("paris", &world.token, &[&world.gateway], &extra).await.unwrap();
    let mut answered = Vec::new();
    for round in 0..2 * effort().min(10) {
        let over = Arc::new(AtomicBool::new(false));
        let (tell, mut told) = mpsc::unbounded_channel();
        let callers: Vec<_> = (0..8)
            .map(|_| {
                let (site, over, tell) = (world.site(), Arc::clone(&over), tell.clone());
                tokio::spawn(async move {
                    while !over.load(SeqCst) {
                        let id = RequestId::fresh();
                        if asks(&site, id).await.is_ok() {
                            let _heard = tell.send(id);
                        }
                    }
                })
            })
            .collect();
        drop(tell);
        for _ in 0..40 {
            answered.push(told.recv().await.expect("callers go on until told"));
        }
        // In turn: the one who takes requests, and the one who runs them.
        let process = if round % 2 == 0 { &mut world.gateway.process } else { &mut agent.process };
        process.kill9().unwrap();
        over.store(true, SeqCst);
        // Who waits for an agent waits long.
        if round % 2 == 1 {
            agent.process.restart().await.unwrap();
        } else {
            world.gateway.process.restart().await.unwrap();
            world.gateway.ready().await.unwrap();
        }
        for caller in callers {
            caller.await.unwrap();
        }
        while let Some(id) = told.recv().await {
            answered.push(id);
        }
        let site = world.site();
        eventually(SOON, "the site to be back", || async { asks(&site, RequestId::fresh()).await })
            .await
            .unwrap();
        all_are_recorded(&answered, &log, &site_log);
    }
    verified("requests that were answered before a kill -9, each on record once", answered.len());
}

/// How a fault of a disk begins and ends.
type Fault = [fn(&Disk) -> anyhow::Result<()>; 2];
/// It takes nothing more; it takes all and loses it.
const FAULTS: [Fault; 2] = [[Disk::fill, Disk::empty], [Disk::fail, Disk::mend]];
const CAUSE: &str = "No space left on device";

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_recorded_is_refused_until_there_is_room() {
    let (gateways, sites) = (Disk::new().unwrap(), Disk::new().unwrap());
    let (log, site_log) = (gateways.path().join("audit.log"), sites.path().join("audit.log"));
    let mut world = World::with_log_at(&log).await;
    let extra = ["--audit-file", site_log.to_str().unwrap()];
    let mut agent = world.product.agent("paris", &world.token, &[&world.gateway], &extra).await.unwrap();
    let site = world.site();
    let taken = async |what: &str| {
        let first = eventually(SOON, what, || async {
            let id = RequestId::fresh();
            asks(&site, id).await.map(|()| id)
        });
        first.await.unwrap()
    };
    let mut answered = vec![taken("a first request to be taken").await];
    let probes = format!("http://127.0.0.1:{}", agent.probes());
    let places =
        [("gateway", &gateways, &log, world.gateway.observability()), ("site", &sites, &site_log, probes)];
    for round in 0..effort().min(10) {
        for ((place, disk, file, pages), [begin, end]) in
            places.iter().flat_map(|place| FAULTS.map(|fault| (place, fault)))
        {
            begin(disk).unwrap();
            let refused = tokio::time::timeout(SOON, asks_until_refused(&site)).await;
            answered.extend(refused.unwrap_or_else(|_| panic!("the {place} refuses nothing")));
            let more = format!("more-{round}-{place}");
            let change = world.product.run(&world.gateway, &["site", "add", &more]).await;
            if *place == "gateway" {
                let refusal = format!("{:#}", change.expect_err("nor changes"));
                assert!(refusal.contains(UNWRITABLE), "{refusal}");
            }
            eventually(SOON, "the file and the cause to be told", || async {
                let page = reqwest::get(format!("{pages}/readyz")).await?.text().await?;
                anyhow::ensure!(page.contains(file.to_str().unwrap()) && page.contains(CAUSE), "{page}");
                anyhow::Ok(())
            })
            .await
            .unwrap();
            end(disk).unwrap();
            answered.push(taken("requests to be taken again").await);
        }
    }
    // Also as the disks themselves have it, once nobody remembers what was lost.
    world.gateway.process.stop().await.unwrap();
    agent.process.stop().await.unwrap();
    for disk in [&gateways, &sites] {
        disk.replug().unwrap();
    }
    all_are_recorded(&answered, &log, &site_log);
    verified(
        "failures of the disk under the record of requests: refused, nothing lost",
        4 * effort().min(10),
    );
}
