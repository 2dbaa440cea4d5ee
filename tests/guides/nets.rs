//! Two clouds on one machine.

use super::frame::Guide;

#[tokio::test(flavor = "multi_thread")]
async fn the_guide_to_networks_is_true() {
    // Whoever follows it here is root already.
    Guide::new("nets.md").program("sudo", "env".into()).apart().follow().await;
}
