//! `tarbet request …`: asking a private cluster for work.

use std::collections::BTreeMap;
use std::io::{Write, stderr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tarbet_cluster::Client;
use tarbet_jobs::client::{Requests, verdict, whole_log};
use tarbet_jobs::crd::{InternalRequest, InternalRequestStatus};
use tarbet_jobs::machine::Phase;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::{cluster, ground};

use super::endpoint::ServerArgs;
use crate::output::Format;
use crate::roles::jobs::{by_site, connect, source};

pub const EXAMPLES: &str = "Examples:
  tarbet request submit sign-image -p image=quay.io/a/b:c --wait
  tarbet request list
  tarbet request logs sign-image-x7k2p
  tarbet request cancel sign-image-x7k2p";

#[derive(Debug, Args)]
pub struct RequestArgs {
    /// The kubeconfig of the cluster the request is made on; without it KUBECONFIG or ~/.kube/config
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The namespace; the kubeconfig's own if absent
    #[arg(long, short = 'n', global = true, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Say what would be done, and do nothing
    #[arg(long, global = true)]
    plan: bool,
    #[command(subcommand)]
    command: RequestCommand,
}

#[derive(Debug, Subcommand)]
enum RequestCommand {
    /// Ask for a pipeline to be run
    #[command(
        after_help = "Examples:\n  tarbet request submit build\n  tarbet request submit sign -p image=quay.io/a:b -p tag=v1 --wait --timeout 30m\n\nWith --wait the exit code is the job's: 0 succeeded, 1 failed, 4 rejected, 5 not finished in time."
    )]
    Submit {
        /// The pipeline, as the private side offers it
        pipeline: String,
        /// A parameter; may be repeated
        #[arg(long = "param", short = 'p', value_name = "NAME=VALUE", value_parser = param)]
        params: Vec<(String, String)>,
        /// The name of the request; made from the pipeline's if absent
        #[arg(long)]
        name: Option<String>,
        /// Wait for the end, telling what happens
        #[arg(long)]
        wait: bool,
        /// How long to wait at most
        #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
        timeout: Option<Duration>,
    },
    /// List requests
    #[command(
        after_help = "Examples:\n  tarbet request list\n  tarbet request list --all-namespaces -o json"
    )]
    List {
        /// Those of all namespaces
        #[arg(long, short = 'A')]
        all_namespaces: bool,
    },
    /// Show one request: its state, results and message
    #[command(
        after_help = "Examples:\n  tarbet request show build-x7k2p\n  tarbet request show build-x7k2p -o yaml"
    )]
    Show {
        /// The request
        name: String,
    },
    /// Print what its steps said
    #[command(
        after_help = "Examples:\n  tarbet request logs build-x7k2p\n  tarbet request logs build-x7k2p --private-kubeconfig ~/.kube/private\n\nThe requester gets the end of each step's log. With a kubeconfig of the private cluster, or the name\nof its site, the whole log is printed, also while the run goes on and after it was deleted."
    )]
    Logs {
        /// The request
        name: String,
        /// A kubeconfig of the private cluster
        #[arg(long, value_name = "FILE")]
        private_kubeconfig: Option<PathBuf>,
        /// Instead: the site whose agent offers its API, reached through a gateway
        #[arg(long, value_name = "SITE", conflicts_with = "private_kubeconfig")]
        private_site: Option<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Cancel a request: its run is ended, and both are deleted
    #[command(after_help = "Examples:\n  tarbet request cancel build-x7k2p")]
    Cancel {
        /// The request
        name: String,
    },
}

fn param(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE, such as image=quay.io/a/b:c".to_owned()),
    }
}

