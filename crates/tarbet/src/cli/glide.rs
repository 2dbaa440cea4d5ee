//! `tarbet glide …`: the networks of many clouds, with the original's words.

mod client;
mod follow;
mod import;
mod progress;
mod questions;
mod rules;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Value, json};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::{ground, nets};

use crate::output::Format;
use client::{Glide, Settings};

pub const EXAMPLES: &str = "Examples:
  tarbet glide resource create local web web.json
  tarbet glide tag set clients --children default.local.a,default.local.b
  tarbet glide rule add local web --rulefile rules.json --plan
  tarbet glide can default.local.a default.local.web:443
  tarbet glide drift --repair";

#[derive(Debug, Args)]
pub struct GlideArgs {
    /// The orchestrator's REST listener; the one that `glide server set` noted if absent
    #[arg(long, global = true, env = "TARBET_NETS_SERVER", value_name = "URL")]
    server: Option<String>,
    /// The authority of the orchestrator's certificate, besides those of the system
    #[arg(long, global = true, env = "TARBET_NETS_CA_FILE", value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// A file with your certificate and its key in one, where the orchestrator asks for it
    #[arg(long, global = true, env = "TARBET_NETS_IDENTITY_FILE", value_name = "FILE")]
    identity_file: Option<PathBuf>,
    /// The file with your token, where the orchestrator asks for one
    #[arg(long, global = true, env = "TARBET_NETS_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The namespace; the one that `glide namespace set` noted if absent
    #[arg(long, short = 'n', global = true, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Print exactly the calls that would be made, and a digest of them, and make none
    #[arg(long, global = true)]
    plan: bool,
    /// Make the change only if its calls are those with this digest
    #[arg(long, global = true, value_name = "DIGEST", conflicts_with = "plan")]
    expect: Option<String>,
    /// Do not wait: print the operation, to be followed with `glide operation show`
    #[arg(long, global = true, conflicts_with = "plan")]
    detach: bool,
    #[command(subcommand)]
    command: GlideCommand,
}

#[derive(Debug, Subcommand)]
enum GlideCommand {
    /// The orchestrator that commands talk to
    #[command(
        subcommand,
        after_help = "Examples:\n  tarbet glide server get\n  tarbet glide server set http://127.0.0.1:8080"
    )]
    Server(ServerCommand),
    /// The namespace that commands act in
    #[command(
        subcommand,
        after_help = "Examples:\n  tarbet glide namespace list\n  tarbet glide namespace set default"
    )]
    Namespace(NamespaceCommand),
    /// Machines and other endpoints
    #[command(
        subcommand,
        after_help = "Examples:\n  tarbet glide resource list\n  tarbet glide resource create local web web.json"
    )]
    Resource(ResourceCommand),
    /// Permit lists: who may talk to a resource, and to whom it may talk
    #[command(
        subcommand,
        after_help = "Examples:\n  tarbet glide rule get local web\n  tarbet glide rule add local web --ping clients"
    )]
    Rule(rules::RuleCommand),
    /// Names for resources, addresses and groups of them
    #[command(
        subcommand,
        after_help = "Examples:\n  tarbet glide tag list\n  tarbet glide tag get clients --resolve"
    )]
    Tag(TagCommand),
    /// What is being done, and what was
    #[command(
        subcommand,
        after_help = "Examples:\n  tarbet glide operation list\n  tarbet glide operation cancel 0198c0…"
    )]
    Operation(OperationCommand),
    /// What differs between what should be and what is
    #[command(after_help = "Examples:\n  tarbet glide drift\n  tarbet glide drift --repair")]
    Drift {
        /// Mend it
        #[arg(long)]
        repair: bool,
    },
    /// Look at the networks of a cloud that others made, and keep clear of their addresses
    #[command(after_help = import::EXAMPLES)]
    Import(import::ImportArgs),
    /// Whether one resource may reach another, and which rules say so
    #[command(
        after_help = "Examples:\n  tarbet glide can default.local.a default.local.web:443\n  tarbet glide can 10.0.0.4 default.local.web --protocol icmp\n\nThe exit code is 0 if it may and 4 if it may not."
    )]
    Can(questions::CanArgs),
    /// Judge a file of expectations
    #[command(
        after_help = "Examples:\n  tarbet glide test policy.yaml\n\nA file with `resources` is judged by itself, without an orchestrator; one with `tests` only is judged\nby the rules that are in force. The exit code is 1 if an expectation does not hold."
    )]
    Test {
        /// The file
        file: PathBuf,
    },
    /// Keep tags as what a cluster runs: the pods of a virtual node, or behind a service
    #[command(after_help = follow::EXAMPLES)]
    Follow(follow::FollowArgs),
    /// Take down connections between clouds that no rule needs any more
    #[command(after_help = "Examples:\n  tarbet glide prune --plan\n  tarbet glide prune")]
    Prune,
    /// Connections between clouds
    #[command(
        subcommand,
        after_help = "Examples:\n  tarbet glide vpn rekey --all --plan\n  tarbet glide vpn rekey default.east-default.west"
    )]
    Vpn(VpnCommand),
    /// Print the version
    #[command(after_help = "Examples:\n  tarbet glide version")]
    Version,
    /// Clouds, resources, the connections between clouds, and networks of others
    #[command(after_help = "Examples:\n  tarbet glide topology\n  tarbet glide topology -o json")]
    Topology,
}

