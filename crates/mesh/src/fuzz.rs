//! Every parser of outside bytes behind one call each, for fuzz targets: any input, no panic.

use std::sync::Arc;

use prost::Message;

use crate::crd::Remote;
use crate::fds::proto::discovery::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use crate::fds::{self, Inbox, Known, Limits, Snapshot};
use crate::model::Offer;
use crate::vet::{Reserved, vet};

/// A whole message between meshes, whichever of the four it is: what a peer tells is heard, and what it asks is answered.
pub fn discovery(data: &[u8]) {
    let inbox = || Inbox::new("west", Limits::default(), None);
    if let Ok(answer) = DiscoveryResponse::decode(data) {
        let mut inbox = inbox();
        if let Ok(taken) = inbox.whole(&answer) {
            taken.offers.into_iter().flatten().for_each(judge);
            assert!(inbox.whole(&answer).is_ok(), "what was taken once is taken again");
        }
    }
    if let Ok(answer) = DeltaDiscoveryResponse::decode(data)
        && let Ok(Some(taken)) = inbox().changes(&answer)
    {
        taken.offers.into_iter().flatten().for_each(judge);
    }
    let _ = DiscoveryRequest::decode(data);
    if let Ok(request) = DeltaDiscoveryRequest::decode(data) {
        let parts = fds::parts(&Known::Versions(request.initial_resource_versions), &exported());
        // Without it the peer waits for more.
        assert!(
            parts.last().is_some_and(|last| !last.system_version_info.is_empty()),
            "the answer has an end"
        );
    }
}

/// What peers ask for.
fn exported() -> Snapshot {
    let offer = Offer { hostname: "web.prod.svc.cluster.local".into(), ..Offer::default() };
    Snapshot::first("east", &[Arc::new(offer)], 1)
}

/// A service as a peer offers it, and whether it would be taken.
pub fn offer(data: &[u8]) {
    if let Ok(offer) = fds::decode(data) {
        judge(Arc::new(offer));
    }
    if let Ok(offer) = serde_json::from_slice::<Offer>(data) {
        judge(Arc::new(offer));
    }
}

fn judge(offer: Arc<Offer>) {
    let remote = serde_json::from_str::<Remote>(r#"{"id": "west", "network": "west"}"#);
    if let Ok(remote) = remote {
        vet(&remote, &[offer], &Reserved::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seed(name: &str) -> Vec<u8> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus");
        std::fs::read(format!("{folder}/{name}")).unwrap()
    }

    // A seed that is refused at its first byte would lead nowhere.
    #[test]
    fn seeds_reach_what_they_are_for() {
        assert_eq!(fds::decode(&seed("federated_service/service")).unwrap().ports.len(), 1);
        let mut inbox = Inbox::new("west", Limits::default(), None);
        let whole = DiscoveryResponse::decode(&*seed("discovery/whole")).unwrap();
        assert_eq!(inbox.whole(&whole).unwrap().offers.unwrap().len(), 1);
        let changes = DeltaDiscoveryResponse::decode(&*seed("discovery/changes")).unwrap();
        assert!(inbox.changes(&changes).unwrap().is_some());
        let asked = DeltaDiscoveryRequest::decode(&*seed("discovery/asked_changes")).unwrap();
        assert_eq!(asked.initial_resource_versions.len(), 1);
        let refused = DiscoveryRequest::decode(&*seed("discovery/refused")).unwrap();
        assert!(refused.error_detail.is_some());
        assert_eq!(
            DiscoveryRequest::decode(&*seed("discovery/asked_whole")).unwrap().type_url,
            fds::TYPE_URL
        );
    }
}