pub async fn run(args: RequestArgs, format: Format) -> Result<(), Problem> {
    let client = connect(&source(args.kubeconfig.as_deref())?).await?;
    let requests = Requests::new(client, args.namespace.as_deref());
    let again = Again { kubeconfig: args.kubeconfig.clone(), namespace: args.namespace.clone() };
    if args.plan {
        let change = match &args.command {
            RequestCommand::Submit { pipeline, params, .. } => Some(format!(
                "ask for the pipeline `{pipeline}` in the namespace `{}` with {} parameters",
                requests.namespace(),
                params.len()
            )),
            RequestCommand::Cancel { name } => Some(format!("end the run of `{name}` and delete both")),
            _ => None,
        };
        if let Some(change) = change {
            return format.plan(&[change]);
        }
    }
    match args.command {
        RequestCommand::Submit { pipeline, params, name, wait, timeout } => {
            let params = unique(params)?;
            let made = requests.submit(&pipeline, params, name.as_deref()).await?;
            if wait || timeout.is_some() {
                follow(&requests, &made, timeout, format).await
            } else {
                submitted(&made, &again, format)
            }
        }
        RequestCommand::List { all_namespaces } => {
            let rows: Vec<Value> = requests.list(all_namespaces).await?.iter().map(row).collect();
            let keys = ["name", "namespace", "state", "pipeline", "message"];
            let of = if all_namespaces { "" } else { " in this namespace" };
            let nothing = format!("There is no request{of}. Next: tarbet request submit PIPELINE --plan");
            format.rows_or(&nothing, &keys, &rows)
        }
        RequestCommand::Show { name } => show(&requests.get(&name).await?, format),
        RequestCommand::Logs { name, private_kubeconfig, private_site, server } => {
            let request = requests.get(&name).await?;
            let private = match (private_kubeconfig, private_site) {
                (Some(file), _) => Some(connect(&source(Some(&file))?).await?),
                (None, Some(site)) => Some(by_site(&site, &[], &server).await?),
                (None, None) => None,
            };
            logs(&request, private, format).await
        }
        RequestCommand::Cancel { name } => {
            requests.cancel(&name).await?;
            let facts = serde_json::json!({ "cancelled": true, "name": name });
            format.done(&format!("The request `{name}` is cancelled."), &again.command("list"), &facts)
        }
    }
}

fn unique(params: Vec<(String, String)>) -> Result<BTreeMap<String, String>, Problem> {
    let count = params.len();
    let params: BTreeMap<String, String> = params.into_iter().collect();
    if params.len() == count {
        return Ok(params);
    }
    Err(Problem::new(&ground::BAD_REQUEST, "A parameter is given twice.")
        .at("tarbet command line")
        .advising("give each NAME=VALUE once"))
}

/// Where the next command must look to find the same.
struct Again {
    kubeconfig: Option<PathBuf>,
    namespace: Option<String>,
}

impl Again {
    fn command(&self, words: &str) -> String {
        let namespace = self.namespace.as_ref().map(|name| format!(" -n {name}")).unwrap_or_default();
        let file = self.kubeconfig.as_ref().map(|file| format!(" --kubeconfig {}", file.display()));
        format!("tarbet request {words}{namespace}{}", file.unwrap_or_default())
    }
}

fn submitted(made: &InternalRequest, again: &Again, format: Format) -> Result<(), Problem> {
    let name = made.metadata.name.as_deref().unwrap_or_default();
    let text = format!("The request `{name}` is submitted.");
    format.done(&text, &again.command(&format!("show {name}")), &row(made))
}

async fn follow(
    requests: &Requests,
    made: &InternalRequest,
    timeout: Option<Duration>,
    format: Format,
) -> Result<(), Problem> {
    let name = made.metadata.name.as_deref().unwrap_or_default();
    say(&format!("{}/{name}: submitted", requests.namespace()));
    let ended = requests
        .follow(name, timeout, |request| {
            let status = request.status.clone().unwrap_or_default();
            match Phase::of(&status) {
                Phase::New => {}
                Phase::Queued => {
                    let place = status.queue.map_or(0, |queue| queue.position);
                    say(&format!("{name}: accepted at place {place} of the line"));
                }
                Phase::Running => {
                    say(&format!("{name}: running as {}", status.pipeline_run.unwrap_or_default()));
                }
                phase => say(&format!("{name}: {}", phase.reason().to_lowercase())),
            }
        })
        .await?;
    for log in ended.status.iter().flat_map(|status| status.logs.iter().flatten()) {
        for line in log.tail.lines() {
            say(&format!("{name}: {}/{} | {line}", log.task, log.step));
        }
    }
    if let Some(problem) = verdict(&ended) {
        return Err(problem);
    }
    let results = ended.status.and_then(|status| status.results).unwrap_or_default();
    if format == Format::Table {
        let lines: Vec<String> = results.iter().map(|(name, value)| format!("{name}={value}")).collect();
        return if lines.is_empty() { Ok(()) } else { format.text(&lines.join("\n")) };
    }
    format.value(&results)
}

/// Progress goes to standard error, so that results can be piped.
fn say(line: &str) {
    // Nothing is left to do if even standard error is gone.
    let _ = writeln!(stderr().lock(), "{line}");
}