#[derive(Debug, Subcommand)]
enum VpnCommand {
    /// Make another key for a connection and tell it to both clouds; nobody is shown it
    #[command(
        after_help = "Examples:\n  tarbet glide vpn rekey default.east-default.west --plan\n  tarbet glide vpn rekey --all\n\nThe connection is interrupted: for some seconds where both clouds take another key for tunnels that\nexist (local, azure), else for as long as they need to make it anew."
    )]
    Rekey {
        /// The connection, as `glide topology` names it
        #[arg(required_unless_present = "all")]
        link: Option<String>,
        /// Every connection, one after the other
        #[arg(long, conflicts_with = "link")]
        all: bool,
    },
}

#[derive(Debug, Subcommand)]
enum ServerCommand {
    /// Print it
    #[command(after_help = "Examples:\n  tarbet glide server get")]
    Get,
    /// Note another
    #[command(after_help = "Examples:\n  tarbet glide server set http://127.0.0.1:8080")]
    Set {
        /// The URL of its REST listener
        address: String,
    },
}

#[derive(Debug, Subcommand)]
enum NamespaceCommand {
    /// Print the active one
    #[command(after_help = "Examples:\n  tarbet glide namespace get")]
    Get,
    /// Note another
    #[command(after_help = "Examples:\n  tarbet glide namespace set default")]
    Set {
        /// One that the orchestrator knows
        namespace: String,
    },
    /// List all with their deployments
    #[command(after_help = "Examples:\n  tarbet glide namespace list -o json")]
    List,
}

#[derive(Debug, Subcommand)]
enum ResourceCommand {
    /// Make a resource; all traffic is denied until rules permit it
    #[command(
        after_help = "Examples:\n  tarbet glide resource create local web web.json\n  tarbet glide resource create local web web.json --plan"
    )]
    Create {
        /// The cloud
        cloud: String,
        /// The resource's short name
        name: String,
        /// A file that describes all but its network, as the cloud wants it
        description: PathBuf,
        /// Taken for the sake of older scripts; the original sends it nowhere either
        #[arg(long, hide = true, value_name = "URI")]
        uri: Option<String>,
    },
    /// Take in a resource that others made
    #[command(
        after_help = "Examples:\n  tarbet glide resource attach azure /subscriptions/…/virtualMachines/vm1"
    )]
    Attach {
        /// The cloud
        cloud: String,
        /// What the cloud calls it
        id: String,
    },
    /// List the resources of the namespace
    #[command(after_help = "Examples:\n  tarbet glide resource list")]
    List,
    /// Remove a resource, its rules and its tag
    #[command(after_help = "Examples:\n  tarbet glide resource delete local web")]
    Delete {
        /// The cloud
        cloud: String,
        /// The resource's short name
        name: String,
    },
}

