//! Networks that are cut or slow: the agent lives in a network namespace of its own, behind one cable.

use std::process::Command;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tarbet_link::LinkError;
use tarbet_reach::client::RemoteSite;
use tarbet_testbed::product::{Gateway, Product};
use tarbet_testbed::{Lease, Process, Program, effort, eventually, verified};

use super::asking::{self, name};

const SOON: Duration = Duration::from_mins(1);
/// Nobody's: what is sent there is lost without a word, as on a cable that was cut further on.
const NOWHERE: &str = "02:00:00:00:00:01";

/// A namespace and the cable to it. Its name is one that test labs sweep up if its owner was killed.
struct Cable {
    netns: String,
    near: String,
    /// The third number of both addresses.
    net: u32,
}

impl Cable {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        let (pid, count) = (std::process::id(), COUNT.fetch_add(1, SeqCst));
        let cable = Self {
            netns: format!("lab{pid}x9{count}"),
            near: format!("tb{pid}x{count}"),
            net: (2 * pid + count) % 250,
        };
        let (near, far) = (format!("{}/30", cable.address(1)), format!("{}/30", cable.address(2)));
        ip(&["netns", "add", &cable.netns]);
        ip(&["link", "add", &cable.near, "type", "veth", "peer", "name", "far", "netns", &cable.netns]);
        ip(&["address", "add", &near, "dev", &cable.near]);
        ip(&["link", "set", &cable.near, "up"]);
        cable.inside(&["address", "add", &far, "dev", "far"]);
        cable.inside(&["link", "set", "far", "up"]);
        cable.inside(&["link", "set", "lo", "up"]);
        cable
    }

    /// The gateway's end is 1, the agent's 2.
    fn address(&self, end: u8) -> String {
        format!("10.213.{}.{end}", self.net)
    }

    fn inside(&self, args: &[&str]) {
        ip(&[&["-n", &self.netns], args].concat());
    }

    fn cut(&self) {
        let (near, far) = (self.address(1), self.address(2));
        let nowhere = ["lladdr", NOWHERE, "nud", "permanent", "dev"];
        ip(&[&["neigh", "replace", &far], &nowhere[..], &[&self.near]].concat());
        self.inside(&[&["neigh", "replace", &near], &nowhere[..], &["far"]].concat());
    }

    fn mend(&self) {
        ip(&["neigh", "del", &self.address(2), "dev", &self.near]);
        self.inside(&["neigh", "del", &self.address(1), "dev", "far"]);
    }

    /// As much as a poor telephone line, both ways.
    fn slow(&self) {
        let rate = ["root", "tbf", "rate", "512kbit", "burst", "4kb", "latency", "2s"];
        run("tc", &[&["qdisc", "add", "dev", &self.near], &rate[..]].concat());
        run("tc", &[&["-n", &self.netns, "qdisc", "add", "dev", "far"], &rate[..]].concat());
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        // The cable goes with the namespace that one end of it is in.
        let _left = Command::new("ip").args(["netns", "del", &self.netns]).status();
    }
}

fn ip(args: &[&str]) {
    run("ip", args);
}

fn run(program: &str, args: &[&str]) {
    let ran = Command::new(program).args(args).output().unwrap();
    assert!(ran.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&ran.stderr));
}

struct World {
    product: Product,
    gateway: Gateway,
    // Ends before its namespace does.
    _agent: Process,
    cable: Cable,
    _port: Lease,
}

impl World {
    async fn new() -> Self {
        let (cable, port) = (Cable::new(), Lease::block(1).unwrap());
        let product = Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap();
        let place = format!("{}:{}", cable.address(1), port.port(0));
        let listen = format!("gateway.agents.listen={place}");
        let extra = ["--set", &listen, "--set", "gateway.agents.tls=null", "--set", "gateway.max_wait=2s"];
        let gateway = product.gateway("gateway", "{kind: memory}", &extra).await.unwrap();
        let token = asking::add_site(&product, &gateway, "lab").await.unwrap();
        let token = product.folder().write("lab.token", &token).unwrap();
        let program = Program::new("ip")
            .args(["netns", "exec", &cable.netns])
            .arg(product.binary())
            .args(["agent", "--name", "lab", "--observability-listen", "127.0.0.1:0"])
            .args(["--gateway", &format!("grpc://{place}"), "--token-file"])
            .arg(token);
        let agent = Process::start(product.folder(), "lab", program.grace(Duration::from_secs(20))).unwrap();
        let world = Self { product, gateway, _agent: agent, cable, _port: port };
        world.linked().await;
        world
    }

    async fn linked(&self) {
        let links = || async { self.gateway.metric("tarbet_links ").await.is_ok_and(|links| links >= 2.0) };
        eventually(SOON, "the agent's links", links).await.unwrap();
    }

    fn site(&self) -> RemoteSite {
        asking::client(&self.product, &self.gateway).site("lab".parse().unwrap())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cable_that_is_cut_is_noticed_and_after_it_is_mended_all_is_well() {
    let world = World::new().await;
    let site = world.site();
    let (cuts, mut answered, refused) = (2 * effort().min(10), 0, AtomicUsize::new(0));
    for _ in 0..cuts {
        for _ in 0..20 {
            assert_eq!(name(&site).await.unwrap(), "lab");
            answered += 1;
        }
        world.cable.cut();
        // Whoever asks is told within the time that the gateway waits, and told why.
        eventually(SOON, "the gateway to give the links up", || async {
            match name(&site).await.expect_err("nothing passes a cut cable") {
                LinkError::Denied(denial) => {
                    assert!(["TB-1102", "TB-1104"].contains(&denial.code.as_str()), "{denial:?}");
                    refused.fetch_add(1, SeqCst);
                    denial.code == "TB-1102"
                }
                other => panic!("{other:?}"),
            }
        })
        .await
        .unwrap();
        world.cable.mend();
        world.linked().await;
    }
    assert_eq!(name(&site).await.unwrap(), "lab");
    verified("cuts of the network between agent and gateway, each mended", cuts);
    verified("requests around cuts of the network, none answered wrongly", answered + refused.into_inner());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_cable_carries_every_request_of_a_crowd() {
    let world = World::new().await;
    world.cable.slow();
    let count = 40 * effort().min(10);
    let asked: Vec<_> = (0..count)
        .map(|_| {
            let site = world.site();
            tokio::spawn(async move { name(&site).await })
        })
        .collect();
    for answer in asked {
        assert_eq!(answer.await.unwrap().unwrap(), "lab");
    }
    verified("requests at once over half a megabit a second, all answered", count);
}
