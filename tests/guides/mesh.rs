//! Services between two meshes.

use tarbet_testbed::{Istiod, shared_pair};

use super::frame::{Guide, wrapper};

#[tokio::test(flavor = "multi_thread")]
async fn the_guide_to_meshes_is_true() {
    let pair = shared_pair().await.unwrap();
    let (east, west) =
        tokio::try_join!(pair.public.beside("guide-east"), pair.private.beside("guide-west")).unwrap();
    let guide = Guide::new("mesh.md").program("kubectl", wrapper(east.kubectl().program(), "kubectl"));
    for (plane, name) in [(&east, "east.kubeconfig"), (&west, "west.kubeconfig")] {
        Istiod::install_kinds(plane).await.unwrap();
        std::fs::copy(plane.kubeconfig(), guide.path().join(name)).unwrap();
    }
    guide.follow().await;
}
