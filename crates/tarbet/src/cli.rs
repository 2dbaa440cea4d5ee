//! The command line: words, flags and help. What a command does stands in its own file.

mod audit;
pub mod caller;
mod check;
#[cfg(test)]
mod documented;
mod down;
mod edge;
pub mod endpoint;
mod explain;
mod forward;
mod glide;
mod go_flags;
pub mod known_sites;
mod kube;
mod man;
mod mesh;
mod next;
#[cfg(test)]
mod planned;
mod pods;
mod port;
#[cfg(test)]
mod reference;
mod request;
mod settings;
mod site;
pub mod site_now;
mod status;
mod stores;
mod topology;
mod user;
mod why;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use tarbet_telemetry::Problem;

use crate::config::{self, Config, Sources};
use crate::output::Format;
use crate::roles;

pub use endpoint::state_folder;

const ABOUT: &str = "Carry it across, open nothing.

Tarbet joins places that cannot reach each other. Agents in private places dial out, gateways
route to them, and the private side alone decides what may run or be reached.";

const EXAMPLES: &str = "Examples:
  tarbet up                                  everything on one machine, no root, no cluster
  tarbet site add lab                        a new site, and the command to run there
  tarbet kube login lab                      then: kubectl --context lab get pods
  tarbet status                              what runs here and how it is
  tarbet check                               what is wrong here and how to mend it
  tarbet config check --config tarbet.yaml   find every mistake before starting anything
  tarbet explain TB-0301                     what an error code means and what to try

Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 refused, 5 timed out.";

/// The whole command line.
#[derive(Debug, Parser)]
#[command(name = "tarbet", version, about = "Carry it across, open nothing", long_about = ABOUT, after_help = EXAMPLES)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
    // What is suggested if the command says nothing better.
    #[arg(skip)]
    next: Option<String>,
}

/// Under which flags that every command takes stand in its help.
const EVERYWHERE: &str = "Options of every command";

/// Flags that every command takes.
#[derive(Debug, Args)]
struct Global {
    /// Configuration file (YAML)
    #[arg(long, short = 'c', global = true, env = "TARBET_CONFIG", value_name = "FILE", help_heading = EVERYWHERE)]
    config: Option<PathBuf>,
    /// Sets one setting over file and environment, such as store.path=/var/lib/tarbet.redb
    #[arg(long, global = true, value_name = "SETTING=VALUE", value_parser = setting, help_heading = EVERYWHERE)]
    set: Vec<(String, String)>,
    /// Address of the metrics and probe listener
    #[arg(long, global = true, value_name = "ADDR", help_heading = EVERYWHERE)]
    observability_listen: Option<String>,
    /// How results are printed
    #[arg(long, short = 'o', global = true, value_enum, default_value_t = Format::Table, value_name = "FORMAT", help_heading = EVERYWHERE)]
    output: Format,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run everything that needs no cluster in one process
    #[command(after_help = roles::up::EXAMPLES)]
    Up(roles::up::UpArgs),
    /// End the local `tarbet up` and remove all it made
    #[command(after_help = down::EXAMPLES)]
    Down(down::DownArgs),
    /// Run a gateway: the public side
    #[command(after_help = roles::gateway::EXAMPLES)]
    Gateway(roles::gateway::GatewayArgs),
    /// Run an agent: the private side, which dials out
    #[command(after_help = roles::agent::EXAMPLES)]
    Agent(Box<roles::agent::AgentArgs>),
    /// Run the controller that serves requests of other clusters with private pipelines
    #[command(after_help = roles::jobs::EXAMPLES)]
    Jobs(roles::jobs::JobsArgs),
    /// Run a virtual node, whose pods run behind an interLink endpoint
    #[command(after_help = roles::node::EXAMPLES)]
    Node(roles::node::NodeArgs),
    /// Run the interLink API server, between nodes and a plugin
    #[command(after_help = roles::interlink::EXAMPLES)]
    Interlink(roles::plugin::EdgeArgs),
    /// Run a plugin: what runs the pods of virtual nodes
    #[command(subcommand, after_help = roles::plugin::EXAMPLES)]
    Plugin(roles::plugin::PluginCommand),
    /// Set up a place where pods run
    #[command(subcommand, after_help = edge::EXAMPLES)]
    Edge(edge::EdgeCommand),
    /// Run pods on an interLink endpoint, without Kubernetes
    #[command(after_help = pods::EXAMPLES)]
    Pods(pods::PodsArgs),
    /// Run the orchestrator of many clouds' networks, with tags and values
    #[command(after_help = roles::nets::EXAMPLES)]
    Nets(roles::nets::NetsArgs),
    /// Run the tag service alone
    #[command(after_help = roles::tags::EXAMPLES)]
    Tags(roles::tags::TagsArgs),
    /// Run a cloud plugin
    #[command(subcommand, after_help = roles::cloud::EXAMPLES)]
    Cloud(roles::cloud::CloudCommand),
    /// Say who may talk to whom across clouds
    #[command(after_help = glide::EXAMPLES)]
    Glide(glide::GlideArgs),
    /// Run the controller that joins services of meshes, or look at what it does
    #[command(after_help = mesh::EXAMPLES)]
    Mesh(mesh::MeshCommand),
    /// Ask a private cluster for work, and follow it
    #[command(after_help = request::EXAMPLES)]
    Request(request::RequestArgs),
    /// Add, list and remove sites and their tokens
    #[command(after_help = site::EXAMPLES)]
    Site(site::SiteArgs),
    /// Add, list and remove people and programs
    #[command(after_help = user::EXAMPLES)]
    User(user::UserArgs),
    /// Prove to sites who calls, whatever the gateways say
    #[command(subcommand, after_help = caller::EXAMPLES)]
    Caller(caller::CallerCommand),
    /// Reach a site's Kubernetes API with kubectl
    #[command(subcommand, after_help = kube::EXAMPLES)]
    Kube(kube::KubeCommand),
    /// Make a local port lead to a host behind a site
    #[command(after_help = forward::EXAMPLES)]
    Forward(forward::ForwardArgs),
    /// What runs here and how it is, capability by capability
    #[command(after_help = status::EXAMPLES)]
    Status(status::StatusArgs),
    /// Find what is wrong on this machine, and say how to mend it
    #[command(after_help = check::EXAMPLES)]
    Check(check::CheckArgs),
    /// Draw who reaches whom
    #[command(after_help = topology::EXAMPLES)]
    Topology(topology::TopologyArgs),
    /// Tell the story of one request, hop by hop
    #[command(after_help = why::EXAMPLES)]
    Why(why::WhyArgs),
    /// Read and check the record of who asked for what
    #[command(subcommand, after_help = audit::EXAMPLES)]
    Audit(audit::AuditCommand),
    /// Check, show or describe the configuration
    #[command(subcommand, after_help = settings::EXAMPLES)]
    Config(settings::ConfigCommand),
    /// Back up or restore the store
    #[command(subcommand, after_help = stores::EXAMPLES)]
    Store(stores::StoreCommand),
    /// Say what an error code means and what to try
    #[command(after_help = explain::EXAMPLES)]
    Explain(explain::ExplainArgs),
    /// Print shell completions
    #[command(
        after_help = "Examples:\n  tarbet completions bash > /etc/bash_completion.d/tarbet\n  source <(tarbet completions zsh)"
    )]
    Completions {
        /// The shell to complete for
        shell: clap_complete::Shell,
    },
    /// Print or write the manual pages
    #[command(after_help = man::EXAMPLES)]
    Man(man::ManArgs),
    /// Print the version
    #[command(after_help = "Examples:\n  tarbet version\n  tarbet version -o json")]
    Version,
}

