//! kubectl's connection flags, which agentk takes as well.

use std::path::PathBuf;

use clap::Args;
use tarbet_identity::Secret;
use tarbet_reach::agent::ClusterFlags;

const HEADING: &str = "The site's cluster, as kubectl takes it";

/// Which cluster, and as whom; each flag goes before the kubeconfig.
#[derive(Debug, Clone, Args)]
pub struct ClusterArgs {
    /// The context of the kubeconfig to use
    #[arg(long, value_name = "NAME", help_heading = HEADING)]
    context: Option<String>,
    /// The cluster of the kubeconfig to use
    #[arg(long, value_name = "NAME", help_heading = HEADING)]
    cluster: Option<String>,
    /// The user of the kubeconfig to use
    #[arg(long, value_name = "NAME", help_heading = HEADING)]
    user: Option<String>,
    /// The namespace of the context
    #[arg(long, short = 'n', value_name = "NAME", help_heading = HEADING)]
    namespace: Option<String>,
    /// The URL of the API server
    #[arg(long, short = 's', value_name = "URL", help_heading = HEADING)]
    server: Option<String>,
    /// The name in the certificate of the API server, if it is not the one in its URL
    #[arg(long, value_name = "NAME", help_heading = HEADING)]
    tls_server_name: Option<String>,
    /// The authority of the certificate of the API server
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    certificate_authority: Option<PathBuf>,
    /// Take any certificate of the API server; for a trial only
    #[arg(long, help_heading = HEADING)]
    insecure_skip_tls_verify: bool,
    /// A bearer token for the API server
    #[arg(long, value_name = "TOKEN", help_heading = HEADING)]
    token: Option<Secret>,
    /// A user name for the API server
    #[arg(long, value_name = "NAME", help_heading = HEADING)]
    username: Option<String>,
    /// Its password
    #[arg(long, value_name = "PASSWORD", help_heading = HEADING)]
    password: Option<Secret>,
    /// A certificate for the API server
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    client_certificate: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    client_key: Option<PathBuf>,
    /// As whom every request goes to the API server
    #[arg(long = "as", value_name = "NAME", help_heading = HEADING)]
    impersonate: Option<String>,
    /// The id of that user
    #[arg(long, value_name = "ID", help_heading = HEADING)]
    as_uid: Option<String>,
    /// A group of that user; may be repeated
    #[arg(long = "as-group", value_name = "NAME", help_heading = HEADING)]
    groups: Vec<String>,
    /// Taken and without effect here: nothing is kept on disk
    #[arg(long, value_name = "FOLDER", hide = true)]
    cache_dir: Option<PathBuf>,
    /// Taken and without effect here: whoever asks says how long to wait
    #[arg(long, value_name = "TIME", hide = true)]
    request_timeout: Option<String>,
    /// Taken and without effect here: what is packed is for the two ends to agree on
    #[arg(long, hide = true)]
    disable_compression: bool,
}

impl ClusterArgs {
    pub fn flags(self) -> ClusterFlags {
        ClusterFlags {
            context: self.context,
            cluster: self.cluster,
            user: self.user,
            namespace: self.namespace,
            server: self.server,
            tls_server_name: self.tls_server_name,
            certificate_authority: self.certificate_authority,
            insecure_skip_tls_verify: self.insecure_skip_tls_verify,
            token: self.token,
            username: self.username,
            password: self.password,
            client_certificate: self.client_certificate,
            client_key: self.client_key,
            impersonate: self.impersonate,
            impersonate_uid: self.as_uid,
            impersonate_groups: self.groups,
        }
    }
}
