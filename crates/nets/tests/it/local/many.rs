//! A tag that many machines follow: not one permit list is left behind, on the way in and on the way out.

use futures::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use tarbet_testbed::verified;

use super::{PORT, World, bed, permit, rest};

/// Two regions, so that filters of several networks change at once.
const REGIONS: [&str; 2] = ["main", "north"];

#[tokio::test]
async fn every_permit_list_follows_a_tag_that_many_follow() {
    let world = &World::start().await;
    for name in ["member", "new"] {
        world.machine("default", "east", "main", name).await;
    }
    let from = |name| world.netns("default", "east", "main", name);
    world.tag("clients", &["default.east.member"]).await;
    let (mut followers, mut names) = (Vec::new(), Vec::new());
    for number in 0..16 * bed::effort() {
        let name = format!("follower-{number}");
        followers.push(world.machine("default", "east", REGIONS[number % 2], &name).await);
        world.add("default", "east", &name, json!([permit("web", 0, i32::from(PORT), &["clients"])])).await;
        names.push(format!("default.east.{name}"));
    }
    world.tag("followers", &names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    for name in ["member", "new"] {
        world.add("default", "east", name, json!([permit("out", 1, -1, &["followers"])])).await;
    }
    let (member, new) = (from("member"), from("new"));
    let permitted = |from| join_all(followers.iter().map(move |follower| world.permitted(from, *follower)));
    let denied = |from| join_all(followers.iter().map(move |follower| world.denied(from, *follower)));
    permitted(&member).await;
    denied(&new).await;

    world.tag("clients", &["default.east.new"]).await;
    permitted(&new).await;
    permitted(&member).await;

    let url = format!("{}/tags/clients/members/default.east.new", world.url());
    let (status, answer) = rest(Method::DELETE, url, Value::Null).await;
    assert_eq!(status, 200, "{answer}");
    denied(&new).await;
    permitted(&member).await;
    let (_, drift) = rest(Method::GET, format!("{}/drift", world.url()), Value::Null).await;
    assert_eq!(drift, json!([]));
    verified(
        "permit lists of one tag in a local cloud that follow it, seen by their packets",
        followers.len(),
    );
}
