//! `tarbet glide` against an orchestrator as people start it: how it is trusted, and what a plan leaves alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tarbet_nets::Error;
use tarbet_nets::cloud::{Calls, Cloud as _, MemoryCloud, NewResource};
use tarbet_nets::controller::RemoteController;
use tarbet_nets::model::Deployment;
use tarbet_nets::plan::tags::Mapping;
use tarbet_nets::wire::seed_tags::tag_service_client::TagServiceClient;
use tarbet_nets::wire::seed_tags::{Tag, TagMapping};
use tarbet_testbed::product::{Agent, Product};
use tarbet_testbed::{Authority, Folder, Lease, Netlab, Subject, eventually};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// An orchestrator with one local cloud, and a person with a home of their own.
struct World {
    lab: Netlab,
    folder: Folder,
    ports: Lease,
    product: Product,
    running: Option<Agent>,
}

impl World {
    async fn start(security: &Value, scheme: &'static str) -> (Self, String) {
        Self::beside(&[], security, scheme).await
    }

    /// The same with the plugins of other clouds, in which the namespace `default` is, too.
    async fn beside(others: &[Value], security: &Value, scheme: &'static str) -> (Self, String) {
        let (lab, product) =
            (Netlab::start().await.unwrap(), Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap());
        let mut world = Self {
            lab,
            folder: Folder::new("glide").unwrap(),
            ports: Lease::block(4).unwrap(),
            product,
            running: None,
        };
        let at = |index| json!({ "host": "127.0.0.1", "port": world.ports.port(index) });
        let prefix = world.lab.prefix();
        let local = json!({ "prefix": prefix, "wan": format!("{prefix}-wan"), "folder": world.lab.folder() });
        let plugins = [&[json!({ "name": "local", "local": local })], others].concat();
        let deployments: Vec<Value> =
            plugins.iter().map(|plugin| json!({ "name": plugin["name"], "deployment": "d" })).collect();
        let config = json!({
            "store": { "kind": "memory" },
            "nets": {
                "server": { "host": "127.0.0.1", "port": world.ports.port(0), "rpcPort": world.ports.port(1) },
                "tagService": at(2), "kvStore": at(3), "security": security,
                "cloudPlugins": plugins,
                "namespaces": { "default": deployments, "other": [{ "name": "local", "deployment": "d" }] },
            },
        });
        // JSON is YAML.
        let file = world.folder.write("nets.yaml", &config.to_string()).unwrap().display().to_string();
        world.running = Some(world.product.role("nets", &["nets", "--config", &file], &[]).await.unwrap());
        let server = format!("{scheme}://127.0.0.1:{}", world.ports.port(0));
        (world, server)
    }

    async fn glide(&self, args: &[&str], variables: &BTreeMap<&str, &Path>) -> Output {
        tokio::process::Command::new(env!("CARGO_BIN_EXE_tarbet"))
            .arg("glide")
            .args(args)
            .env("HOME", self.folder.path())
            .env("TARBET_STATE", self.folder.path().join("state"))
            .env_remove("TARBET_CONFIG")
            .envs(variables)
            .stdin(Stdio::null())
            .output()
            .await
            .unwrap()
    }

