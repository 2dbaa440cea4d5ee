//! A kas file as settings of a gateway.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use tarbet_identity::SecretFile;
use tarbet_store::{RedisConfig, SentinelConfig, StoreConfig, TlsConfig};

use super::{AgentListen, KasConfig, KasConfigError, Network};
use crate::config::{BesideSection, GatewayConfig, GitlabSection, ListenerConfig, TlsFiles, with_last_slash};
use crate::kas::redis::DEFAULT_KEY_PREFIX;

/// A yes of GitLab is used no longer than this, whatever the file says.
const LONGEST: Duration = Duration::from_mins(1);
const API: &str = "127.0.0.1:8153";
const PRIVATE: &str = "127.0.0.1:8155";

impl KasConfig {
    /// Lays what the file says over the settings of a gateway.
    pub fn apply(&self, gateway: &mut GatewayConfig) -> Result<(), KasConfigError> {
        let listen = &self.agent.listen;
        let at = place("agent.listen", listen.network, &listen.address, gateway.agents.listen)?;
        gateway.agents = ListenerConfig {
            listen: at.0,
            socket: at.1,
            tls: tls(listen.certificate_file.as_ref(), listen.key_file.as_ref()),
            ..gateway.agents
        };
        gateway.kas.prefix = self.prefix();
        gateway.kas.beside = self.beside()?;
        gateway.kas.calls_per_minute = match listen.connections_per_token_per_minute {
            // Nothing is how the original writes that it is not set.
            0 => AgentListen::default().connections_per_token_per_minute,
            most => most,
        };
        gateway.listen_grace = self.listen_grace();
        gateway.kas.max_connection_age = listen.max_connection_age.get();
        gateway.serve_kubernetes = self.agent.kubernetes_api.is_some();
        if let Some(api) = &self.agent.kubernetes_api {
            let listen = &api.listen;
            let setting = "agent.kubernetes_api.listen";
            let at = place(setting, listen.network, &listen.address, gateway.kubernetes.listen)?;
            gateway.kubernetes = ListenerConfig {
                listen: at.0,
                socket: at.1,
                tls: tls(listen.certificate_file.as_ref(), listen.key_file.as_ref()),
                ..gateway.kubernetes
            };
            gateway.kas.url_path_prefix = with_last_slash(&api.url_path_prefix);
        }
        if let Some(api) = &self.api {
            let listen = &api.listen;
            let at = listen.address.as_deref().unwrap_or(API);
            let at = place("api.listen", listen.network, at, gateway.api.listen)?;
            gateway.api = ListenerConfig {
                listen: at.0,
                socket: at.1,
                tls: tls(listen.certificate_file.as_ref(), listen.key_file.as_ref()),
                ..gateway.api
            };
            gateway.kas.api_secret_file = Some(listen.authentication_secret_file.clone());
        }
        if let Some(api) = &self.private_api {
            let listen = &api.listen;
            let at = listen.address.as_deref().unwrap_or(PRIVATE);
            let at = place("private_api.listen", listen.network, at, gateway.private.listen)?;
            (gateway.private.listen, gateway.private.socket) = at;
            gateway.private.tls = tls(listen.certificate_file.as_ref(), listen.key_file.as_ref());
            gateway.private.secret_file = Some(listen.authentication_secret_file.clone());
            gateway.private.ca_file.clone_from(&listen.ca_certificate_file);
        }
        gateway.kas.gitlab = self.gitlab.as_ref().map(|gitlab| {
            let proxy = self.agent.kubernetes_api.as_ref();
            let allowed = proxy.map_or(LONGEST, |api| api.allowed_agent_cache_ttl.get());
            let refused =
                proxy.map_or(self.agent.info_cache_error_ttl, |api| api.allowed_agent_cache_error_ttl);
            GitlabSection {
                address: gitlab.address.clone(),
                external_url: gitlab.external_url.clone(),
                secret_file: gitlab.authentication_secret_file.clone(),
                ca_file: gitlab.ca_certificate_file.clone(),
                cache: self.agent.info_cache_ttl.get().min(allowed).min(LONGEST),
                refusal_cache: refused.get(),
            }
        });
        Ok(())
    }

    /// Where the observability listener is, at an address or a path.
    pub fn observability(&self) -> Result<(Option<SocketAddr>, Option<PathBuf>), KasConfigError> {
        let listen = &self.observability.listen;
        match listen.network {
            Network::Unix => Ok((None, Some(socket("observability.listen", &listen.address)?))),
            network => Ok((Some(address("observability.listen", network, &listen.address)?), None)),
        }
    }

    /// The certificate of the observability listener, if it has one.
    pub fn observability_tls(&self) -> Option<TlsFiles> {
        let listen = &self.observability.listen;
        tls(listen.certificate_file.as_ref(), listen.key_file.as_ref())
    }

