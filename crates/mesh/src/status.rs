//! What people are told: conditions and counts of the three kinds, from a plan and its outcome.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use tarbet_cluster::conditions::{condition, set};

use crate::apply::Failure;
use crate::crd::{FederationServiceRulesStatus, MeshFederationStatus, RemoteStatus};
use crate::fds::Version;
use crate::model::Key;
use crate::peers::{Peer, Peers};
use crate::plan::{About, Finding, Kind, Plan, Reason, clusterset};

/// Messages are for people: the first few of a kind say enough.
const TOLD: usize = 5;

/// What a status is made from.
pub(crate) struct Outcome<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) failures: &'a [Failure],
    pub(crate) peers: &'a Peers,
    /// Whether the other of the two declarations is there too.
    pub(crate) complete: bool,
    /// The service account that the controller runs under, if it is known.
    pub(crate) account: Option<&'a str>,
    pub(crate) now: Timestamp,
}

impl Outcome<'_> {
    /// The federation's status, from the one it has.
    pub(crate) fn federation(
        &self,
        id: &str,
        before: &MeshFederationStatus,
        generation: Option<i64>,
    ) -> MeshFederationStatus {
        let mut status = before.clone();
        let mut put = |name: &str, so: bool, reason: &str, message: String| {
            set(&mut status.conditions, condition(name, so, reason, message, generation), self.now);
        };
        match self.account.and_then(|account| other_id(account, id)) {
            Some(message) => put("Accepted", false, "WrongId", message),
            None => put("Accepted", true, "Accepted", String::new()),
        }
        let (so, reason, message) =
            self.ready("FederationServiceRules `default` in the controller's namespace");
        put("Ready", so, reason, message);
        let remotes: Vec<RemoteStatus> =
            self.peers.iter().map(|(mesh, peer)| self.remote(mesh, peer, &before.remotes)).collect();
        let lost: Vec<String> = remotes
            .iter()
            .filter(|remote| !remote.connected || remote.error.is_some())
            .map(|remote| {
                format!("{}: {}", remote.id, remote.error.as_deref().unwrap_or("it has not answered yet"))
            })
            .collect();
        let (so, reason) = match (remotes.is_empty(), lost.is_empty()) {
            (true, _) => (true, "NothingImported"),
            (false, true) => (true, "Connected"),
            (false, false) => (false, "NotConnected"),
        };
        put("RemotesConnected", so, reason, several(&lost));
        let connected = remotes.iter().filter(|remote| remote.connected).count();
        status.connected = Some(format!("{connected}/{}", remotes.len()));
        status.imported = Some(i64::try_from(self.plan.imports.len()).unwrap_or(i64::MAX));
        status.remotes = remotes;
        status
    }

    /// A remote's status. What was said of it before stays until it has answered or failed to: a
    /// restart of the controller is no news.
    fn remote(&self, mesh: &str, peer: &Peer, before: &[RemoteStatus]) -> RemoteStatus {
        let before = before.iter().find(|remote| remote.id == mesh);
        let view = self.plan.remotes.get(mesh).cloned().unwrap_or_default();
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let pending = !peer.connected && peer.error.is_none();
        let (connected, error) = match before.filter(|_| pending) {
            Some(before) => (before.connected, before.error.clone()),
            None => (peer.connected, peer.error.clone()),
        };
        let unmoved = before.filter(|before| before.connected == connected);
        RemoteStatus {
            id: mesh.to_owned(),
            connected,
            since: unmoved.and_then(|before| before.since.clone()).or_else(|| peer.since.map(Time)),
            version: version(peer.version.as_ref(), before.and_then(|before| before.version.as_deref())),
            offered: number(peer.offers.len()),
            imported: number(view.imported),
            error,
            refused: Some(number(view.refused)).filter(|&refused| refused > 0),
            refusals: view.refusals,
        }
    }

    /// The rules' status, from the one they have.
    pub(crate) fn rules(
        &self,
        before: &FederationServiceRulesStatus,
        generation: Option<i64>,
    ) -> FederationServiceRulesStatus {
        let mut status = before.clone();
        let mut put = |name: &str, so: bool, reason: &str, message: String| {
            set(&mut status.conditions, condition(name, so, reason, message, generation), self.now);
        };
        let mine: Vec<&Finding> = self.findings(&About::Rules);
        let unknown = words(&mine, |reason| reason == Reason::UnknownMesh);
        let left_out = words(&mine, |reason| reason == Reason::NotExportable);
        match (unknown.is_empty(), left_out.is_empty()) {
            (false, _) => put("Accepted", false, Reason::UnknownMesh.word(), several(&unknown)),
            (true, false) => put("Accepted", true, "PartlyAccepted", several(&left_out)),
            (true, true) => put("Accepted", true, "Accepted", String::new()),
        }
        let conflicts = words(&mine, Reason::is_conflict);
        let reason = if conflicts.is_empty() { "NoConflict" } else { Reason::NameTaken.word() };
        put("Conflicted", !conflicts.is_empty(), reason, several(&conflicts));
        let (so, reason, message) = self.ready("MeshFederation");
        put("Ready", so, reason, message);
        status.exported = Some(i64::try_from(self.plan.exports.len()).unwrap_or(i64::MAX));
        status
    }

    /// The conditions of each ImportedService of which there is something to tell, by namespace and
    /// name, without times; those of all others are [`all_well`].
    pub(crate) fn imported(&self) -> BTreeMap<(&str, &str), Vec<Condition>> {
        let mut findings: BTreeMap<&str, Vec<&Finding>> = BTreeMap::new();
        for finding in &self.plan.findings {
            if let About::Imported(host) = &finding.about {
                findings.entry(host).or_default().push(finding);
            }
        }
        let failed = self.failed();
        let mut told = BTreeMap::new();
        for ((namespace, name), host) in &self.plan.imports {
            let place = (namespace.as_str(), name.as_str());
            let (mine, cause) = (findings.get(host.as_str()), failed.get(&place).copied());
            if mine.is_some() || cause.is_some() {
                told.insert(place, import_conditions(mine.map_or(&[][..], Vec::as_slice), cause));
            }
        }
        told
    }

    /// Why something of an ImportedService cannot be written, by its namespace and name.
    fn failed(&self) -> BTreeMap<(&str, &str), &str> {
        let mut failed = BTreeMap::new();
        if self.failures.is_empty() {
            return failed;
        }
        let causes: BTreeMap<(Kind, &str, &str), &str> = self
            .failures
            .iter()
            .map(|Failure { place: (kind, namespace, name), cause }| {
                ((*kind, namespace.as_str(), name.as_str()), cause.as_str())
            })
            .collect();
        for object in &self.plan.objects {
            if let crate::plan::Owner::Imported { namespace, name } = &object.owner
                && let Some(cause) = causes.get(&object.place())
            {
                failed.insert((namespace.as_str(), name.as_str()), *cause);
            }
        }
        failed
    }

    /// The conditions of a ServiceExport, without times.
    pub(crate) fn service_export(&self, key: &Key, generation: Option<i64>) -> Vec<Condition> {
        let host = clusterset::host(key);
        let valid = match self.findings(&About::Export(key.clone())).first() {
            Some(finding) => {
                condition("Valid", false, finding.reason.word(), finding.message.as_str(), generation)
            }
            None => condition("Valid", true, "Valid", format!("exported as {host}"), generation),
        };
        let conflicts = words(&self.findings(&About::Imported(host)), Reason::is_conflict);
        let reason = if conflicts.is_empty() { "NoConflicts" } else { "Conflicts" };
        let conflict = condition("Conflict", !conflicts.is_empty(), reason, several(&conflicts), generation);
        vec![valid, conflict]
    }

    fn ready(&self, missing: &str) -> (bool, &'static str, String) {
        if !self.complete {
            return (false, "Incomplete", format!("nothing is federated until there is a {missing}"));
        }
        let failures: Vec<String> = self
            .failures
            .iter()
            .map(|Failure { place: (kind, namespace, name), cause }| {
                format!("{} {namespace}/{name} cannot be written: {cause}", kind.name())
            })
            .collect();
        if failures.is_empty() {
            (true, "Programmed", String::new())
        } else {
            (false, "NotWritten", several(&failures))
        }
    }

    fn findings(&self, about: &About) -> Vec<&Finding> {
        self.plan.findings.iter().filter(|finding| finding.about == *about).collect()
    }
}

