//! kubectl at a cluster behind a firewall, through two gateways.

use tarbet_testbed::{Lease, shared_pair};

use super::frame::{Guide, wrapper};

#[tokio::test(flavor = "multi_thread")]
async fn the_guide_to_reach_is_true() {
    let (private, ports) = (&shared_pair().await.unwrap().private, Lease::block(8).unwrap());
    let guide = Guide::new("reach.md")
        .program("kubectl", wrapper(private.kubectl().program(), "kubectl"))
        .env("PROBES", format!("127.0.0.1:{}", ports.port(0)))
        .env("GUARDED", format!("127.0.0.1:{}", ports.port(1)))
        .ports([15432, 9301, 9302, 9303, 9305, 9306].into_iter().zip(ports.ports().skip(2)));
    let config = guide.path().join("guide.kubeconfig").display().to_string();
    std::fs::copy(private.kubeconfig(), guide.path().join("private.kubeconfig")).unwrap();
    guide.env("KUBECONFIG", config).follow().await;
}
