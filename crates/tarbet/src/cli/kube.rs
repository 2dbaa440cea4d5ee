//! `tarbet kube login SITE`: a kubeconfig context, so that plain kubectl reaches the site; and
//! `tarbet kube proxy SITE`, the same without a gateway that could read along.

mod proxy;

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tarbet_identity::files;
use tarbet_reach::names::SiteName;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;

use super::endpoint::{Proof, Server, ServerArgs};
use super::site_now;
use crate::output::Format;

pub const EXAMPLES: &str = "Examples:
  tarbet kube login lab
  kubectl --context lab get pods
  tarbet kube proxy lab                      the same, sealed up to the site's agent";

#[derive(Debug, Subcommand)]
pub enum KubeCommand {
    /// Write a kubeconfig context named after the site
    #[command(
        after_help = "Examples:\n  tarbet kube login lab\n  tarbet kube login lab --kubeconfig ./lab.kubeconfig\n  tarbet kube login lab --context lab-through-tarbet"
    )]
    Login(LoginArgs),
    /// Lead kubectl to a site through a port of this machine, sealed up to the site's agent
    #[command(after_help = proxy::EXAMPLES)]
    Proxy(proxy::ProxyArgs),
}

#[derive(Debug, Args)]
pub struct LoginArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// The site
    site: SiteName,
    /// The gateway's Kubernetes listener; the local `tarbet up` if absent
    #[arg(long, env = "TARBET_KUBERNETES", value_name = "URL")]
    kubernetes: Option<String>,
    /// The kubeconfig to write into; KUBECONFIG or ~/.kube/config if absent
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// What the context is called; as the site if absent
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Replace a context of this name that leads elsewhere
    #[arg(long)]
    force: bool,
    /// Say what would be written, and write nothing
    #[arg(long)]
    plan: bool,
}

pub fn run(command: KubeCommand, format: Format) -> Result<(), Problem> {
    match command {
        KubeCommand::Login(args) => super::block_on(log_in(args, format)),
        KubeCommand::Proxy(args) => super::block_on(proxy::run(args, format)),
    }
}

async fn log_in(args: LoginArgs, format: Format) -> Result<(), Problem> {
    let server = args.server.connect()?;
    let url = args
        .kubernetes
        .or_else(|| server.local.as_ref().map(|local| local.kubernetes.clone()))
        .ok_or_else(|| {
            Problem::new(&ground::BAD_REQUEST, "The gateway's Kubernetes listener is not known.")
                .at("tarbet command line")
                .because("neither --kubernetes nor TARBET_KUBERNETES is set, and no `tarbet up` runs here")
                .advising("give --kubernetes https://GATEWAY:8154")
        })?;
    let site = site_now::of(&server, &args.site).await?;
    site_now::must_offer(&site, site_now::KUBERNETES, "start it with --kubeconfig FILE, or in a pod")?;
    let file = args.kubeconfig.unwrap_or_else(default_kubeconfig);
    let context = args.context.as_deref().unwrap_or(args.site.as_str());
    let _turn = files::turn(&file);
    let mut config = read(&file)?;
    let foreign = other_way(&config, context, &args.site);
    refuse_foreign(foreign.as_deref(), context, &file, args.force || args.plan)?;
    login(&mut config, context, &args.site, url.trim_end_matches('/'), &server)
        .map_err(|cause| unusable(&file, &cause))?;
    if args.plan {
        let mut change = format!("write the context `{context}` for {url} into {}", file.display());
        if let Some(cluster) = foreign {
            change = format!(
                "{change}; it replaces one that leads to the cluster `{cluster}`, for which --force is needed"
            );
        }
        return format.plan(&[change]);
    }
    write(&file, &config)?;
    if !site.connected {
        crate::output::note(&format!("The site `{}` is not connected now: its agent must run.", site.name));
    }
    let text = format!("The context `{context}` is in {}.", file.display());
    let told = json!({ "context": context, "kubeconfig": file, "site": args.site });
    format.done(&text, &format!("kubectl --context {context} get pods"), &told)
}

/// The cluster of a context of this name that we did not write for this site.
fn other_way(config: &Value, context: &str, site: &SiteName) -> Option<String> {
    let contexts = config["contexts"].as_array()?;
    let there = contexts.iter().find(|entry| entry["name"] == context)?;
    let cluster = there["context"]["cluster"].as_str().unwrap_or_default();
    (cluster != ours(context, site)).then(|| cluster.to_owned())
}

fn refuse_foreign(foreign: Option<&str>, context: &str, file: &Path, forced: bool) -> Result<(), Problem> {
    let Some(cluster) = foreign.filter(|_| !forced) else { return Ok(()) };
    let there = format!("The context `{context}` in {} leads elsewhere.", file.display());
    Err(Problem::new(&ground::STORE_CONFLICT, there)
        .at("tarbet command line")
        .because(format!("it belongs to the cluster `{cluster}`, which is not ours to replace"))
        .advising("give --context NAME for another name, --kubeconfig FILE for another file, or --force"))
}

/// How cluster and user of a context are called in a kubeconfig. Each context has its own: two of one site may
/// lead through different gateways.
fn ours(context: &str, site: &SiteName) -> String {
    if context == site.as_str() { format!("tarbet-{site}") } else { format!("tarbet-{site}@{context}") }
}

