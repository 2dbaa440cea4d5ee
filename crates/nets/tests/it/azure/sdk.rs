//! The stand-in is believed because Azure's own SDK is content with it.

use tarbet_testbed::vendor_python;

use super::super::sim::Sim;
use super::vendor::AzureSim;

#[tokio::test]
async fn azures_own_sdk_drives_the_stand_in() {
    let sim = Sim::start(AzureSim::open()).await;
    let python = vendor_python("azure").await.unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/azure/drive.py");
    let output = tokio::process::Command::new(python)
        .args([script, &sim.url])
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "done");
    assert!(sim.seen().len() > 60, "{}", sim.seen().len());
    assert_eq!(sim.with(|azure| azure.inventory()), Vec::<String>::new());
    sim.assert_sound();
}
