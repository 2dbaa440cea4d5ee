//! Two orchestrators on one Redis: one acts, the other takes over what the first had begun.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use reqwest::redirect::Policy;
use serde_json::{Value, json};
use tarbet_nets::NetsConfig;
use tarbet_nets::cloud::Cloud as _;
use tarbet_nets::wire::paraglider::FindUnusedAddressSpacesRequest;
use tarbet_nets::wire::paraglider::controller_client::ControllerClient;
use tarbet_testbed::{Folder, Process, Program, Redis, eventually};

use super::bed::{self, rest};
use super::crash::{Cut, ready};

const CHILD: &str = "TARBET_NETS_REPLICA";
const PATIENCE: Duration = Duration::from_mins(1);

/// Not a test by itself: the orchestrator that the test below stops, in a process of its own.
#[tokio::test]
async fn child() {
    let Ok(folder) = std::env::var(CHILD) else { return };
    let read = |file: &str| std::fs::read_to_string(std::path::Path::new(&folder).join(file)).unwrap();
    let config: NetsConfig = serde_json::from_str(&read("config.json")).unwrap();
    let store = serde_json::from_str(&read("store.json")).unwrap();
    let store = tarbet_store::open(&store, tarbet_store::Clock::system()).await.unwrap();
    let _running = bed::replica(&config, &store).await;
    std::future::pending::<()>().await;
}

fn resource(url: &str, cloud: &str, name: &str) -> String {
    format!("{url}/namespaces/default/clouds/{cloud}/resources/{name}")
}

async fn create(url: &str, cloud: &str, name: &str) {
    let put = || async {
        let body = json!({ "description": "{}" });
        let (status, answer) = rest(Method::PUT, resource(url, cloud, name), body).await;
        if status == 200 { Ok(()) } else { Err(answer.to_string()) }
    };
    eventually(PATIENCE, "one of them leads", put).await.unwrap();
}

/// Both, the first in a process of its own, with a machine in each cloud.
struct World {
    cut: Arc<Cut>,
    clouds: bed::Clouds,
    first: Process,
    second: bed::Running,
    url: String,
    _redis: Redis,
    _folder: Folder,
}

impl World {
    async fn start() -> Self {
        let (redis, cut) = (Redis::start().await.unwrap(), Arc::new(Cut::default()));
        let clouds = bed::clouds(Some(cut.calls())).await;
        let folder = Folder::new("nets-replica").unwrap();
        folder.write("config.json", &serde_json::to_string(&clouds.config).unwrap()).unwrap();
        folder.write("store.json", &json!({ "kind": "redis", "url": redis.url() }).to_string()).unwrap();
        let program = Program::new(std::env::current_exe().unwrap())
            .args(["--exact", "it::replicas::child", "--nocapture"])
            .env(CHILD, folder.path());
        let mut first = Process::start(&folder, "first", program).unwrap();
        let url = format!("http://127.0.0.1:{}", clouds.config.server.port);
        ready(&mut first, &url).await;
        create(&url, "east", "near").await;
        let second = bed::replica(&clouds.second, &bed::redis(&redis).await).await;
        Self { cut, clouds, first, second, url, _redis: redis, _folder: folder }
    }

    /// Begins a rule across clouds and returns when the clouds see event `at`, which never answers.
    async fn begin_and_hold(&self, at: usize) {
        self.cut.set(Some(at));
        let url = format!("{}/applyRules", resource(&self.url, "east", "near"));
        let rule = json!([{ "name": "web", "src_port": -1, "dst_port": 443, "protocol": 6, "tags": ["default.west.far"] }]);
        tokio::spawn(async move { reqwest::Client::new().post(url).json(&rule).send().await.map(drop) });
        self.cut.reached.notified().await;
        self.cut.set(None);
    }

