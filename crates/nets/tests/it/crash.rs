//! The orchestrator dies between any two calls, without a word, and is started again.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tarbet_nets::cloud::{Calls, Cloud as _};
use tarbet_testbed::{Folder, Process, Program, eventually, verified};
use tokio::sync::Notify;

use super::bed::{self, rest};

const CHILD: &str = "TARBET_NETS_CHILD";
const PATIENCE: Duration = Duration::from_mins(1);

/// Not a test by itself: the orchestrator that the test below kills, in a process of its own.
#[tokio::test]
async fn child() {
    let Ok(folder) = std::env::var(CHILD) else { return };
    let folder = std::path::PathBuf::from(folder);
    let config = serde_json::from_str(&std::fs::read_to_string(folder.join("config.json")).unwrap()).unwrap();
    let store = tarbet_store::StoreConfig::Redb(tarbet_store::RedbConfig::at(folder.join("store.redb")));
    let store = tarbet_store::open(&store, tarbet_store::Clock::system()).await.unwrap();
    let _running = bed::orchestrator(&config, &store).await;
    std::future::pending::<()>().await;
}

/// Counts what the clouds see, and holds the call at the cut.
#[derive(Default)]
pub(crate) struct Cut {
    seen: AtomicUsize,
    at: Mutex<Option<usize>>,
    pub(crate) reached: Notify,
}

impl Cut {
    pub(crate) fn calls(self: &Arc<Self>) -> Calls {
        let cut = self.clone();
        Arc::new(move |_, _| {
            let cut = cut.clone();
            Box::pin(async move {
                let number = cut.seen.fetch_add(1, Ordering::SeqCst);
                let held = *cut.at.lock().unwrap() == Some(number);
                if held {
                    cut.reached.notify_one();
                    // The caller is about to die: the call never answers.
                    std::future::pending::<()>().await;
                }
                Ok(())
            })
        })
    }

    pub(crate) fn set(&self, at: Option<usize>) {
        self.seen.store(0, Ordering::SeqCst);
        *self.at.lock().unwrap() = at;
    }
}

struct World {
    clouds: bed::Clouds,
    cut: Arc<Cut>,
    url: String,
    process: Process,
    _folder: Folder,
}

impl World {
    async fn start() -> Self {
        let cut = Arc::new(Cut::default());
        let clouds = bed::clouds(Some(cut.calls())).await;
        let folder = Folder::new("nets-crash").unwrap();
        folder.write("config.json", &serde_json::to_string(&clouds.config).unwrap()).unwrap();
        let program = Program::new(std::env::current_exe().unwrap())
            .args(["--exact", "it::crash::child", "--nocapture"])
            .env(CHILD, folder.path());
        let mut process = Process::start(&folder, "orchestrator", program).unwrap();
        let url = format!("http://127.0.0.1:{}", clouds.config.server.port);
        ready(&mut process, &url).await;
        Self { clouds, cut, url, process, _folder: folder }
    }

    /// Sends a request, kills the orchestrator when the clouds see event `at`, and starts it again.
    /// False if the request was over before that.
    async fn request_and_crash(&mut self, at: usize, method: Method, path: &str, body: Value) -> bool {
        self.cut.set(Some(at));
        let url = format!("{}{path}", self.url);
        let asking = tokio::spawn(async move {
            let request = reqwest::Client::new().request(method, url);
            request.json(&body).send().await.map(|response| response.status().as_u16())
        });
        let crashed = tokio::select! {
            () = self.cut.reached.notified() => true,
            answer = asking => {
                assert_eq!(answer.unwrap().unwrap(), 200);
                false
            }
        };
        self.cut.set(None);
        if crashed {
            self.process.kill9().unwrap();
            self.process.restart().await.unwrap();
            ready(&mut self.process, &self.url).await;
        }
        let operations = format!("{}/operations", self.url);
        eventually(PATIENCE, "every operation is finished", || async {
            let (_, list) = rest(Method::GET, operations.clone(), Value::Null).await;
            let open =
                list.as_array().unwrap().iter().filter(|operation| operation["state"] != "done").count();
            if open == 0 { Ok(()) } else { Err(list.to_string()) }
        })
        .await
        .unwrap();
        crashed
    }
}

pub(crate) async fn ready(process: &mut Process, url: &str) {
    let ping = format!("{url}/ping");
    process.ready(PATIENCE, || async { reqwest::get(&ping).await }).await.unwrap();
}

#[tokio::test]
async fn every_cut_point_ends_as_wanted() {
    let mut world = World::start().await;
    let mut points = 0;
    for at in 0.. {
        // Begin from nothing each time: a resource in each cloud and a rule across.
        let (near, far) = (format!("a{at}"), format!("b{at}"));
        let resource =
            |cloud: &str, name: &str| format!("/namespaces/default/clouds/{cloud}/resources/{name}");
        let description = json!({ "description": "{}" });
        let mut crashes = 0;
        for (cloud, name) in [("east", &near), ("west", &far)] {
            let path = resource(cloud, name);
            crashes +=
                usize::from(world.request_and_crash(at, Method::PUT, &path, description.clone()).await);
        }
        let rule = |tag: String| json!([{ "name": "web", "src_port": -1, "dst_port": 443, "protocol": 6, "tags": [tag] }]);
        let path = format!("{}/applyRules", resource("east", &near));
        let body = rule(format!("default.west.{far}"));
        crashes += usize::from(world.request_and_crash(at, Method::POST, &path, body).await);

        let held: Vec<String> =
            world.clouds.east.list_resources("").await.unwrap().into_iter().map(|held| held.name).collect();
        assert_eq!(held, std::slice::from_ref(&near), "made once, nothing else left");
        let rules =
            world.clouds.east.permit_list("default", &format!("memory/east/default/{near}")).await.unwrap();
        assert_eq!((rules.len(), rules[0].targets.len()), (1, 1), "{rules:?}");
        let (east, west) = (world.clouds.east.tunnels(), world.clouds.west.tunnels());
        assert_eq!((east.len(), west.len()), (1, 1));
        assert_eq!(east[0].1, west[0].1, "one key for both ends, whatever was tried again");
        let (_, plan) = rest(Method::POST, format!("{}/links/prune?plan=true", world.url), Value::Null).await;
        assert_eq!(plan["calls"], json!([]), "the connection is needed");

        // Take all of it away again, through the same cut.
        for (cloud, name) in [("east", &near), ("west", &far)] {
            let path = resource(cloud, name);
            crashes += usize::from(world.request_and_crash(at, Method::DELETE, &path, Value::Null).await);
        }
        crashes += usize::from(world.request_and_crash(at, Method::POST, "/links/prune", Value::Null).await);
        assert!(world.clouds.east.tunnels().is_empty() && world.clouds.west.tunnels().is_empty());
        assert!(world.clouds.east.list_resources("").await.unwrap().is_empty());
        if crashes == 0 {
            break;
        }
        points += crashes;
    }
    assert!(points > 20, "only {points} cut points were met");
    verified("the orchestrator dies at a call to a cloud: made once, nothing left", points);
}
