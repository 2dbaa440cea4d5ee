//! The secrets that a gateway shares with others. Their files are looked at while it runs: first both
//! secrets stand in the file, then the others change over, then the old one goes.

use std::path::Path;
use std::time::Duration;

use tarbet_identity::SecretBytes;
use tarbet_identity::jwt::SharedSecrets;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::problem::chain;

use crate::config::GatewayConfig;

/// How often the files are looked at, as often as certificates.
const LOOK: Duration = Duration::from_secs(10);

/// What a gateway proves itself with, and knows others by. Clones follow a replacement.
#[derive(Debug, Clone, Default)]
pub struct Secrets {
    /// With other gateways, ours and a kas.
    pub(super) gateways: Option<SharedSecrets>,
    /// With those who call the gRPC services of the API listener.
    pub(super) api: Option<SharedSecrets>,
    /// With GitLab.
    pub(super) gitlab: Option<SharedSecrets>,
}

impl Secrets {
    /// Reads every file that the configuration names.
    pub fn read(config: &GatewayConfig) -> Result<Self, Problem> {
        let gitlab = config.kas.gitlab.as_ref().map(|gitlab| gitlab.secret_file.as_path());
        Ok(Self {
            gateways: read(config.private.secret_file.as_deref(), "that gateways share")?,
            api: read(config.kas.api_secret_file.as_deref(), "of the API listener")?,
            gitlab: read(gitlab, "of GitLab")?,
        })
    }

    /// Nothing but this one among gateways.
    pub fn of_gateways(secret: SecretBytes) -> Self {
        Self { gateways: Some(secret.into()), ..Self::default() }
    }

    /// Takes over what was read again.
    pub(super) fn become_like(&self, fresh: &Self) {
        for (whose, held, fresh) in [
            ("gateways", &self.gateways, &fresh.gateways),
            ("api", &self.api, &fresh.api),
            ("gitlab", &self.gitlab, &fresh.gitlab),
        ] {
            if let (Some(held), Some(fresh)) = (held, fresh)
                && held.become_like(fresh)
            {
                tracing::info!(whose, "A shared secret was replaced.");
            }
        }
    }

    /// Looks at the files again and again, for ever; what cannot be used changes nothing.
    pub(super) async fn follow(self, config: GatewayConfig) {
        let mut timer = tokio::time::interval(LOOK);
        loop {
            timer.tick().await;
            let config = config.clone();
            // Files may sit on a network; a worker of the runtime must not wait for them.
            match tokio::task::spawn_blocking(move || Self::read(&config)).await {
                Ok(Ok(fresh)) => self.become_like(&fresh),
                Ok(Err(problem)) => {
                    tracing::error!(%problem, "A new shared secret cannot be used, the old one stays.");
                }
                Err(error) => tracing::error!(%error, "Shared secrets could not be looked at."),
            }
        }
    }
}

fn read(file: Option<&Path>, whose: &str) -> Result<Option<SharedSecrets>, Problem> {
    file.map(SharedSecrets::from_file).transpose().map_err(|error| {
        Problem::new(&ground::SECRET_UNREADABLE, format!("The secret {whose} cannot be used."))
            .because(chain(&error))
    })
}
