//! `tarbet pods …`: pods for people without Kubernetes, on any interLink endpoint.

mod exec;
mod launch;
mod meant;

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use futures::StreamExt;
use serde_json::{Value, json};
use tarbet_cluster::Connect;
use tarbet_identity::tls::{CaSource, ClientTls};
use tarbet_pods::node::interlink::{Endpoint, Interlink};
use tarbet_pods::wire::{LogRequest, PodStatus};
use tarbet_telemetry::codes::{ground, pods};
use tarbet_telemetry::{Coded, Problem};

use super::endpoint::ServerArgs;
use super::site_now;
use crate::output::Format;
use crate::roles::node::through;
use crate::roles::pods_here::SERVICE;
use crate::roles::up::pods::PLAIN;

pub const EXAMPLES: &str = "Examples:
  tarbet pods run busybox -- echo hello
  tarbet pods list
  tarbet pods logs 0b1c99a8 --follow
  tarbet pods exec 0b1c99a8 -- sh -c 'ls /'
  tarbet pods delete 0b1c99a8
  tarbet pods list --site hpc

The endpoint is an interLink API server or a plugin: --interlink, INTERLINKURL with INTERLINKPORT,
or http://127.0.0.1:3000.";

/// The endpoint unless somebody names one.
const USUAL_URL: &str = "http://127.0.0.1";
const USUAL_PORT: &str = "3000";
/// The namespace of pods that come from no cluster.
const NAMESPACE: &str = "default";

#[derive(Debug, Args)]
pub struct PodsArgs {
    /// The endpoint: http://host:port, https://host:port or unix:///path
    #[arg(long, global = true, env = "INTERLINKURL", default_value = USUAL_URL, value_name = "URL")]
    interlink: String,
    /// Its port, where the URL has none
    #[arg(long, global = true, env = "INTERLINKPORT", default_value = USUAL_PORT, value_name = "PORT")]
    port: String,
    /// A file with the token to show
    #[arg(long, global = true, env = "VKTOKENFILE", value_name = "FILE")]
    interlink_token_file: Option<PathBuf>,
    /// Whose certificate the endpoint must have, where it speaks TLS (PEM)
    #[arg(long, global = true, value_name = "FILE")]
    interlink_ca_file: Option<PathBuf>,
    /// Instead: the site whose agent offers it, reached through a gateway
    #[arg(long, global = true, value_name = "SITE")]
    site: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
    /// Say what would be done, and do nothing
    #[arg(long, global = true)]
    plan: bool,
    #[command(subcommand)]
    command: PodsCommand,
}

#[derive(Debug, Subcommand)]
enum PodsCommand {
    /// Run a command in an image and show its output
    #[command(
        after_help = "Examples:\n  tarbet pods run busybox -- echo hello\n  tarbet pods run --name train --cpu 4 --memory 8Gi -e EPOCHS=3 --detach trainer:1 -- train.sh\n\nWithout --detach the exit code is the command's own."
    )]
    Run(launch::RunArgs),
    /// List pods
    #[command(after_help = "Examples:\n  tarbet pods list\n  tarbet pods list -o json")]
    List,
    /// Show the log of a pod
    #[command(
        after_help = "Examples:\n  tarbet pods logs 0b1c99a8\n  tarbet pods logs train --follow --tail 10"
    )]
    Logs {
        /// UID, the beginning of one, or name
        pod: String,
        /// The container; the first if absent
        #[arg(long, default_value = "")]
        container: String,
        /// Go on until the container ends
        #[arg(long, short = 'f')]
        follow: bool,
        /// Only the last lines; 0 for none but new ones, -1 for all
        #[arg(long, default_value_t = -1, allow_negative_numbers = true, value_name = "LINES")]
        tail: i64,
        /// Each line with its time
        #[arg(long)]
        timestamps: bool,
    },
    /// Run a command in a running pod
    #[command(
        after_help = "Examples:\n  tarbet pods exec train -- ls /\n  tarbet pods exec -i train -- sh < script.sh\n  tarbet pods exec -it train -- bash"
    )]
    Exec(exec::ExecArgs),
    /// End a pod and remove all that was made for it
    #[command(after_help = "Examples:\n  tarbet pods delete 0b1c99a8")]
    Delete {
        /// UID, the beginning of one, or name
        pod: String,
    },
}

