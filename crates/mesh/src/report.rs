//! How a federation is, for `tarbet mesh status`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde::Serialize;
use tarbet_cluster::conditions::find;

use crate::crd::{FederationServiceRules, ImportedService, MeshFederation, RemoteStatus};
use crate::error::MeshError;

/// How a federation is.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The federation, the rules, and imports that are not as they should be.
    pub declarations: Vec<Declaration>,
    /// Each remote that is subscribed.
    pub remotes: Vec<RemoteStatus>,
}

/// One object and its state in words.
#[derive(Debug, Serialize)]
pub struct Declaration {
    /// Kind and name.
    pub name: String,
    /// Its state.
    pub state: String,
}

/// Reads how the federation of this cluster is.
pub async fn report(client: &Client) -> Result<Report, MeshError> {
    let failed = |kind: &'static str| {
        move |source: kube::Error| MeshError::Cluster {
            what: format!("list {kind} objects"),
            source: Box::new(source),
        }
    };
    let all = ListParams::default();
    let federations =
        Api::<MeshFederation>::all(client.clone()).list(&all).await.map_err(failed("MeshFederation"))?;
    let rules = Api::<FederationServiceRules>::all(client.clone())
        .list(&all)
        .await
        .map_err(failed("FederationServiceRules"))?;
    let imported =
        Api::<ImportedService>::all(client.clone()).list(&all).await.map_err(failed("ImportedService"))?;
    let (mut declarations, mut remotes) = (Vec::new(), Vec::new());
    for federation in federations.items {
        let status = federation.status.clone().unwrap_or_default();
        let name = format!("MeshFederation {} ({})", federation.name_any(), federation.spec.local.id);
        let counts = format!(
            ", {} remotes connected, {} services imported",
            status.connected.as_deref().unwrap_or("no"),
            status.imported.unwrap_or(0)
        );
        declarations.push(Declaration { name, state: state(&status.conditions) + &counts });
        remotes.extend(status.remotes);
    }
    for one in rules.items {
        let status = one.status.clone().unwrap_or_default();
        let name =
            format!("FederationServiceRules {}/{}", one.namespace().unwrap_or_default(), one.name_any());
        let counts = format!(", {} services exported", status.exported.unwrap_or(0));
        declarations.push(Declaration { name, state: state(&status.conditions) + &counts });
    }
    for one in imported.items {
        let conditions = one.status.clone().unwrap_or_default().conditions;
        let well = holds(&conditions, "Ready", true) && !holds(&conditions, "Conflicted", true);
        if !well {
            let name =
                format!("ImportedService {}/{}", one.namespace().unwrap_or_default(), one.spec.hostname);
            declarations.push(Declaration { name, state: state(&conditions) });
        }
    }
    Ok(Report { declarations, remotes })
}

fn holds(conditions: &[Condition], name: &str, so: bool) -> bool {
    find(conditions, name).is_some_and(|condition| (condition.status == "True") == so)
}

/// What is wrong, or that nothing is.
fn state(conditions: &[Condition]) -> String {
    if conditions.is_empty() {
        return "no controller has looked at it yet".to_owned();
    }
    let wrong = conditions
        .iter()
        .filter(|condition| (condition.type_ == "Conflicted") == (condition.status == "True"));
    let words: Vec<String> =
        wrong.map(|condition| format!("{}: {}", condition.reason, condition.message)).collect();
    if words.is_empty() { "ready".to_owned() } else { words.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarbet_cluster::conditions::condition;

    #[test]
    fn only_what_is_wrong_is_told() {
        let well = [
            condition("Ready", true, "Programmed", "", None),
            condition("Conflicted", false, "NoConflict", "", None),
        ];
        assert_eq!(state(&well), "ready");
        let ill = [
            condition("Ready", false, "NotWritten", "no", None),
            condition("Conflicted", true, "NameTaken", "b has it", None),
        ];
        assert_eq!(state(&ill), "NotWritten: no; NameTaken: b has it");
        assert!(state(&[]).contains("no controller"));
    }
}