    async fn says(&self, args: &[&str]) -> String {
        let output = self.glide(args, &BTreeMap::new()).await;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{args:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
        said
    }

    fn settings(&self) -> PathBuf {
        self.folder.path().join(".paraglider/settings.json")
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orchestrator_is_believed_by_its_authority_and_shown_a_certificate_and_a_token() {
    let files = Folder::new("glide-trust").unwrap();
    let authority = Authority::new("nets").unwrap();
    let server = authority.issue_files(&Subject::loopback("nets"), files.path(), "server").unwrap();
    let client = authority.issue_files(&Subject::client("me", None), files.path(), "client").unwrap();
    let secret = |name: &str, text: &str| {
        let path = files.path().join(name);
        assert!(tarbet_identity::Secret::new(text.to_owned()).create_file(&path).unwrap());
        path
    };
    let both = [&client.certificate, &client.key].map(|path| std::fs::read_to_string(path).unwrap()).concat();
    let (identity, tokens) = (secret("identity.pem", &both), secret("tokens", "first\nsecond\n"));
    let (token, wrong) = (secret("token", "second"), secret("wrong", "third"));
    let security = json!({
        "certFile": server.certificate, "keyFile": server.key,
        "clientCaFile": server.authority, "tokensFile": tokens,
    });
    let (world, server_url) = World::start(&security, "https").await;

    let list = ["namespace", "list", "--server", &server_url];
    let text = |path: &Path| path.display().to_string();
    let (ca, identity_text, token_text, wrong_text) =
        (text(&server.authority), text(&identity), text(&token), text(&wrong));
    let with =
        |extra: &[&str]| -> Vec<String> { list.iter().chain(extra).map(ToString::to_string).collect() };
    let nothing = BTreeMap::new();
    for (why, extra) in [
        (
            "nobody vouches for the orchestrator",
            vec!["--identity-file", &identity_text, "--token-file", &token_text],
        ),
        ("no certificate is shown", vec!["--ca-file", &ca, "--token-file", &token_text]),
        ("no token is shown", vec!["--ca-file", &ca, "--identity-file", &identity_text]),
        (
            "the token is another's",
            vec!["--ca-file", &ca, "--identity-file", &identity_text, "--token-file", &wrong_text],
        ),
    ] {
        let words = with(&extra);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let output = world.glide(&words, &nothing).await;
        assert!(!output.status.success(), "{why}: {}", said(&output));
        for secret in ["second", "third", "PRIVATE KEY"] {
            assert!(!said(&output).contains(secret), "{why}: {}", said(&output));
        }
    }
    let words = with(&[
        "--ca-file",
        &ca,
        "--identity-file",
        &identity_text,
        "--token-file",
        &token_text,
        "-o",
        "json",
    ]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let output = world.glide(&words, &nothing).await;
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("other"), "{}", said(&output));

    // The same by variables, for every question.
    let variables = BTreeMap::from([
        ("TARBET_NETS_CA_FILE", server.authority.as_path()),
        ("TARBET_NETS_IDENTITY_FILE", identity.as_path()),
        ("TARBET_NETS_TOKEN_FILE", token.as_path()),
        ("TARBET_NETS_SERVER", Path::new(&server_url)),
    ]);
    let output = world.glide(&["tag", "list"], &variables).await;
    assert!(output.status.success(), "{}", said(&output));

    // A token is not sent where others could read it.
    let plain = ["namespace", "list", "--server", "http://192.0.2.1:8080", "--token-file", &token_text];
    let output = world.glide(&plain, &nothing).await;
    assert!(said(&output).contains("neither TLS nor on this machine"), "{}", said(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_notes_mends_and_cancels_nothing() {
    let (world, server) = World::start(&json!({}), "http").await;
    let planned = world.says(&["server", "set", &server, "--plan"]).await;
    assert!(planned.contains(&server), "{planned}");
    assert!(!world.settings().exists(), "a plan has noted the orchestrator");
    world.says(&["server", "set", &server]).await;
    let noted = std::fs::read_to_string(world.settings()).unwrap();
    assert!(noted.contains(&server), "{noted}");

    let planned = world.says(&["namespace", "set", "other", "--plan"]).await;
    assert!(planned.contains("other"), "{planned}");
    assert_eq!(std::fs::read_to_string(world.settings()).unwrap(), noted, "a plan has noted the namespace");
    world.says(&["namespace", "set", "other"]).await;
    assert_eq!(world.says(&["namespace", "get"]).await.trim(), "other");

    // What differs is told, and stays until it is mended.
    let description = world.folder.write("vm.json", "{}").unwrap().display().to_string();
    world.says(&["resource", "create", "local", "vm", &description]).await;
    let netns = format!("{}-local.other.main.vm", world.lab.prefix());
    let is_there = || world.lab.namespaces().contains(&netns);
    assert!(is_there(), "{:?}", world.lab.namespaces());
    assert!(std::process::Command::new("ip").args(["netns", "del", &netns]).status().unwrap().success());
    let planned = world.says(&["drift", "--repair", "--plan"]).await;
    assert!(planned.contains(&netns), "{planned}");
    assert!(!is_there(), "a plan has mended");
    world.says(&["drift", "--repair"]).await;
    assert!(is_there(), "{:?}", world.lab.namespaces());

    // An operation is as it was.
    let operations = async || world.says(&["operation", "list", "-o", "json"]).await;
    let before = operations().await;
    let listed: Vec<Value> = serde_json::from_str(&before).unwrap();
    let id = listed[0]["id"].as_str().unwrap();
    let planned = world.says(&["operation", "cancel", id, "--plan"]).await;
    assert!(planned.contains("before its next call"), "{planned}");
    assert_eq!(operations().await, before);

    // Every other change: the calls are told, and nothing is there afterwards.
    let state = async || {
        let mut all = world.says(&["topology", "-o", "json"]).await;
        all.push_str(&world.says(&["tag", "list", "-o", "json"]).await);
        all.push_str(&world.lab.namespaces().join(" "));
        all
    };
    let before = state().await;
    for change in [
        ["resource", "create", "local", "vm2", &description].as_slice(),
        &["tag", "set", "clients", "--children", "other.local.vm"],
        &["rule", "add", "local", "vm", "--ping", "other.local.vm"],
        &["resource", "delete", "local", "vm"],
        &["tag", "delete", "other.local.vm"],
        &["prune"],
        &["vpn", "rekey", "--all"],
        &["import", "local"],
        &["import", "local", "--forget-all"],
    ] {
        let words: Vec<&str> = change.iter().copied().chain(["--plan"]).collect();
        world.says(&words).await;
        assert_eq!(state().await, before, "{change:?} with --plan has changed something");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_mistypes_what_is_to_be_closed_is_told_so() {
    let (world, server) = World::start(&json!({}), "http").await;
    world.says(&["server", "set", &server]).await;
    let description = world.folder.write("vm.json", "{}").unwrap().display().to_string();
    for name in ["web", "client"] {
        world.says(&["resource", "create", "local", name, &description]).await;
    }
    // An address holds no rules, also if it is called like a resource.
    world.says(&["tag", "set", "default.local.printer", "--ip", "10.9.0.7"]).await;
    world.says(&["tag", "set", "workers", "--children", "default.local.web,default.local.printer"]).await;
    world.says(&["rule", "add", "local", "web", "--ping", "default.local.client"]).await;
    let rules = async || world.says(&["rule", "get", "local", "web", "-o", "json"]).await;
    let before = rules().await;
    // What is told can be given back.
    let file = world.folder.write("rules.json", &before).unwrap().display().to_string();
    world.says(&["rule", "add", "local", "web", "--rulefile", &file, "--plan"]).await;
    let real = "ping-in-default-local-client";
    for mistyped in [
        &["rule", "delete", "local", "web", "--rules", "nosuch"][..],
        &["rule", "delete", "local", "web", "--rules", &format!("{real},nosuch")],
        &["rule", "delete", "workers", "--rules", "nosuch"],
        &["tag", "delete", "workers", "--member", "nosuch"],
    ] {
        let output = world.glide(mistyped, &BTreeMap::new()).await;
        assert_eq!(output.status.code(), Some(3), "{mistyped:?}: {}", said(&output));
        assert!(said(&output).contains("nosuch"), "{}", said(&output));
        assert_eq!(rules().await, before, "{mistyped:?} has deleted something");
    }
    world.says(&["rule", "delete", "workers", "--rules", real]).await;
    assert!(!rules().await.contains(real));
    world.says(&["tag", "delete", "workers", "--member", "default.local.web"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_is_none_is_refused() {
    let (world, server) = World::start(&json!({}), "http").await;
    for to in ["default.local.vm:70000", "default.local.vm:https", "default.local.vm:", "[fd00::1]:0x50"] {
        let output = world.glide(&["can", "10.0.0.4", to, "--server", &server], &BTreeMap::new()).await;
        assert!(!output.status.success() && said(&output).contains("port"), "{to}: {}", said(&output));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn networks_of_others_are_imported_shown_and_forgotten() {
    let (world, server) = World::start(&json!({}), "http").await;
    world.says(&["server", "set", &server]).await;
    let theirs = format!("{}-theirs", world.lab.prefix());
    assert!(std::process::Command::new("ip").args(["netns", "add", &theirs]).status().unwrap().success());
    for words in ["link add br0 type bridge", "address add 10.0.0.1/16 dev br0"] {
        world.lab.ip(&theirs, &words.split(' ').collect::<Vec<_>>()).unwrap();
    }
    let name = format!("{theirs}/br0");
    let planned = world.says(&["import", "local", "--plan"]).await;
    for part in [&name, "10.0.0.0/16", "new", "Nothing was recorded", "--expect "] {
        assert!(planned.contains(part), "{planned}");
    }
    assert!(!world.says(&["topology"]).await.contains(&name), "a plan has recorded something");
    let made = world.says(&["import", "local"]).await;
    assert!(
        made.contains("Recorded as read-only") && made.contains("Next: tarbet topology --nets"),
        "{made}"
    );
    let listed = world.says(&["topology"]).await;
    assert!(listed.contains(&name) && listed.contains("read-only"), "{listed}");
    let again: Value = serde_json::from_str(&world.says(&["import", "local", "-o", "json"]).await).unwrap();
    let mine = again["networks"].as_array().unwrap().iter().find(|one| one["name"] == *name).unwrap();
    assert_eq!((&mine["change"], &mine["spaces"]), (&json!("same"), &json!(["10.0.0.0/16"])));

    // A machine that is made now is elsewhere.
    let description = world.folder.write("vm.json", "{}").unwrap().display().to_string();
    let made = world.says(&["resource", "create", "local", "vm", &description, "-o", "json"]).await;
    assert!(!made.contains("\"10.0."), "{made}");

    let refused = world.glide(&["import", "local", "--forget", "nosuch"], &BTreeMap::new()).await;
    assert_eq!(refused.status.code(), Some(3), "{}", said(&refused));
    assert!(said(&refused).contains("TB-4114"), "{}", said(&refused));
    let refused = world.glide(&["import", "local", "--detach"], &BTreeMap::new()).await;
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    let planned = world.says(&["import", "local", "--forget", &name, "--plan"]).await;
    assert!(planned.contains(&name) && planned.contains("Nothing was changed"), "{planned}");
    assert!(world.says(&["topology"]).await.contains(&name), "a plan has forgotten something");
    let gone = world.says(&["import", "local", "--forget", &name]).await;
    assert!(gone.contains("Forgotten: ") && gone.contains("Next: "), "{gone}");
    assert!(!world.says(&["topology"]).await.contains(&name));
}

/// A cloud that refuses new rules while it is broken, for an orchestrator that knows it by its port.
fn far(world: &World, listener: TcpListener, broken: Arc<AtomicBool>) -> Arc<MemoryCloud> {
    let calls: Calls = Arc::new(move |call, done| {
        let broken = broken.load(Ordering::SeqCst) && call == "AddPermitListRules" && !done;
        Box::pin(async move {
            let (cloud, what) = ("far".to_owned(), call.to_owned());
            if broken { Err(Error::Cloud { cloud, what, said: "out of order".into() }) } else { Ok(()) }
        })
    });
    let controller = RemoteController::new("127.0.0.1", world.ports.port(1)).unwrap();
    let cloud = Arc::new(MemoryCloud::new("far", Arc::new(controller)).watched(calls));
    let routes = tarbet_nets::cloud::serve(cloud.clone(), "far");
    tokio::spawn(tarbet_nets::grpc::serve(listener, routes, CancellationToken::new()));
    cloud
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_some_have_yet_to_follow_is_asked_for_again_until_nothing_is_left() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let plugin = json!({ "name": "far", "host": "127.0.0.1", "port": port });
    let (world, server) = World::beside(&[plugin], &json!({}), "http").await;
    let broken = Arc::new(AtomicBool::new(false));
    let cloud = far(&world, listener, broken.clone());
    world.says(&["server", "set", &server]).await;
    let description = world.folder.write("vm.json", "{}").unwrap().display().to_string();
    world.says(&["resource", "create", "far", "web", &description]).await;
    // One that others made.
    let deployment = Deployment { id: "d".into(), namespace: "default".into() };
    let theirs = NewResource { deployment, name: "client".into(), description: "{}".into() };
    let theirs = cloud.create_resource(theirs).await.unwrap();
    let attached = world.says(&["resource", "attach", "far", &theirs.uri]).await;
    assert!(attached.contains("default.far.client") && attached.contains(&theirs.ip), "{attached}");
    world.says(&["tag", "set", "clients", "--children", "default.far.client"]).await;
    world.says(&["rule", "add", "far", "web", "--ssh", "clients"]).await;
    // What a tag stands for, with either word.
    for words in [&["tag", "resolve", "clients"][..], &["tag", "get", "clients", "--resolve"]] {
        let found = world.says(words).await;
        assert!(found.contains("default.far.client") && found.contains(&theirs.ip), "{words:?}: {found}");
    }
    let permitted = async || {
        let rules = cloud.permit_list("default", "memory/far/default/web").await.unwrap();
        rules.into_iter().map(|rule| rule.targets.len()).sum::<usize>()
    };
    assert_eq!(permitted().await, 2, "in and out");

    broken.store(true, Ordering::SeqCst);
    let delete = async || world.glide(&["tag", "delete", "clients"], &BTreeMap::new()).await;
    for time in ["first", "second"] {
        let output = delete().await;
        assert!(!output.status.success(), "{time}: {}", said(&output));
        assert!(said(&output).contains("TB-4203"), "{time}: {}", said(&output));
        assert!(!world.says(&["tag", "list"]).await.contains("clients"), "the tag is gone");
    }
    broken.store(false, Ordering::SeqCst);
    eventually(Duration::from_mins(1), "nothing is left", || async {
        let output = delete().await;
        if output.status.code() == Some(3) { Ok(()) } else { Err(said(&output)) }
    })
    .await
    .unwrap();
    assert_eq!(permitted().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_repair_mends_is_told_by_its_plan() {
    let plan = async |others: &[Value]| {
        let (world, server) = World::beside(others, &json!({}), "http").await;
        world.says(&["drift", "--repair", "--plan", "--server", &server]).await
    };
    assert_eq!(plan(&[]).await.trim(), "Nothing to do: everything is so already.");
    // A plugin of the first generation has no word for comparing itself.
    let port = Lease::block(1).unwrap();
    let far = json!({ "name": "far", "host": "127.0.0.1", "port": port.port(0), "wire": "seed" });
    let told = plan(&[far]).await;
    assert!(told.contains("only its permit lists are compared") && !told.contains("Nothing to do"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cloud_that_takes_in_nothing_says_so() {
    let (world, server) = World::start(&json!({}), "http").await;
    let attach = ["resource", "attach", "local", "theirs/vm", "--server", &server];
    let planned = world.says(&[&attach[..], &["--plan"]].concat()).await;
    assert!(planned.contains("local: AttachResource theirs/vm"), "{planned}");
    let output = world.glide(&attach, &BTreeMap::new()).await;
    assert!(!output.status.success() && said(&output).contains("TB-4205"), "{}", said(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tag_service_speaks_the_first_generations_messages_if_told_to() {
    let (product, ports) = (Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap(), Lease::block(2).unwrap());
    let [listen, values] = [0, 1].map(|index| format!("127.0.0.1:{}", ports.port(index)));
    let words =
        ["tags", "--wire", "seed", "--listen", &listen, "--kv-listen", &values, "--set", "store.kind=memory"];
    let _service = product.role("tags", &words, &[]).await.unwrap();
    let mut client = TagServiceClient::connect(format!("http://{listen}")).await.unwrap();
    let tag = Mapping { name: "clients".into(), child_tags: vec!["10.9.0.7".into()], ..Mapping::default() };
    client.set_tag(TagMapping::from(tag)).await.unwrap();
    let found = client.get_tag(Tag { tag_name: "clients".into() }).await.unwrap().into_inner();
    assert_eq!(found.child_tags, ["10.9.0.7"]);
}
