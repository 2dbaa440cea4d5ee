//! Who stands still without leaving, by SIGSTOP: others are served meanwhile, and it serves again once it moves.

use std::time::{Duration, Instant};

use serde_json::Value;
use tarbet_testbed::{effort, eventually, verified};

use super::crowd::Crowd;
use super::rotation::links_at;
use super::{SOON, World, code, gauge, name};

/// Links that an agent keeps to a lone gateway.
const LINKS: u64 = 2;

/// How long somebody stands still after it was noticed.
fn still() -> Duration {
    Duration::from_secs(if effort() > 1 { 30 } else { 1 })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_stands_still_is_passed_by_until_it_moves() {
    let world = World::new().await;
    let gateway = world.gateway("one", &[]).await;
    let token = world.add_site("lab", &gateway).await;
    let names = ["first", "second"];
    let mut agents = Vec::new();
    for name in names {
        agents.push(world.product.agent(name, &token, &[&gateway], &[]).await.unwrap());
    }
    let site = world.client(&gateway).site("lab".parse().unwrap());
    let links = async |wanted: u64| {
        let linked = || async { gauge(&gateway, "tarbet_links ").await == Some(wanted) };
        eventually(SOON, "the links of those that move", linked).await.unwrap();
    };
    let (mut asked, mut lost) = (0, 0);
    for round in 0..2 * effort().min(10) {
        links(2 * LINKS).await;
        let (stopped, moving) = (&agents[round % 2], names[1 - round % 2]);
        stopped.process.pause().unwrap();
        // What meets it says that the link is lost, or goes another way; its last word may still be under way.
        eventually(SOON, "the one that stands still to be given up", || async {
            match name(&site).await {
                Ok(who) => assert!(names.contains(&who.as_str()), "{who}"),
                Err(error) => eprintln!("lost: {error:?}"),
            }
            gauge(&gateway, "tarbet_links ").await == Some(LINKS)
        })
        .await
        .unwrap();
        let (end, before) = (Instant::now() + still(), asked);
        while Instant::now() < end || asked < before + 20 {
            match name(&site).await {
                Ok(who) => assert_eq!(who, moving),
                Err(_) => lost += 1,
            }
            asked += 1;
        }
        stopped.process.resume().unwrap();
    }
    links(2 * LINKS).await;
    assert_eq!(lost, 0, "of {asked} requests after it was given up");
    verified("SIGSTOP of an agent, the other agent of its site serving", 2 * effort().min(10));
    verified("requests while an agent stands still, none lost and none wrong", asked);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_stands_still_is_gone_round_until_it_moves() {
    let world = World::new().await;
    let gateways = [world.gateway("one", &[]).await, world.gateway("two", &[]).await];
    let sites = ["paris", "rome", "oslo"].map(str::to_owned);
    let mut agents = Vec::new();
    for site in &sites {
        agents.push(world.site(site, &gateways[0], &[&gateways[0], &gateways[1]], &[]).await);
    }
    for gateway in &gateways {
        links_at(gateway, sites.len() as u64).await;
    }
    let crowd = Crowd::start(&world.product, &gateways, &sites);
    let (rounds, mut asked) = (2 * effort().min(3), 0);
    for round in 0..rounds {
        crowd.goes_on(100).await;
        let (stopped, moving) = (&gateways[round % 2], world.client(&gateways[1 - round % 2]));
        let (detours, end) = (crowd.detours(), Instant::now() + still());
        stopped.process.pause().unwrap();
        // Who asks the other one meets nothing of it, at no moment.
        while Instant::now() < end || crowd.detours() == detours {
            for site in &sites {
                assert_eq!(&name(&moving.site(site.parse().unwrap())).await.unwrap(), site);
                asked += 1;
            }
        }
        stopped.process.resume().unwrap();
        // It serves again, by links of its own, and both know of each other's.
        links_at(stopped, sites.len() as u64).await;
        let back = world.client(stopped);
        for site in &sites {
            let site = back.site(site.parse().unwrap());
            eventually(SOON, "the gateway that moves again", || name(&site)).await.unwrap();
        }
        let everywhere = || async {
            let listed = world.product.run(stopped, &["site", "list", "-o", "json"]).await.unwrap();
            let listed: Vec<Value> = serde_json::from_str(&listed).unwrap();
            let at = |site: &Value, gateway: &str| {
                site["links"]
                    .as_array()
                    .is_some_and(|links| links.iter().any(|link| link["gateway"] == gateway))
            };
            let whole = listed.iter().all(|site| at(site, "one") && at(site, "two"));
            if whole { Ok(()) } else { Err(format!("{listed:?}")) }
        };
        eventually(SOON, "every site to be listed at both", everywhere).await.unwrap();
    }
    crowd.goes_on(100).await;
    asked += crowd.end().await;
    verified("SIGSTOP of a gateway under load, the other serving", rounds);
    verified("requests while a gateway stands still, none misrouted, none lost at both gateways", asked);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_stands_still_holds_up_nobody_who_does_not_need_it() {
    let world = World::new().await;
    let (one, two) = (world.gateway("one", &[]).await, world.gateway("two", &[]).await);
    let _near = world.site("near", &one, &[&one], &[]).await;
    let _far = world.site("far", &one, &[&two], &[]).await;
    let client = world.client(&one);
    let (near, far) = (client.site("near".parse().unwrap()), client.site("far".parse().unwrap()));
    let mut asked = 0;
    for _ in 0..effort().min(10) {
        eventually(SOON, "both sites", || async {
            assert_eq!(name(&near).await.unwrap(), "near");
            name(&far).await.is_ok_and(|name| name == "far")
        })
        .await
        .unwrap();
        world.redis.pause().unwrap();
        eventually(SOON, "the other gateway's site to be out of reach", || async {
            assert_eq!(name(&near).await.unwrap(), "near");
            let answer = name(&far).await;
            if code(&answer) == "TB-1105" { Ok(()) } else { Err(format!("{answer:?}")) }
        })
        .await
        .unwrap();
        let end = Instant::now() + still();
        while Instant::now() < end {
            assert_eq!(name(&near).await.unwrap(), "near");
            asked += 1;
        }
        world.redis.resume().unwrap();
    }
    eventually(SOON, "everything to be well again", || async {
        name(&far).await.is_ok_and(|name| name == "far")
    })
    .await
    .unwrap();
    verified("SIGSTOP of the store, own sites being served", effort().min(10));
    verified("requests for own sites while the store stands still, none lost", asked);
}
