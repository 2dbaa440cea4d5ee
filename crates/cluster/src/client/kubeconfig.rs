//! Reading kubeconfig files, and noticing that they changed.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use futures::FutureExt;
use kube::Config;
use kube::client::ConfigExt;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};

use crate::connector::Connect;
use crate::error::ClusterError;
use crate::proxy;

/// The state of every file a configuration was read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fingerprint(Vec<(PathBuf, Option<Stamp>)>);

/// A mounted secret is swapped by a link to another folder, so the inode tells as much as the time.
type Stamp = (u64, u64, Option<SystemTime>);

impl Fingerprint {
    fn of(files: Vec<PathBuf>) -> Self {
        Self(files.into_iter().map(|file| (stamp(&file), file)).map(|(stamp, file)| (file, stamp)).collect())
    }

    pub(super) fn changed(&self) -> bool {
        self.0.iter().any(|(file, known)| stamp(file) != *known)
    }
}

fn stamp(file: &Path) -> Option<Stamp> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(file).ok()?;
    Some((metadata.ino(), metadata.len(), metadata.modified().ok()))
}

pub(super) async fn load(paths: &[PathBuf]) -> Result<(Config, Fingerprint), ClusterError> {
    let first = paths.first().ok_or(ClusterError::Nowhere)?;
    let failed = |path: &Path, source: KubeconfigError| match source {
        // What the parser says quotes the lines around, and there stand tokens and keys.
        KubeconfigError::Parse(error) => {
            let place = error.location().map(|at| (at.line(), at.column()));
            ClusterError::Syntax { path: path.to_owned(), place }
        }
        source => ClusterError::Kubeconfig { path: path.to_owned(), source: Box::new(source) },
    };
    let mut merged = Kubeconfig::default();
    for path in paths {
        let one = Kubeconfig::read_from(path).map_err(|error| failed(path, error))?;
        merged = merged.merge(one).map_err(|error| failed(path, error))?;
    }
    // Taken before the content is used: a change in between is seen at the next look.
    let fingerprint = Fingerprint::of(paths.iter().cloned().chain(named_files(&merged)).collect());
    let named = names_proxy(&merged);
    let config = Config::from_custom_kubeconfig(merged, &KubeConfigOptions::default()).await;
    let mut config = config.map_err(|error| failed(first, error))?;
    // A proxy of the environment is for those hosts only that the environment does not except.
    let listed = ["NO_PROXY", "no_proxy"].into_iter().find_map(|name| std::env::var(name).ok());
    let host = config.cluster_url.host().unwrap_or_default();
    if !named && proxy::is_spared(host, &listed.unwrap_or_default()) {
        config.proxy_url = None;
    }
    Ok((config, fingerprint))
}

/// Reads a kubeconfig as fuzzing does: all that needs no file and runs no program.
pub(super) fn read_any(text: &str) {
    let Ok(mut config) = Kubeconfig::from_yaml(text).and_then(|one| one.clone().merge(one)) else { return };
    let (_, _) = (names_proxy(&config), named_files(&config).count());
    for user in config.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut()) {
        (user.exec, user.auth_provider, user.token_file) = (None, None, None);
        (user.client_certificate, user.client_key) = (None, None);
    }
    for cluster in config.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        cluster.certificate_authority = None;
    }
    let options = KubeConfigOptions::default();
    if let Some(Ok(config)) = Config::from_custom_kubeconfig(config, &options).now_or_never() {
        drop(config.rustls_https_connector_with_connector(Connect::network()));
        proxy::is_spared(config.cluster_url.host().unwrap_or_default(), ".example.org,10.0.0.0/8");
    }
}

/// Whether the current context's cluster has a proxy of its own.
fn names_proxy(config: &Kubeconfig) -> bool {
    let context = config.contexts.iter().find(|one| Some(&one.name) == config.current_context.as_ref());
    let cluster = context.and_then(|one| Some(&one.context.as_ref()?.cluster));
    let cluster = config.clusters.iter().find(|one| Some(&one.name) == cluster);
    cluster.and_then(|one| one.cluster.as_ref()?.proxy_url.as_ref()).is_some_and(|proxy| !proxy.is_empty())
}

/// The files that a kubeconfig names for certificates and keys; tokens are re-read by the client.
fn named_files(config: &Kubeconfig) -> impl Iterator<Item = PathBuf> {
    let clusters =
        config.clusters.iter().filter_map(|named| named.cluster.as_ref()?.certificate_authority.clone());
    let users = config.auth_infos.iter().filter_map(|named| named.auth_info.as_ref());
    let users = users.flat_map(|user| [user.client_certificate.clone(), user.client_key.clone()]).flatten();
    clusters.chain(users).map(PathBuf::from)
}