pub async fn run(args: PodsArgs, format: Format) -> Result<(), Problem> {
    let (interlink, plain) = endpoint(&args).await?;
    let again = Again::of(&args);
    match args.command {
        PodsCommand::Run(run) if args.plan => {
            format.plan(&[format!("run the image `{}` with the command {:?}", run.image, run.command)])
        }
        PodsCommand::Delete { pod } if args.plan => {
            let found = find(&interlink, &pod).await?;
            format.plan(&[format!(
                "end the pod {} ({}) and remove all that was made for it",
                found.name, found.uid
            )])
        }
        PodsCommand::Run(run) => launch::start(&interlink, run, plain, &again, format).await,
        PodsCommand::List => list(&interlink, format).await,
        PodsCommand::Logs { pod, container, follow, tail, timestamps } => {
            let found = find(&interlink, &pod).await?;
            let mut request = log_request(&found, &container);
            (request.options.follow, request.options.timestamps) = (follow, timestamps);
            match u64::try_from(tail) {
                // On this wire nothing and no limit are the same number.
                Ok(0) if follow => request.options.since_time = Some(jiff::Timestamp::now()),
                Ok(0) => return Ok(()),
                Ok(lines) => request.options.tail = lines,
                Err(_) => {}
            }
            print_log(&interlink, &request).await
        }
        PodsCommand::Exec(exec) => {
            let found = find(&interlink, &exec.pod).await?;
            meant::must_run(&found, &exec.container, &again)?;
            exec::start(&interlink, found, exec).await
        }
        PodsCommand::Delete { pod } => {
            let found = find(&interlink, &pod).await?;
            delete(&interlink, &found).await?;
            let facts = json!({ "deleted": true, "uid": found.uid, "name": found.name });
            let text = format!("Deleted {} ({}).", found.name, found.uid);
            format.done(&text, &again.command("list"), &facts)
        }
    }
}

/// Where the next command must look to find the same: the flags for it.
#[derive(Debug, Default)]
struct Again(String);

impl Again {
    fn of(args: &PodsArgs) -> Self {
        if let Some(site) = &args.site {
            return Self(format!(" --site {site}"));
        }
        let flag = |name: &str, said: &str, usual: &str| {
            if said == usual { String::new() } else { format!(" --{name} {said}") }
        };
        Self(flag("interlink", &args.interlink, USUAL_URL) + &flag("port", &args.port, USUAL_PORT))
    }

    fn command(&self, words: &str) -> String {
        format!("tarbet pods {words}{}", self.0)
    }

    fn deleting(&self, pod: &str) -> String {
        self.command(&format!("delete {pod}"))
    }
}

/// The endpoint, and whether it is known to run pods as plain processes, without their images.
async fn endpoint(args: &PodsArgs) -> Result<(Interlink, bool), Problem> {
    let wrong = |cause: String| {
        Problem::new(&ground::CONFIG_INVALID, "The interLink endpoint cannot be used.")
            .at("command line")
            .because(cause)
    };
    if let Some(site) = &args.site {
        let server = args.server.connect()?;
        let name = site.parse().map_err(|error| wrong(format!("the site `{site}`: {error}")))?;
        let found = site_now::of(&server, &name).await?;
        site_now::must_offer(
            &found,
            SERVICE,
            "start it with --plugin slurm, or with --offer interlink=HOST:PORT",
        )?;
        // The agent decides what it leads to; the name only stands in requests.
        let endpoint = Endpoint::new("http://interlink", "").map_err(wrong)?;
        let connect = endpoint.connect(through(site, &args.server).await?, None);
        return Ok((Interlink::new(endpoint, connect, args.interlink_token_file.clone()), false));
    }
    // Nobody said where: the API of `tarbet up` on this machine, if it is elsewhere than usual.
    let unsaid = args.interlink == USUAL_URL && args.port == USUAL_PORT;
    let up = unsaid.then(|| super::endpoint::Endpoint::read(&super::state_folder())).flatten();
    let plain = up.as_ref().and_then(|up| up.parts.get("pods")).is_some_and(|told| told.contains(PLAIN));
    let url = up.and_then(|up| up.interlink).unwrap_or_else(|| args.interlink.clone());
    let endpoint = Endpoint::new(&url, &args.port).map_err(wrong)?;
    let tls = args
        .interlink_ca_file
        .clone()
        .map_or_else(ClientTls::new, |file| ClientTls::only(CaSource::File(file)));
    let tls = tls.build(jiff::Timestamp::now()).map_err(|error| wrong(error.to_string()))?;
    let connect = endpoint.connect(Connect::network(), Some(tls));
    Ok((Interlink::new(endpoint, connect, args.interlink_token_file.clone()), plain))
}

