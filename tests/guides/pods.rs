//! From a gateway to a first pod that is a job of Slurm.

use tarbet_testbed::{Lease, Slurm, shared_pair};

use super::frame::{Guide, wrapper};

#[tokio::test(flavor = "multi_thread")]
async fn the_guide_to_pods_is_true() {
    let plane = &shared_pair().await.unwrap().public;
    let (slurm, lease) = (Slurm::start().await.unwrap(), Lease::block(7).unwrap());
    let guide = Guide::new("pods.md")
        .program("kubectl", wrapper(plane.kubectl().program(), "kubectl"))
        .env("SLURM_CONF", slurm.config().display().to_string())
        .ports([8150, 8151, 8153, 8154, 8161, 8162, 10250].into_iter().zip(lease.ports()));
    std::fs::copy(plane.kubeconfig(), guide.path().join("cluster.kubeconfig")).unwrap();
    guide.follow().await;
}
