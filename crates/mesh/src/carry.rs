//! Calls to a mesh that cannot be dialled: a listener here stands for its gateway, and what comes in
//! is carried to that gateway by its site's agent.
//!
//! Bytes are not looked at. The caller's proxy and the service's speak mutual TLS with each other,
//! and the gateway there chooses by the server name as it does for everybody else.

use std::sync::Arc;
use std::time::Duration;

use tarbet_link::{Address, Dialer, Target, relay};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::crd::{MeshFederationSpec, Remote};

/// Connections at once to one mesh; more wait to be accepted.
const AT_ONCE: usize = 4096;
/// The pause after a connection that could not be accepted.
const REFUSED: Duration = Duration::from_millis(50);

/// A listener that stands for the gateway of a mesh.
pub struct Carrier {
    /// The mesh.
    pub mesh: String,
    /// Where its callers come in.
    pub listener: TcpListener,
    /// The address of the listener as callers know it.
    pub advertise: Address,
    /// The way to the mesh's site.
    pub dialer: Arc<dyn Dialer>,
    /// The mesh's gateway as its site's agent sees it.
    pub gateway: Address,
}

impl Carrier {
    /// Carries until `stop`; what is open then ends with it.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let Self { mesh, listener, dialer, gateway, .. } = self;
        let (tasks, room) = (TaskTracker::new(), Arc::new(tokio::sync::Semaphore::new(AT_ONCE)));
        while let Some(Ok(permit)) = stop.run_until_cancelled(Arc::clone(&room).acquire_owned()).await {
            let Some(accepted) = stop.run_until_cancelled(listener.accept()).await else { break };
            let near = match accepted {
                Ok((near, _)) => near,
                Err(error) => {
                    tracing::warn!(mesh, %error, "A call cannot be taken in.");
                    // Out of descriptors, most likely: asked at once again it would say the same.
                    tokio::time::sleep(REFUSED).await;
                    continue;
                }
            };
            let (dialer, mesh) = (Arc::clone(&dialer), mesh.clone());
            let (target, stop) = (Target::tcp(gateway.clone()), stop.clone());
            tasks.spawn(async move {
                let carrying = async {
                    match dialer.open(target).await {
                        // Either end may break off at any time; both know why by themselves.
                        Ok(far) => drop(relay(tarbet_link::tcp(near), far).await),
                        Err(error) => tracing::warn!(
                            mesh, cause = %tarbet_telemetry::problem::chain(&error),
                            "A call cannot be carried to the other mesh."
                        ),
                    }
                };
                stop.run_until_cancelled(carrying).await;
                drop(permit);
            });
        }
        tasks.close();
        tasks.wait().await;
    }
}

/// The federation with our own listeners as the ingress of meshes that have none.
pub(crate) fn carried(
    federation: Arc<MeshFederationSpec>,
    carriers: &[(String, Address)],
) -> Arc<MeshFederationSpec> {
    let of = |id: &str| carriers.iter().find(|(mesh, _)| mesh == id).map(|(_, address)| address);
    let stands_in = |remote: &Remote| remote.ingress.addresses.is_empty() && of(&remote.id).is_some();
    if !federation.remote.iter().any(stands_in) {
        return federation;
    }
    let mut federation = Arc::unwrap_or_clone(federation);
    for remote in federation.remote.iter_mut().filter(|remote| stands_in(remote)) {
        if let Some(address) = of(&remote.id) {
            remote.ingress.addresses = vec![address.host().to_owned()];
            remote.ingress.port = Some(address.port());
        }
    }
    Arc::new(federation)
}

/// Whether the ingress of a remote is a listener of ours.
pub(crate) fn stands_for(remote: &Remote, carriers: &[(String, Address)]) -> bool {
    let is_its = |(mesh, address): &(String, Address)| {
        *mesh == remote.id
            && remote.ingress.addresses == [address.host()]
            && remote.ingress.port() == address.port()
    };
    carriers.iter().any(is_its)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_listener_stands_only_for_a_mesh_that_has_no_ingress() {
        let spec = |addresses: serde_json::Value| -> Arc<MeshFederationSpec> {
            let remote = json!({ "id": "west", "network": "west", "ingress": { "addresses": addresses } });
            Arc::new(
                serde_json::from_value(
                    json!({ "local": { "id": "east", "network": "east" }, "remote": [remote] }),
                )
                .unwrap(),
            )
        };
        let own = [("west".to_owned(), "10.0.0.9:15543".parse().unwrap())];
        let seen = carried(spec(json!([])), &own);
        assert_eq!(seen.remote[0].ingress.addresses, ["10.0.0.9"]);
        assert_eq!(seen.remote[0].ingress.port(), 15543);
        assert!(stands_for(&seen.remote[0], &own));
        assert!(!stands_for(&spec(json!(["192.0.2.1"])).remote[0], &own));
        assert_eq!(carried(spec(json!(["192.0.2.1"])), &own), spec(json!(["192.0.2.1"])));
        assert_eq!(carried(spec(json!([])), &[]), spec(json!([])));
    }
}
