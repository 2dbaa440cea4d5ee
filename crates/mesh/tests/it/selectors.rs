//! Our selectors and those of a real API server mean the same.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use tarbet_cluster::{Source, connect};
use tarbet_mesh::crd::{Operator, Requirement, Selector};
use tarbet_testbed::shared_pair;

fn selector() -> impl Strategy<Value = Selector> {
    let operator = prop_oneof![
        Just(Operator::In),
        Just(Operator::NotIn),
        Just(Operator::Exists),
        Just(Operator::DoesNotExist)
    ];
    let requirement =
        ("[a-c]", operator, proptest::collection::vec("[x-z]?", 1..3)).prop_map(|(key, operator, values)| {
            let values = if matches!(operator, Operator::In | Operator::NotIn) { values } else { Vec::new() };
            Requirement { key, operator, values }
        });
    let labels = proptest::collection::btree_map("[a-c]", "[x-z]?", 0..2);
    (labels, proptest::collection::vec(requirement, 0..3))
        .prop_map(|(match_labels, match_expressions)| Selector { match_labels, match_expressions })
}

/// As the API server reads selectors in a query.
fn query(selector: &Selector) -> String {
    let labels = selector.match_labels.iter().map(|(key, value)| format!("{key}={value}"));
    let expressions = selector.match_expressions.iter().map(|Requirement { key, operator, values }| {
        let list = values.join(",");
        match operator {
            Operator::In => format!("{key} in ({list})"),
            Operator::NotIn => format!("{key} notin ({list})"),
            Operator::Exists => key.clone(),
            Operator::DoesNotExist => format!("!{key}"),
        }
    });
    labels.chain(expressions).collect::<Vec<_>>().join(",")
}

#[tokio::test]
async fn a_real_api_server_chooses_the_same_objects() {
    let plane = &shared_pair().await.unwrap().public;
    let namespace = plane.unique_namespace("selectors").await.unwrap();
    let client = connect(&Source::file(plane.kubeconfig())).await.unwrap();
    let api: Api<ConfigMap> = Api::namespaced(client, &namespace);
    let mut runner = TestRunner::deterministic();
    let labels = proptest::collection::btree_map("[a-c]", "[x-z]?", 0..4);
    for number in 0..12 {
        let mut object = ConfigMap::default();
        object.metadata.name = Some(format!("o{number}"));
        object.metadata.labels = Some(labels.new_tree(&mut runner).unwrap().current());
        api.create(&PostParams::default(), &object).await.unwrap();
    }
    let all = api.list(&ListParams::default()).await.unwrap().items;
    let effort = tarbet_testbed::effort();
    for _ in 0..60 * effort {
        let selector = selector().new_tree(&mut runner).unwrap().current();
        let query = query(&selector);
        let chosen = api.list(&ListParams::default().labels(&query)).await.unwrap();
        let theirs: BTreeSet<String> = chosen.items.iter().map(ResourceExt::name_any).collect();
        let ours: BTreeSet<String> = all
            .iter()
            .filter(|object| selector.matches(object.labels()))
            .map(ResourceExt::name_any)
            .collect();
        assert_eq!(ours, theirs, "{query}");
    }
}
