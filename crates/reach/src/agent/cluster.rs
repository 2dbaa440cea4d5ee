//! Which cluster an agent offers, and as whom it goes there: a kubeconfig, and what flags say over it.

use std::path::{Path, PathBuf};

use kube::config::{AuthInfo, Cluster, Context, Kubeconfig, NamedAuthInfo, NamedCluster, NamedContext};
use tarbet_identity::Secret;

/// The name of what flags make; it stands first, so that another one of this name is not taken.
const FLAGS: &str = "flags";

/// What kubectl's connection flags say; each goes before the kubeconfig.
#[derive(Debug, Clone, Default)]
pub struct ClusterFlags {
    /// The context of the kubeconfig.
    pub context: Option<String>,
    /// Its cluster, instead of the context's.
    pub cluster: Option<String>,
    /// Its user, instead of the context's.
    pub user: Option<String>,
    /// The namespace, instead of the context's.
    pub namespace: Option<String>,
    /// The API server.
    pub server: Option<String>,
    /// The name in its certificate.
    pub tls_server_name: Option<String>,
    /// The authority of its certificate.
    pub certificate_authority: Option<PathBuf>,
    /// Takes any certificate.
    pub insecure_skip_tls_verify: bool,
    /// A bearer token.
    pub token: Option<Secret>,
    /// A user name, with its password.
    pub username: Option<String>,
    /// The password.
    pub password: Option<Secret>,
    /// A certificate of the agent's.
    pub client_certificate: Option<PathBuf>,
    /// Its key.
    pub client_key: Option<PathBuf>,
    /// As whom every request goes.
    pub impersonate: Option<String>,
    /// The id of that user.
    pub impersonate_uid: Option<String>,
    /// The groups of that user.
    pub impersonate_groups: Vec<String>,
}

impl ClusterFlags {
    /// Whether they name a cluster by themselves, so that no kubeconfig is needed.
    pub fn name_a_server(&self) -> bool {
        self.server.is_some()
    }

    /// The kubeconfig with what the flags say, or what it lacks. What they do not name stays.
    pub(super) fn lay_over(&self, mut config: Kubeconfig) -> Result<Kubeconfig, String> {
        let missing = |kind: &str, name: &str| format!("it has no {kind} `{name}`");
        let chosen = self.context.clone().or_else(|| config.current_context.clone());
        if chosen.is_none() && self.server.is_none() {
            return Ok(config);
        }
        let known = config.contexts.iter().find(|named| Some(&named.name) == chosen.as_ref());
        if let (Some(name), None) = (&self.context, known) {
            return Err(missing("context", name));
        }
        let mut context = known.and_then(|named| named.context.clone()).unwrap_or_default();
        if let Some(cluster) = &self.cluster {
            context.cluster.clone_from(cluster);
        }
        context.user = self.user.clone().or(context.user);
        context.namespace = self.namespace.clone().or(context.namespace);
        let cluster = config.clusters.iter().find(|named| named.name == context.cluster);
        let cluster = cluster.and_then(|named| named.cluster.clone());
        if cluster.is_some() || (self.server.is_some() && self.cluster.is_none()) {
            let cluster = Some(self.over_cluster(cluster.unwrap_or_default()));
            config
                .clusters
                .insert(0, NamedCluster { name: FLAGS.into(), cluster, ..NamedCluster::default() });
            FLAGS.clone_into(&mut context.cluster);
        }
        let user = config.auth_infos.iter().find(|named| Some(&named.name) == context.user.as_ref());
        let user = user.and_then(|named| named.auth_info.clone());
        if let (Some(name), None) = (&self.user, &user) {
            // It would go to the API server as nobody.
            return Err(missing("user", name));
        }
        let auth_info = Some(self.over_user(user.unwrap_or_default()));
        config
            .auth_infos
            .insert(0, NamedAuthInfo { name: FLAGS.into(), auth_info, ..NamedAuthInfo::default() });
        context.user = Some(FLAGS.into());
        let context = Some::<Context>(context);
        config.contexts.insert(0, NamedContext { name: FLAGS.into(), context, ..NamedContext::default() });
        config.current_context = Some(FLAGS.into());
        Ok(config)
    }

    fn over_cluster(&self, mut cluster: Cluster) -> Cluster {
        cluster.server = self.server.clone().or(cluster.server);
        cluster.tls_server_name = self.tls_server_name.clone().or(cluster.tls_server_name);
        if let Some(file) = &self.certificate_authority {
            cluster.certificate_authority = Some(text(file));
            cluster.certificate_authority_data = None;
        }
        if self.insecure_skip_tls_verify {
            cluster.insecure_skip_tls_verify = Some(true);
            cluster.certificate_authority = None;
            cluster.certificate_authority_data = None;
        }
        cluster
    }