#[derive(Debug, Subcommand)]
enum TagCommand {
    /// Show a tag, or with --resolve all it stands for
    #[command(
        after_help = "Examples:\n  tarbet glide tag get clients\n  tarbet glide tag get clients --resolve"
    )]
    Get {
        /// The tag
        tag: String,
        /// Follow groups down to resources and addresses
        #[arg(long)]
        resolve: bool,
    },
    /// Show all that a tag stands for
    #[command(after_help = "Examples:\n  tarbet glide tag resolve clients")]
    Resolve {
        /// The tag
        tag: String,
    },
    /// Make a tag, or add members to it
    #[command(
        after_help = "Examples:\n  tarbet glide tag set clients --children default.local.a,10.9.0.0/16\n  tarbet glide tag set printer --ip 10.9.0.7"
    )]
    #[command(group = clap::ArgGroup::new("what").required(true).multiple(true).args(["children", "uri", "ip"]))]
    Set {
        /// The tag
        tag: String,
        /// Members: tags, addresses or prefixes
        #[arg(long, value_delimiter = ',', conflicts_with_all = ["uri", "ip"], value_name = "A,B")]
        children: Vec<String>,
        /// What a cloud calls the resource
        #[arg(long)]
        uri: Option<String>,
        /// Its address
        #[arg(long)]
        ip: Option<String>,
    },
    /// Remove a tag, or one member of it
    #[command(
        after_help = "Examples:\n  tarbet glide tag delete clients\n  tarbet glide tag delete clients --member default.local.a"
    )]
    Delete {
        /// The tag
        tag: String,
        /// Only this member
        #[arg(long)]
        member: Option<String>,
    },
    /// List all tags
    #[command(after_help = "Examples:\n  tarbet glide tag list -o json")]
    List,
}

#[derive(Debug, Subcommand)]
enum OperationCommand {
    /// List what is remembered, latest first
    #[command(after_help = "Examples:\n  tarbet glide operation list")]
    List,
    /// Show one, call by call
    #[command(after_help = "Examples:\n  tarbet glide operation show 0198c0…")]
    Show {
        /// Its id
        id: String,
    },
    /// Stop one before its next call
    #[command(after_help = "Examples:\n  tarbet glide operation cancel 0198c0…")]
    Cancel {
        /// Its id
        id: String,
    },
}

pub async fn run(args: GlideArgs, format: Format) -> Result<(), Problem> {
    if matches!(args.command, GlideCommand::Version) {
        return super::version(format);
    }
    let settings = Settings::read()?;
    let glide = Glide::new(&args, &settings, format)?;
    match args.command {
        GlideCommand::Server(ServerCommand::Get) => format.text(&glide.server),
        GlideCommand::Server(ServerCommand::Set { address }) => {
            if args.plan {
                return format.plan(&[format!("note {address} as the orchestrator")]);
            }
            Settings { server_addr: Some(address), ..settings }.write()?;
            format.text("Noted. Next: tarbet glide namespace list")
        }
        GlideCommand::Namespace(command) => namespace(&glide, settings, command).await,
        GlideCommand::Resource(command) => resource(&glide, command).await,
        GlideCommand::Rule(command) => rules::run(&glide, command).await,
        GlideCommand::Tag(command) => tag(&glide, command).await,
        GlideCommand::Operation(command) => operation(&glide, command).await,
        GlideCommand::Drift { repair } => drift(&glide, repair).await,
        GlideCommand::Import(args) => import::run(&glide, args).await,
        GlideCommand::Can(args) => questions::can(&glide, args).await,
        GlideCommand::Test { file } => questions::test(&glide, &file).await,
        GlideCommand::Follow(args) => follow::run(&glide, args).await,
        GlideCommand::Prune => glide.change(Method::POST, "/links/prune", Value::Null, "Pruned.").await,
        GlideCommand::Vpn(VpnCommand::Rekey { link, all: _ }) => {
            let path = link.map_or_else(
                || "/links/rekey".to_owned(),
                |link| format!("/links/{}/rekey", client::escape(&link)),
            );
            glide.change(Method::POST, &path, Value::Null, "The keys are replaced.").await
        }
        GlideCommand::Version => super::version(format),
        GlideCommand::Topology => {
            let picture = glide.ask(Method::GET, "/topology", Value::Null).await?;
            if format != Format::Table {
                return format.value(&picture);
            }
            glide.rows(
                &picture["resources"],
                &["name", "ip", "cloud", "rules"],
                "There are no resources.",
            )?;
            if picture["links"].as_array().is_some_and(|links| !links.is_empty()) {
                glide.rows(&picture["links"], &["name", "from", "to", "tunnels", "complete"], "")?;
            }
            if picture["networks"].as_array().is_some_and(|networks| !networks.is_empty()) {
                let columns = ["name", "cloud", "region", "spaces", "machines", "access"];
                glide.rows(&picture["networks"], &columns, "")?;
            }
            Ok(())
        }
    }
}

