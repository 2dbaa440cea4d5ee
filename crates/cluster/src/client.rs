//! Clients, and how they follow a kubeconfig whose secret rotates.

mod kubeconfig;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt};
use kube::{Client, Config};
use tokio::time::Instant;
use tower::{BoxError, ServiceBuilder, ServiceExt};

use crate::connector::Connect;
use crate::error::ClusterError;
use kubeconfig::Fingerprint;

/// How often a kubeconfig is looked at, and only while requests are made: a mounted secret changes
/// within a minute of its object, so this adds nothing one would notice.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How long the head of an answer may take. A watch sends its head at once; without a bound a
/// server that stopped answering would hold a worker for ever.
const HEAD: Duration = Duration::from_secs(30);

/// How long a connection that nobody uses is kept.
const IDLE: Duration = Duration::from_mins(1);

/// How a cluster is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// By these kubeconfig files, merged as kubectl does; the current context counts.
    Kubeconfig(Vec<PathBuf>),
    /// By the service account of the pod the process runs in.
    InCluster,
}

impl Source {
    /// One kubeconfig file.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::Kubeconfig(vec![path.into()])
    }

    /// The usual order: a named file, the variable `KUBECONFIG`, the pod's own service account
    /// (`in_cluster`), and at last `.kube/config` in the home folder.
    pub fn choose(
        named: Option<&Path>,
        variable: Option<&str>,
        in_cluster: bool,
        home: Option<&Path>,
    ) -> Result<Self, ClusterError> {
        if let Some(path) = named {
            return Ok(Self::file(path));
        }
        let listed: Vec<PathBuf> = std::env::split_paths(variable.unwrap_or_default())
            .filter(|path| !path.as_os_str().is_empty())
            .collect();
        if !listed.is_empty() {
            return Ok(Self::Kubeconfig(listed));
        }
        if in_cluster {
            return Ok(Self::InCluster);
        }
        home.map(|home| Self::file(home.join(".kube/config"))).ok_or(ClusterError::Nowhere)
    }
}

/// A client for the cluster over the network.
pub async fn connect(source: &Source) -> Result<Client, ClusterError> {
    connect_through(source, Connect::network()).await
}

/// A client for the cluster whose connections are opened by `connect`.
///
/// A kubeconfig is read again when it or a file it names changes; requests made after that use
/// the new one. While the new one cannot be used the old one stays.
pub async fn connect_through(source: &Source, connect: Connect) -> Result<Client, ClusterError> {
    let paths = match source {
        Source::InCluster => {
            // Token and authority are read again by the client itself.
            let config = Config::incluster().map_err(|error| ClusterError::InCluster(Box::new(error)))?;
            return build(config, connect);
        }
        Source::Kubeconfig(paths) => paths.clone(),
    };
    let (config, fingerprint) = kubeconfig::load(&paths).await?;
    let namespace = config.default_namespace.clone();
    let client = build(config, connect.clone())?;
    let reloading = Arc::new(Reloading {
        paths,
        connect,
        current: ArcSwap::from_pointee(client),
        looked: Mutex::new(Look { at: Instant::now(), fingerprint }),
    });
    let service = tower::service_fn(move |request: Request<Body>| {
        let reloading = Arc::clone(&reloading);
        async move {
            reloading.look().await;
            let client = reloading.current.load_full();
            client.send(request).await
        }
    });
    Ok(Client::new(service, namespace))
}

/// Reads a kubeconfig as fuzzing does.
pub(crate) fn read_any(text: &str) {
    kubeconfig::read_any(text);
}

/// Where a cluster's API is, and what it is known by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// The URL of the API.
    pub url: String,
    /// The certificates of its authorities, as DER; none where those of the machine count.
    pub authorities: Vec<Vec<u8>>,
    /// The name in its certificate, where that is not the URL's.
    pub name: Option<String>,
    /// Any certificate is taken, so there need not be an authority.
    pub unchecked: bool,
    /// The URL is the one that only the cluster's own pods can use.
    pub inside: bool,
}

