//! The first ten minutes: one machine, no cluster.

use super::frame::Guide;

#[tokio::test(flavor = "multi_thread")]
async fn the_first_ten_minutes_go_as_written() {
    let folder = Guide::new("start.md").apart().follow().await;
    assert!(!folder.path().join(".local/state/tarbet").exists());
}
