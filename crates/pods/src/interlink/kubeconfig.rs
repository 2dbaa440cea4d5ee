//! The account that a node of 2023 sends, and what is read from the cluster with it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use futures::FutureExt;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Api, Client};
use tarbet_telemetry::codes::{ground, pods};
use tarbet_telemetry::{Problem, problem};

use super::retrieve::Wanted;
use crate::folder::{Folder, part};
use crate::wire::PodCreate;

/// The cluster as the account sees it.
#[derive(Clone)]
pub(super) struct Account {
    root: PathBuf,
    client: Arc<RwLock<Option<Client>>>,
    /// The administrator gave one; what nodes send does not replace it.
    given: bool,
}

impl Account {
    /// With a file the administrator names, or what an earlier run stored.
    pub(super) async fn open(root: &Path, custom: Option<&Path>) -> Result<Self, Problem> {
        let account = Self { root: root.to_owned(), client: Arc::default(), given: custom.is_some() };
        if let Some(path) = custom {
            let unusable = |cause: String| {
                let what = format!("The kubeconfig {} (CUSTOMKUBECONF) cannot be used.", path.display());
                Problem::new(&ground::CONFIG_INVALID, what).because(cause)
            };
            let text = tokio::fs::read_to_string(path).await.map_err(|error| unusable(error.to_string()))?;
            account.take(&text, true).await.map_err(|problem| unusable(problem.cause))?;
            return Ok(account);
        }
        if let Ok(text) = tokio::fs::read_to_string(root.join(".kube/config")).await
            && let Err(problem) = account.take(&text, false).await
        {
            tracing::warn!(problem = %problem, "The stored kubeconfig cannot be used.");
        }
        Ok(account)
    }

    /// Whether it is the administrator's own.
    pub(super) fn is_given(&self) -> bool {
        self.given
    }

    /// Takes over an account and keeps it for the next start.
    pub(super) async fn set(&self, text: &str) -> Result<(), Problem> {
        self.take(text, false).await?;
        let root = self.root.clone();
        let text = text.to_owned();
        let kept = tokio::task::spawn_blocking(move || {
            Folder::create(&root)?.child(&part(".kube"), 0o700)?.write("config", text.as_bytes(), 0o600)
        });
        let kept = kept.await.map_err(std::io::Error::other).and_then(|kept| kept);
        kept.map_err(|error| {
            Problem::new(&pods::POD_FOLDER, "The kubeconfig cannot be stored.").because(error.to_string())
        })
    }

    async fn take(&self, text: &str, trusted: bool) -> Result<(), Problem> {
        let config = read(text, trusted).await?;
        let client = Client::try_from(config).map_err(|error| refused(problem::chain(&error)))?;
        *self.client.write().unwrap_or_else(PoisonError::into_inner) = Some(client);
        Ok(())
    }

    /// Reads everything that a pod needs from the cluster.
    pub(super) async fn gather(&self, pod: Pod) -> Result<PodCreate, Problem> {
        let wanted = Wanted::of_pod(&pod);
        let mut create = PodCreate { pod, ..Default::default() };
        if wanted.config_maps.is_empty() && wanted.secrets.is_empty() {
            return Ok(create);
        }
        let client = self.client.read().unwrap_or_else(PoisonError::into_inner).clone();
        let client = client.ok_or_else(|| {
            Problem::new(&pods::CLUSTER_AWAY, "The pod's contents cannot be read from the cluster.")
                .because("no kubeconfig was sent to /setKubeCFG yet")
        })?;
        let namespace = create.pod.metadata.namespace.clone().unwrap_or_default();
        let failed = |what: &str, name: &str, error: kube::Error| {
            Problem::new(&pods::CLUSTER_AWAY, format!("The {what} `{namespace}/{name}` cannot be read."))
                .because(problem::chain(&error))
        };
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
        for name in &wanted.config_maps {
            // What is missing may be optional; the plugin knows, and says so if it is not.
            let found = maps.get_opt(name).await.map_err(|error| failed("ConfigMap", name, error))?;
            create.config_maps.extend(found);
        }
        let secrets: Api<Secret> = Api::namespaced(client, &namespace);
        for name in &wanted.secrets {
            let found = secrets.get_opt(name).await.map_err(|error| failed("Secret", name, error))?;
            create.secrets.extend(found);
        }
        Ok(create)
    }
}

fn refused(cause: String) -> Problem {
    Problem::new(&pods::KUBECONFIG_REFUSED, "The kubeconfig cannot be used.").because(cause)
}

/// The way to the cluster that a kubeconfig tells of.
async fn read(text: &str, trusted: bool) -> Result<kube::Config, Problem> {
    let failed = |error: KubeconfigError| match error {
        // What the parser says quotes the lines around, and there stand tokens and keys.
        KubeconfigError::Parse(error) => refused(match error.location() {
            Some(at) => format!("it cannot be read at line {}, column {}", at.line(), at.column()),
            None => "it is no kubeconfig in YAML".into(),
        }),
        error => refused(problem::chain(&error)),
    };
    let config = Kubeconfig::from_yaml(text).map_err(failed)?;
    if !trusted && let Some(what) = reaches_out(&config) {
        return Err(refused(format!("it names {what}")));
    }
    kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.map_err(failed)
}

/// Reads what a node sends as its account, as fuzzing does: what is taken leads to no file and no program
/// of this machine, and what is refused is not quoted.
pub(crate) fn read_any(text: &str) {
    let Some(read) = read(text, false).now_or_never() else { return };
    match read {
        Ok(config) => {
            let user = config.auth_info;
            assert!(user.exec.is_none() && user.auth_provider.is_none() && user.token_file.is_none());
            assert!(user.client_certificate.is_none() && user.client_key.is_none());
        }
        Err(problem) => {
            assert!(!format!("{problem:?}").contains("canary"), "{problem:?}");
        }
    }
}

/// What in a kubeconfig would run a program or read a file of this machine.
fn reaches_out(config: &Kubeconfig) -> Option<&'static str> {
    for named in &config.auth_infos {
        let Some(user) = &named.auth_info else { continue };
        if user.exec.is_some() {
            return Some("a program to run");
        }
        if user.auth_provider.is_some() {
            return Some("an authentication provider");
        }
        if user.token_file.is_some() || user.client_certificate.is_some() || user.client_key.is_some() {
            return Some("a file of this machine");
        }
    }
    for named in &config.clusters {
        let Some(cluster) = &named.cluster else { continue };
        if cluster.certificate_authority.is_some() {
            return Some("a file of this machine");
        }
        if cluster.proxy_url.is_some() {
            return Some("a proxy");
        }
    }
    None
}
