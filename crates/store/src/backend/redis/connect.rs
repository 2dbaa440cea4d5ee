//! From settings to a connection. Files and Sentinels are asked anew each time, so that a changed
//! password, certificate or master is found by reconnecting.

use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::{MultiplexedConnection, PubSub};
use ::redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use ::redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    RedisConnectionInfo, RedisError, TlsCertificates, TlsMode,
};
use tarbet_identity::{Secret, SecretFile};

use super::SCHEMA;
use crate::config::{RedisConfig, SentinelConfig, TlsConfig};
use crate::error::Error;

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum DialError {
    /// The server or the way to it.
    Redis(RedisError),
    /// Nothing that waiting would cure.
    Ours(Error),
}

impl From<RedisError> for DialError {
    fn from(error: RedisError) -> Self {
        Self::Redis(error)
    }
}

/// Makes connections.
#[derive(Debug)]
pub(crate) struct Dialer {
    config: RedisConfig,
    at: Arc<str>,
}

impl Dialer {
    /// Takes the settings, after looking once whether the files they name can be read.
    pub(crate) fn new(config: &RedisConfig) -> Result<Self, Error> {
        let dialer = Self { config: config.clone(), at: config.address().into() };
        dialer.login()?;
        dialer.certificates()?;
        Ok(dialer)
    }

    /// Where it leads, for messages.
    pub(super) fn at(&self) -> &Arc<str> {
        &self.at
    }

    /// A connection for calls, and the server's time in microseconds.
    pub(super) async fn connect(&self, timeout: Duration) -> Result<(MultiplexedConnection, u64), DialError> {
        let client = self.client().await?;
        // Each call has its own deadline; the library's shorter one would cut into it.
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(timeout)).set_response_timeout(None);
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let schema = format!("{}:schema", self.config.prefix);
        let ((seconds, micros), schema): ((u64, u64), Option<u64>) =
            ::redis::pipe().cmd("TIME").cmd("GET").arg(schema).query_async(&mut connection).await?;
        match schema {
            Some(found) if found != SCHEMA => Err(DialError::Ours(self.schema(found))),
            _ => Ok((connection, seconds * 1_000_000 + micros)),
        }
    }

    /// A connection for hints.
    pub(super) async fn connect_pubsub(&self) -> Result<PubSub, DialError> {
        Ok(self.client().await?.get_async_pubsub().await?)
    }

    /// A connection for questions about the server itself.
    pub(crate) async fn connect_plain(&self) -> Result<MultiplexedConnection, Error> {
        let asked = tokio::time::timeout(self.config.deadline, self.connect(self.config.deadline)).await;
        let cause: crate::error::Cause = match asked {
            Ok(Ok((connection, _))) => return Ok(connection),
            Ok(Err(DialError::Ours(error))) => return Err(error),
            Ok(Err(DialError::Redis(error))) => Arc::new(error),
            Err(elapsed) => Arc::new(elapsed),
        };
        Err(Error::Unavailable {
            operation: "connect",
            at: Arc::clone(&self.at),
            waited: self.config.deadline,
            cause,
        })
    }

    pub(super) fn schema(&self, found: u64) -> Error {
        Error::Schema { at: Arc::clone(&self.at), found, known: SCHEMA }
    }

    async fn client(&self) -> Result<Client, DialError> {
        let login = self.login().map_err(DialError::Ours)?;
        let certificates = self.certificates().map_err(DialError::Ours)?;
        if let Some(sentinel) = &self.config.sentinel {
            return self.ask_sentinels(sentinel, login.as_ref(), certificates).await;
        }
        let url = self.config.url.as_ref().map(|url| url.url().clone());
        let info =
            url.ok_or((::redis::ErrorKind::InvalidClientConfig, "no url")).map_err(RedisError::from)?;
        let info: ConnectionInfo = info.into_connection_info()?;
        let mut settings = RedisConnectionInfo::default().set_db(self.config.database.into());
        if let Some(username) = &self.config.username {
            settings = settings.set_username(username);
        }
        if let Some(password) = &login {
            settings = settings.set_password(password.expose());
        }
        let info = info.set_redis_settings(settings);
        match certificates {
            Some(certificates) => Ok(Client::build_with_tls(info, certificates)?),
            None => Ok(Client::open(info)?),
        }
    }

    async fn ask_sentinels(
        &self,
        sentinel: &SentinelConfig,
        password: Option<&Secret>,
        certificates: Option<TlsCertificates>,
    ) -> Result<Client, DialError> {
        let tls = self.config.tls.is_some();
        let addresses = sentinel.addresses.iter().map(|address| {
            let (host, port) = (address.host.clone(), address.port);
            if tls {
                ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
            } else {
                ConnectionAddr::Tcp(host, port)
            }
        });
        let mut builder =
            SentinelClientBuilder::new(addresses, &sentinel.master, SentinelServerType::Master)?
                .set_client_to_redis_db(self.config.database.into());
        if let Some(username) = &self.config.username {
            builder = builder.set_client_to_redis_username(username);
        }
        if let Some(password) = password {
            builder = builder.set_client_to_redis_password(password.expose());
        }
        if let Some(username) = &sentinel.username {
            builder = builder.set_client_to_sentinel_username(username);
        }
        if let Some(file) = &sentinel.password_file {
            let password = secret("sentinel.password_file", file).map_err(DialError::Ours)?;
            builder = builder.set_client_to_sentinel_password(password.expose());
        }
        if let Some(certificates) = certificates {
            builder = builder
                .set_client_to_redis_tls_mode(TlsMode::Secure)
                .set_client_to_redis_certificates(certificates.clone())
                .set_client_to_sentinel_certificates(certificates);
        }
        Ok(builder.build()?.async_get_client().await?)
    }

    fn login(&self) -> Result<Option<Secret>, Error> {
        self.config.password_file.as_ref().map(|file| secret("password_file", file)).transpose()
    }

    /// What TLS needs; nothing if the connection is plain.
    fn certificates(&self) -> Result<Option<TlsCertificates>, Error> {
        let wanted = self.config.tls.is_some()
            || self.config.url.as_ref().is_some_and(crate::config::RedisUrl::is_tls);
        if !wanted {
            return Ok(None);
        }
        let TlsConfig { ca_file, cert_file, key_file } = self.config.tls.clone().unwrap_or_default();
        let read = |setting, path: &std::path::Path| {
            std::fs::read(path).map_err(|error| Error::Setting {
                setting,
                cause: Arc::new(Unreadable(path.to_owned(), error)),
            })
        };
        let root_cert = ca_file.as_deref().map(|path| read("tls.ca_file", path)).transpose()?;
        let client_tls = match (&cert_file, &key_file) {
            (Some(cert), Some(key)) => Some(ClientTlsConfig {
                client_cert: read("tls.cert_file", cert)?,
                client_key: secret("tls.key_file", key)?.expose().as_bytes().to_vec(),
            }),
            _ => None,
        };
        Ok(Some(TlsCertificates { client_tls, root_cert }))
    }
}

#[derive(Debug, thiserror::Error)]
#[error("cannot read {}", .0.display())]
struct Unreadable(std::path::PathBuf, #[source] std::io::Error);

fn secret(setting: &'static str, file: &SecretFile) -> Result<Secret, Error> {
    file.read().map_err(|error| Error::Setting { setting, cause: Arc::new(error) })
}
