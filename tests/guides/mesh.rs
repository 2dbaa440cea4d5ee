//! Services between two meshes.

use tarbet_testbed::{Helm, Istiod, Lease, shared_pair};

use super::frame::{Guide, wrapper};

#[tokio::test(flavor = "multi_thread")]
async fn the_guide_to_meshes_is_true() {
    let pair = shared_pair().await.unwrap();
    let (east, west) =
        tokio::try_join!(pair.public.beside("guide-east"), pair.private.beside("guide-west")).unwrap();
    let ports = Lease::block(7).unwrap();
    let guide = Guide::new("mesh.md")
        .program("kubectl", wrapper(east.kubectl().program(), "kubectl"))
        .program("helm", wrapper(Helm::alone().await.unwrap().program(), ""))
        // One of the usual ports that the page does not name.
        .env("TARBET__GATEWAY__PRIVATE__LISTEN", format!("127.0.0.1:{}", ports.port(6)))
        .ports([8150, 8151, 8153, 8154, 8161, 15543].into_iter().zip(ports.ports()));
    for (plane, name) in [(&east, "east.kubeconfig"), (&west, "west.kubeconfig")] {
        Istiod::install_kinds(plane).await.unwrap();
        std::fs::copy(plane.kubeconfig(), guide.path().join(name)).unwrap();
    }
    guide.follow().await;
}
