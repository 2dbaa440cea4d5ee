//! Many sites at the other end of the world: 200 ms away, over lines that lose every hundredth packet. In paused time.

use std::time::Duration;

use tarbet_reach::audit::AuditLog;
use tarbet_reach::config::GatewayConfig;
use tokio::task::JoinSet;

use super::lab::{Echo, Lab, ask, effort, open_door, request, until};

const GATEWAYS: [&str; 2] = ["one", "two"];
/// Half of the way there and back.
const DELAY: Duration = Duration::from_millis(100);
/// One packet of so many is lost.
const LOST: u32 = 100;

/// Asks every site, by turns at these gateways, and finds each answered by itself.
async fn ask_all(lab: &Lab, sites: usize, gateways: &[&'static str]) {
    let mut asked = JoinSet::new();
    let clients: Vec<_> = gateways.iter().map(|gateway| lab.client(gateway, &lab.admin)).collect();
    for n in 0..sites {
        let way = clients[n % clients.len()].site(format!("site-{n}").parse().unwrap());
        asked.spawn(async move { (n, ask(&way, request("POST", "/", "hello")).await) });
    }
    while let Some(answered) = asked.join_next().await {
        let (n, answer) = answered.unwrap();
        assert_eq!(answer.unwrap(), format!("site-{n}:hello"));
    }
}

#[tokio::test(start_paused = true)]
async fn thousands_of_sites_far_away_are_served_through_the_loss_of_a_gateway() {
    let sites = 3_500.min(350 * effort());
    let lab = Lab::new().await;
    let start = |name: &str| lab.gateway(name, GatewayConfig::default(), AuditLog::none());
    let (one, _two) = (start("one"), start("two"));
    lab.net.far(DELAY, LOST);
    let mut agents = Vec::new();
    for n in 0..sites {
        let name = format!("site-{n}");
        let token = lab.add_site(&name).await;
        agents.push(lab.agent(
            &format!("host-{n}"),
            &token,
            &GATEWAYS,
            open_door(&Echo::named(&name)),
            n as u64,
        ));
    }
    for agent in &mut agents {
        agent.up(2).await;
    }
    ask_all(&lab, sites, &GATEWAYS).await;

    // Half of all links break at once; what is asked at the other gateway does not notice.
    one.kill(&lab.net);
    ask_all(&lab, sites, &GATEWAYS[1..]).await;

    // All come back to the new one, which serves every site again by itself.
    let one = start("one");
    until("every site to be back", async || one.node.links().all().len() >= sites).await;
    ask_all(&lab, sites, &GATEWAYS).await;
    assert!(agents.iter().all(|agent| !agent.task.is_finished()));
    tarbet_testbed::verified(
        "requests to sites 200 ms away with 1 % of packets lost, a gateway dying among them",
        3 * sites,
    );
}
