//! Installing, backing up, restoring and replacing secrets.

use tarbet_testbed::{Helm, shared_pair};

use super::frame::{Guide, wrapper};

#[tokio::test(flavor = "multi_thread")]
async fn the_guide_to_operations_is_true() {
    let kubectl = shared_pair().await.unwrap().private.kubectl();
    let guide = Guide::new("operations.md")
        .program("kubectl", wrapper(kubectl.program(), "kubectl"))
        .program("helm", wrapper(Helm::alone().await.unwrap().program(), ""))
        .apart();
    let folder = guide.follow().await;
    assert!(!folder.path().join("here").exists(), "a plan has installed something");
}