/// Reads the arguments; usage mistakes end the process with code 2, as clap does.
pub fn parse() -> Cli {
    let command = Cli::command().bin_name(called(std::env::args_os().next().as_deref()));
    let args = go_flags::understood(&command, std::env::args_os());
    let matches = command.get_matches_from(args);
    match Cli::from_arg_matches(&matches) {
        Ok(cli) => Cli { next: next::after(&matches), ..cli },
        Err(error) => error.exit(),
    }
}

/// What the person typed: kubectl finds the program under another name, as a plugin.
fn called(first: Option<&OsStr>) -> &'static str {
    let name = first.and_then(|path| Path::new(path).file_stem());
    if name.is_some_and(|name| name == "kubectl-tarbet") { "kubectl tarbet" } else { "tarbet" }
}

/// Runs the chosen command, and says what could follow.
pub fn run(cli: Cli) -> Result<(), Problem> {
    let Cli { global, command, next } = cli;
    let format = global.output;
    dispatch(global, command)?;
    next::suggest(next.as_deref(), format);
    Ok(())
}

fn dispatch(global: Global, command: Command) -> Result<(), Problem> {
    let load = || load(&global);
    let drawn = matches!(command, Command::Topology(_));
    if !drawn && matches!(global.output, Format::Svg | Format::Text) {
        return Err(Problem::new(&tarbet_telemetry::codes::ground::BAD_REQUEST, "Only a topology is drawn.")
            .at("tarbet command line")
            .because("-o svg and -o text are for `tarbet topology`")
            .advising("use -o table, json or yaml"));
    }
    match command {
        Command::Up(args) => roles::up::run(load()?, args),
        Command::Down(args) => block_on(down::run(args, load()?, global.output)),
        Command::Status(args) => block_on(status::run(args, global.output)),
        Command::Check(args) => {
            // A file that cannot be read is one more finding, not the end.
            let loaded = load();
            block_on(check::run(args, loaded, global.output))
        }
        Command::Topology(args) => block_on(topology::run(args, global.output)),
        Command::Gateway(args) => roles::gateway::run(load()?, sources(&global), args),
        Command::Agent(args) => roles::agent::run(load()?, sources(&global), *args),
        Command::Jobs(args) => roles::jobs::run(load()?, args),
        Command::Node(args) => roles::node::run(load()?, args),
        Command::Interlink(args) => roles::interlink::run(load()?, args),
        Command::Plugin(command) => roles::plugin::run(load()?, command),
        Command::Edge(command) => edge::run(command, global.output),
        Command::Pods(args) => block_on(pods::run(args, global.output)),
        Command::Nets(args) => roles::nets::run(load()?, args),
        Command::Tags(args) => roles::tags::run(load()?, args),
        Command::Cloud(command) => roles::cloud::run(load()?, command, global.output),
        Command::Glide(args) => block_on(glide::run(args, global.output)),
        Command::Mesh(args) => mesh::run(load, args, global.output),
        Command::Request(args) => block_on(request::run(args, global.output)),
        Command::Site(args) => block_on(site::run(args, global.output)),
        Command::User(args) => block_on(user::run(args, global.output)),
        Command::Caller(command) => caller::run(command, global.output),
        Command::Kube(command) => kube::run(command, global.output),
        Command::Forward(args) => block_on(forward::run(args)),
        Command::Why(args) => block_on(why::run(args, global.output)),
        Command::Audit(command) => audit::run(command, global.output),
        Command::Store(command) => block_on(stores::run(command, &load()?, global.output)),
        Command::Config(command) => settings::run(command, load, global.output),
        Command::Explain(args) => explain::run(&args, global.output),
        Command::Completions { shell } => {
            // Into memory first: who reads it may leave early, as `head` does.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "tarbet", &mut script);
            crate::output::Format::Text.text(String::from_utf8_lossy(&script).trim_end())
        }
        Command::Man(args) => man::run(args),
        Command::Version => version(global.output),
    }
}

