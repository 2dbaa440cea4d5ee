//! Every parser of outside bytes behind one call each, for fuzz targets: any input, no panic.

use std::sync::Arc;

use crate::crd::Remote;
use crate::fds;
use crate::model::Offer;
use crate::vet::{Reserved, vet};

/// A service as a peer offers it, and whether it would be taken.
pub fn offer(data: &[u8]) {
    if let Ok(offer) = fds::decode(data) {
        judge(offer);
    }
    if let Ok(offer) = serde_json::from_slice::<Offer>(data) {
        judge(offer);
    }
}

fn judge(offer: Offer) {
    let remote = serde_json::from_str::<Remote>(r#"{"id": "west", "network": "west"}"#);
    if let Ok(remote) = remote {
        vet(&remote, &[Arc::new(offer)], &Reserved::default());
    }
}
