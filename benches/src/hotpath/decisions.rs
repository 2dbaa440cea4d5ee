//! What is decided for every request, pod, tag and offer.

use anyhow::Result;
use tarbet_nets::plan::tags::{Graph, Mapping};
use tarbet_reach::agent::policy::{KubeRequest, Policy, Verdict, Wanted};

/// A request to a site is read and judged.
pub(super) fn policy() -> Result<Box<dyn FnMut()>> {
    let policy: Policy = serde_json::from_value(serde_json::json!({
        "kubernetes": [
            {"verbs": ["get", "list"], "namespaces": ["team-*"], "resources": ["pods", "pods/log"]},
            {"verbs": ["create"], "namespaces": ["team-a"], "resources": ["deployments.apps"]},
        ]
    }))?;
    Ok(Box::new(move || {
        let request =
            KubeRequest::parse("GET", "/api/v1/namespaces/team-a/pods/web-1/log", Some("follow=true"));
        let wanted = request.map(|request| Wanted::Kubernetes(request, Vec::new()));
        assert!(wanted.is_ok_and(|wanted| policy.judge(&wanted, None) == Verdict::Permit), "it is permitted");
    }))
}

/// Bytes from outside are read, and what they mean is worked out.
pub(super) fn read(data: &'static [u8], reader: fn(&[u8])) -> Box<dyn FnMut()> {
    Box::new(move || reader(data))
}

/// A tag of a hundred members is resolved.
pub(super) fn tag() -> Result<Box<dyn FnMut()>> {
    let mut graph = Graph::default();
    let members: Vec<String> = (0..100).map(|n| format!("default.local.vm{n}")).collect();
    let leaves = members.iter().enumerate().map(|(n, name)| Mapping {
        name: name.clone(),
        ip: Some(format!("10.0.0.{n}")),
        ..Mapping::default()
    });
    let group = Mapping { name: "web".into(), child_tags: members.clone(), ..Mapping::default() };
    for tag in leaves.chain([group]) {
        for write in graph.set(&tag)? {
            graph.apply(&write);
        }
    }
    Ok(Box::new(move || assert_eq!(graph.addresses("web").len(), 100)))
}
