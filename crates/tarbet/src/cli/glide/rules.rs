//! `tarbet glide rule …`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Subcommand;
use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use tarbet_nets::model::{ANY, Direction, Rule};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::{ground, nets};

use super::client::{self, Glide, escape};
use crate::output::Format;

#[derive(Debug, Subcommand)]
pub enum RuleCommand {
    /// Add rules to a resource, or to every resource under a tag
    #[command(
        after_help = "Examples:\n  tarbet glide rule add local web --rulefile rules.json\n  tarbet glide rule add local web --ping clients --ssh admins\n  tarbet glide rule add servers --rulefile rules.json --plan\n\nA rule: {\"name\": \"web\", \"direction\": \"inbound\", \"src_port\": -1, \"dst_port\": 443, \"protocol\": 6, \"tags\": [\"clients\"]}"
    )]
    Add {
        /// Cloud and name of the resource, or one tag
        #[arg(num_args = 1..=2, required = true, value_name = "CLOUD NAME | TAG")]
        target: Vec<String>,
        /// A file with a list of rules (JSON)
        #[arg(long, value_name = "FILE")]
        rulefile: Option<PathBuf>,
        /// Permit ping from and to this tag
        #[arg(long, value_name = "TAG")]
        ping: Option<String>,
        /// Permit ssh from this tag
        #[arg(long, value_name = "TAG")]
        ssh: Option<String>,
    },
    /// Show the rules of a resource
    #[command(after_help = "Examples:\n  tarbet glide rule get local web")]
    Get {
        /// The cloud
        cloud: String,
        /// The resource
        name: String,
    },
    /// Delete rules by name
    #[command(
        after_help = "Examples:\n  tarbet glide rule delete local web --rules web,ssh\n  tarbet glide rule delete servers --rules web"
    )]
    Delete {
        /// Cloud and name of the resource, or one tag
        #[arg(num_args = 1..=2, required = true, value_name = "CLOUD NAME | TAG")]
        target: Vec<String>,
        /// Their names
        #[arg(long, value_delimiter = ',', required = true, value_name = "A,B")]
        rules: Vec<String>,
    },
}

pub async fn run(glide: &Glide, command: RuleCommand) -> Result<(), Problem> {
    let resource = |cloud: &str, name: &str| client::resource(&glide.namespace, cloud, name);
    match command {
        RuleCommand::Add { target, rulefile, ping, ssh } => {
            let mut rules = rulefile.as_ref().map_or_else(|| Ok(Vec::new()), |file| read(file))?;
            rules.extend(ping.iter().flat_map(|tag| pinging(tag)));
            rules.extend(ssh.iter().flat_map(|tag| sshing(tag)));
            if rules.is_empty() {
                return Err(Problem::new(&ground::BAD_REQUEST, "There is no rule to add.")
                    .at("tarbet glide rule add")
                    .because("none of --rulefile, --ping and --ssh was given")
                    .advising("name at least one of them"));
            }
            let path = match target.as_slice() {
                [cloud, name] => format!("{}/applyRules", resource(cloud, name)),
                tag => format!("/tags/{}/rules", escape(&tag.concat())),
            };
            glide.change(Method::POST, &path, json!(rules), "Added.").await
        }
        RuleCommand::Get { cloud, name } => {
            let found =
                glide.ask(Method::GET, &format!("{}/rules", resource(&cloud, &name)), Value::Null).await?;
            let rules: Vec<Rule> = serde_json::from_value(found).unwrap_or_default();
            if glide.format != Format::Table {
                // As they can be given to --rulefile again.
                return glide.format.value(&rules);
            }
            let rows: Vec<Value> = rules.iter().map(row).collect();
            let columns = ["name", "direction", "protocol", "src_port", "dst_port", "tags", "targets"];
            glide.rows(&Value::from(rows), &columns, "It has no rules: nothing may pass.")
        }
        RuleCommand::Delete { target, rules } => {
            let holders = match target.as_slice() {
                [cloud, name] => vec![resource(cloud, name)],
                tag => members(glide, &tag.concat()).await?,
            };
            must_exist(glide, &holders, &rules).await?;
            let (method, path) = match target.as_slice() {
                [cloud, name] => (Method::POST, format!("{}/deleteRules", resource(cloud, name))),
                tag => (Method::DELETE, format!("/tags/{}/rules", escape(&tag.concat()))),
            };
            glide.change(method, &path, json!(rules), "Deleted.").await
        }
    }
}