    async fn finished_by_the_second(&self) {
        eventually(PATIENCE, "the second finishes it", || async {
            let (_, list) = rest(Method::GET, format!("{}/operations", self.second.rest), Value::Null).await;
            let open =
                list.as_array().unwrap().iter().filter(|operation| operation["state"] != "done").count();
            if open == 0 { Ok(()) } else { Err(list.to_string()) }
        })
        .await
        .unwrap();
        let rules = self.clouds.east.permit_list("default", "memory/east/default/near").await.unwrap();
        assert_eq!((rules.len(), rules[0].targets.len()), (1, 1), "{rules:?}");
        let (east, west) = (self.clouds.east.tunnels(), self.clouds.west.tunnels());
        assert_eq!((east.len(), west.len()), (1, 1));
        assert_eq!(east[0].1, west[0].1, "one key, whoever made the ends");
    }
}

#[tokio::test]
async fn the_second_only_looks_and_takes_over_what_a_dead_first_had_begun() {
    let mut world = World::start().await;
    // Sent to the second, made by the first.
    let body = json!({ "description": "{}" });
    let there = resource(&world.second.rest, "west", "far");
    let bare = reqwest::Client::builder().redirect(Policy::none()).build().unwrap();
    let told = eventually(PATIENCE, "the second knows who leads", || async {
        let told = bare.put(&there).json(&body).send().await.unwrap();
        if told.status().as_u16() == 307 { Ok(told) } else { Err(told.status()) }
    })
    .await
    .unwrap();
    assert_eq!(told.headers()["location"], resource(&world.url, "west", "far"));
    assert_eq!(told.json::<Value>().await.unwrap()["code"], "TB-4206");
    assert_eq!(rest(Method::PUT, there, body).await.0, 200, "those who follow get there");
    // It follows what the first writes.
    eventually(PATIENCE, "the second shows both", || async {
        let url = format!("{}/namespaces/default/resources", world.second.rest);
        let (status, list) = rest(Method::GET, url, Value::Null).await;
        if (status, list.as_array().unwrap().len()) == (200, 2) { Ok(()) } else { Err(list.to_string()) }
    })
    .await
    .unwrap();
    let rpc = format!("http://127.0.0.1:{}", world.clouds.second.server.rpc_port);
    let mut controller = ControllerClient::connect(rpc).await.unwrap();
    let find = || FindUnusedAddressSpacesRequest { sizes: vec![0] };
    let refused = controller.find_unused_address_spaces(find()).await.unwrap_err();
    assert!(refused.message().contains("TB-4206"), "{refused}");

    world.begin_and_hold(5).await;
    world.first.kill9().unwrap();
    world.finished_by_the_second().await;
    let given = controller.find_unused_address_spaces(find()).await.unwrap().into_inner().address_spaces;
    assert_eq!(given, ["10.2.0.0/16"], "what the first gave out is not given again");
    tarbet_testbed::verified("kill -9 of the orchestrator that leads: the second ends what it had begun", 1);
}

#[tokio::test]
async fn a_first_that_was_only_asleep_writes_nothing_more() {
    let world = World::start().await;
    create(&world.url, "west", "far").await;
    world.begin_and_hold(3).await;
    world.first.pause().unwrap();
    world.finished_by_the_second().await;
    let operations = format!("{}/operations", world.second.rest);
    let (_, before) = rest(Method::GET, operations.clone(), Value::Null).await;
    world.first.resume().unwrap();
    eventually(PATIENCE, "the first sees who leads", || async {
        let bare = reqwest::Client::builder().redirect(Policy::none()).build().unwrap();
        let told = bare.put(resource(&world.url, "east", "near")).json(&json!({})).send().await.unwrap();
        told.status().as_u16() == 307
    })
    .await
    .unwrap();
    let (_, after) = rest(Method::GET, operations, Value::Null).await;
    assert_eq!(after, before);
    tarbet_testbed::verified("SIGSTOP of the orchestrator that leads: awake, it writes nothing more", 1);
}
