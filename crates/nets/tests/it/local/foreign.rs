//! Bridges of others on this machine: seen, kept clear of, left alone.

use std::process::Command;

use serde_json::Value;

use super::super::import::{import, imports};
use super::World;

/// What the kernel has in a namespace: interfaces, addresses, routes and filters, without what changes by itself.
fn state_of(netns: &str) -> Vec<String> {
    let run = |words: &[&str]| {
        let output = Command::new("ip").args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let told = |words: &[&str]| -> Vec<String> {
        let list: Value = serde_json::from_str(&run(words)).unwrap_or_default();
        let one = |object: &Value| {
            let mut object = object.clone();
            // The kernel sees later whether a cable is plugged in.
            for moving in ["flags", "operstate"] {
                object.as_object_mut().unwrap().remove(moving);
            }
            object.to_string()
        };
        list.as_array().into_iter().flatten().map(one).collect()
    };
    let mut state = told(&["-j", "-n", netns, "address", "show"]);
    state.extend(told(&["-j", "-n", netns, "route", "show", "table", "all"]));
    state.push(run(&["netns", "exec", netns, "nft", "-s", "list", "ruleset"]));
    state
}

impl World {
    /// Of a list of networks, those in namespaces of this lab: others may be on the machine as well.
    fn of_lab(&self, list: &Value) -> Vec<Value> {
        let mine = |one: &&Value| one["name"].as_str().unwrap().starts_with(self.lab.prefix());
        list.as_array().unwrap().iter().filter(mine).cloned().collect()
    }
}

#[tokio::test]
async fn bridges_of_others_are_seen_and_left_alone() {
    let world = World::start().await;
    for (cloud, name) in [("east", "a"), ("west", "b")] {
        world.machine("default", cloud, "main", name).await;
    }
    let theirs = format!("{}-theirs", world.lab.prefix());
    assert!(Command::new("ip").args(["netns", "add", &theirs]).status().unwrap().success());
    for words in [
        "link add br7 type bridge",
        "link add bare type bridge",
        "address add 10.64.0.1/12 dev br7",
        "link add v7 type veth peer name v8",
        "link set v7 master br7",
        "link set br7 up",
    ] {
        world.lab.ip(&theirs, &words.split(' ').collect::<Vec<_>>()).unwrap();
    }
    let states = || -> Vec<(String, Vec<String>)> {
        let mut names = world.lab.namespaces();
        names.sort();
        names.into_iter().map(|netns| (netns.clone(), state_of(&netns))).collect()
    };
    let before = states();

    let planned = import(world.url(), "east", "?plan=true").await;
    let found = world.of_lab(&planned["networks"]);
    assert_eq!(found.len(), 1, "neither networks of local clouds nor bridges without addresses: {planned}");
    assert_eq!(found[0]["name"], format!("{theirs}/br7"));
    assert_eq!((&found[0]["spaces"][0], &found[0]["machines"]), (&"10.64.0.0/12".into(), &1.into()));
    assert!(world.of_lab(&imports(world.url()).await).is_empty());
    import(world.url(), "east", "").await;
    assert_eq!(world.of_lab(&imports(world.url()).await)[0]["access"], "read-only");
    let again = world.of_lab(&import(world.url(), "east", "").await["networks"]);
    assert_eq!(again[0]["change"], "same");
    let after = states();
    assert_eq!(after.len(), before.len());
    for (after, before) in after.iter().zip(&before) {
        assert_eq!(after, before, "something was changed");
    }

    // Without it, a hundred networks more would come to lie inside.
    let spaces = {
        use tarbet_nets::controller::Controller as _;
        let orchestrator = &world.running.as_ref().unwrap().orchestrator;
        orchestrator.find_spaces(&[0; 100]).await.unwrap()
    };
    let taken: ipnet::IpNet = "10.64.0.0/12".parse().unwrap();
    assert!(spaces.iter().all(|space| !taken.contains(space)), "{spaces:?}");

    world.lab.ip(&theirs, &["link", "del", "br7"]).unwrap();
    let told = import(world.url(), "east", "").await;
    assert_eq!(world.of_lab(&told["gone"]).len(), 1, "{told}");
    assert!(world.of_lab(&imports(world.url()).await).is_empty());
}
