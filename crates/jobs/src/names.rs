//! Names that others rely on: labels, annotations, finalizers, and what a run is called.

use sha2::{Digest, Sha256};

/// Keeps a request until its run is ended.
pub const REQUEST_FINALIZER: &str = "internal-services.appstudio.openshift.io/pipelinerun-cleanup";
/// Keeps a run until its end is told to the request, whoever deletes it.
pub const RUN_FINALIZER: &str = "tarbet.dev/report";
/// The one condition of a request, and that of a run.
pub const SUCCEEDED: &str = "Succeeded";
/// The name of the one configuration object.
pub const CONFIG: &str = "config";

pub(crate) const LABEL_NAME: &str = "internal-services.appstudio.openshift.io/name";
pub(crate) const LABEL_NAMESPACE: &str = "internal-services.appstudio.openshift.io/namespace";
pub(crate) const LABEL_TYPE: &str = "pipelines.appstudio.openshift.io/type";
pub(crate) const LABEL_REMOTE: &str = "tarbet.dev/remote";
pub(crate) const LABEL_UID: &str = "tarbet.dev/request-uid";
pub(crate) const LABEL_LOG: &str = "tarbet.dev/request-log";
pub(crate) const ANNOTATION_OWNER: &str = "operator-sdk/primary-resource";
pub(crate) const ANNOTATION_OWNER_TYPE: &str = "operator-sdk/primary-resource-type";
pub(crate) const ANNOTATION_OFFER: &str = "tarbet.dev/offer";
pub(crate) const OWNER_TYPE: &str = "InternalRequest.appstudio.redhat.com";

/// Domains whose labels are taken over for tracing and attribution. Any other label could make
/// the run's pods match a selector of the private cluster, so it is left behind.
const COPIED_DOMAINS: [&str; 3] = ["appstudio.openshift.io", "appstudio.redhat.com", "konflux-ci.dev"];

/// The name of the run of a request: the same for the same request of the same remote, so that
/// the API server itself refuses a second one.
pub fn run_name(remote: &str, uid: &str) -> String {
    let mut hash = Sha256::new();
    // The length keeps ("ab", "c") and ("a", "bc") apart.
    hash.update((remote.len() as u64).to_be_bytes());
    hash.update(remote);
    hash.update(uid);
    format!("internalrequest-{}", hex::encode(&hash.finalize()[..16]))
}

/// A name for a remote that has none: made from where it is, so that two have two.
pub fn remote_name(place: &str) -> String {
    format!("remote-{}", hex::encode(&Sha256::digest(place)[..6]))
}

/// The name of the object that keeps the log of a run.
pub fn log_name(run: &str) -> String {
    format!("{run}-log")
}

/// The name of the object that keeps which namespaces of a remote were watched.
pub(crate) fn watched_name(remote: &str) -> String {
    format!("tarbet-jobs-watched-{}", hex::encode(&Sha256::digest(remote)[..6]))
}

/// The text as a label value; a longer one is cut and marked with a hash, so that two stay two.
pub fn label_value(text: &str) -> String {
    const LONGEST: usize = 63;
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.len() <= LONGEST && text.chars().all(fits) {
        return text.to_owned();
    }
    let mark = hex::encode(&Sha256::digest(text)[..6]);
    let start: String = text.chars().filter(|&c| fits(c)).take(LONGEST - 1 - mark.len()).collect();
    let start = start.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    if start.is_empty() { mark } else { format!("{start}-{mark}") }
}

/// Whether a label of a request is taken over by its run. `more` are keys, prefixes that end in `/`, or `*` for all,
/// as the original does it.
pub(crate) fn copied_label(key: &str, more: &[String]) -> bool {
    let ours = [LABEL_NAME, LABEL_NAMESPACE, LABEL_TYPE].contains(&key) || key.starts_with("tarbet.dev/");
    if ours || key.starts_with("tekton.dev/") {
        return false;
    }
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let known = COPIED_DOMAINS
        .iter()
        .any(|known| domain.strip_suffix(known).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')));
    known
        || more.iter().any(|wanted| {
            wanted == "*" || key == wanted || (wanted.ends_with('/') && key.starts_with(wanted.as_str()))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn labels_of_strangers_stay_behind() {
        let all = ["*".to_owned()];
        assert!(copied_label("anything", &all) && copied_label("a.example/b", &all));
        assert!(!copied_label("tekton.dev/pipelineRun", &all) && !copied_label("tarbet.dev/remote", &all));
        let more = ["team.example.com/".to_owned(), "cost-centre".to_owned()];
        for copied in [
            "internal-services.appstudio.openshift.io/pipeline-name",
            "appstudio.openshift.io/application",
            "release.appstudio.openshift.io/name",
            "team.example.com/owner",
            "cost-centre",
        ] {
            assert!(copied_label(copied, &more), "{copied}");
        }
        for left in [
            "app",
            "app.kubernetes.io/name",
            "tekton.dev/pipeline",
            "tarbet.dev/remote",
            LABEL_NAME,
            LABEL_TYPE,
            "evilappstudio.openshift.io/x",
            "team.example.community/owner",
            "cost-centre-2",
        ] {
            assert!(!copied_label(left, &more), "{left}");
        }
    }

    proptest! {
        #[test]
        fn any_text_becomes_a_label_value(text in "\\PC{0,200}", other in "\\PC{0,200}") {
            let value = label_value(&text);
            prop_assert!(value.len() <= 63);
            prop_assert!(value.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)));
            if text.len() > 63 {
                prop_assert!(value.starts_with(|c: char| c.is_ascii_alphanumeric()));
                prop_assert!(text == other || label_value(&other) != value);
            }
        }

        #[test]
        fn a_run_has_a_name_of_its_own(remote in "[a-z]{1,20}", uid in "[0-9a-f-]{36}", cut in 1usize..20) {
            let name = run_name(&remote, &uid);
            prop_assert_eq!(&name, &run_name(&remote, &uid));
            prop_assert!(name.len() <= 63);
            let cut = cut.min(remote.len());
            let (left, right) = remote.split_at(cut);
            if !right.is_empty() {
                prop_assert_ne!(run_name(left, &format!("{right}{uid}")), name);
            }
        }
    }
}