/// The resources under a tag, by their paths.
async fn members(glide: &Glide, tag: &str) -> Result<Vec<String>, Problem> {
    let found =
        glide.ask(Method::POST, &format!("/tags/{}/resolveMembers", escape(tag)), Value::Null).await?;
    Ok(found.as_array().into_iter().flatten().filter_map(holder).collect())
}

/// The path of a member; what the cloud does not call by a name, such as an address, has no rules.
fn holder(member: &Value) -> Option<String> {
    member["uri"].as_str().filter(|uri| !uri.is_empty())?;
    let mut parts = member["name"].as_str()?.splitn(3, '.');
    let (namespace, cloud, name) = (parts.next()?, parts.next()?, parts.next()?);
    Some(client::resource(namespace, cloud, name))
}

/// Refuses names that no rule has: whoever mistypes one would believe that a hole is closed. A rule may be where
/// nobody could be asked, and the orchestrator may remember one that its cloud has lost.
async fn must_exist(glide: &Glide, holders: &[String], wanted: &[String]) -> Result<(), Problem> {
    let (mut there, mut unknown) = (BTreeSet::new(), None);
    for holder in holders {
        match glide.ask(Method::GET, &format!("{holder}/rules"), Value::Null).await {
            Ok(found) => {
                let rules: Vec<Rule> = serde_json::from_value(found).unwrap_or_default();
                there.extend(rules.into_iter().map(|rule| rule.name));
            }
            Err(problem) if problem.row().http == 404 => unknown = Some(problem),
            // The deletion says what is wrong, if it needs whoever is away.
            Err(_) => return Ok(()),
        }
    }
    let mut absent = Vec::new();
    for name in wanted.iter().filter(|name| !there.contains(*name)) {
        if !is_remembered(glide, holders, name).await {
            absent.push(format!("`{name}`"));
        }
    }
    if absent.is_empty() {
        return Ok(());
    }
    if let (Some(problem), [_]) = (unknown, holders) {
        return Err(problem);
    }
    let message = format!("There is no rule {}; nothing was deleted.", absent.join(", "));
    let names = if there.is_empty() { "none".to_owned() } else { Vec::from_iter(there).join(", ") };
    Err(Problem::new(&nets::RESOURCE_UNKNOWN, message)
        .at("permit lists of what was named")
        .because(format!("these are there: {names}"))
        .advising("`tarbet glide rule get CLOUD NAME` shows the rules of a resource"))
}

/// Whether a deletion of this rule would have anything to do at any of them, as far as they can be asked.
async fn is_remembered(glide: &Glide, holders: &[String], name: &str) -> bool {
    for holder in holders {
        let plan = glide.ask(Method::POST, &format!("{holder}/deleteRules?plan=true"), json!([name])).await;
        let there = match plan {
            Ok(plan) => plan["calls"].as_array().is_some_and(|calls| !calls.is_empty()),
            Err(problem) => problem.row().http != 404,
        };
        if there {
            return true;
        }
    }
    false
}

fn row(rule: &Rule) -> Value {
    let number = |number: i32| if number == ANY { json!("any") } else { json!(number) };
    let direction = match rule.direction {
        Direction::Inbound => "inbound",
        Direction::Outbound => "outbound",
    };
    json!({
        "name": rule.name, "direction": direction, "protocol": number(rule.protocol),
        "src_port": number(rule.src_port), "dst_port": number(rule.dst_port),
        "tags": rule.tags.join(" "), "targets": rule.targets.join(" "),
    })
}

