//! The stand-in is believed because Azure's own SDK is content with it, and what the plugin makes because the SDK
//! makes the same.

use tarbet_nets::cloud::{Cloud as _, NewConnections, NewGateway};
use tarbet_nets::model::{Direction, SharedKey};
use tarbet_testbed::vendor_python;

use super::super::sim::Sim;
use super::vendor::AzureSim;
use super::{Bed, deployment, new_machine, rule};

/// Leads a stand-in through a script of the SDK; what that says.
async fn drive(script: &str, words: &[&str]) -> (Sim<AzureSim>, String) {
    let sim = Sim::start(AzureSim::open()).await;
    let python = vendor_python("azure").await.unwrap();
    let script = format!("{}/tests/it/azure/{script}", env!("CARGO_MANIFEST_DIR"));
    let output = tokio::process::Command::new(python)
        .args([&script, &sim.url])
        .args(words)
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    sim.assert_sound();
    (sim, String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[tokio::test]
async fn azures_own_sdk_drives_the_stand_in() {
    let (sim, said) = drive("drive.py", &[]).await;
    assert_eq!(said, "done");
    assert!(sim.seen().len() > 60, "{}", sim.seen().len());
    assert_eq!(sim.with(|azure| azure.inventory()), Vec::<String>::new());
}

#[tokio::test]
async fn azures_own_sdk_drives_the_stand_in_to_the_state_that_the_plugin_does() {
    let bed = Bed::start().await;
    let azure = bed.azure();
    let made = azure.create_resource(new_machine("default", "vm1", "westus2")).await.unwrap();
    let rules =
        vec![rule("web", Direction::Inbound, &["10.0.0.9"]), rule("out", Direction::Outbound, &["8.8.8.8"])];
    azure.add_rules("default", &made.uri, rules).await.unwrap();
    let new = NewGateway {
        deployment: deployment("default"),
        cloud: "ibm".into(),
        bgp_addresses: vec![],
        space: None,
    };
    let gateway = azure.create_gateway(new).await.unwrap();
    let new = NewConnections {
        deployment: deployment("default"),
        cloud: "ibm".into(),
        asn: 0,
        gateways: vec!["169.48.0.1".into()],
        bgp_addresses: vec![],
        key: SharedKey::new("KeyOfBothEnds1234567890"),
        remote_spaces: vec!["10.9.0.0/16".parse().unwrap()],
        bgp: false,
        space: None,
    };
    azure.create_connections(new).await.unwrap();
    bed.sim.assert_sound();

    let (theirs, _) = drive("same.py", &[&gateway.asn.to_string()]).await;
    assert_eq!(theirs.with(|azure| azure.state()), bed.sim.with(|azure| azure.state()));
}
