//! Too little of something: room on the disk, descriptors, attention. It says so, and goes on when there is more.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tarbet_identity::Secret;
use tarbet_link::{Body, Caller, LinkError, Target};
use tarbet_reach::client::Client;
use tarbet_testbed::product::{Gateway, Product};
use tarbet_testbed::{Folder, effort, eventually, verified};
use tokio::net::TcpStream;

const SOON: Duration = Duration::from_mins(1);

fn product() -> Product {
    Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap()
}

async fn add_site(product: &Product, gateway: &Gateway, site: &str) -> anyhow::Result<String> {
    let said = product.run(gateway, &["site", "add", site, "-o", "json"]).await?;
    let said: Value = serde_json::from_str(&said)?;
    Ok(said["token"]["token"].as_str().unwrap().to_owned())
}

fn client(product: &Product, gateway: &Gateway) -> Client {
    let token = Secret::from_file(product.admin_token()).unwrap();
    Client::new(&gateway.api(), token, Some(&product.authority())).unwrap()
}

async fn asks(client: &Client, site: &str) -> Result<(), LinkError> {
    let mut request = http::Request::get("/").body(Body::empty()).unwrap();
    request.extensions_mut().insert(Target::service("info").unwrap());
    client.site(site.parse().unwrap()).call(request).await.map(drop)
}

fn run(program: &str, args: &[&str]) {
    let ran = Command::new(program).args(args).output().unwrap();
    assert!(ran.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&ran.stderr));
}

/// A small disk of its own.
pub(crate) struct Disk(PathBuf);

impl Disk {
    pub(crate) fn of_8_mib(at: &Path) -> Self {
        run("mount", &["-t", "tmpfs", "-o", "size=8m", "tmpfs", at.to_str().unwrap()]);
        Self(at.to_owned())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _left = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_named_and_survived() {
    let (product, folder) = (product(), Folder::new("disk").unwrap());
    let disk = Disk::of_8_mib(folder.path());
    let store = format!("{{kind: redb, path: {}}}", folder.path().join("store.redb").display());
    let gateway = product.gateway("gateway", &store, &[]).await.unwrap();
    let token = add_site(&product, &gateway, "paris").await.unwrap();
    let _agent = product.agent("paris", &token, &[&gateway], &[]).await.unwrap();
    let client = client(&product, &gateway);
    asks(&client, "paris").await.unwrap();

    // Everything that is left is taken, but for the pages the store has already.
    let filler = folder.path().join("filler");
    let _full =
        Command::new("dd").args(["if=/dev/zero", "bs=64k"]).arg(format!("of={}", filler.display())).output();
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

    std::fs::remove_file(filler).unwrap();
    eventually(SOON, "room again", || async { add_site(&product, &gateway, "later").await }).await.unwrap();
    asks(&client, "paris").await.unwrap();
    drop(disk);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_descriptors_it_waits_for_some() {
    let product = product();
    let gateway = product.gateway("gateway", "{kind: memory}", &[]).await.unwrap();
    let token = add_site(&product, &gateway, "paris").await.unwrap();
    let _agent = product.agent("paris", &token, &[&gateway], &[]).await.unwrap();
    let client = client(&product, &gateway);
    asks(&client, "paris").await.unwrap();

    let pid = gateway.process.pid().to_string();
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
        asks(&self::client(&product, &gateway), "paris").await
    })
    .await
    .unwrap();
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

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_stands_still_is_left_alone_until_it_moves() {
    let product = product();
    let redis = tarbet_testbed::Redis::start().await.unwrap();
    let store = format!("{{kind: redis, url: '{}', deadline: 1s}}", redis.url());
    let one = product.gateway("one", &store, &[]).await.unwrap();
    let two = product.gateway("two", &store, &[]).await.unwrap();
    let token = add_site(&product, &one, "paris").await.unwrap();
    let _agent = product.agent("paris", &token, &[&one, &two], &[]).await.unwrap();
    let (first, second) = (client(&product, &one), client(&product, &two));
    asks(&first, "paris").await.unwrap();
    for _ in 0..effort() {
        for gateway in [&one, &two] {
            let linked = || async { gateway.metric("tarbet_links ").await.is_ok_and(|links| links >= 1.0) };
            eventually(SOON, "a link at each gateway", linked).await.unwrap();
        }
        one.process.pause().unwrap();
        for _ in 0..20 {
            asks(&second, "paris").await.unwrap();
        }
        one.process.resume().unwrap();
        eventually(SOON, "the first gateway to serve again", || async { asks(&first, "paris").await })
            .await
            .unwrap();
    }
    verified("a gateway stopped in the middle, the other serving", effort());
}
