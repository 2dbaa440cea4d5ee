//! Too little of something: room on the disk, descriptors, attention. It says so, and goes on when there is more.

use std::process::Command;
use std::time::Duration;

use tarbet_link::LinkError;
use tarbet_reach::client::Client;
use tarbet_testbed::product::Product;
use tarbet_testbed::{Disk, effort, eventually, verified};
use tokio::net::TcpStream;

use super::asking::{self, add_site, client, name};

const SOON: Duration = Duration::from_mins(1);

fn product() -> Product {
    Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap()
}

async fn asks(client: &Client, site: &str) -> Result<(), LinkError> {
    name(&client.site(site.parse().unwrap())).await.map(|said| assert_eq!(said, site))
}

fn run(program: &str, args: &[&str]) {
    let ran = Command::new(program).args(args).output().unwrap();
    assert!(ran.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&ran.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_named_and_survived() {
    let (product, disk) = (product(), Disk::new().unwrap());
    let store = format!("{{kind: redb, path: {}}}", disk.path().join("store.redb").display());
    let gateway = product.gateway("gateway", &store, &[]).await.unwrap();
    let token = add_site(&product, &gateway, "paris").await.unwrap();
    let _agent = product.agent("paris", &token, &[&gateway], &[]).await.unwrap();
    let client = client(&product, &gateway);
    asks(&client, "paris").await.unwrap();

    // Everything that is left is taken, but for the pages the store has already.
    disk.fill().unwrap();
    let mut refusal = None;
    for n in 0..2_000 {
        if let Err(error) = add_site(&product, &gateway, &format!("more-{n}")).await {
            refusal = Some(format!("{error:#}"));
            break;
        }
    }
    let refusal = refusal.expect("a full disk takes no more sites");
    assert!(refusal.contains("TB-"), "{refusal}");
    asks(&client, "paris").await.expect("a site that is linked needs no disk");

    disk.empty().unwrap();
    eventually(SOON, "room again", || async { add_site(&product, &gateway, "later").await }).await.unwrap();
    asks(&client, "paris").await.unwrap();
    verified("a disk that is full under a gateway: it says so, serves, and goes on when there is room", 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_descriptors_it_waits_for_some() {
    let product = product();
    let gateway = product.gateway("gateway", "{kind: memory}", &[]).await.unwrap();
    let token = add_site(&product, &gateway, "paris").await.unwrap();
    let _agent = product.agent("paris", &token, &[&gateway], &[]).await.unwrap();
    let client = client(&product, &gateway);
    asks(&client, "paris").await.unwrap();

    let (pid, rounds) = (gateway.process.pid().to_string(), effort().min(10));
    for _ in 0..rounds {
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        run("prlimit", &["--pid", &pid, &format!("--nofile={}:", open + 4)]);
        let address = gateway.api().trim_start_matches("https://").to_owned();
        let mut held = Vec::new();
        for _ in 0..50 {
            held.push(TcpStream::connect(&address).await.unwrap());
        }
        // Connections it has go on; new ones wait in the kernel's queue.
        asks(&client, "paris").await.unwrap();
        assert!(gateway.process.is_running());
        drop(held);
        run("prlimit", &["--pid", &pid, "--nofile=4096:"]);
        eventually(SOON, "new callers to be served", || async {
            asks(&asking::client(&product, &gateway), "paris").await
        })
        .await
        .unwrap();
    }
    verified("a gateway without descriptors: it serves whom it has, and others when there are some", rounds);
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_who_connect_and_say_nothing_hold_up_nobody() {
    let product = product();
    let gateway = product.gateway("gateway", "{kind: memory}", &[]).await.unwrap();
    let token = add_site(&product, &gateway, "paris").await.unwrap();
    let _agent = product.agent("paris", &token, &[&gateway], &[]).await.unwrap();
    let count = 500 * effort().min(10);
    let places = [gateway.agents(), gateway.api(), gateway.kubernetes()];
    let mut silent = Vec::new();
    for n in 0..count {
        let place = places[n % places.len()].split_once("://").unwrap().1.to_owned();
        silent.push(TcpStream::connect(place).await.unwrap());
        if n % 100 == 0 {
            asks(&client(&product, &gateway), "paris").await.unwrap();
        }
    }
    let late = add_site(&product, &gateway, "late").await.unwrap();
    let _late = product.agent("late", &late, &[&gateway], &[]).await.unwrap();
    asks(&client(&product, &gateway), "late").await.unwrap();
    verified("callers who connect and say nothing, while others are served", count);
}