    /// As whom, over what the kubeconfig says; also for the account of a pod.
    pub(super) fn over_user(&self, mut user: AuthInfo) -> AuthInfo {
        if let Some(token) = &self.token {
            user.token = Some(token.expose().to_owned().into());
            user.token_file = None;
        }
        user.username = self.username.clone().or(user.username);
        if let Some(password) = &self.password {
            user.password = Some(password.expose().to_owned().into());
        }
        if let Some(file) = &self.client_certificate {
            user.client_certificate = Some(text(file));
            user.client_certificate_data = None;
        }
        if let Some(file) = &self.client_key {
            user.client_key = Some(text(file));
            user.client_key_data = None;
        }
        user.impersonate = self.impersonate.clone().or(user.impersonate);
        user.impersonate_uid = self.impersonate_uid.clone().or(user.impersonate_uid);
        if !self.impersonate_groups.is_empty() {
            user.impersonate_groups = Some(self.impersonate_groups.clone());
        }
        user
    }
}

fn text(file: &Path) -> String {
    file.display().to_string()
}

#[cfg(test)]
mod tests {
    use kube::config::KubeConfigOptions;

    use super::*;

    const FILE: &str = "current-context: one
clusters:
  - {name: c1, cluster: {server: 'https://one:6443'}}
  - {name: c2, cluster: {server: 'https://two:6443', tls-server-name: two.lan}}
users:
  - {name: u1, user: {token: first}}
  - {name: u2, user: {token: second, as: kept}}
contexts:
  - {name: one, context: {cluster: c1, user: u1}}
  - {name: two, context: {cluster: c2, user: u2, namespace: n2}}
";

    async fn with(flags: &ClusterFlags, file: &str) -> Result<kube::Config, String> {
        let laid = flags.lay_over(Kubeconfig::from_yaml(file).unwrap())?;
        let config = kube::Config::from_custom_kubeconfig(laid, &KubeConfigOptions::default()).await;
        config.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn flags_go_before_the_kubeconfig() {
        let none = with(&ClusterFlags::default(), FILE).await.unwrap();
        assert_eq!(none.cluster_url.host(), Some("one"));
        let context = ClusterFlags { context: Some("two".into()), ..ClusterFlags::default() };
        let two = with(&context, FILE).await.unwrap();
        assert_eq!((two.cluster_url.host(), &two.default_namespace[..]), (Some("two"), "n2"));
        assert_eq!(two.auth_info.impersonate.as_deref(), Some("kept"));
        let mixed = ClusterFlags {
            cluster: Some("c2".into()),
            namespace: Some("mine".into()),
            tls_server_name: Some("other.lan".into()),
            token: Some("third".into()),
            impersonate: Some("deployer".into()),
            impersonate_groups: vec!["ops".into()],
            ..ClusterFlags::default()
        };
        let mixed = with(&mixed, FILE).await.unwrap();
        assert_eq!((mixed.cluster_url.host(), &mixed.default_namespace[..]), (Some("two"), "mine"));
        assert_eq!(mixed.tls_server_name.as_deref(), Some("other.lan"));
        assert_eq!(mixed.auth_info.impersonate.as_deref(), Some("deployer"));
        assert_eq!(mixed.auth_info.impersonate_groups, Some(vec!["ops".to_owned()]));
        for wrong in [
            ClusterFlags { context: Some("three".into()), ..ClusterFlags::default() },
            ClusterFlags { cluster: Some("c3".into()), ..ClusterFlags::default() },
            ClusterFlags { user: Some("u3".into()), ..ClusterFlags::default() },
        ] {
            assert!(with(&wrong, FILE).await.is_err(), "{wrong:?}");
        }
    }

    #[tokio::test]
    async fn a_server_needs_no_kubeconfig() {
        let flags = ClusterFlags {
            server: Some("https://api.lan:6443".into()),
            insecure_skip_tls_verify: true,
            token: Some("t".into()),
            ..ClusterFlags::default()
        };
        assert!(flags.name_a_server());
        let config = with(&flags, "{}").await.unwrap();
        assert!(config.cluster_url.host() == Some("api.lan") && config.accept_invalid_certs);
        assert!(!format!("{flags:?}").contains("\"t\""), "a token is not printed");
    }
}
