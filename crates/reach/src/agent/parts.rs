//! What an agent is made of, each made from its configuration and checked.

use std::path::PathBuf;
use std::sync::Arc;

use http::HeaderMap;
use tarbet_identity::{KeyError, PrivateKey, PublicKey, Secret, Subject};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::problem::chain;

use super::callers::Callers;
use super::config::AgentConfig;
use super::kubernetes::Kubernetes;
use super::offered::Offered;
use super::policy::Policy;
use super::tcp::Tcp;
use super::{Info, Service};
use crate::kas::{MethodPath, Prefix};

/// Gives the token of the moment: its file may change.
pub(super) type TokenSource = Arc<dyn Fn() -> Result<Secret, Problem> + Send + Sync>;

/// The token's file, or the token that came by the environment.
pub(super) fn token_source(config: &AgentConfig, given: Option<Secret>) -> Result<TokenSource, Problem> {
    match (&config.token_file, given) {
        (Some(_), Some(_)) => Err(Problem::new(
            &ground::CONFIG_INVALID,
            "The agent has two tokens: a file and an environment variable.",
        )
        .advising("keep one of agent.token_file and AGENTK_TOKEN")),
        (None, Some(token)) => Ok(Arc::new(move || Ok(token.clone()))),
        (Some(file), None) => {
            let file = file.clone();
            Ok(Arc::new(move || {
                Secret::from_file(&file).map_err(|error| {
                    Problem::new(
                        &ground::SECRET_UNREADABLE,
                        format!("The token in {} cannot be read.", file.display()),
                    )
                    .because(chain(&error))
                })
            }))
        }
        (None, None) => Err(Problem::new(&ground::CONFIG_INVALID, "The agent has no token.")
            .advising("`tarbet site add NAME` prints one; give its file with --token-file")),
    }
}

/// Whom the site believes about callers; nothing if it believes nobody.
pub(super) fn callers(config: &AgentConfig, policy: &Policy) -> Result<Option<Callers>, Problem> {
    let invalid = |message: &str| Problem::new(&ground::CONFIG_INVALID, message).at("start of the agent");
    if config.issuers.is_empty() {
        if policy.names_callers() {
            return Err(invalid(
                "The policy has rules for some callers, and the agent knows nobody who vouches for callers.",
            )
            .advising("set agent.issuers to the public keys of those who sign callers' tokens"));
        }
        return Ok(None);
    }
    let site = config.site.as_ref().ok_or_else(|| {
        invalid("The agent does not know the name of its site.")
            .because("agent.issuers is set, and callers' tokens name the site they are for")
            .advising("set agent.site to the name under which the site was added")
    })?;
    let site = Subject::site(site.as_str())
        .map_err(|error| invalid("agent.site is no name of a site.").because(chain(&error)))?;
    let keys = config.issuers.iter().map(|text| {
        text.parse::<PublicKey>().map_err(|error| {
            invalid(&format!("`{text}` in agent.issuers is no public key.")).because(chain(&error))
        })
    });
    let keys = keys.collect::<Result<Vec<_>, _>>()?;
    let callers = Callers::new(site, keys);
    callers.map(Some).map_err(|error| invalid("agent.issuers cannot be used.").because(chain(&error)))
}

/// The agent's own key: the one in its file, else one for as long as this process lives.
pub(super) fn own_key(config: &AgentConfig) -> Result<PrivateKey, Problem> {
    let unusable = |cause: String| {
        Problem::new(&ground::SECRET_UNREADABLE, "The agent's own key cannot be used.").because(cause)
    };
    let beside = || {
        let mut name = config.token_file.as_ref()?.as_os_str().to_owned();
        name.push(".key");
        Some(PathBuf::from(name))
    };
    let opened = match (&config.key_file, beside()) {
        (Some(file), _) => return PrivateKey::open(file).map_err(|error| unusable(chain(&error))),
        (None, Some(file)) => PrivateKey::open(&file),
        (None, None) => PrivateKey::generate(),
    };
    match opened {
        Ok(key) => Ok(key),
        // A token may lie where nothing can be written.
        Err(error @ KeyError::Save { .. }) => {
            tracing::warn!(cause = %chain(&error), "The agent's key lasts only until it stops; set agent.key_file to keep it.");
            PrivateKey::generate().map_err(|error| unusable(chain(&error)))
        }
        Err(error) => Err(unusable(chain(&error))),
    }
}

