use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn group(name: &str, children: &[&str]) -> Mapping {
    Mapping {
        name: name.into(),
        child_tags: children.iter().map(ToString::to_string).collect(),
        ..Mapping::default()
    }
}

fn leaf(name: &str, ip: &str) -> Mapping {
    Mapping { name: name.into(), uri: Some(format!("uri/{name}")), ip: Some(ip.into()), ..Mapping::default() }
}

fn set(graph: &mut Graph, tag: &Mapping) {
    for write in graph.set(tag).unwrap() {
        graph.apply(&write);
    }
}

fn delete(graph: &mut Graph, tag: &str) {
    for write in graph.delete(tag).unwrap() {
        graph.apply(&write);
    }
}

fn sample() -> Graph {
    let mut graph = Graph::default();
    set(&mut graph, &leaf("a", "10.0.0.1"));
    set(&mut graph, &leaf("b", "10.0.0.2"));
    set(&mut graph, &group("one", &["a", "b", "10.9.0.0/16"]));
    set(&mut graph, &group("two", &["b", "later"]));
    set(&mut graph, &group("all", &["one", "two"]));
    graph
}

#[test]
fn nested_groups_resolve_to_each_leaf_once() {
    let graph = sample();
    assert_eq!(graph.addresses("all"), ["10.9.0.0/16", "10.0.0.1", "10.0.0.2"]);
    assert_eq!(graph.addresses("a"), ["10.0.0.1"]);
    assert_eq!(graph.addresses("10.1.1.1"), ["10.1.1.1"]);
    assert!(graph.resolve("nothing").is_empty());
    assert!(graph.get("later").is_none(), "named, but no tag yet");
    assert_eq!(graph.get("two").unwrap().child_tags, ["b", "later"]);
    assert_eq!(graph.len(), 5);
    // A diamond of many layers would be two to the power of its height if leaves were repeated.
    let mut deep = Graph::default();
    set(&mut deep, &leaf("0x", "10.0.0.1"));
    set(&mut deep, &leaf("0y", "10.0.0.2"));
    for layer in 1..64 {
        let below = [format!("{}x", layer - 1), format!("{}y", layer - 1)];
        let below: Vec<&str> = below.iter().map(String::as_str).collect();
        set(&mut deep, &group(&format!("{layer}x"), &below));
        set(&mut deep, &group(&format!("{layer}y"), &below));
    }
    assert_eq!(deep.addresses("63x").len(), 2);
}

#[test]
fn circles_are_refused_aloud() {
    let graph = sample();
    for (parent, child) in [("one", "all"), ("one", "one"), ("a2", "a2")] {
        let error = graph.set(&group(parent, &["b", child])).unwrap_err();
        assert_eq!(error, TagError::Cycle { parent: parent.into(), child: child.into() });
    }
    assert_eq!(graph.addresses("all").len(), 3);
}

#[test]
fn shapes_and_kinds_are_kept_apart() {
    let graph = sample();
    let both = Mapping { child_tags: vec!["a".into()], ..leaf("x", "10.0.0.9") };
    assert_eq!(graph.set(&both), Err(TagError::Shape("x".into())));
    assert_eq!(graph.set(&group("x", &[])), Err(TagError::Shape("x".into())));
    assert!(matches!(graph.set(&leaf("one", "10.0.0.9")), Err(TagError::Kind(..))));
    assert!(matches!(graph.set(&group("a", &["b"])), Err(TagError::Kind(..))));
    assert!(matches!(graph.set(&leaf("x", "300.0.0.1")), Err(TagError::Address { .. })));
    assert!(matches!(graph.set(&leaf("10.0.0.1", "10.0.0.1")), Err(TagError::Name(_))));
    assert!(graph.set(&leaf("a", "10.0.0.1")).unwrap().is_empty(), "nothing changes");
    assert_eq!(graph.set(&leaf("a", "10.0.0.7")).unwrap().len(), 1, "a resource may move");
    assert!(graph.set(&group("one", &["a"])).unwrap().is_empty(), "members are added, never replaced");
}

