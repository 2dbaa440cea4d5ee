//! What the tests have in common: control planes with the definitions of ours and of Istio.

use anyhow::Result;
use serde_json::Value;
use tarbet_mesh::crd;
use tarbet_testbed::{ControlPlane, eventually};
use tokio::sync::Mutex;

/// Installs our definitions and waits until they are served.
pub async fn install_definitions(plane: &ControlPlane) -> Result<()> {
    // Two tests that install at once would only slow each other.
    static TURN: Mutex<()> = Mutex::const_new(());
    let _turn = TURN.lock().await;
    let definitions: Vec<Value> =
        crd::definitions().iter().map(serde_json::to_value).collect::<Result<_, _>>()?;
    let kubectl = plane.kubectl();
    let list = serde_json::json!({ "apiVersion": "v1", "kind": "List", "items": definitions });
    kubectl
        .run_with_input(&["apply", "--server-side", "--force-conflicts", "-f", "-"], &list.to_string())
        .await?;
    for definition in crd::definitions() {
        let plural = definition.spec.names.plural;
        let look = || async { kubectl.run(&["get", &plural, "--all-namespaces"]).await };
        eventually(std::time::Duration::from_secs(60), "the definitions to be served", look).await?;
    }
    Ok(())
}