/// The policy in its file; without one, the narrow default.
pub(super) fn read_policy(config: &AgentConfig) -> Result<Policy, Problem> {
    let Some(file) = &config.policy_file else {
        // Who names a service on the agent's own command line means it to be used.
        let policy = Policy::without_file().offering(config.offers.keys());
        // A kas of GitLab asks for little else.
        let joins = config.kas.address.is_some() && config.kas.prefix == Prefix::Gitlab;
        return Ok(if joins { policy.as_gitlab_says() } else { policy });
    };
    let unusable = |cause: String| {
        Problem::new(&ground::CONFIG_INVALID, format!("The policy in {} cannot be used.", file.display()))
            .because(cause)
    };
    let text = std::fs::read_to_string(file).map_err(|error| unusable(error.to_string()))?;
    serde_saphyr::from_str(&text).map_err(|error| unusable(error.without_snippet().to_string()))
}

/// What the agent offers.
pub(super) async fn services(
    config: &AgentConfig,
    policy: &Policy,
    name: &str,
) -> Result<Vec<Arc<dyn Service>>, Problem> {
    let mut services: Vec<Arc<dyn Service>> = vec![Arc::new(Tcp::new(config.connect_timeout))];
    if policy.offers("kubernetes")
        && let Some(kube) = kube_config(config).await?
    {
        services.push(Arc::new(Kubernetes::new(kube)?));
    }
    let unfit = |name: &str, cause: String| {
        Problem::new(&ground::CONFIG_INVALID, format!("The service `{name}` cannot be offered."))
            .at("start of the agent")
            .because(cause)
    };
    for (name, place) in &config.offers {
        let offered = Offered::new(name, place, config.connect_timeout);
        let offered = offered.map_err(|cause| unfit(name, cause))?;
        let methods = config.kas.methods.get(name).map_or(&[][..], Vec::as_slice);
        services.push(Arc::new(offered.announcing(methods)));
    }
    for (name, methods) in &config.kas.methods {
        if !config.offers.contains_key(name) {
            return Err(unfit(name, "agent.kas.methods names it, and agent.offers does not".into()));
        }
        if let Some(odd) =
            methods.iter().find(|method| MethodPath::parse(&format!("/{name}/{method}")).is_err())
        {
            return Err(unfit(name, format!("`{odd}` is no name of a gRPC method")));
        }
    }
    let names: Vec<String> =
        services.iter().map(|service| service.name().to_owned()).filter(|name| policy.offers(name)).collect();
    services.push(Arc::new(Info::new(name, env!("CARGO_PKG_VERSION"), &names)));
    Ok(services)
}

/// The API server to offer: the named kubeconfig's, else the cluster the agent runs in, else none.
async fn kube_config(config: &AgentConfig) -> Result<Option<kube::Config>, Problem> {
    let (file, flags) = match &config.kubeconfig {
        Some(file) => (Some(file), &config.cluster),
        None if config.cluster.name_a_server() => (None, &config.cluster),
        None => {
            let mut own = kube::Config::incluster().ok();
            if let Some(own) = &mut own {
                own.auth_info = config.cluster.over_user(std::mem::take(&mut own.auth_info));
            }
            return Ok(own);
        }
    };
    let unusable = |cause: String| {
        let message = file.map_or_else(
            || "The flags about the cluster cannot be used.".to_owned(),
            |file| format!("The kubeconfig {} cannot be used.", file.display()),
        );
        Problem::new(&ground::CONFIG_INVALID, message).because(cause)
    };
    let read = file.map(kube::config::Kubeconfig::read_from).transpose();
    let kubeconfig = read.map_err(|error| match error {
        // What the parser says quotes the lines around, and there stand tokens and keys.
        kube::config::KubeconfigError::Parse(error) => {
            let place = error.location().map(|at| format!(" (line {}, column {})", at.line(), at.column()));
            unusable(format!("it is not written as one{}", place.unwrap_or_default()))
        }
        error => unusable(chain(&error)),
    })?;
    let kubeconfig = flags.lay_over(kubeconfig.unwrap_or_default()).map_err(unusable)?;
    let options = kube::config::KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await;
    config.map(Some).map_err(|error| unusable(chain(&error)))
}

/// The extra headers.
pub(super) fn headers(config: &AgentConfig) -> Result<HeaderMap, Problem> {
    let mut headers = HeaderMap::new();
    for (at, line) in config.headers.iter().enumerate() {
        let parsed = line
            .split_once(':')
            .and_then(|(name, value)| Some((name.trim().parse().ok()?, value.trim().parse().ok()?)));
        let (name, value): (http::HeaderName, http::HeaderValue) = parsed.ok_or_else(|| {
            // It is not quoted: what an agent adds is mostly a key of some proxy.
            Problem::new(&ground::CONFIG_INVALID, format!("The extra header {} is not one.", at + 1))
                .advising("write it as `Name: value`")
        })?;
        headers.append(name, value);
    }
    Ok(headers)
}
