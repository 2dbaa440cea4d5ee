//! The orchestrator dies between any two calls, without a word, and is started again.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tarbet_nets::Error;
use tarbet_nets::cloud::{Calls, Cloud as _, NewResource};
use tarbet_nets::model::Deployment;
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

/// Counts what the clouds see, holds the call at the cut, and fails another.
#[derive(Default)]
pub(crate) struct Cut {
    seen: AtomicUsize,
    at: Mutex<Option<usize>>,
    fails: Mutex<Option<usize>>,
    pub(crate) reached: Notify,
    released: Notify,
}

impl Cut {
    pub(crate) fn calls(self: &Arc<Self>) -> Calls {
        let cut = self.clone();
        Arc::new(move |call, _| {
            let cut = cut.clone();
            Box::pin(async move {
                let number = cut.seen.fetch_add(1, Ordering::SeqCst);
                if *cut.fails.lock().unwrap() == Some(number) {
                    let (cloud, what, said) = ("east".into(), call.to_owned(), "out of order".into());
                    return Err(Error::Cloud { cloud, what, said });
                }
                let held = *cut.at.lock().unwrap() == Some(number);
                if held {
                    cut.reached.notify_one();
                    // Mostly the caller is about to die, and the call never answers.
                    cut.released.notified().await;
                }
                Ok(())
            })
        })
    }

    /// The call at the cut goes on.
    pub(crate) fn release(&self) {
        self.released.notify_one();
    }

    /// What the clouds have seen since the cut was set: each call before and after its effect.
    pub(crate) fn seen(&self) -> usize {
        self.seen.load(Ordering::SeqCst)
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

/// What the steps of a round are about: two machines of east and one of west, one of which permits a tag.
struct Round<'a> {
    world: &'a mut World,
    at: usize,
    crashes: usize,
}

fn path(cloud: &str, name: &str) -> String {
    format!("/namespaces/default/clouds/{cloud}/resources/{name}")
}

fn uri(cloud: &str, name: &str) -> String {
    format!("memory/{cloud}/default/{name}")
}

impl Round<'_> {
    /// A request that is cut, if its calls get that far.
    async fn cut(&mut self, method: Method, path: &str, body: Value) {
        self.crashes += usize::from(self.world.request_and_crash(self.at, method, path, body).await);
    }

    /// One that is not.
    async fn ask(&self, method: Method, path: &str, body: Value) {
        let (status, answer) = rest(method, format!("{}{path}", self.world.url), body).await;
        assert_eq!(status, 200, "{path}: {answer}");
    }

    /// The rules of a machine and how many targets each has.
    async fn rules(&self, cloud: &str, name: &str) -> Vec<(String, usize)> {
        let clouds = &self.world.clouds;
        let plugin = if cloud == "east" { &clouds.east } else { &clouds.west };
        let rules = plugin.permit_list("default", &uri(cloud, name)).await.unwrap();
        rules.into_iter().map(|rule| (rule.name, rule.targets.len())).collect()
    }

    async fn web(&self) -> Vec<(String, usize)> {
        self.rules("east", "a").await
    }

    fn keys(&self) -> (String, String) {
        let (east, west) = (self.world.clouds.east.tunnels(), self.world.clouds.west.tunnels());
        assert_eq!((east.len(), west.len()), (1, 1));
        (east[0].1.clone(), west[0].1.clone())
    }
}

