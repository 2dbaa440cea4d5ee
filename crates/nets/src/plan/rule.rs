//! Whether a rule makes sense, before any cloud hears of it.

use ipnet::IpNet;
use sha2::{Digest, Sha256};

use crate::model::{ANY, Rule};
use crate::plan::target;

/// Longest name of a rule or tag.
pub const NAME_MAX: usize = 100;

const TCP: i32 = 6;
const UDP: i32 = 17;
const SCTP: i32 = 132;

/// One mistake in a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct Mistake {
    /// The field, such as `rules[2].dst_port`.
    pub field: String,
    /// What is wrong with it.
    pub message: String,
}

/// Every mistake in what a person wrote: the targets are not judged, they are not the person's.
pub fn check_request(rules: &[Rule]) -> Result<(), Vec<Mistake>> {
    let mut mistakes = mistakes_in_all(rules);
    for (index, _) in rules.iter().enumerate().filter(|(_, rule)| rule.tags.is_empty()) {
        mistakes.push(Mistake {
            field: format!("rules[{index}].tags"),
            message: "must name at least one tag, address or prefix".into(),
        });
    }
    if mistakes.is_empty() { Ok(()) } else { Err(mistakes) }
}

/// Every mistake in what a plugin is asked to permit. Its targets decide; the tags they came from are only
/// kept, and there need not be any.
pub fn check_call(rules: &[Rule]) -> Result<(), Vec<Mistake>> {
    let mut mistakes = mistakes_in_all(rules);
    mistakes.extend(rules.iter().filter_map(|rule| targets(rule).err()));
    if mistakes.is_empty() { Ok(()) } else { Err(mistakes) }
}

/// What is wrong with names, tags, protocols and ports, whoever gave them.
fn mistakes_in_all(rules: &[Rule]) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    let mut wrong = |index: usize, field: &str, message: String| {
        mistakes.push(Mistake { field: format!("rules[{index}].{field}"), message });
    };
    let mut names = std::collections::BTreeSet::new();
    for (index, rule) in rules.iter().enumerate() {
        if let Err(message) = name(&rule.name) {
            wrong(index, "name", message);
        } else if !names.insert(rule.name.as_str()) {
            wrong(index, "name", format!("`{}` is named twice", rule.name));
        }
        for tag in &rule.tags {
            if let Err(message) = tag_name(tag) {
                wrong(index, "tags", message);
            }
        }
        let legal = (ANY..=255).contains(&rule.protocol);
        if !legal {
            wrong(index, "protocol", format!("{} is not an IANA protocol number or -1", rule.protocol));
        }
        for (field, port) in [("src_port", rule.src_port), ("dst_port", rule.dst_port)] {
            if !(ANY..=65535).contains(&port) {
                wrong(index, field, format!("{port} is not a port or -1"));
            } else if legal && port > 0 && !has_ports(rule.protocol) {
                wrong(index, field, format!("protocol {} has no ports; use -1", rule.protocol));
            }
        }
    }
    mistakes
}

/// The name of a rule that came without one, from its contents: the same for the same, whatever the order.
/// The tags are what was written, so the targets they stand for today do not count beside them.
pub fn name_of_contents(rule: &Rule) -> String {
    let about = if rule.tags.is_empty() { &rule.targets } else { &rule.tags };
    let spell = |text: &String| target::parse(text).map_or_else(|| text.clone(), |net| net.to_string());
    let about: std::collections::BTreeSet<String> = about.iter().map(spell).collect();
    let Rule { direction, src_port, dst_port, protocol, .. } = rule;
    let about = about.into_iter().collect::<Vec<_>>().join(" ");
    let hash = Sha256::digest(format!("{direction:?} {src_port} {dst_port} {protocol} {about}").as_bytes());
    format!("rule-{}", hex::encode(&hash[..6]))
}

/// Whether a rule says from which port flows come and not where to: the way back of flows the other way,
/// which clouds that follow flows let pass by themselves.
pub fn is_way_back(rule: &Rule) -> bool {
    rule.src_port > ANY && rule.dst_port == ANY && rule.protocol != ANY && has_ports(rule.protocol)
}

/// Whether packets of a protocol carry ports; any protocol includes those that do.
pub fn has_ports(protocol: i32) -> bool {
    matches!(protocol, ANY | TCP | UDP | SCTP)
}

/// Names go into the names of cloud objects, so they are narrow.
pub fn name(name: &str) -> Result<(), String> {
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if name.is_empty() {
        Err("must not be empty".into())
    } else if name.len() > NAME_MAX || !name.bytes().all(legal) {
        Err(format!(
            "`{}` is not a name: 1 to {NAME_MAX} of letters, digits, `-`, `_` and `.`",
            name.escape_debug()
        ))
    } else {
        Ok(())
    }
}

/// Tags are names, or addresses and prefixes standing for themselves.
pub fn tag_name(tag: &str) -> Result<(), String> {
    let looks_like_address = tag.contains('/') || tag.contains(':');
    if target::parse(tag).is_some() {
        Ok(())
    } else if looks_like_address
        && tag.bytes().all(|b| b.is_ascii_hexdigit() || matches!(b, b'.' | b':' | b'/'))
    {
        Err(format!("`{tag}` is neither an address nor a prefix"))
    } else if tag.is_empty() || tag.len() > 1000 || tag.bytes().any(|b| b.is_ascii_control() || b == b' ') {
        Err(format!("`{}` is not a tag", tag.escape_debug()))
    } else {
        Ok(())
    }
}

