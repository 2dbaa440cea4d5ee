//! SIGHUP: read the configuration again and take over what can change while the process runs.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tarbet_reach::listen::Ready;
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::{Problem, Stage, log};
use tokio::signal::unix::{SignalKind, signal};

use super::process::Process;
use crate::config::{self, Config, Sources};

type Outcome = [(&'static str, &'static str); 1];

/// Runs `reload` with what is written now at every SIGHUP, which would otherwise end the process. It gives
/// the settings that have changed and need a new start; a failure has changed nothing. `complete` lays over
/// them what flags say.
pub fn on_hangup<C, R, F>(process: &Process, sources: Sources, complete: C, reload: R) -> Result<(), Problem>
where
    C: Fn(&mut Config) -> Result<(), Problem> + Send + Sync + 'static,
    R: Fn(Config) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Vec<String>, Problem>> + Send,
{
    let mut hangup = signal(SignalKind::hangup()).map_err(|error| {
        Problem::new(&ground::INTERNAL, "The process cannot listen for signals.").because(error.to_string())
    })?;
    let outcomes: Family<Outcome, Counter> = process.metrics.register(
        "tarbet_config_reloads",
        "Times the configuration was read again, by outcome",
        Family::default(),
    );
    let good: Gauge = process.metrics.register(
        "tarbet_config_is_current",
        "1 if the configuration that was last read is the one in use, 0 if it was refused",
        Gauge::default(),
    );
    good.set(1);
    let observed = process.clone();
    process.supervisor.spawn(Stage::Upkeep, "reload", |stop| async move {
        loop {
            tokio::select! {
                _ = hangup.recv() => {}
                () = stop.cancelled() => return Ok(()),
            }
            let taken = async {
                let mut config = config::load(&sources).map_err(|error| error.problem())?;
                let filter = config.log.filter.clone();
                complete(&mut config)?;
                let ready = observed.observe_anew(&config.observability)?;
                let turned = observed.turns_tls(&config.observability);
                let mut waiting = reload(config).await?;
                // Everything is good: from here on nothing fails.
                ready.into_iter().for_each(Ready::put_into_use);
                waiting.extend(turned.then(|| "observability.tls".to_owned()));
                Ok::<_, Problem>((waiting, filter))
            };
            let outcome = match taken.await {
                Ok((waiting, filter)) => {
                    // It was checked when it was read.
                    let _ = log::set_filter(&filter);
                    if waiting.is_empty() {
                        tracing::info!("The configuration was read again.");
                    } else {
                        tracing::warn!(settings = %waiting.join(", "), "The configuration was read again; some settings count only after a new start.");
                    }
                    good.set(1);
                    "applied"
                }
                Err(problem) => {
                    tracing::error!(code = %problem.code, cause = %problem.cause, problem = %problem.message, "The configuration was refused and stays as it was.");
                    good.set(0);
                    "refused"
                }
            };
            outcomes.get_or_create(&[("outcome", outcome)]).inc();
        }
    });
    Ok(())
}