async fn drift(glide: &Glide, repair: bool) -> Result<(), Problem> {
    let columns = ["cloud", "what", "mend", "repaired"];
    if repair && glide.plan {
        let plan = glide.plan_of(Method::POST, "/drift").await?;
        if glide.format != Format::Table || !client::lines(&plan["calls"]).is_empty() {
            return glide.show_plan(&plan);
        }
        // What no repair mends is told all the same.
        let found = glide.ask(Method::GET, "/drift", Value::Null).await?;
        return glide.rows(&found, &columns, client::NOTHING_TO_DO);
    }
    if repair {
        let Some(found) = glide.changed(Method::POST, "/drift", Value::Null).await? else { return Ok(()) };
        if found.is_array() {
            return glide.rows(&found, &columns, "Nothing differs.");
        }
        // It took so long that what was found was not told at the end.
    }
    let found = glide.ask(Method::GET, "/drift", Value::Null).await?;
    glide.rows(&found, &columns, if repair { "Nothing differs any more." } else { "Nothing differs." })
}

async fn namespace(glide: &Glide, settings: Settings, command: NamespaceCommand) -> Result<(), Problem> {
    match command {
        NamespaceCommand::Get => glide.format.text(&glide.namespace),
        NamespaceCommand::Set { namespace } => {
            let known = glide.ask(Method::GET, "/namespaces", Value::Null).await?;
            if known.get(&namespace).is_none() {
                let message = format!("There is no namespace `{namespace}`.");
                return Err(Problem::new(&nets::PLACE_UNKNOWN, message));
            }
            if glide.plan {
                return glide.format.plan(&[format!("note `{namespace}` as the active namespace")]);
            }
            Settings { active_namespace: Some(namespace), ..settings }.write()?;
            glide.format.text("Noted. Next: tarbet glide resource list")
        }
        NamespaceCommand::List => {
            let known = glide.ask(Method::GET, "/namespaces", Value::Null).await?;
            let rows: Vec<Value> = known
                .as_object()
                .into_iter()
                .flatten()
                .flat_map(|(namespace, deployments)| {
                    deployments.as_array().cloned().unwrap_or_default().into_iter().map(|deployment| {
                        json!({ "namespace": namespace, "cloud": deployment["Name"], "deployment": deployment["Deployment"] })
                    }).collect::<Vec<_>>()
                })
                .collect();
            glide.rows(&Value::from(rows), &["namespace", "cloud", "deployment"], "There are no namespaces.")
        }
    }
}

async fn resource(glide: &Glide, command: ResourceCommand) -> Result<(), Problem> {
    let place = |cloud: &str| client::resources(&glide.namespace, cloud);
    match command {
        ResourceCommand::Create { cloud, name, description, uri: _ } => {
            let text = std::fs::read_to_string(&description).map_err(|error| {
                Problem::new(&ground::BAD_REQUEST, format!("{} cannot be read.", description.display()))
                    .at("tarbet glide")
                    .because(error.to_string())
                    .advising("name a file with the description; `{}` is enough for a local cloud")
            })?;
            let path = client::resource(&glide.namespace, &cloud, &name);
            glide.change(Method::PUT, &path, json!({ "description": text }), "Made.").await
        }
        ResourceCommand::Attach { cloud, id } => {
            glide.change(Method::POST, &place(&cloud), json!({ "id": id }), "Attached.").await
        }
        ResourceCommand::List => {
            let path = format!("/namespaces/{}/resources", client::escape(&glide.namespace));
            let found = glide.ask(Method::GET, &path, Value::Null).await?;
            glide.rows(&found, &["name", "cloud", "ip", "rules"], "There are no resources in this namespace.")
        }
        ResourceCommand::Delete { cloud, name } => {
            let path = client::resource(&glide.namespace, &cloud, &name);
            glide.change(Method::DELETE, &path, Value::Null, "Deleted.").await
        }
    }
}

