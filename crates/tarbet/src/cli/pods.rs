//! `tarbet pods …`: pods for people without Kubernetes, on any interLink endpoint.

use std::io::{Write, stderr, stdout};
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use clap::{Args, Subcommand};
use futures::StreamExt;
use serde_json::{Value, json};
use tarbet_cluster::Connect;
use tarbet_identity::tls::{CaSource, ClientTls};
use tarbet_pods::interlink::{Giving, retrieve};
use tarbet_pods::node::interlink::{Endpoint, Interlink};
use tarbet_pods::wire::{ExecRequest, Frame, LogRequest, Origin, PodCreate, PodStatus};
use tarbet_telemetry::codes::{ground, pods};
use tarbet_telemetry::{Coded, Problem};
use tokio::io::AsyncReadExt;

use super::endpoint::ServerArgs;
use crate::output::Format;
use crate::roles::node::through;

pub const EXAMPLES: &str = "Examples:
  tarbet pods run busybox -- echo hello
  tarbet pods list
  tarbet pods logs 0b1c99a8 --follow
  tarbet pods exec 0b1c99a8 -- sh -c 'ls /'
  tarbet pods delete 0b1c99a8
  tarbet pods list --site hpc

The endpoint is an interLink API server or a plugin: --interlink, INTERLINKURL with INTERLINKPORT,
or http://127.0.0.1:3000.";

/// The namespace of pods that come from no cluster.
const NAMESPACE: &str = "default";
/// How often a pod is looked at while somebody waits for it.
const LOOK: Duration = Duration::from_millis(300);

#[derive(Debug, Args)]
pub struct PodsArgs {
    /// The endpoint: http://host:port, https://host:port or unix:///path
    #[arg(long, global = true, env = "INTERLINKURL", default_value = "http://127.0.0.1", value_name = "URL")]
    interlink: String,
    /// Its port, where the URL has none
    #[arg(long, global = true, env = "INTERLINKPORT", default_value = "3000", value_name = "PORT")]
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
    Run(RunArgs),
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
        /// Only the last lines
        #[arg(long, default_value_t = 0)]
        tail: u64,
        /// Each line with its time
        #[arg(long)]
        timestamps: bool,
    },
    /// Run a command in a running pod
    #[command(
        after_help = "Examples:\n  tarbet pods exec train -- ls /\n  tarbet pods exec -i train -- sh < script.sh"
    )]
    Exec {
        /// UID, the beginning of one, or name
        pod: String,
        /// The container; the first if absent
        #[arg(long, default_value = "")]
        container: String,
        /// Pass standard input on
        #[arg(long, short = 'i')]
        stdin: bool,
        /// The command
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// End a pod and remove all that was made for it
    #[command(after_help = "Examples:\n  tarbet pods delete 0b1c99a8")]
    Delete {
        /// UID, the beginning of one, or name
        pod: String,
    },
}

#[derive(Debug, Args)]
struct RunArgs {
    /// The image
    image: String,
    /// The pod's name; made up if absent
    #[arg(long)]
    name: Option<String>,
    /// A variable; may be repeated
    #[arg(long = "env", short = 'e', value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// The most cores it may use, such as 2 or 500m
    #[arg(long, value_name = "QUANTITY")]
    cpu: Option<String>,
    /// The most memory it may use, such as 2Gi
    #[arg(long, value_name = "QUANTITY")]
    memory: Option<String>,
    /// How many GPUs it needs
    #[arg(long, value_name = "COUNT")]
    gpus: Option<u32>,
    /// An annotation, such as slurm-job.vk.io/flags=--time=10; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    annotation: Vec<String>,
    /// When the image is pulled
    #[arg(long, value_name = "Always|IfNotPresent|Never", default_value = "IfNotPresent")]
    pull: String,
    /// Leave it running and print its UID
    #[arg(long, short = 'd')]
    detach: bool,
    /// Keep it when it has ended
    #[arg(long)]
    keep: bool,
    /// The command; the image's own if absent
    #[arg(last = true)]
    command: Vec<String>,
}

pub async fn run(args: PodsArgs, format: Format) -> Result<(), Problem> {
    let interlink = endpoint(&args).await?;
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
        PodsCommand::Run(run) => start(&interlink, run, format).await,
        PodsCommand::List => list(&interlink, format).await,
        PodsCommand::Logs { pod, container, follow, tail, timestamps } => {
            let found = find(&interlink, &pod).await?;
            let mut request = log_request(&found, &container);
            (request.options.follow, request.options.tail, request.options.timestamps) =
                (follow, tail, timestamps);
            print_log(&interlink, &request).await
        }
        PodsCommand::Exec { pod, container, stdin, command } => {
            let found = find(&interlink, &pod).await?;
            let namespace = found.namespace.clone();
            exec(
                &interlink,
                ExecRequest { namespace, pod_uid: found.uid, container, command, stdin, tty: false },
            )
            .await
        }
        PodsCommand::Delete { pod } => {
            let found = find(&interlink, &pod).await?;
            delete(&interlink, &found).await?;
            format.text(&format!("Deleted {} ({}). Next: tarbet pods list", found.name, found.uid))
        }
    }
}

