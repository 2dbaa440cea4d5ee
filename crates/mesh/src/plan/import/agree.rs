//! Which of the meshes that offer one name are used for it.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Imported;
use crate::crd::Remote;
use crate::model::{Offer, OfferedPort};
use crate::plan::{About, Draft, Reason};

/// One mesh's word on a name.
type Said<'a> = (&'a Remote, &'a Arc<Offer>);

/// Keeps the meshes that agree with the first one and have somebody to answer.
pub(super) fn agree<'a>(draft: &mut Draft<'a>, imported: &mut Imported<'a>) {
    let Some(&first) = imported.said.first() else { return };
    if imported.said.len() == 1 {
        return uses(draft, imported, first);
    }
    let same: Vec<Said<'a>> = imported
        .said
        .iter()
        .copied()
        .filter(|&(remote, offer)| {
            let why = other_service(offer, first.1);
            if let Some(why) = why {
                differs(draft, imported.host, remote, why, first.0);
            }
            why.is_none()
        })
        .collect();
    // A mesh that runs no pod of it tells no identity. It must not decide for those that do: that would
    // be the end of the name exactly when the others are needed.
    let somebody = same.iter().any(|(_, offer)| !offer.subject_alt_names.is_empty());
    let idle = |offer: &Offer| somebody && offer.is_idle();
    let Some(&model) = same.iter().find(|(_, offer)| !idle(offer)) else { return };
    for (remote, offer) in same.into_iter().filter(|(_, offer)| !idle(offer)) {
        let why = if offer.subject_alt_names.is_empty() != model.1.subject_alt_names.is_empty() {
            Some("tells no identities, or alone tells them,")
        } else if remote.ingress.kind != model.0.ingress.kind {
            // One client setting decides the server name for all of a host's endpoints.
            Some("is behind another type of ingress")
        } else {
            None
        };
        match why {
            None => uses(draft, imported, (remote, offer)),
            Some(why) => differs(draft, imported.host, remote, why, model.0),
        }
    }
}

fn uses<'a>(draft: &mut Draft<'a>, imported: &mut Imported<'a>, said: Said<'a>) {
    imported.used.push(said);
    if let Some(view) = draft.plan.remotes.get_mut(&said.0.id) {
        view.imported += 1;
    }
}

fn differs(draft: &mut Draft<'_>, host: &str, remote: &Remote, why: &str, model: &Remote) {
    let message = format!("{} is not used for {host}: it {why} than {}", remote.id, model.id);
    draft.find(About::Imported(host.to_owned()), Reason::Differs, message);
}

/// Why an offer cannot be of the same service as another.
fn other_service(offer: &Arc<Offer>, model: &Arc<Offer>) -> Option<&'static str> {
    if Arc::ptr_eq(offer, model) {
        None
    } else if !same_ports(offer, model) {
        Some("has other ports")
    } else if offer.labels != model.labels {
        Some("has other labels")
    } else {
        None
    }
}

/// Whether the ports of two meshes are equal, in whatever order: the port of the pods is a mesh's own
/// business.
fn same_ports(one: &Offer, other: &Offer) -> bool {
    fn told(port: &OfferedPort) -> (u32, &str, &str) {
        (port.number, &port.name, &port.protocol)
    }
    // Nearly always they are told in the same order.
    one.ports.iter().map(told).eq(other.ports.iter().map(told))
        || one.ports.iter().map(told).collect::<BTreeSet<_>>() == other.ports.iter().map(told).collect()
}
