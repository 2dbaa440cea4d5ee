//! Requests and offers between two clusters.

use tarbet_testbed::{Helm, Lease, shared_pair};

use super::frame::{Guide, wrapper};
use crate::jobs::private_with_tekton;

#[tokio::test(flavor = "multi_thread")]
async fn the_guide_to_jobs_is_true() {
    let private = private_with_tekton().await;
    // The guide's controller answers every request of its public cluster, so it has one of its own.
    let public = shared_pair().await.unwrap().public.beside("guide").await.unwrap();
    let ports = Lease::block(6).unwrap();
    let guide = Guide::new("jobs.md")
        .program("kubectl", wrapper(private.kubectl().program(), "kubectl"))
        .program("helm", wrapper(Helm::alone().await.unwrap().program(), ""))
        // Where the page names no port for metrics, any.
        .env("TARBET__OBSERVABILITY__LISTEN", "127.0.0.1:0")
        .env("TARBET__GATEWAY__PRIVATE__LISTEN", format!("127.0.0.1:{}", ports.port(5)))
        .ports([8150, 8151, 8153, 8154, 8161].into_iter().zip(ports.ports()));
    for (plane, name) in [(private, "private.kubeconfig"), (&public, "public.kubeconfig")] {
        std::fs::copy(plane.kubeconfig(), guide.path().join(name)).unwrap();
    }
    guide.follow().await;
}