async fn endpoint(args: &PodsArgs) -> Result<Interlink, Problem> {
    let wrong = |cause: String| {
        Problem::new(&ground::CONFIG_INVALID, "The interLink endpoint cannot be used.")
            .at("command line")
            .because(cause)
    };
    if let Some(site) = &args.site {
        // The agent decides what it leads to; the name only stands in requests.
        let endpoint = Endpoint::new("http://interlink", "").map_err(wrong)?;
        let connect = endpoint.connect(through(site, &args.server).await?, None);
        return Ok(Interlink::new(endpoint, connect, args.interlink_token_file.clone()));
    }
    // Nobody said where: the API of `tarbet up` on this machine, if it is elsewhere than usual.
    let unsaid = args.interlink == "http://127.0.0.1" && args.port == "3000";
    let up = || super::endpoint::Endpoint::read(&super::state_folder()).and_then(|up| up.interlink);
    let url = unsaid.then(up).flatten().unwrap_or_else(|| args.interlink.clone());
    let endpoint = Endpoint::new(&url, &args.port).map_err(wrong)?;
    let tls = args
        .interlink_ca_file
        .clone()
        .map_or_else(ClientTls::new, |file| ClientTls::only(CaSource::File(file)));
    let tls = tls.build(jiff::Timestamp::now()).map_err(|error| wrong(error.to_string()))?;
    let connect = endpoint.connect(Connect::network(), Some(tls));
    Ok(Interlink::new(endpoint, connect, args.interlink_token_file.clone()))
}

fn told(error: impl Coded) -> Problem {
    error.problem()
}

async fn start(interlink: &Interlink, args: RunArgs, format: Format) -> Result<(), Problem> {
    let pairs = |pairs: &[String], what: &str| {
        let split = |pair: &String| {
            pair.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned())).ok_or_else(|| {
                Problem::new(&ground::BAD_REQUEST, format!("`{pair}` is not NAME=VALUE."))
                    .at("command line")
                    .because(what.to_owned())
            })
        };
        pairs.iter().map(split).collect::<Result<Vec<_>, _>>()
    };
    let env = pairs(&args.env, "a variable has a name and a value")?;
    let annotations = pairs(&args.annotation, "an annotation has a name and a value")?;
    let uid = uuid::Uuid::new_v4().to_string();
    let name = args.name.unwrap_or_else(|| format!("pod-{}", &uid[..8]));
    let mut limits = serde_json::Map::new();
    let gpus = args.gpus.map(|count| count.to_string());
    for (key, value) in [("cpu", args.cpu), ("memory", args.memory), ("nvidia.com/gpu", gpus)] {
        if let Some(value) = value {
            limits.insert(key.into(), value.into());
        }
    }
    let peer = interlink.ping().await.map_err(told)?;
    let mut container = json!({
        "name": "main", "image": args.image, "imagePullPolicy": args.pull, "resources": {"limits": limits},
        "env": env.into_iter().map(|(name, value)| json!({"name": name, "value": value})).collect::<Vec<_>>(),
    });
    if !args.command.is_empty() {
        container["command"] = literal(args.command, peer.origin).into();
    }
    let pod = json!({
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": uid,
            "annotations": annotations.into_iter().collect::<std::collections::BTreeMap<_, _>>()},
        "spec": {"restartPolicy": "Never", "containers": [container]},
        "status": {"phase": "Pending"},
    });
    let pod = serde_json::from_value(pod).map_err(|error| {
        Problem::new(&ground::INTERNAL, "The pod cannot be written.").because(error.to_string())
    })?;
    let create = PodCreate { pod, ..Default::default() };
    let containers = retrieve(create.clone(), Giving::Everything).containers;
    interlink.create(&create, &containers, &peer).await.map_err(told)?;
    if args.detach {
        return format.record("Started", &[("uid", &uid), ("name", &name)]);
    }
    wait(interlink, &create.pod, true).await?;
    let status = PodStatus { name, uid, namespace: NAMESPACE.into(), ..Default::default() };
    let mut request = log_request(&status, "main");
    request.options.follow = true;
    print_log(interlink, &request).await?;
    let end = wait(interlink, &create.pod, false).await?;
    if !args.keep {
        delete(interlink, &status).await?;
    }
    match end {
        0 => Ok(()),
        code => exit(code),
    }
}