/// What is wrong if the controller was installed for a mesh of another id. Its Service and account are
/// called after that one, and peers that look for this one find neither.
fn other_id(account: &str, id: &str) -> Option<String> {
    let installed = account.strip_prefix("federation-discovery-service-").filter(|&other| other != id)?;
    Some(format!(
        "the controller was installed for the mesh `{installed}` and this is `{id}`: peers cannot find \
         federation-discovery-service-{id}; install it with the same id"
    ))
}

/// The conditions of an import about which there is nothing to tell, without times.
pub(crate) fn all_well() -> Vec<Condition> {
    import_conditions(&[], None)
}

fn import_conditions(mine: &[&Finding], failed: Option<&str>) -> Vec<Condition> {
    let conflicts = words(mine, Reason::is_conflict);
    let nowhere = words(mine, |reason| reason == Reason::NoAddress);
    let aside = words(mine, |reason| matches!(reason, Reason::NotThroughEgress | Reason::NoIdentities));
    let ready = match (failed, nowhere.is_empty()) {
        (Some(cause), _) => condition("Ready", false, "NotWritten", cause, None),
        (None, false) => condition("Ready", false, Reason::NoAddress.word(), several(&nowhere), None),
        (None, true) => condition("Ready", true, "Programmed", several(&aside), None),
    };
    let reason =
        mine.iter().find(|finding| finding.reason.is_conflict()).map_or("NoConflict", |f| f.reason.word());
    vec![
        condition("Accepted", true, "Accepted", "", None),
        ready,
        condition("Conflicted", !conflicts.is_empty(), reason, several(&conflicts), None),
    ]
}