fn read(file: &std::path::Path) -> Result<Vec<Rule>, Problem> {
    let wrong = |cause: String| {
        Problem::new(&ground::BAD_REQUEST, format!("The rules in {} cannot be read.", file.display()))
            .at("tarbet glide rule add")
            .because(cause)
            .advising("write a list of rules; `tarbet glide rule add --help` shows one")
    };
    let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    let rules: Vec<Written> = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    Ok(rules.into_iter().map(|Written(rule)| rule).collect())
}

/// A rule in a file. A list may be null, as the original takes it; a key that is not known is still a mistake.
#[derive(Deserialize)]
#[serde(try_from = "serde_json::Map<String, Value>")]
struct Written(Rule);

impl TryFrom<serde_json::Map<String, Value>> for Written {
    type Error = serde_json::Error;

    fn try_from(mut fields: serde_json::Map<String, Value>) -> Result<Self, Self::Error> {
        fields.retain(|_, value| !value.is_null());
        serde_json::from_value(Value::Object(fields)).map(Self)
    }
}

/// A tag as part of a rule's name.
fn part(tag: &str) -> String {
    tag.replace(['/', '.'], "-")
}

fn rule(name: String, direction: Direction, protocol: i32, ports: (i32, i32), tag: &str) -> Rule {
    let (src_port, dst_port) = ports;
    Rule { name, direction, protocol, src_port, dst_port, tags: vec![tag.into()], ..Rule::default() }
}

fn pinging(tag: &str) -> [Rule; 2] {
    [
        rule(format!("ping-in-{}", part(tag)), Direction::Inbound, 1, (ANY, ANY), tag),
        rule(format!("ping-out-{}", part(tag)), Direction::Outbound, 1, (ANY, ANY), tag),
    ]
}

fn sshing(tag: &str) -> [Rule; 2] {
    [
        rule(format!("ssh-in-{}", part(tag)), Direction::Inbound, 6, (ANY, 22), tag),
        rule(format!("ssh-out-{}", part(tag)), Direction::Outbound, 6, (22, ANY), tag),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_cloud_has_holds_rules() {
        let resource = json!({ "name": "default.local.web.1", "uri": "web", "ip": "10.0.0.4" });
        assert_eq!(holder(&resource).as_deref(), Some("/namespaces/default/clouds/local/resources/web.1"));
        for other in [
            json!({ "name": "default.local.printer", "ip": "10.9.0.7" }),
            json!({ "name": "default.local.printer", "uri": "", "ip": "10.9.0.7" }),
            json!({ "ip": "10.9.0.0/16" }),
        ] {
            assert_eq!(holder(&other), None, "{other}");
        }
    }

    #[test]
    fn a_file_may_say_null_and_nothing_unknown() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rules.json");
        std::fs::write(&file, r#"[{"name":"web","dst_port":443,"targets":null,"tags":["a"]}]"#).unwrap();
        assert_eq!(read(&file).unwrap()[0].tags, ["a"]);
        std::fs::write(&file, r#"[{"name":"web","dst_prt":443}]"#).unwrap();
        assert!(read(&file).unwrap_err().cause.contains("dst_prt"));
    }

    #[test]
    fn names_are_parts_of_paths_whatever_they_hold() {
        let odd = json!({ "name": "default.local.a/b?c", "uri": "x" });
        assert_eq!(holder(&odd).as_deref(), Some("/namespaces/default/clouds/local/resources/a%2Fb%3Fc"));
    }

    #[test]
    fn shorthands_are_the_originals() {
        let [inbound, outbound] = sshing("default.gcp.vm/1");
        assert_eq!(
            (inbound.name.as_str(), inbound.src_port, inbound.dst_port),
            ("ssh-in-default-gcp-vm-1", -1, 22)
        );
        assert_eq!(
            (outbound.name.as_str(), outbound.src_port, outbound.dst_port),
            ("ssh-out-default-gcp-vm-1", 22, -1)
        );
        assert_eq!(pinging("a")[1].name, "ping-out-a");
    }
}
