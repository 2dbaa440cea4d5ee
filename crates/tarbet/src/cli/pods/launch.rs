//! `tarbet pods run`.

use std::io::{Write, stderr};
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tarbet_pods::interlink::{Giving, retrieve};
use tarbet_pods::node::interlink::Interlink;
use tarbet_pods::plan::quantity::Quantity;
use tarbet_pods::wire::{Origin, PodCreate, PodStatus, read};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::{ground, pods};
use tarbet_telemetry::supervisor::Signals;

use super::{Again, NAMESPACE, all, delete, log_request, print_log, told};
use crate::output::{self, Format, INTERRUPTED, end_with, note};

/// How often a pod is looked at while somebody waits for it.
const LOOK: Duration = Duration::from_millis(300);

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// The image
    pub(super) image: String,
    /// The pod's name; made up if absent
    #[arg(long)]
    name: Option<String>,
    /// A variable; may be repeated
    #[arg(long = "env", short = 'e', value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// The most cores it may use, such as 2 or 500m
    #[arg(long, value_name = "QUANTITY", value_parser = quantity)]
    cpu: Option<String>,
    /// The most memory it may use, such as 2Gi
    #[arg(long, value_name = "QUANTITY", value_parser = quantity)]
    memory: Option<String>,
    /// How many GPUs it needs
    #[arg(long, value_name = "COUNT")]
    gpus: Option<u32>,
    /// An annotation, such as slurm-job.vk.io/flags=--time=10; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    annotation: Vec<String>,
    /// When the image is pulled
    #[arg(long, value_name = "WHEN", value_parser = ["Always", "IfNotPresent", "Never"], default_value = "IfNotPresent")]
    pull: String,
    /// Leave it running and print its UID
    #[arg(long, short = 'd')]
    detach: bool,
    /// Keep it when it has ended
    #[arg(long)]
    keep: bool,
    /// The command; the image's own if absent
    #[arg(last = true)]
    pub(super) command: Vec<String>,
}

/// A quantity in Kubernetes' notation, kept as it was typed.
fn quantity(text: &str) -> Result<String, String> {
    Quantity::parse(text)
        .map(|_| text.to_owned())
        .ok_or_else(|| "write a number such as 2, 500m, 64Mi or 2Gi".to_owned())
}

/// One pod of a name: several could not be told apart later.
fn must_be_new(there: &[PodStatus], name: &str, again: &Again) -> Result<(), Problem> {
    let Some(pod) = there.iter().find(|pod| pod.namespace == NAMESPACE && pod.name == name) else {
        return Ok(());
    };
    Err(Problem::new(&pods::POD_INVALID, format!("There is a pod `{name}` already."))
        .at("tarbet command line")
        .because(format!("it has the UID {}", pod.uid))
        .advising(format!("choose another --name, or remove it with `{}`", again.deleting(name))))
}

/// Plain processes have no image whose own command could be run.
fn must_have_command(args: &RunArgs) -> Result<(), Problem> {
    if !args.command.is_empty() {
        return Ok(());
    }
    Err(Problem::new(&pods::POD_INVALID, "A command is needed.")
        .at("tarbet command line")
        .because("pods run as plain processes here, so the image's own command is not known")
        .advising(format!("tarbet pods run {} -- COMMAND", args.image)))
}

pub(super) async fn start(
    interlink: &Interlink,
    args: RunArgs,
    plain: bool,
    again: &Again,
    format: Format,
) -> Result<(), Problem> {
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
    if plain {
        must_have_command(&args)?;
        note("The image is not used: pods run as plain processes here, as the user of `tarbet up`.");
    }
    let peer = interlink.ping().await.map_err(told)?;
    if let Some(name) = args.name.as_deref().filter(|_| peer.extensions.list) {
        must_be_new(&all(interlink).await?, name, again)?;
    }
    let uid = uuid::Uuid::new_v4().to_string();
    let name = args.name.unwrap_or_else(|| format!("pod-{}", &uid[..8]));
    let mut limits = serde_json::Map::new();
    let gpus = args.gpus.map(|count| count.to_string());
    for (key, value) in [("cpu", args.cpu), ("memory", args.memory), ("nvidia.com/gpu", gpus)] {
        if let Some(value) = value {
            limits.insert(key.into(), value.into());
        }
    }
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
    let pod = read(pod.to_string().as_bytes(), "a pod").map_err(|error| {
        Problem::new(&ground::INTERNAL, "The pod cannot be written.").because(error.to_string())
    })?;
    let create = PodCreate { pod, ..Default::default() };
    let containers = retrieve(create.clone(), Giving::Everything).containers;
    let status = PodStatus { name, uid, namespace: NAMESPACE.into(), ..Default::default() };
    if args.detach {
        interlink.create(&create, &containers, &peer).await.map_err(told)?;
        let text = format!("Started: uid {}, name {}.", status.uid, status.name);
        let facts = json!({ "uid": status.uid, "name": status.name });
        return format.done(&text, &again.command(&format!("logs {} --follow", status.name)), &facts);
    }
    let signals = Signals::listen().map_err(|error| {
        Problem::new(&ground::INTERNAL, "The command cannot listen for signals.").because(error.to_string())
    })?;
    let ran = async {
        interlink.create(&create, &containers, &peer).await.map_err(told)?;
        wait(interlink, &create.pod, true).await?;
        let mut request = log_request(&status, "main");
        request.options.follow = true;
        print_log(interlink, &request).await?;
        wait(interlink, &create.pod, false).await
    };
    let end = tokio::select! {
        end = ran => end?,
        () = signals.clone().next() => {
            if args.keep {
                note(&format!("The pod {} goes on. Next: {}", status.name, again.deleting(&status.uid)));
            } else {
                abandon(interlink, &status, signals, again).await;
            }
            end_with(INTERRUPTED)
        }
    };
    if !args.keep {
        delete(interlink, &status).await?;
    }
    match end {
        0 => Ok(()),
        code => end_with(code),
    }
}

/// Nothing goes on that nobody sees: the pod is removed as at its end. Whoever does not wait for that, or waits
/// in vain, is told how it is removed.
async fn abandon(interlink: &Interlink, pod: &PodStatus, signals: Signals, again: &Again) {
    note(&format!("Interrupted: deleting {}…", pod.name));
    let deleted = tokio::select! {
        deleted = delete(interlink, pod) => deleted.map_err(|problem| output::problem(&problem)).is_ok(),
        () = signals.next() => false,
    };
    if deleted {
        note(&format!("The pod {} was deleted.", pod.name));
    } else {
        let (name, uid) = (&pod.name, &pod.uid);
        note(&format!("The pod {name} ({uid}) may go on. Next: {}", again.deleting(uid)));
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

    #[test]
    fn only_quantities_are_taken_as_such() {
        for good in ["2", "500m", "1.5", "64Mi", "2Gi"] {
            assert_eq!(quantity(good).as_deref(), Ok(good));
        }
        for bad in ["lots", "2XB", "-1", ""] {
            assert!(quantity(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_name_is_used_once() {
        let pod = |namespace: &str| PodStatus {
            name: "ticker".into(),
            uid: "0b1c99a8".into(),
            namespace: namespace.into(),
            ..Default::default()
        };
        let again = Again::default();
        must_be_new(&[pod("of-a-cluster")], "ticker", &again).unwrap();
        let refused = must_be_new(&[pod(NAMESPACE)], "ticker", &again).unwrap_err();
        assert!(refused.cause.contains("0b1c99a8"), "{refused:?}");
    }
}
