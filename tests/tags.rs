//! `tarbet tags` is killed while tags are written: whatever was acknowledged is there afterwards.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tarbet_nets::plan::tags::Mapping;
use tarbet_nets::wire::tags::tag_service_client::TagServiceClient;
use tarbet_nets::wire::tags::{ListTagsRequest, SetTagRequest};
use tarbet_testbed::product::Product;
use tarbet_testbed::{Lease, Redis, effort, eventually, verified};

const SOON: Duration = Duration::from_mins(1);
const WRITERS: u32 = 4;

/// What writers were told is kept: the number that each tag was last set to.
#[derive(Default)]
struct Told {
    kept: Mutex<BTreeMap<String, u32>>,
    over: AtomicBool,
}

impl Told {
    fn all(&self) -> BTreeMap<String, u32> {
        self.kept.lock().unwrap().clone()
    }
}

/// Sets a tag of its own to the next number, and another one for good, again and again, also when the service dies.
async fn write(url: String, writer: u32, told: Arc<Told>) {
    let connect = || TagServiceClient::connect(url.clone());
    let mut client = eventually(SOON, "the tag service", connect).await.unwrap();
    for number in 0.. {
        for name in [format!("changes.{writer}"), format!("stays.{writer}.{number}")] {
            if told.over.load(SeqCst) {
                return;
            }
            let ip = Some(Ipv4Addr::from(number).to_string());
            let tag = Mapping { name: name.clone(), uri: Some("uri".into()), ip, ..Mapping::default() };
            match client.set_tag(SetTagRequest { tag: Some(tag.into()) }).await {
                Ok(_) => drop(told.kept.lock().unwrap().insert(name, number)),
                Err(_) => client = eventually(SOON, "the tag service", connect).await.unwrap(),
            }
        }
    }
}

async fn is_killed_under_load(kind: &str, settings: &[&str]) {
    let (product, ports) = (Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap(), Lease::block(2).unwrap());
    let [listen, values] = [0, 1].map(|index| format!("127.0.0.1:{}", ports.port(index)));
    let words = ["tags", "--listen", &listen, "--kv-listen", &values];
    let mut service = product.role("tags", &[&words[..], settings].concat(), &[]).await.unwrap();
    let (url, told) = (format!("http://{listen}"), Arc::new(Told::default()));
    let writers: Vec<_> =
        (0..WRITERS).map(|writer| tokio::spawn(write(url.clone(), writer, Arc::clone(&told)))).collect();
    let rounds = 3 * effort().min(10);
    for round in 0..rounds {
        // Another number each time, so that it dies at another place.
        let goal = told.all().len() + 40 + round * 7 % 30;
        eventually(SOON, "more tags to be kept", || async { told.all().len() >= goal }).await.unwrap();
        service.process.kill9().unwrap();
        let kept = told.all();
        service.process.restart().await.unwrap();
        service.ready().await.unwrap();
        let mut client =
            eventually(SOON, "the tag service", || TagServiceClient::connect(url.clone())).await.unwrap();
        let list = client.list_tags(ListTagsRequest {}).await.unwrap().into_inner().tags;
        let found: BTreeMap<&str, u32> = list
            .iter()
            .map(|tag| (tag.name.as_str(), tag.ip.as_ref().unwrap().parse::<Ipv4Addr>().unwrap().into()))
            .collect();
        for (name, number) in &kept {
            let now = found.get(name.as_str());
            // It may be further than its writer was told.
            assert!(now.is_some_and(|now| now >= number), "{kind}: {name} was {number} and is {now:?}");
        }
    }
    told.over.store(true, SeqCst);
    for writer in writers {
        writer.await.unwrap();
    }
    verified(
        &format!("kill -9 of the tag service under load, on {kind}: no acknowledged tag is lost"),
        rounds,
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_that_were_acknowledged_outlive_a_kill_on_redb() {
    let folder = tempfile::tempdir().unwrap();
    let path = format!("store.path={}", folder.path().join("tags.redb").display());
    is_killed_under_load("redb", &["--set", "store.kind=redb", "--set", &path]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_that_were_acknowledged_outlive_a_kill_on_redis() {
    let redis = Redis::start().await.unwrap();
    let url = format!("store.url={}", redis.url());
    is_killed_under_load("Redis", &["--set", "store.kind=redis", "--set", &url]).await;
}
