//! A filter that could not be loaded is owed: asking again does not take it for done.

use std::process::Command;

use reqwest::Method;
use serde_json::json;

use super::super::bed::rest;
use super::{PORT, World, permit};

fn run(program: &str, args: &[&str]) {
    let ran = Command::new(program).args(args).output().unwrap();
    assert!(ran.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&ran.stderr));
}

#[tokio::test]
async fn a_rule_is_not_called_deleted_while_the_kernel_still_has_it() {
    let world = World::start().await;
    let a = world.machine("default", "east", "main", "a").await;
    world.machine("default", "east", "main", "b").await;
    let from_b = world.netns("default", "east", "main", "b");
    world.add("default", "east", "a", json!([permit("in", 0, i32::from(PORT), &["default.east.b"])])).await;
    world.add("default", "east", "b", json!([permit("out", 1, i32::from(PORT), &["default.east.a"])])).await;
    world.permitted(&from_b, a).await;

    // The network's namespace cannot be entered for a while.
    let namespace = format!("/run/netns/{}-east.default.main", world.lab.prefix());
    let delete = || {
        let url = format!("{}/deleteRules", world.resource("default", "east", "a"));
        rest(Method::POST, url, json!(["in"]))
    };
    run("mount", &["--bind", "/dev/null", &namespace]);
    let answers = [delete().await, delete().await];
    run("umount", &[&namespace]);
    for (status, answer) in answers {
        assert!(status >= 500, "{status} {answer}");
    }
    world.permitted(&from_b, a).await;

    let (status, answer) = delete().await;
    assert_eq!(status, 200, "{answer}");
    world.denied(&from_b, a).await;
}
