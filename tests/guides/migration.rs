//! The originals' own files, in front of our roles.

use tarbet_testbed::{Lease, shared_pair};

use super::frame::{Guide, wrapper};
use crate::jobs::private_with_tekton;

#[tokio::test(flavor = "multi_thread")]
async fn the_guide_to_migration_is_true() {
    let private = private_with_tekton().await;
    // The controller answers every request of its public cluster, so it has one of its own.
    let public = shared_pair().await.unwrap().public.beside("moved").await.unwrap();
    let shown =
        [3000, 4000, 8150, 8151, 8153, 8154, 8155, 8180, 8181, 8182, 8183, 8184, 8280, 8281, 8285, 8286];
    let ports = Lease::block(u16::try_from(shown.len()).unwrap()).unwrap();
    let guide = Guide::new("migration.md")
        .program("kubectl", wrapper(private.kubectl().program(), "kubectl"))
        .ports(shown.into_iter().zip(ports.ports()));
    for (plane, name) in [(private, "private.kubeconfig"), (&public, "public.kubeconfig")] {
        std::fs::copy(plane.kubeconfig(), guide.path().join(name)).unwrap();
    }
    guide.follow().await;
}