/// The targets a plugin was given, read and joined so that none overlaps another.
pub fn targets(rule: &Rule) -> Result<Vec<IpNet>, Mistake> {
    let parsed: Result<Vec<IpNet>, Mistake> = rule
        .targets
        .iter()
        .map(|text| {
            target::parse(text).ok_or_else(|| Mistake {
                field: format!("{}.targets", rule.name),
                message: format!("`{}` is neither an address nor a prefix", text.escape_debug()),
            })
        })
        .collect();
    Ok(IpNet::aggregate(&parsed?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Rule {
        Rule {
            name: "web".into(),
            src_port: ANY,
            dst_port: 443,
            protocol: 6,
            tags: vec!["web".into()],
            ..Rule::default()
        }
    }

    fn fields(rule: Rule) -> Vec<String> {
        check_request(&[rule])
            .map_or_else(|mistakes| mistakes.into_iter().map(|m| m.field).collect(), |()| vec![])
    }

    #[test]
    fn each_field_is_judged_by_name() {
        assert!(fields(good()).is_empty());
        assert!(
            fields(Rule { tags: vec!["10.0.0.0/8".into(), "fd00::1".into(), "a.b.c".into()], ..good() })
                .is_empty()
        );
        let cases = [
            (Rule { name: String::new(), ..good() }, "rules[0].name"),
            (Rule { name: "a b".into(), ..good() }, "rules[0].name"),
            (Rule { tags: vec![], ..good() }, "rules[0].tags"),
            (Rule { tags: vec!["10.0.0.0/33".into()], ..good() }, "rules[0].tags"),
            (Rule { tags: vec!["a b".into()], ..good() }, "rules[0].tags"),
            (Rule { protocol: 256, ..good() }, "rules[0].protocol"),
            (Rule { protocol: -2, ..good() }, "rules[0].protocol"),
            (Rule { dst_port: 65536, ..good() }, "rules[0].dst_port"),
            (Rule { src_port: -2, ..good() }, "rules[0].src_port"),
            (Rule { protocol: 1, ..good() }, "rules[0].dst_port"),
        ];
        for (rule, field) in cases {
            assert_eq!(fields(rule.clone()), [field], "{rule:?}");
        }
    }

    #[test]
    fn all_mistakes_are_told_at_once() {
        let bad = Rule { name: "*".into(), protocol: 999, ..good() };
        let mistakes = check_request(&[good(), bad, good()]).unwrap_err();
        let fields: Vec<_> = mistakes.iter().map(|m| m.field.as_str()).collect();
        assert_eq!(fields, ["rules[1].name", "rules[1].protocol", "rules[2].name"]);
    }

    #[test]
    fn targets_are_joined() {
        let rule =
            Rule { targets: ["10.0.0.0/9", "10.128.0.0/9", "10.1.2.3"].map(String::from).to_vec(), ..good() };
        assert_eq!(targets(&rule).unwrap(), ["10.0.0.0/8".parse().unwrap()]);
        let bad = Rule { targets: vec!["x".into()], ..good() };
        assert_eq!(targets(&bad).unwrap_err().field, "web.targets");
    }

    #[test]
    fn plugins_judge_targets_and_need_no_tags() {
        let of = |rule: Rule| {
            check_call(&[rule])
                .map_or_else(|mistakes| mistakes.into_iter().map(|m| m.field).collect(), |()| vec![])
        };
        let bare = Rule { tags: vec![], targets: vec!["10.0.0.9".into()], ..good() };
        assert_eq!(of(bare.clone()), Vec::<String>::new());
        assert_eq!(of(Rule { targets: vec!["there".into()], ..bare.clone() }), ["web.targets"]);
        assert_eq!(of(Rule { dst_port: 70000, ..bare.clone() }), ["rules[0].dst_port"]);
        assert_eq!(of(Rule { name: String::new(), ..bare }), ["rules[0].name"]);
    }

    #[test]
    fn a_name_of_contents_is_that_of_equal_rules_only() {
        let one = Rule { tags: vec![], targets: vec!["10.0.0.9".into(), "10.1.0.0/16".into()], ..good() };
        let same = Rule { targets: vec!["10.1.0.0/16".into(), "10.0.0.9/32".into()], ..one.clone() };
        assert_eq!(name_of_contents(&one), name_of_contents(&same));
        assert!(name(&name_of_contents(&one)).is_ok());
        for other in [
            Rule { targets: vec!["10.0.0.9".into()], ..one.clone() },
            Rule { direction: crate::model::Direction::Outbound, ..one.clone() },
            Rule { protocol: 17, ..one.clone() },
            Rule { dst_port: 80, ..one.clone() },
            Rule { src_port: 80, ..one.clone() },
            Rule { tags: vec!["web".into()], ..one.clone() },
        ] {
            assert_ne!(name_of_contents(&one), name_of_contents(&other), "{other:?}");
        }
        // A tag may stand for other addresses tomorrow.
        let tagged = |targets: &[&str]| Rule {
            tags: vec!["web".into()],
            targets: targets.iter().map(ToString::to_string).collect(),
            ..good()
        };
        assert_eq!(name_of_contents(&tagged(&[])), name_of_contents(&tagged(&["10.0.0.9"])));
    }

    #[test]
    fn the_way_back_names_only_where_flows_come_from() {
        let ssh = Rule { src_port: 22, dst_port: ANY, ..good() };
        assert!(is_way_back(&ssh));
        for other in [
            Rule { dst_port: 80, ..ssh.clone() },
            Rule { src_port: ANY, ..ssh.clone() },
            Rule { protocol: ANY, ..ssh },
        ] {
            assert!(!is_way_back(&other), "{other:?}");
        }
    }
}