/// Where a source leads.
pub async fn place(source: &Source) -> Result<Place, ClusterError> {
    let config = match source {
        Source::InCluster => Config::incluster().map_err(|error| ClusterError::InCluster(Box::new(error)))?,
        Source::Kubeconfig(paths) => kubeconfig::load(paths).await?.0,
    };
    Ok(Place {
        url: config.cluster_url.to_string(),
        authorities: config.root_cert.unwrap_or_default(),
        name: config.tls_server_name,
        unchecked: config.accept_invalid_certs,
        inside: *source == Source::InCluster,
    })
}

/// A client whose requests are sent by `call`, such as one that knows a way to a far cluster and
/// is let in there by other means than a kubeconfig.
pub fn connect_by<F, T, B>(call: F) -> Client
where
    F: FnMut(Request<Body>) -> T + Send + 'static,
    T: Future<Output = Result<Response<B>, BoxError>> + Send + 'static,
    B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    Client::new(tower::service_fn(call), "default")
}

struct Reloading {
    paths: Vec<PathBuf>,
    connect: Connect,
    current: ArcSwap<Client>,
    looked: Mutex<Look>,
}

struct Look {
    at: Instant,
    fingerprint: Fingerprint,
}

impl Reloading {
    /// Takes up a changed file, if it is time to look and somebody else is not looking already.
    async fn look(&self) {
        let known = {
            let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
            if looked.at.elapsed() < LOOK_AGAIN {
                return;
            }
            looked.at = Instant::now();
            looked.fingerprint.clone()
        };
        if !known.changed() {
            return;
        }
        let fresh = match kubeconfig::load(&self.paths).await {
            Ok((config, fingerprint)) => {
                build(config, self.connect.clone()).map(|client| (client, fingerprint))
            }
            Err(error) => Err(error),
        };
        match fresh {
            Ok((client, fingerprint)) => {
                self.current.store(Arc::new(client));
                self.looked.lock().unwrap_or_else(PoisonError::into_inner).fingerprint = fingerprint;
                tracing::info!(kubeconfig = ?self.paths, "The kubeconfig changed and is in use.");
            }
            // Secrets are swapped file by file: the next look may find all of them.
            Err(error) => {
                let cause = tarbet_telemetry::problem::chain(&error);
                tracing::warn!(kubeconfig = ?self.paths, cause, "The kubeconfig changed but cannot be used; the old one stays.");
            }
        }
    }
}

fn build(config: Config, connect: Connect) -> Result<Client, ClusterError> {
    let failed =
        |source| ClusterError::Build { url: config.cluster_url.to_string(), source: Box::new(source) };
    let connect = if let Some(proxy) = &config.proxy_url { connect.via(proxy) } else { connect };
    let https = config.rustls_https_connector_with_connector(connect).map_err(failed)?;
    let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .pool_idle_timeout(IDLE)
        // Without a clock nothing is idle for long enough.
        .pool_timer(TokioTimer::new())
        .build::<_, Body>(https);
    let http = http.map_err(BoxError::from);
    let timed = tower::service_fn(move |request: Request<Body>| {
        let answer = http.clone().oneshot(request);
        async move {
            match tokio::time::timeout(HEAD, answer).await {
                Ok(answer) => answer,
                Err(_) => Err(BoxError::from(format!("no answer within {} s", HEAD.as_secs()))),
            }
        }
    });
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().map_err(failed)?)
        .layer(config.extra_headers_layer().map_err(failed)?)
        .map_err(BoxError::from)
        .service(timed);
    let service = service.map_response(|response: Response<hyper::body::Incoming>| response);
    Ok(Client::new(service, config.default_namespace.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_chosen_in_the_usual_order() {
        let (named, home) = (Path::new("/named"), Path::new("/home/ann"));
        let choose = |named, variable, pod, home| Source::choose(named, variable, pod, home).ok();
        assert_eq!(choose(Some(named), Some("/a"), true, Some(home)), Some(Source::file("/named")));
        let two = Source::Kubeconfig(vec!["/a".into(), "/b".into()]);
        assert_eq!(choose(None, Some("/a:/b"), true, Some(home)), Some(two));
        assert_eq!(choose(None, Some(""), true, Some(home)), Some(Source::InCluster));
        assert_eq!(choose(None, None, false, Some(home)), Some(Source::file("/home/ann/.kube/config")));
        assert_eq!(choose(None, None, false, None), None);
    }
}