fn told(error: impl Coded) -> Problem {
    error.problem()
}

async fn all(interlink: &Interlink) -> Result<Vec<PodStatus>, Problem> {
    interlink.list().await.map_err(told)
}

async fn list(interlink: &Interlink, format: Format) -> Result<(), Problem> {
    let rows: Vec<Value> = all(interlink)
        .await?
        .into_iter()
        .map(|pod| {
            let states =
                pod.init_containers.iter().chain(&pod.containers).map(|c| format!("{}: {}", c.name, word(c)));
            json!({"uid": pod.uid, "namespace": pod.namespace, "name": pod.name, "job": pod.jid,
                "containers": states.collect::<Vec<_>>().join(", ")})
        })
        .collect();
    let keys = ["uid", "namespace", "name", "containers"];
    format.rows_or("No pod is here. Next: tarbet pods run busybox -- echo hello", &keys, &rows)
}

fn word(container: &k8s_openapi::api::core::v1::ContainerStatus) -> String {
    let state = container.state.clone().unwrap_or_default();
    match (state.waiting, state.running, state.terminated) {
        (Some(waiting), _, _) => waiting.reason.unwrap_or_else(|| "waiting".into()),
        (_, Some(_), _) => "running".into(),
        (_, _, Some(end)) => format!("ended {}", end.exit_code),
        _ => "unknown".into(),
    }
}

/// The one pod that is meant by a UID, the beginning of one, or a name.
async fn find(interlink: &Interlink, wanted: &str) -> Result<PodStatus, Problem> {
    meant::one(all(interlink).await?, wanted)
}

fn log_request(pod: &PodStatus, container: &str) -> LogRequest {
    LogRequest {
        namespace: pod.namespace.clone(),
        pod_uid: pod.uid.clone(),
        pod_name: pod.name.clone(),
        container_name: container.to_owned(),
        ..Default::default()
    }
}

async fn print_log(interlink: &Interlink, request: &LogRequest) -> Result<(), Problem> {
    let mut log = interlink.logs(request).await.map_err(told)?;
    while let Some(piece) = log.next().await {
        let piece = piece.map_err(|error| {
            Problem::new(&pods::INTERLINK_AWAY, "The log broke off.").because(error.to_string())
        })?;
        let mut out = stdout().lock();
        if out.write_all(&piece).and_then(|()| out.flush()).is_err() {
            return Ok(());
        }
    }
    Ok(())
}

async fn delete(interlink: &Interlink, status: &PodStatus) -> Result<(), Problem> {
    let mut pod = k8s_openapi::api::core::v1::Pod::default();
    pod.metadata.name = Some(status.name.clone());
    pod.metadata.namespace = Some(status.namespace.clone());
    pod.metadata.uid = Some(status.uid.clone());
    let peer = interlink.ping().await.map_err(told)?;
    interlink.delete(&pod, Duration::from_secs(30), &peer).await.map_err(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        pods: PodsArgs,
    }

    #[test]
    fn the_next_command_looks_where_this_one_did() {
        for (flags, next) in [
            (&["--port", USUAL_PORT, "--interlink", USUAL_URL][..], "tarbet pods list"),
            (&["--port", "4000", "--interlink", USUAL_URL], "tarbet pods list --port 4000"),
            (
                &["--port", USUAL_PORT, "--interlink", "unix:///run/il.sock"],
                "tarbet pods list --interlink unix:///run/il.sock",
            ),
            (&["--site", "hpc"], "tarbet pods list --site hpc"),
        ] {
            let words = ["pods"].iter().chain(flags).chain(&["list"]);
            let line = <Line as clap::Parser>::try_parse_from(words).unwrap();
            assert_eq!(Again::of(&line.pods).command("list"), next);
        }
    }
}