fn unusable(file: &Path, cause: &str) -> Problem {
    Problem::new(&ground::CONFIG_UNREADABLE, format!("The kubeconfig {} cannot be changed.", file.display()))
        .because(cause)
}

fn read(file: &Path) -> Result<Value, Problem> {
    match std::fs::read_to_string(file) {
        // Where it is wrong, and not what stands there: a kubeconfig holds tokens and keys.
        Ok(text) => serde_saphyr::from_str::<Value>(&text)
            .map_err(|error| unusable(file, &error.without_snippet().to_string())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(json!({})),
        Err(error) => Err(unusable(file, &error.to_string())),
    }
}

fn write(file: &Path, config: &Value) -> Result<(), Problem> {
    let text = serde_saphyr::to_string(config).map_err(|error| unusable(file, &error.to_string()))?;
    let written = || -> std::io::Result<()> {
        if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder)?;
        }
        files::replace(file, text.as_bytes(), files::PRIVATE)
    };
    written().map_err(|error| unusable(file, &error.to_string()))
}

/// Puts a context with its own cluster and user into a kubeconfig; others stay as they are.
fn login(
    config: &mut Value,
    context: &str,
    site: &SiteName,
    url: &str,
    server: &Server,
) -> Result<(), String> {
    let mut cluster = json!({"server": format!("{url}/sites/{site}")});
    if let Some(file) = &server.ca_file {
        let pem = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
        cluster["certificate-authority-data"] = STANDARD.encode(pem).into();
    }
    let user = match &server.proof {
        // The site stands in the URL, by which kubectl keeps caches apart, and in the token, because
        // `kubectl get --raw` leaves the URL's path out.
        Proof::Token(token) => json!({"token": format!("site:{site}:{}", token.expose())}),
        Proof::Certificate(certificate, key) => {
            let place = |file: &PathBuf| {
                std::path::absolute(file).map_err(|error| format!("{}: {error}", file.display()))
            };
            json!({"client-certificate": place(certificate)?, "client-key": place(key)?})
        }
    };
    lead(config, context, site, &cluster, &user)
}

/// The same for any way to the site.
fn lead(
    config: &mut Value,
    context: &str,
    site: &SiteName,
    cluster: &Value,
    user: &Value,
) -> Result<(), String> {
    let name = ours(context, site);
    config["apiVersion"] = "v1".into();
    config["kind"] = "Config".into();
    put(config, "clusters", json!({"name": name, "cluster": cluster}))?;
    put(config, "users", json!({"name": name, "user": user}))?;
    put(config, "contexts", json!({"name": context, "context": {"cluster": name, "user": name}}))?;
    if config["current-context"].as_str().unwrap_or_default().is_empty() {
        config["current-context"] = context.into();
    }
    Ok(())
}

/// Replaces the entry of the same name in a list, or adds it.
fn put(config: &mut Value, list: &str, entry: Value) -> Result<(), String> {
    let slot = &mut config[list];
    if slot.is_null() {
        *slot = json!([]);
    }
    let entries = slot.as_array_mut().ok_or_else(|| format!("`{list}` is not a list"))?;
    entries.retain(|other| other["name"] != entry["name"]);
    entries.push(entry);
    Ok(())
}

fn default_kubeconfig() -> PathBuf {
    let first = std::env::var("KUBECONFIG").ok().and_then(|paths| paths.split(':').next().map(PathBuf::from));
    first
        .filter(|path| !path.as_os_str().is_empty())
        .unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".kube/config"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_of_somebody_else_is_replaced_by_force_only() {
        let (lab, file): (SiteName, _) = ("lab".parse().unwrap(), Path::new("config"));
        let mut config = json!({"contexts": [{"name": "lab", "context": {"cluster": "mine", "user": "me"}}]});
        let foreign = other_way(&config, "lab", &lab);
        assert_eq!(foreign.as_deref(), Some("mine"));
        let refused = refuse_foreign(foreign.as_deref(), "lab", file, false).unwrap_err();
        assert!(refused.remedy.contains("--force") && refused.cause.contains("mine"), "{refused:?}");
        refuse_foreign(foreign.as_deref(), "lab", file, true).unwrap();
        assert_eq!(other_way(&config, "elsewhere", &lab), None);

        // Under another name ours stands beside it, and is ours to write again.
        lead(&mut config, "tarbet-lab", &lab, &json!({}), &json!({})).unwrap();
        assert_eq!(other_way(&config, "tarbet-lab", &lab), None);
        assert_eq!(config["contexts"].as_array().unwrap().len(), 2);
        assert!(other_way(&config, "tarbet-lab", &"barn".parse().unwrap()).is_some(), "another site's");
    }

    #[test]
    fn contexts_of_one_site_lead_each_its_own_way() {
        let (lab, mut config): (SiteName, _) = ("lab".parse().unwrap(), json!({}));
        for (context, server) in [("lab", "https://one"), ("far", "https://two")] {
            lead(&mut config, context, &lab, &json!({ "server": server }), &json!({})).unwrap();
        }
        let names = |list: &str| -> Vec<String> {
            let entries = config[list].as_array().unwrap().iter();
            entries.map(|entry| entry["name"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(names("clusters"), ["tarbet-lab", "tarbet-lab@far"]);
        assert_eq!(names("users"), names("clusters"));
        assert_eq!(config["clusters"][0]["cluster"]["server"], "https://one");
    }
}