fn words(findings: &[&Finding], wanted: impl Fn(Reason) -> bool) -> Vec<String> {
    findings.iter().filter(|finding| wanted(finding.reason)).map(|finding| finding.message.clone()).collect()
}

/// The first few, and how many more there are.
fn several(all: &[String]) -> String {
    let more = all.len().saturating_sub(TOLD);
    let mut text = all.iter().take(TOLD).map(String::as_str).collect::<Vec<_>>().join("; ");
    if more > 0 {
        text = format!("{text}; and {more} more");
    }
    // Kubernetes takes 32768 bytes; nobody reads as many.
    text.chars().take(2000).collect()
}

/// The version to remember. A peer that was restarted counts anew from now; as long as its state is
/// the same, that is no change.
fn version(now: Option<&Version>, before: Option<&str>) -> Option<String> {
    let now = now?;
    let same = |before: &&str| {
        before.parse::<Version>().is_ok_and(|old| !old.digest.is_empty() && old.digest == now.digest)
    };
    Some(before.filter(same).map_or_else(|| now.to_string(), str::to_owned))
}

/// Whether a condition says that all is well.
pub(crate) fn is_well(condition: &Condition) -> bool {
    (condition.status == "True") != condition.type_.starts_with("Conflict")
}

/// The conditions worth an event: those that turned bad, changed their reason, or became well again.
/// That something is well from the beginning is no news.
pub(crate) fn news(before: &[Condition], after: &[Condition]) -> Vec<Condition> {
    let turned = |condition: &&Condition| {
        let old = before.iter().find(|old| old.type_ == condition.type_);
        match old {
            None => !is_well(condition),
            Some(old) => {
                old.status != condition.status || (!is_well(condition) && old.reason != condition.reason)
            }
        }
    };
    after.iter().filter(turned).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_are_counted() {
        let all: Vec<String> = (0..7).map(|n| n.to_string()).collect();
        assert_eq!(several(&all), "0; 1; 2; 3; 4; and 2 more");
        assert_eq!(several(&[]), "");
    }

    #[test]
    fn a_restart_of_a_peer_is_no_change() {
        let at = |millis, digest: &str| Version { millis, digest: digest.into() };
        let (old, same) = (at(5, "00ff00ff00ff00ff"), at(9, "00ff00ff00ff00ff"));
        assert_eq!(version(Some(&same), Some(&old.to_string())), Some(old.to_string()));
        let changed = at(9, "11ff00ff00ff00ff");
        assert_eq!(version(Some(&changed), Some(&old.to_string())), Some(changed.to_string()));
        let original: Version = "1700000000".parse().unwrap();
        assert_eq!(version(Some(&original), Some("1600000000")), Some("1700000000".into()));
        assert_eq!(version(None, Some("5-00ff00ff00ff00ff")), None);
    }

    #[test]
    fn only_changes_and_bad_beginnings_are_news() {
        let ready = |so: bool, reason: &str| condition("Ready", so, reason, "", None);
        let conflict = |so: bool| condition("Conflicted", so, "MeshesDiffer", "", None);
        let told = |before: &[Condition], after: &[Condition]| -> Vec<String> {
            news(before, after).into_iter().map(|condition| condition.type_).collect()
        };
        assert!(told(&[], &[ready(true, "Programmed"), conflict(false)]).is_empty());
        assert_eq!(told(&[], &[ready(false, "NotWritten"), conflict(true)]), ["Ready", "Conflicted"]);
        assert_eq!(told(&[ready(false, "NotWritten")], &[ready(true, "Programmed")]), ["Ready"]);
        assert_eq!(told(&[ready(false, "NotWritten")], &[ready(false, "Incomplete")]), ["Ready"]);
        assert!(told(&[conflict(true)], &[conflict(true)]).is_empty());
    }

    #[test]
    fn an_installation_for_another_mesh_is_told_of() {
        let (plan, peers) = (Plan::default(), Peers::default());
        let accepted = |account: Option<&str>| {
            let now = Timestamp::UNIX_EPOCH;
            let outcome = Outcome { plan: &plan, failures: &[], peers: &peers, complete: true, account, now };
            let status = outcome.federation("east", &MeshFederationStatus::default(), Some(1));
            let condition = status.conditions.into_iter().find(|one| one.type_ == "Accepted").unwrap();
            (condition.status, condition.reason)
        };
        let yes = || ("True".to_owned(), "Accepted".to_owned());
        assert_eq!(accepted(None), yes());
        assert_eq!(accepted(Some("federation-discovery-service-east")), yes());
        assert_eq!(accepted(Some("federation-controller")), yes(), "an account of one's own choice");
        let wrong = ("False".to_owned(), "WrongId".to_owned());
        assert_eq!(accepted(Some("federation-discovery-service-east1")), wrong);
    }

    #[test]
    fn a_conflict_and_a_failure_show_on_the_import() {
        let finding = Finding {
            about: About::Imported("a.b".into()),
            reason: Reason::Differs,
            message: "central has other ports".into(),
        };
        let conditions = import_conditions(&[&finding], Some("forbidden"));
        let find = |name: &str| conditions.iter().find(|condition| condition.type_ == name).unwrap();
        assert_eq!(
            (find("Conflicted").status.as_str(), find("Conflicted").reason.as_str()),
            ("True", "MeshesDiffer")
        );
        assert_eq!((find("Ready").status.as_str(), find("Ready").message.as_str()), ("False", "forbidden"));
    }
}