/// Runs a command that talks to others; one thread is plenty for a person.
pub fn block_on(command: impl Future<Output = Result<(), Problem>>) -> Result<(), Problem> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        Problem::new(&tarbet_telemetry::codes::ground::INTERNAL, "The command cannot start.")
            .because(error.to_string())
    })?;
    runtime.block_on(command)
}

fn load(global: &Global) -> Result<Config, Problem> {
    let sources = sources(global);
    let mut config = config::load(&sources).map_err(|error| error.problem())?;
    config.observability.listen_by_flag =
        sources.flags.iter().any(|(setting, _, _)| setting == "observability.listen");
    Ok(config)
}

fn sources(global: &Global) -> Sources {
    let mut flags: Vec<_> = global
        .set
        .iter()
        .map(|(setting, value)| (setting.clone(), value.clone(), format!("--set {setting}")))
        .collect();
    if let Some(address) = &global.observability_listen {
        flags.push(("observability.listen".into(), address.clone(), "--observability-listen".into()));
    }
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    Sources { file: global.config.clone(), environment, flags }
}

fn setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((setting, value)) if !setting.is_empty() => Ok((setting.to_owned(), value.to_owned())),
        _ => Err("expected SETTING=VALUE, such as log.filter=debug".into()),
    }
}

fn version(format: Format) -> Result<(), Problem> {
    let facts = [("version", env!("CARGO_PKG_VERSION")), ("target", std::env::consts::ARCH)];
    format.record("Tarbet", &facts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_names_the_gateway_stands_before_or_after_the_words_that_follow() {
        let flags =
            ["--server", "https://gateway:8153", "--token-file", "t", "--caller-key", "k", "--caller", "ann"];
        for line in [
            "site add lab",
            "site list",
            "site token lab",
            "user add ann",
            "user list",
            "pods list",
            "kube login lab",
            "kube proxy lab",
            "forward lab db:5432",
            "why 0123456789abcdef0123456789abcdef",
            "status",
            "topology",
            "request logs mine",
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            let after = ["tarbet"].into_iter().chain(words.iter().copied()).chain(flags);
            if let Err(error) = Cli::try_parse_from(after) {
                panic!("{line}: {error}");
            }
        }
        let between = ["tarbet", "site"].into_iter().chain(flags).chain(["add", "lab"]);
        assert!(Cli::try_parse_from(between).is_ok());
        let halves = ["tarbet", "user", "--caller-key", "k", "list", "--caller", "ann"];
        assert!(Cli::try_parse_from(halves).is_ok(), "each at its own word");
        // Where no gateway is asked, none can be named.
        for line in ["mesh status", "audit tail", "explain"] {
            let after = ["tarbet"].into_iter().chain(line.split(' ')).chain(flags);
            assert!(Cli::try_parse_from(after).is_err(), "{line}");
        }
    }

    #[test]
    fn every_command_has_help_with_examples() {
        fn visit(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            assert!(command.get_about().is_some(), "{path} does not say what it does");
            if command.get_subcommands().count() == 0 || command.get_after_help().is_some() {
                let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.contains("Examples:"), "{path} has no examples");
            }
            for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
                visit(sub, &path);
            }
        }
        visit(&Cli::command(), "");
    }
}
