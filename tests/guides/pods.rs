//! From a gateway to a first pod that is a job of Slurm, and one that is a container.

use tarbet_testbed::{Dockerd, Lease, Slurm, shared_pair};

use super::frame::{Guide, wrapper};

#[tokio::test(flavor = "multi_thread")]
async fn the_guide_to_pods_is_true() {
    let plane = &shared_pair().await.unwrap().public;
    let (slurm, docker) = tokio::try_join!(Slurm::start(), Dockerd::start()).unwrap();
    docker.shell_image("busybox:1.36").await.unwrap();
    let shown = [8150, 8151, 8153, 8154, 8161, 8162, 8163, 10250, 3000, 4000, 5820];
    let lease = Lease::block(u16::try_from(shown.len()).unwrap() + 1).unwrap();
    let private = format!("127.0.0.1:{}", lease.ports().last().unwrap());
    let guide = Guide::new("pods.md")
        .program("kubectl", wrapper(plane.kubectl().program(), "kubectl"))
        .env("SLURM_CONF", slurm.config().display().to_string())
        .env("DOCKER_HOST", docker.url())
        // Where the page names no port for metrics, any.
        .env("TARBET__OBSERVABILITY__LISTEN", "127.0.0.1:0")
        .env("TARBET__GATEWAY__PRIVATE__LISTEN", private)
        .ports(shown.into_iter().zip(lease.ports()));
    // The daemon of the test has no bridge.
    let own = guide.path().join("own.yaml");
    std::fs::write(&own, "DockerNetwork: none\n").unwrap();
    std::fs::copy(plane.kubeconfig(), guide.path().join("cluster.kubeconfig")).unwrap();
    guide.env("INTERLINKCONFIGPATH", own.display().to_string()).follow().await;
}