#[test]
fn deleting_cleans_parents_and_members_and_remembers_who_followed() {
    let mut graph = sample();
    for (tag, who) in [("one", "s1"), ("all", "s2"), ("b", "s3"), ("two", "s4")] {
        for write in graph.subscribe(tag, who).unwrap() {
            graph.apply(&write);
        }
    }
    assert!(graph.subscribe("one", "s1").unwrap().is_empty());
    assert_eq!(graph.affected("a").into_iter().collect::<Vec<_>>(), ["s1", "s2"]);
    assert_eq!(graph.affected("b").len(), 4, "those of every tag above hear of it");
    delete(&mut graph, "one");
    assert_eq!(graph.get("all").unwrap().child_tags, ["two"]);
    assert_eq!(graph.subscribers("one"), ["s1"], "their rules still name it");
    assert_eq!(graph.affected("a").len(), 0);
    assert_eq!(graph.delete("one"), Ok(vec![]), "what is not there is as wanted");
    assert_eq!(graph.delete_member("two", "a"), Ok(vec![]), "who is not in it is as wanted");
    assert_eq!(graph.delete_member("one", "a"), Err(TagError::Unknown("one".into())));
    for write in graph.delete_member("two", "later").unwrap() {
        graph.apply(&write);
    }
    assert_eq!(graph.get("two").unwrap().child_tags, ["b"]);
    set(&mut graph, &group("one", &["a"]));
    assert_eq!(
        graph.affected("a").into_iter().collect::<Vec<_>>(),
        ["s1"],
        "set again, it is followed again"
    );
    for tag in ["all", "one", "two", "a", "b"] {
        delete(&mut graph, tag);
    }
    for (tag, who) in [("one", "s1"), ("all", "s2"), ("b", "s3"), ("two", "s4")] {
        for write in graph.unsubscribe(tag, who) {
            graph.apply(&write);
        }
    }
    assert!(graph.nodes.is_empty(), "{graph:?}");
}

proptest! {
    /// Against a model that keeps plain sets and walks them without any index.
    #[test]
    fn agrees_with_plain_sets(steps in prop::collection::vec((0_u8..4, 0_u8..6, 0_u8..6), 1..50)) {
        let mut graph = Graph::default();
        let mut model: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let name = |n: u8| format!("t{n}");
        for (what, x, y) in steps {
            let (x, y) = (name(x), name(y));
            match what {
                0 | 1 => {
                    let circle = reaches(&model, &y, &x);
                    let result = graph.set(&group(&x, &[&y]));
                    prop_assert_eq!(result.is_err(), circle, "{} into {}", y, x);
                    if let Ok(writes) = result {
                        for write in &writes {
                            graph.apply(write);
                        }
                        model.entry(x).or_default().insert(y);
                    }
                }
                2 => {
                    let known = model.get_mut(&x).map(|members| members.remove(&y)).is_some();
                    let result = graph.delete_member(&x, &y);
                    prop_assert_eq!(result.is_ok(), known);
                    for write in result.into_iter().flatten() {
                        graph.apply(&write);
                    }
                }
                _ => {
                    let known = model.remove(&x).is_some();
                    if known {
                        for members in model.values_mut() {
                            members.remove(&x);
                        }
                    }
                    let result = graph.delete(&x);
                    prop_assert_eq!(result.as_ref().is_ok_and(|writes| !writes.is_empty()), known);
                    prop_assert!(result.is_ok(), "one that is not there is as wanted");
                    for write in result.into_iter().flatten() {
                        graph.apply(&write);
                    }
                }
            }
            for (tag, members) in &model {
                let found: BTreeSet<String> = graph.get(tag).unwrap().child_tags.into_iter().collect();
                prop_assert_eq!(&found, members);
            }
            prop_assert_eq!(graph.len(), model.len());
        }
    }
}

proptest! {
    /// What a change would come to is what it comes to, and until then nothing is different.
    #[test]
    fn what_is_foreseen_comes_true(steps in prop::collection::vec((0_u8..5, 0_u8..6, 0_u8..6), 1..40)) {
        let mut graph = Graph::default();
        let name = |n: u8| format!("t{n}");
        let all: Vec<String> = (0..6).map(name).collect();
        for (what, x, y) in steps {
            let (tag, other) = (name(x), name(y));
            let writes = match what {
                0 => graph.set(&group(&tag, &[&other])),
                1 => graph.set(&group(&tag, &[&format!("10.0.{x}.{y}")])),
                2 => graph.set(&leaf(&tag, &format!("10.1.{x}.{y}"))),
                3 => graph.delete_member(&tag, &other),
                _ => graph.delete(&tag),
            };
            let Ok(writes) = writes else { continue };
            let look = |graph: &Graph| all.iter().map(|tag| graph.addresses(tag)).collect::<Vec<_>>();
            let before = look(&graph);
            let foreseen: Vec<Vec<String>> = {
                let then = graph.what_if(&writes);
                all.iter().map(|tag| then.addresses(tag)).collect()
            };
            prop_assert_eq!(look(&graph), before);
            for write in &writes {
                graph.apply(write);
            }
            prop_assert_eq!(look(&graph), foreseen);
        }
    }
}

fn reaches(model: &BTreeMap<String, BTreeSet<String>>, from: &str, to: &str) -> bool {
    from == to
        || model.get(from).is_some_and(|members| members.iter().any(|member| reaches(model, member, to)))
}
