//! Discovery between meshes: what each exports, told over Envoy's aggregated discovery.
//!
//! [`serve`] answers peers from the latest [`Snapshot`]; [`subscribe`] hears one peer. Both speak
//! the original's whole-state stream; between two of ours only changes travel. A peer is heard
//! through an [`Inbox`], which decides without I/O what of it is taken over.

mod audience;
mod client;
mod inbox;
mod server;
mod snapshot;

pub use audience::Told;
pub use client::{Heard, Subscription, Way, subscribe};
pub use inbox::{Inbox, Limits, Refused, Taken};
pub use server::{Discovery, serve};
pub(crate) use server::{Known, parts};
pub use snapshot::{Snapshot, Version};

use prost::Message;
use prost_types::Any;

use crate::model::{Offer, OfferedPort};

/// The messages on the wire, generated from `proto/`.
#[allow(clippy::all, clippy::pedantic, missing_docs, unreachable_pub, reason = "generated code")]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/discovery.rs"));
    pub use envoy::config::core::v3 as node;
    pub use envoy::service::discovery::v3 as discovery;
    pub use google::rpc;
    pub use v1alpha1 as service;
}

/// What is asked for. The original still calls it by the name its messages had before.
pub const TYPE_URL: &str = "federation.openshift-service-mesh.io/v1alpha1/ExportedService";
/// What each answer holds.
pub const RESOURCE_URL: &str = "type.googleapis.com/v1alpha1.FederatedService";

/// An offer as it travels.
pub fn encode(offer: &Offer) -> Any {
    let port = |port: &OfferedPort| proto::service::ServicePort {
        number: port.number,
        protocol: port.protocol.clone(),
        name: port.name.clone(),
        target_port: port.target_port,
    };
    let message = proto::service::FederatedService {
        hostname: offer.hostname.clone(),
        ports: offer.ports.iter().map(port).collect(),
        labels: offer.labels.clone(),
        name: offer.name.clone(),
        namespace: offer.namespace.clone(),
        subject_alt_names: offer.subject_alt_names.clone(),
        locality: offer.locality.clone(),
        endpoints: offer.endpoints.clone(),
    };
    Any { type_url: RESOURCE_URL.to_owned(), value: message.encode_to_vec() }
}

/// An offer as it arrived; the type it claims to have is not looked at, as in the original.
pub fn decode(bytes: &[u8]) -> Result<Offer, prost::DecodeError> {
    let message = proto::service::FederatedService::decode(bytes)?;
    let port = |port: proto::service::ServicePort| OfferedPort {
        name: port.name,
        number: port.number,
        protocol: port.protocol,
        target_port: port.target_port,
    };
    let offer = Offer {
        hostname: message.hostname,
        ports: message.ports.into_iter().map(port).collect(),
        labels: message.labels,
        name: message.name,
        namespace: message.namespace,
        subject_alt_names: message.subject_alt_names,
        locality: message.locality,
        endpoints: message.endpoints,
    };
    Ok(offer.tidy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_has_the_originals_bytes_and_survives_them() {
        let offer = Offer {
            hostname: "a.b.svc.cluster.local".into(),
            ports: vec![OfferedPort {
                name: "http".into(),
                number: 80,
                protocol: "HTTP".into(),
                target_port: 8080,
            }],
            labels: [("k".to_owned(), "v".to_owned())].into(),
            ..Offer::default()
        };
        let any = encode(&offer);
        assert_eq!(any.type_url, "type.googleapis.com/v1alpha1.FederatedService");
        // Field by field as protobuf writes it: hostname 1, ports 2 {1,2,3,4}, labels 3 {1,2}.
        let mut expected = vec![0x0a, 21];
        expected.extend(b"a.b.svc.cluster.local");
        expected.extend([0x12, 17, 0x08, 80, 0x12, 4]);
        expected.extend(b"HTTP");
        expected.extend([0x1a, 4]);
        expected.extend(b"http");
        expected.extend([0x20, 0x90, 0x3f, 0x1a, 6, 0x0a, 1, b'k', 0x12, 1, b'v']);
        assert_eq!(any.value, expected);
        assert_eq!(decode(&any.value).unwrap(), offer);
        // A field of tomorrow is passed over.
        expected.extend([0xfa, 0x01, 1, b'x']);
        assert_eq!(decode(&expected).unwrap(), offer);
        assert!(decode(b"\x0a\xff").is_err());
    }
}