fn row(request: &InternalRequest) -> Value {
    let status = request.status.clone().unwrap_or_default();
    let pipeline = request.spec.request.clone().or_else(|| {
        let reference = &request.spec.pipeline.as_ref()?.pipeline_ref;
        let named = |name: &str| {
            reference.params.iter().find(|param| param.name == name).map(|param| param.value.clone())
        };
        named("name").or_else(|| named("pathInRepo")).or_else(|| Some(reference.resolver.clone()))
    });
    json!({
        "name": request.metadata.name, "namespace": request.metadata.namespace, "state": state(&status),
        "pipeline": pipeline, "message": message(&status), "pipelineRun": status.pipeline_run,
        "results": status.results, "position": status.queue.map(|queue| queue.position),
    })
}

fn state(status: &InternalRequestStatus) -> &'static str {
    match Phase::of(status) {
        Phase::New => "new",
        // Whether it waits or runs by now is not written before its end.
        Phase::Queued => "accepted",
        Phase::Running => "running",
        Phase::Succeeded => "succeeded",
        Phase::Failed => "failed",
        Phase::Rejected => "rejected",
    }
}

fn message(status: &InternalRequestStatus) -> Option<String> {
    status.conditions.first().map(|condition| condition.message.clone()).filter(|message| !message.is_empty())
}

fn show(request: &InternalRequest, format: Format) -> Result<(), Problem> {
    if format != Format::Table {
        return format.value(request);
    }
    let status = request.status.clone().unwrap_or_default();
    let mut lines = vec![
        format!("Name       {}", request.metadata.name.as_deref().unwrap_or_default()),
        format!("Namespace  {}", request.metadata.namespace.as_deref().unwrap_or_default()),
        format!("Pipeline   {}", row(request)["pipeline"].as_str().unwrap_or("-")),
        format!("State      {}", state(&status)),
    ];
    let mut add =
        |name: &str, value: Option<String>| lines.extend(value.map(|value| format!("{name:<10} {value}")));
    add("Message", message(&status));
    add("Joined", status.queue.as_ref().map(|queue| format!("the line at place {}", queue.position)));
    add("Run", status.pipeline_run.clone());
    add("Started", status.start_time.as_ref().map(|time| time.0.to_string()));
    add("Completed", status.completion_time.as_ref().map(|time| time.0.to_string()));
    for (name, value) in status.results.iter().flatten() {
        add("Result", Some(format!("{name}={value}")));
    }
    if status.logs.is_some() {
        add(
            "Logs",
            Some(format!("tarbet request logs {}", request.metadata.name.as_deref().unwrap_or_default())),
        );
    }
    format.text(&lines.join("\n"))
}

async fn logs(request: &InternalRequest, private: Option<Client>, format: Format) -> Result<(), Problem> {
    let name = request.metadata.name.as_deref().unwrap_or_default();
    let status = request.status.clone().unwrap_or_default();
    let nothing = |cause: &str| {
        Problem::new(&cluster::OBJECT_MISSING, format!("There is no log of the request `{name}`."))
            .at("request → run on the private cluster")
            .because(cause.to_owned())
            .advising(format!("`tarbet request show {name}` tells its state"))
    };
    if let Some(client) = private {
        let run = status.pipeline_run.as_deref().and_then(|run| run.split_once('/'));
        let (namespace, run) = run.ok_or_else(|| nothing("it has no run"))?;
        let log = whole_log(client, namespace, run).await.map_err(|error| {
            Problem::new(&cluster::CLUSTER_UNREACHABLE, "The log cannot be read.")
                .because(tarbet_cluster::describe(&error))
        })?;
        let log =
            log.ok_or_else(|| nothing("no step has said anything yet, or the log was too old to be kept"))?;
        return format.text(log.trim_end_matches('\n'));
    }
    let logs = status.logs.clone().unwrap_or_default();
    if logs.is_empty() {
        let cause =
            if Phase::of(&status).is_final() { "no step said anything" } else { "it is not finished" };
        return Err(nothing(cause)
            .advising("an administrator of the private side can read it with --private-kubeconfig"));
    }
    if format != Format::Table {
        return format.value(&logs);
    }
    let pages: Vec<String> = logs
        .iter()
        .map(|log| {
            let cut = if log.truncated { " (the end)" } else { "" };
            format!("=== {} / {}{cut}\n{}\n", log.task, log.step, log.tail.trim_end_matches('\n'))
        })
        .collect();
    let text = pages.concat();
    format.text(text.trim_end_matches('\n'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_command_looks_where_this_one_did() {
        let mut again = Again { kubeconfig: None, namespace: None };
        assert_eq!(again.command("list"), "tarbet request list");
        again = Again { kubeconfig: Some("a.yaml".into()), namespace: Some("team-a".into()) };
        assert_eq!(again.command("show hello"), "tarbet request show hello -n team-a --kubeconfig a.yaml");
    }
}
