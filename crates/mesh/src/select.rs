//! Which labels a selector means, as Kubernetes decides it, and which services the rules name.

use crate::crd::{Export, ExportSelector, Operator, Requirement, Selector};
use crate::model::Labels;

impl Selector {
    /// Whether it means something with these labels. All parts must hold; without parts, it means all.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|requirement| requirement.holds(labels))
    }
}

impl Requirement {
    fn holds(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        let listed = |value: &String| self.values.contains(value);
        match self.operator {
            Operator::In => value.is_some_and(listed),
            // A missing label differs from every value.
            Operator::NotIn => !value.is_some_and(listed),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

/// Whether any of the selectors means it; none means nothing.
pub(crate) fn any(selectors: &[Selector], labels: &Labels) -> bool {
    selectors.iter().any(|selector| selector.matches(labels))
}

impl Export {
    /// Whether a rule names this service.
    pub fn names(&self, namespace: &str, name: &str, labels: &Labels, namespace_labels: &Labels) -> bool {
        any(&self.service_selectors, labels)
            || any(&self.namespace_selectors, namespace_labels)
            || self.service_list.iter().any(|entry| is_listed(entry, namespace, name))
            || self.selectors.iter().any(|selector| selector.names(labels, namespace_labels))
    }
}

impl Export {
    /// Whether a mesh is told of an exported service with these labels. A service that several entries
    /// mean is told to the meshes of all of them.
    pub fn tells(&self, mesh: &str, labels: &Labels) -> bool {
        let mut meant = self.only_to.iter().filter(|only| any(&only.service_selectors, labels)).peekable();
        meant.peek().is_none() || meant.any(|only| only.mesh_ids.iter().any(|id| id == mesh))
    }
}

impl ExportSelector {
    fn names(&self, labels: &Labels, namespace_labels: &Labels) -> bool {
        let Self { service_selector, namespace_selector } = self;
        // The schema refuses this; should it come another way, it names nothing rather than all.
        if service_selector.is_none() && namespace_selector.is_none() {
            return false;
        }
        service_selector.as_ref().is_none_or(|selector| selector.matches(labels))
            && namespace_selector.as_ref().is_none_or(|selector| selector.matches(namespace_labels))
    }
}

fn is_listed(entry: &str, namespace: &str, name: &str) -> bool {
    entry.split_once('/').is_some_and(|(in_namespace, service)| {
        in_namespace == namespace && (service == "*" || service == name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    fn requirement(key: &str, operator: Operator, values: &[&str]) -> Requirement {
        Requirement { key: key.into(), operator, values: values.iter().map(|&v| v.to_owned()).collect() }
    }

    #[test]
    fn a_selector_with_expressions_alone_does_not_mean_everything() {
        let only = Selector {
            match_expressions: vec![requirement("app", Operator::In, &["ratings"])],
            ..Selector::default()
        };
        assert!(only.matches(&labels(&[("app", "ratings")])));
        assert!(!only.matches(&labels(&[("app", "secrets")])));
        assert!(!only.matches(&labels(&[])));
    }

    #[test]
    fn both_variants_name_services() {
        let ratings = labels(&[("app", "ratings")]);
        let (blank, enabled) = (labels(&[]), labels(&[("mesh", "yes")]));
        let selector = |pairs| Selector { match_labels: labels(pairs), ..Selector::default() };
        let nothing = Export::default();
        assert!(!nothing.names("a", "ratings", &ratings, &enabled), "no rule, no export");
        let by_label =
            Export { service_selectors: vec![selector(&[("app", "ratings")])], ..Export::default() };
        assert!(by_label.names("a", "x", &ratings, &blank) && !by_label.names("a", "x", &blank, &enabled));
        let by_namespace =
            Export { namespace_selectors: vec![selector(&[("mesh", "yes")])], ..Export::default() };
        assert!(by_namespace.names("a", "x", &blank, &enabled));
        assert!(!by_namespace.names("a", "x", &ratings, &blank));
        let listed = Export { service_list: vec!["a/x".into(), "b/*".into()], ..Export::default() };
        assert!(listed.names("a", "x", &blank, &blank) && listed.names("b", "y", &blank, &blank));
        assert!(!listed.names("a", "y", &blank, &blank) && !listed.names("c", "x", &blank, &blank));
        let both = Export {
            selectors: vec![ExportSelector {
                service_selector: Some(selector(&[("app", "ratings")])),
                namespace_selector: Some(selector(&[("mesh", "yes")])),
            }],
            ..Export::default()
        };
        assert!(both.names("a", "x", &ratings, &enabled));
        assert!(!both.names("a", "x", &ratings, &blank) && !both.names("a", "x", &blank, &enabled));
        let neither = Export { selectors: vec![ExportSelector::default()], ..Export::default() };
        assert!(!neither.names("a", "x", &ratings, &enabled));
    }

    fn some_labels() -> impl Strategy<Value = Labels> {
        proptest::collection::btree_map("[a-c]", "[x-z]", 0..4)
    }

    fn some_requirement() -> impl Strategy<Value = Requirement> {
        let operator = prop_oneof![
            Just(Operator::In),
            Just(Operator::NotIn),
            Just(Operator::Exists),
            Just(Operator::DoesNotExist)
        ];
        ("[a-c]", operator, proptest::collection::vec("[x-z]", 1..3)).prop_map(|(key, operator, values)| {
            let values = if matches!(operator, Operator::In | Operator::NotIn) { values } else { Vec::new() };
            Requirement { key, operator, values }
        })
    }

    #[test]
    fn a_limited_service_is_told_to_the_named_meshes_alone() {
        let only = |mesh: &str, key: &str| {
            serde_json::json!({
                "meshIDs": [mesh], "serviceSelectors": [{ "matchLabels": { key: "true" } }],
            })
        };
        let export: Export =
            serde_json::from_value(serde_json::json!({ "onlyTo": [only("west", "a"), only("north", "b")] }))
                .unwrap();
        let told = |labels: &[&str]| -> Vec<&str> {
            let labels = labels.iter().map(|key| ((*key).to_owned(), "true".to_owned())).collect();
            ["west", "north", "south"].into_iter().filter(|mesh| export.tells(mesh, &labels)).collect()
        };
        assert_eq!(told(&[]), ["west", "north", "south"]);
        assert_eq!(told(&["a"]), ["west"]);
        assert_eq!(told(&["a", "b"]), ["west", "north"]);
        assert!(!export.tells("", &[("a".to_owned(), "true".to_owned())].into()), "nor is a stranger");
    }

    proptest! {
        #[test]
        fn opposites_never_agree(labels in some_labels(), requirement in some_requirement()) {
            let opposite = Requirement {
                operator: match requirement.operator {
                    Operator::In => Operator::NotIn,
                    Operator::NotIn => Operator::In,
                    Operator::Exists => Operator::DoesNotExist,
                    Operator::DoesNotExist => Operator::Exists,
                },
                ..requirement.clone()
            };
            prop_assert_ne!(requirement.holds(&labels), opposite.holds(&labels));
        }

        #[test]
        fn a_label_to_match_is_in_with_one_value(labels in some_labels(), key in "[a-c]", value in "[x-z]") {
            let plain = Selector { match_labels: [(key.clone(), value.clone())].into(), ..Selector::default() };
            let long = Selector {
                match_expressions: vec![Requirement { key, operator: Operator::In, values: vec![value] }],
                ..Selector::default()
            };
            prop_assert_eq!(plain.matches(&labels), long.matches(&labels));
        }

        #[test]
        fn more_parts_mean_no_more(
            labels in some_labels(), parts in proptest::collection::vec(some_requirement(), 0..4), extra in some_requirement()
        ) {
            let few = Selector { match_expressions: parts.clone(), ..Selector::default() };
            let more = Selector { match_expressions: parts.into_iter().chain([extra]).collect(), ..Selector::default() };
            prop_assert!(!more.matches(&labels) || few.matches(&labels));
            prop_assert!(Selector::default().matches(&labels), "a selector without parts means everything");
            prop_assert!(!super::any(&[], &labels), "no selector means nothing");
        }
    }
}
