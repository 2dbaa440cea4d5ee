//! Who is told what. Most services are told to everybody; some only to chosen meshes.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::HeaderMap;

use super::Snapshot;

/// What is told now, and to whom.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    /// To whoever is no chosen mesh.
    pub everybody: Arc<Snapshot>,
    /// To meshes that are told more than that, or less.
    pub chosen: BTreeMap<String, Arc<Snapshot>>,
    /// Identities of discovery, `trust.domain/ns/…/sa/…`, with the mesh of each. One that two meshes could have is
    /// not there: it tells nothing.
    pub principals: BTreeMap<String, String>,
}

impl From<Snapshot> for Told {
    fn from(snapshot: Snapshot) -> Self {
        Self { everybody: Arc::new(snapshot), chosen: BTreeMap::new(), principals: BTreeMap::new() }
    }
}

impl Told {
    /// What the asker is told. Where a proxy vouches for an identity, that counts and not the asker's
    /// own word.
    pub(super) fn to(&self, asker: &Asker) -> &Arc<Snapshot> {
        let mesh = match &asker.principal {
            Some(known) => self.principals.get(known),
            None => Some(&asker.name),
        };
        mesh.and_then(|mesh| self.chosen.get(mesh)).unwrap_or(&self.everybody)
    }
}

/// Who asks.
#[derive(Debug, Clone, Default)]
pub(super) struct Asker {
    /// As it calls itself.
    pub(super) name: String,
    /// As the proxy before us knows it.
    principal: Option<String>,
}

impl Asker {
    /// Whom the proxy before us saw: each proxy on the way adds an element, ours the last.
    pub(super) fn seen(headers: &HeaderMap) -> Self {
        let told = headers.get_all("x-forwarded-client-cert").iter().next_back();
        let last = told.and_then(|value| value.to_str().ok()).and_then(|text| text.rsplit(',').next());
        let uri =
            last.and_then(|element| element.split(';').find_map(|part| part.trim().strip_prefix("URI=")));
        // An element without an identity is of somebody who is nobody.
        let principal =
            last.map(|_| uri.and_then(|uri| uri.strip_prefix("spiffe://")).unwrap_or("").to_owned());
        Self { name: String::new(), principal }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Offer;

    #[test]
    fn a_mesh_is_known_by_its_certificate_where_there_is_one() {
        let snapshot = |name: &str| {
            let offer = Offer { hostname: name.to_owned(), ..Offer::default() };
            Arc::new(Snapshot::after(None, "east", &[offer.into()], 1).unwrap())
        };
        let told = Told {
            everybody: snapshot("all.x"),
            chosen: [("west".to_owned(), snapshot("west.x"))].into(),
            principals: [("mesh.west/ns/istio-system/sa/fds".to_owned(), "west".to_owned())].into(),
        };
        let asks = |name: &str, seen: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(seen) = seen {
                headers.insert("x-forwarded-client-cert", seen.parse().unwrap());
            }
            let asker = Asker { name: name.to_owned(), ..Asker::seen(&headers) };
            told.to(&asker).entries.keys().next().unwrap().clone()
        };
        let west = "By=spiffe://mesh.east/ns/a/sa/b;Hash=00;URI=spiffe://mesh.west/ns/istio-system/sa/fds";
        let north = "By=spiffe://mesh.east/ns/a/sa/b;Hash=00;URI=spiffe://mesh.north/ns/istio-system/sa/fds";
        assert_eq!(asks("west", None), "west.x");
        assert_eq!(asks("north", None), "all.x");
        assert_eq!(asks("", None), "all.x", "the original does not say who it is");
        assert_eq!(asks("other", Some(west)), "west.x");
        assert_eq!(asks("west", Some(north)), "all.x", "it calls itself what it is not");
        assert_eq!(asks("west", Some(&format!("{west},{north}"))), "all.x", "only our own proxy counts");
        assert_eq!(asks("west", Some("Hash=00")), "all.x");
    }
}