/// Words of a command that are meant as they were typed. Our plugins replace `$(NAME)` in them, as
/// Kubernetes does, and read two dollars as one; those of others leave that to a node.
fn literal(words: Vec<String>, origin: Origin) -> Vec<String> {
    if !origin.is_ours() {
        return words;
    }
    words.iter().map(|word| word.replace('$', "$$")).collect()
}

/// Waits until the pod has begun, or ended; gives its exit code in the end.
async fn wait(interlink: &Interlink, pod: &impl serde::Serialize, begun: bool) -> Result<i32, Problem> {
    let mut said = String::new();
    loop {
        let states = interlink.status(std::slice::from_ref(pod)).await.map_err(told)?;
        let state = states
            .into_iter()
            .next()
            .and_then(|status| status.containers.into_iter().next())
            .and_then(|c| c.state);
        let state = state.unwrap_or_default();
        if let Some(end) = &state.terminated {
            let why = [&end.reason, &end.message].map(|text| text.clone().unwrap_or_default()).join(" ");
            if !begun && end.exit_code != 0 {
                let _ = writeln!(stderr(), "ended with code {}: {}", end.exit_code, why.trim());
            }
            return Ok(end.exit_code);
        }
        if state.running.is_some() && begun {
            return Ok(0);
        }
        if let Some(waiting) = &state.waiting {
            let why =
                [&waiting.reason, &waiting.message].map(|text| text.clone().unwrap_or_default()).join(" ");
            if why != said {
                let _ = writeln!(stderr(), "waiting: {}", why.trim());
                said = why;
            }
        }
        tokio::time::sleep(LOOK).await;
    }
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
    format.rows(&keys, &keys, &rows)
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
    let mut found: Vec<PodStatus> = all(interlink)
        .await?
        .into_iter()
        .filter(|pod| pod.uid.starts_with(wanted) || pod.name == wanted)
        .collect();
    match (found.pop(), found.is_empty()) {
        (Some(pod), true) => Ok(pod),
        (None, _) => Err(Problem::new(&pods::POD_UNKNOWN, format!("There is no pod `{wanted}`."))),
        (Some(_), false) => {
            let count = found.len() + 1;
            Err(Problem::new(&ground::BAD_REQUEST, format!("`{wanted}` means {count} pods."))
                .advising("name one by its UID"))
        }
    }
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

async fn exec(interlink: &Interlink, request: ExecRequest) -> Result<(), Problem> {
    let feed = request.stdin;
    let mut frames = interlink.exec(&request).await.map_err(told)?;
    let mut input = frames.input;
    let feeding = tokio::spawn(async move {
        let (mut stdin, mut buffer) = (tokio::io::stdin(), vec![0; 16 * 1024]);
        let mut feeding = feed;
        while feeding {
            let count = stdin.read(&mut buffer).await.unwrap_or_default();
            feeding = input.send(&Frame::Stdin(Bytes::copy_from_slice(&buffer[..count]))).await && count > 0;
        }
        // Kept until the command ends: closing it would mean that the caller left.
        std::future::pending::<()>().await;
    });
    let ended = loop {
        match frames.output.next().await {
            Frame::Stdout(bytes) => drop(stdout().write_all(&bytes).and_then(|()| stdout().flush())),
            Frame::Stderr(bytes) => drop(stderr().write_all(&bytes)),
            Frame::Exit(code) => break Ok(code),
            Frame::Failed(cause) => {
                break Err(Problem::new(&pods::RUNTIME_REFUSED, "The command did not run.").because(cause));
            }
            Frame::Stdin(_) | Frame::Resize(..) => {}
        }
    };
    feeding.abort();
    match ended? {
        0 => Ok(()),
        code => exit(code),
    }
}

async fn delete(interlink: &Interlink, status: &PodStatus) -> Result<(), Problem> {
    let mut pod = k8s_openapi::api::core::v1::Pod::default();
    pod.metadata.name = Some(status.name.clone());
    pod.metadata.namespace = Some(status.namespace.clone());
    pod.metadata.uid = Some(status.uid.clone());
    let peer = interlink.ping().await.map_err(told)?;
    interlink.delete(&pod, Duration::from_secs(30), &peer).await.map_err(told)
}

/// Ends with the code of what ran, as `ssh` and `docker run` do.
#[expect(clippy::exit, reason = "the exit code is the result, and it is not one of ours")]
fn exit(code: i32) -> ! {
    let _ = stdout().flush();
    std::process::exit(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_arrive_as_they_were_typed_whoever_runs_them() {
        let typed = || vec!["sh".to_owned(), "-c".to_owned(), "echo $HOME $$".to_owned()];
        assert_eq!(literal(typed(), Origin::Ours)[2], "echo $$HOME $$$$");
        assert_eq!(literal(typed(), Origin::Other), typed());
        assert_eq!(literal(typed(), Origin::Seed), typed());
    }
}