async fn tag(glide: &Glide, command: TagCommand) -> Result<(), Problem> {
    let at = |tag: &str| format!("/tags/{}", client::escape(tag));
    match command {
        TagCommand::Get { tag, resolve: false } => {
            let found = glide.ask(Method::GET, &at(&tag), Value::Null).await?;
            if is_nothing(&found) {
                return Err(Problem::new(
                    &nets::TAG_UNKNOWN,
                    format!("There is no tag `{tag}`, or it has no members."),
                ));
            }
            glide.rows(&json!([found]), &["name", "child_tags", "uri", "ip"], "")
        }
        TagCommand::Get { tag, resolve: true } | TagCommand::Resolve { tag } => {
            let found = glide.ask(Method::POST, &format!("{}/resolveMembers", at(&tag)), Value::Null).await?;
            glide.rows(&found, &["name", "uri", "ip"], "It stands for nothing.")
        }
        TagCommand::Set { tag, children, uri, ip } => {
            let mut body = json!({ "name": tag });
            if !children.is_empty() {
                body["child_tags"] = json!(children);
            }
            for (field, value) in [("uri", uri), ("ip", ip)] {
                if let Some(value) = value {
                    body[field] = value.into();
                }
            }
            glide.change(Method::POST, &format!("{}/applyMembers", at(&tag)), body, "Set.").await
        }
        TagCommand::Delete { tag, member } => {
            let found = glide.ask(Method::GET, &at(&tag), Value::Null).await?;
            let (path, missing) = match member {
                Some(member) => (
                    format!("{}/members/{}", at(&tag), client::escape(&member)),
                    not_member(&found["child_tags"], &tag, &member),
                ),
                None if is_nothing(&found) => (at(&tag), not_listed(glide, &tag).await?),
                None => (at(&tag), None),
            };
            // It may be gone already, and some that follow it have yet to be told.
            if let Some(missing) = missing
                && client::lines(&glide.plan_of(Method::DELETE, &path).await?["calls"]).is_empty()
            {
                return Err(missing);
            }
            glide.change(Method::DELETE, &path, Value::Null, "Deleted.").await
        }
        TagCommand::List => {
            let found = glide.ask(Method::GET, "/tags", Value::Null).await?;
            glide.rows(&found, &["name", "child_tags", "uri", "ip"], "There are no tags.")
        }
    }
}

/// On this wire a tag that does not exist is an empty one.
fn is_nothing(tag: &Value) -> bool {
    ["child_tags", "uri", "ip"].iter().all(|field| tag.get(field).is_none())
}

/// Whoever mistypes a tag would believe that it is gone: the orchestrator takes what is not there for done.
async fn not_listed(glide: &Glide, tag: &str) -> Result<Option<Problem>, Problem> {
    let all = glide.ask(Method::GET, "/tags", Value::Null).await?;
    let listed = all.as_array().into_iter().flatten().any(|there| there["name"] == *tag);
    let missing = || {
        Problem::new(&nets::TAG_UNKNOWN, format!("There is no tag `{tag}`."))
            .advising("tarbet glide tag list")
    };
    Ok((!listed).then(missing))
}

/// Whoever mistypes a member would believe that it is out.
fn not_member(members: &Value, tag: &str, member: &str) -> Option<Problem> {
    let members = client::lines(members);
    if members.iter().any(|there| there == member) {
        return None;
    }
    let names = if members.is_empty() { "none".to_owned() } else { members.join(", ") };
    let missing = Problem::new(&nets::TAG_UNKNOWN, format!("`{member}` is no member of `{tag}`."))
        .because(format!("its members: {names}"))
        .advising(format!("tarbet glide tag get {tag}"));
    Some(missing)
}

async fn operation(glide: &Glide, command: OperationCommand) -> Result<(), Problem> {
    let columns = ["id", "title", "state", "done", "begun"];
    match command {
        OperationCommand::List => {
            let found = glide.ask(Method::GET, "/operations", Value::Null).await?;
            glide.rows(&found, &columns, "Nothing was done lately.")
        }
        OperationCommand::Show { id } => {
            let found =
                glide.ask(Method::GET, &format!("/operations/{}", client::escape(&id)), Value::Null).await?;
            glide.show_operation(&found)
        }
        OperationCommand::Cancel { id } if glide.plan => {
            let found =
                glide.ask(Method::GET, &format!("/operations/{}", client::escape(&id)), Value::Null).await?;
            let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
            let what = format!("stop `{}`, which is {}, before its next call", text("title"), text("state"));
            glide.format.plan(&[what])
        }
        OperationCommand::Cancel { id } => {
            let found = glide
                .ask(Method::DELETE, &format!("/operations/{}", client::escape(&id)), Value::Null)
                .await?;
            glide.rows(&json!([found]), &columns, "")
        }
    }
}

/// Everything there is, for a picture.
pub async fn topology(server: Option<String>) -> Result<Value, Problem> {
    Glide::reading(server)?.ask(Method::GET, "/topology", Value::Null).await
}