    /// The store that replicas share; `None` for one that stands alone.
    pub fn store(&self) -> Result<Option<StoreConfig>, KasConfigError> {
        let Some(redis) = &self.redis else { return Ok(None) };
        let contradiction = |text: String| KasConfigError::Contradiction(text);
        let secret = |file: &PathBuf, setting: &str| {
            // Relative to where the process was started, as every file that the original names.
            let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
            let parsed = file.display().to_string().parse::<SecretFile>();
            parsed.map_err(|error| contradiction(format!("`{setting}`: {error}")))
        };
        let url = match (&redis.server, redis.network) {
            (None, _) => None,
            (Some(server), Network::Unix) => Some(format!("unix://{}", server.address)),
            (Some(server), _) if redis.tls.enabled => Some(format!("rediss://{}", server.address)),
            (Some(server), _) => Some(format!("redis://{}", server.address)),
        };
        let url = url.map(|url| url.parse());
        let url =
            url.transpose().map_err(|error| contradiction(format!("`redis.server.address`: {error}")))?;
        let sentinel = match &redis.sentinel {
            None => None,
            Some(sentinel) => {
                let addresses = sentinel.addresses.iter().map(|address| {
                    let parsed = address.clone().try_into();
                    parsed.map_err(|error| contradiction(format!("`redis.sentinel.addresses`: {error}")))
                });
                let password = sentinel.sentinel_password_file.as_ref();
                let password = password.map(|file| secret(file, "redis.sentinel.sentinel_password_file"));
                Some(SentinelConfig {
                    master: sentinel.master_name.clone(),
                    addresses: addresses.collect::<Result<_, _>>()?,
                    username: None,
                    password_file: password.transpose()?,
                })
            }
        };
        let files = &redis.tls;
        let key = files.key_file.as_ref().map(|file| secret(file, "redis.tls.key_file")).transpose()?;
        let tls = files.enabled.then(|| TlsConfig {
            ca_file: files.ca_certificate_file.clone(),
            cert_file: files.certificate_file.clone(),
            key_file: key,
        });
        let database = u16::try_from(redis.database_index)
            .map_err(|_| contradiction("`redis.database_index` is too large".into()))?;
        let password = redis.password_file.as_ref().map(|file| secret(file, "redis.password_file"));
        // Beside what a kas keeps there, never among it.
        let prefix = format!("{}:tarbet", redis.key_prefix.as_deref().unwrap_or(DEFAULT_KEY_PREFIX));
        // Only for what the file does not say.
        let usual = "redis://127.0.0.1:6379".parse().map(RedisConfig::at);
        let usual = usual.map_err(|error| contradiction(format!("`redis`: {error}")))?;
        Ok(Some(StoreConfig::Redis(Box::new(RedisConfig {
            url,
            sentinel,
            username: redis.username.clone(),
            password_file: password.transpose()?,
            database,
            prefix,
            tls,
            deadline: redis.patience().unwrap_or(usual.deadline),
            ..usual
        }))))
    }

    /// Where replicas of the original look for each other; `None` for one that stands alone.
    pub fn beside(&self) -> Result<Option<BesideSection>, KasConfigError> {
        let key_prefix = self.redis.as_ref().and_then(|redis| redis.key_prefix.clone());
        let key_prefix = key_prefix.unwrap_or_else(|| DEFAULT_KEY_PREFIX.to_owned());
        Ok(match self.store()? {
            Some(StoreConfig::Redis(redis)) => Some(BesideSection {
                redis: *redis,
                key_prefix,
                entry_ttl: self.agent.redis_conn_info_ttl.get(),
                entry_refresh: self.agent.redis_conn_info_refresh.get(),
                entry_tidy: self.agent.redis_conn_info_gc.get(),
            }),
            _ => None,
        })
    }
}

fn tls(certificate: Option<&PathBuf>, key: Option<&PathBuf>) -> Option<TlsFiles> {
    let (cert_file, key_file) = (Some(certificate?.clone()), Some(key?.clone()));
    Some(TlsFiles { cert_file, key_file, ..TlsFiles::default() })
}

/// An address, or the usual one and the path of a socket that is listened on instead.
fn place(
    setting: &str,
    network: Network,
    text: &str,
    usual: SocketAddr,
) -> Result<(SocketAddr, Option<PathBuf>), KasConfigError> {
    match network {
        Network::Unix => Ok((usual, Some(socket(setting, text)?))),
        network => Ok((address(setting, network, text)?, None)),
    }
}

fn socket(setting: &str, text: &str) -> Result<PathBuf, KasConfigError> {
    // The original's own default is an address, which would become a file of that name.
    if text.contains('/') {
        return Ok(PathBuf::from(text));
    }
    Err(KasConfigError::Contradiction(format!("`{setting}`: `{text}` is no path, and the network is unix")))
}

/// Reads `host:port`, where no host means all of them.
fn address(setting: &str, network: Network, text: &str) -> Result<SocketAddr, KasConfigError> {
    let wrong = |why: &str| KasConfigError::Contradiction(format!("`{setting}`: `{text}` {why}"));
    if let Some(port) = text.strip_prefix(':') {
        let port: u16 = port.parse().map_err(|_| wrong("has no port"))?;
        return Ok(match network {
            Network::Tcp6 => (Ipv6Addr::UNSPECIFIED, port).into(),
            _ => (Ipv4Addr::UNSPECIFIED, port).into(),
        });
    }
    let mut found = text.to_socket_addrs().map_err(|_| wrong("is not host:port"))?;
    let fits = |address: &SocketAddr| match network {
        Network::Tcp4 => address.is_ipv4(),
        Network::Tcp6 => address.is_ipv6(),
        Network::Tcp | Network::Unix => true,
    };
    found.find(fits).ok_or_else(|| wrong("has no address of this network"))
}