#[tokio::test]
async fn tags_rules_keys_and_repairs_end_as_wanted_too() {
    let mut world = World::start().await;
    let members = |members: &[&str]| json!({ "name": "clients", "child_tags": members });
    let apply = "/tags/clients/applyMembers";
    let web = json!({ "name": "web", "src_port": -1, "dst_port": 443, "protocol": 6, "tags": ["clients"] });
    let web_of_a = format!("{}/rules", path("east", "a"));
    let begin = Round { world: &mut world, at: 0, crashes: 0 };
    for (cloud, name) in [("east", "a"), ("east", "c"), ("west", "b")] {
        begin.ask(Method::PUT, &path(cloud, name), json!({ "description": "{}" })).await;
    }
    begin.ask(Method::POST, apply, members(&["default.east.c"])).await;
    begin.ask(Method::POST, &web_of_a, web.clone()).await;
    let mut points = 0;
    for at in 0.. {
        let mut round = Round { world: &mut world, at, crashes: 0 };
        let given = |targets| vec![("web".to_owned(), targets)];
        assert_eq!(round.web().await, given(1));

        // A member in another cloud: connected first, then permitted.
        round.cut(Method::POST, apply, members(&["default.west.b"])).await;
        assert_eq!(round.web().await, given(2));
        let (before, _) = round.keys();
        round.cut(Method::POST, "/links/rekey", Value::Null).await;
        let (east, west) = round.keys();
        assert!(east == west && east != before, "both ends have another key");

        // Rules of all under a tag.
        let ssh =
            json!([{ "name": "ssh", "src_port": -1, "dst_port": 22, "protocol": 6, "tags": ["10.0.0.9"] }]);
        round.cut(Method::POST, "/tags/clients/rules", ssh).await;
        let ssh = vec![("ssh".to_owned(), 1)];
        assert_eq!((round.rules("east", "c").await, round.rules("west", "b").await), (ssh.clone(), ssh));
        round.cut(Method::DELETE, "/tags/clients/rules", json!(["ssh"])).await;
        assert_eq!((round.rules("east", "c").await, round.rules("west", "b").await), (vec![], vec![]));

        // Somebody took a rule away in the cloud.
        round.world.clouds.east.delete_rules("default", &uri("east", "a"), vec!["web".into()]).await.unwrap();
        round.cut(Method::POST, "/drift", Value::Null).await;
        assert_eq!(round.web().await, given(2));

        round.cut(Method::DELETE, "/tags/clients/members/default.west.b", Value::Null).await;
        assert_eq!(round.web().await, given(1));
        round.cut(Method::DELETE, "/tags/clients", Value::Null).await;
        assert_eq!(round.web().await, given(0));
        round.cut(Method::POST, apply, members(&["default.east.c"])).await;
        assert_eq!(round.web().await, given(1));
        round.cut(Method::DELETE, &format!("{web_of_a}/web"), Value::Null).await;
        assert_eq!(round.web().await, vec![]);
        round.ask(Method::POST, &web_of_a, web.clone()).await;

        // A machine that others made.
        let name = format!("theirs{at}");
        let deployment = Deployment { id: "e1".into(), namespace: "default".into() };
        let new = NewResource { deployment, name: name.clone(), description: "{}".into() };
        round.world.clouds.east.create_resource(new).await.unwrap();
        let attach = json!({ "id": uri("east", &name) });
        round.cut(Method::POST, "/namespaces/default/clouds/east/resources", attach).await;
        round.ask(Method::GET, &format!("{}/rules", path("east", &name)), Value::Null).await;
        round.ask(Method::DELETE, &path("east", &name), Value::Null).await;

        round.cut(Method::POST, "/links/prune", Value::Null).await;
        assert!(round.world.clouds.east.tunnels().is_empty() && round.world.clouds.west.tunnels().is_empty());
        let crashes = round.crashes;
        if crashes == 0 {
            break;
        }
        points += crashes;
    }
    assert!(points > 20, "only {points} cut points were met");
    verified("the orchestrator dies while tags, rules, keys and repairs are made: as wanted", points);
}

#[tokio::test]
async fn what_was_left_for_later_is_told_by_an_operation_that_was_cut_off_after_it() {
    let mut world = World::start().await;
    let begin = Round { world: &mut world, at: 0, crashes: 0 };
    for (cloud, name) in [("east", "a"), ("west", "b")] {
        begin.ask(Method::PUT, &path(cloud, name), json!({ "description": "{}" })).await;
    }
    let all = json!({ "name": "all", "child_tags": ["default.east.a", "default.west.b"] });
    begin.ask(Method::POST, "/tags/all/applyMembers", all).await;
    let web =
        json!([{ "name": "web", "src_port": -1, "dst_port": 443, "protocol": 6, "tags": ["203.0.113.7"] }]);
    begin.ask(Method::POST, "/tags/all/rules", web).await;

    // The first cloud is out of order, the second one is at it when the orchestrator dies.
    *world.cut.fails.lock().unwrap() = Some(0);
    world.cut.set(Some(1));
    let rules = format!("{}/tags/all/rules?async=true", world.url);
    let (status, begun) = rest(Method::DELETE, rules, json!(["web"])).await;
    assert_eq!(status, 202, "{begun}");
    world.cut.reached.notified().await;
    world.process.kill9().unwrap();
    *world.cut.fails.lock().unwrap() = None;
    world.cut.set(None);
    world.process.restart().await.unwrap();
    ready(&mut world.process, &world.url).await;
    let operation = format!("{}/operations/{}", world.url, begun["operation"]["id"].as_str().unwrap());
    let ended = eventually(PATIENCE, "the operation ends", || async {
        let (_, shown) = rest(Method::GET, operation.clone(), Value::Null).await;
        if shown["state"] == "running" { Err(shown.to_string()) } else { Ok(shown) }
    });
    let ended = ended.await.unwrap();
    assert_eq!(
        (&ended["state"], &ended["problem"]["code"]),
        (&json!("failed"), &json!("TB-4203")),
        "{ended}"
    );
}
