//! What every role is before it is anything in particular: logs, metrics, probes, an ordered end.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use tarbet_reach::listen::{Certificates, Listener, Place, Ready};
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::supervisor::Signals;
use tarbet_telemetry::trace::Traces;
use tarbet_telemetry::{Health, Metrics, Problem, Stage, Supervisor, log, observe, problem};
use tokio::net::TcpListener;

use crate::config::{Config, Observability};

/// Probes and Prometheus come with HTTP/1.1 or HTTP/2.
const HTTP: &[&str] = &["h2", "http/1.1"];

/// A process that has started to tell about itself. Cheap to clone.
#[derive(Clone)]
pub struct Process {
    /// Owns the tasks.
    pub supervisor: Supervisor,
    /// Counts.
    pub metrics: Metrics,
    /// Tells what works.
    pub health: Health,
    // Set once: a process observes itself at one place.
    observed: Arc<std::sync::OnceLock<Observed>>,
    traces: Option<Arc<Traces>>,
}

/// Where a process is observed, and what it proves itself with there.
struct Observed {
    /// None if it is a socket in the file system.
    address: Option<SocketAddr>,
    certificates: Option<Certificates>,
}

/// Which work a role does, and so how many threads it needs. Every thread keeps memory of its own for what
/// it gave back: a role that mostly waits for others would hold many times what it uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// It waits for others, and a second core would wait too.
    One,
    /// It carries the bytes of others: one for two cores. Those it serves need the rest, and work that
    /// wanders between threads costs a third more.
    Half,
    /// One for each core.
    Cores,
}

impl Threads {
    /// How many for this many cores; nothing if the runtime shall decide.
    fn count(self, cores: usize) -> Option<usize> {
        match self {
            Self::One => Some(1),
            Self::Half => Some((cores / 2).max(1)),
            Self::Cores => None,
        }
    }
}

impl Process {
    /// Runs a role from start to end: `build` binds, opens and spawns, and returns when all is set up.
    /// Without any address it is not observed.
    pub fn run<B, F>(
        role: &'static str,
        config: &Config,
        observe_at: impl Into<Option<SocketAddr>>,
        threads: Threads,
        build: B,
    ) -> Result<(), Problem>
    where
        B: FnOnce(Process) -> F,
        F: Future<Output = Result<(), Problem>>,
    {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        // Whoever sets the variable knows better; the runtime reads it by itself.
        if let (Some(count), None) = (threads.count(cores), std::env::var_os("TOKIO_WORKER_THREADS")) {
            runtime.worker_threads(count);
        }
        let runtime = runtime.enable_all().build().map_err(|error| {
            Problem::new(&ground::INTERNAL, "The process cannot start its threads.")
                .because(error.to_string())
        })?;
        runtime.block_on(async {
            let signals = Signals::listen().map_err(|error| {
                Problem::new(&ground::INTERNAL, "The process cannot listen for signals.")
                    .because(error.to_string())
            })?;
            let process = Self::start(role, config)?;
            let starting = process.health.part("start");
            let usual: Option<SocketAddr> = observe_at.into();
            if let Some(address) = config.observability.listen {
                process.observe(address, &config.observability).await?;
            } else if let Some(usual) = usual {
                // Beside a socket no address is used.
                let socket = config.observability.socket.is_some();
                let at = if socket { usual } else { usual_or_free(usual).await };
                process.observe(at, &config.observability).await?;
            }
            build(process.clone()).await?;
            drop(starting);
            tracing::info!(role, version = env!("CARGO_PKG_VERSION"), "Started.");
            let ended = process.supervisor.run(config.shutdown.deadline, || signals.clone().next()).await;
            process.flush();
            tracing::info!(role, "Stopped.");
            ended
        })
    }

    fn start(role: &str, config: &Config) -> Result<Self, Problem> {
        let version = env!("CARGO_PKG_VERSION");
        let traces = match &config.observability.otlp_endpoint {
            None => None,
            Some(endpoint) => Some(Arc::new(Traces::to(endpoint, role, version).map_err(|error| {
                Problem::new(&ground::CONFIG_INVALID, format!("Traces cannot be sent to {endpoint}."))
                    .because(problem::chain(&error))
            })?)),
        };
        log::init(config.log.format, &config.log.filter, traces.as_deref()).map_err(|error| {
            Problem::new(&ground::CONFIG_INVALID, "Logging cannot be set up.").because(problem::chain(&error))
        })?;
        let (supervisor, metrics) = (Supervisor::default(), Metrics::new(role, version));
        Ok(Self { supervisor, metrics, health: Health::default(), observed: Arc::default(), traces })
    }

    /// The URL of metrics and probes, if they have one.
    pub fn observed_at(&self) -> Option<String> {
        let Observed { address, certificates } = self.observed.get()?;
        let scheme = if certificates.is_some() { "https" } else { "http" };
        Some(format!("{scheme}://{}", (*address)?))
    }

    /// Reads the certificate of metrics and probes anew, as these settings name it.
    pub fn observe_anew(&self, settings: &Observability) -> Result<Option<Ready>, Problem> {
        let certificates = self.observed.get().and_then(|observed| observed.certificates.as_ref());
        let both = certificates.zip(settings.tls.as_ref());
        both.map(|(certificates, files)| certificates.read(files)).transpose()
    }

    /// Whether these settings would have metrics and probes gain TLS or lose it, which needs a new start.
    pub fn turns_tls(&self, settings: &Observability) -> bool {
        let had = self.observed.get().map(|observed| observed.certificates.is_some());
        had.is_some_and(|had| had != settings.tls.is_some())
    }

    async fn observe(&self, address: SocketAddr, settings: &Observability) -> Result<(), Problem> {
        let place = settings.socket.as_deref().map_or(Place::Tcp(address), Place::Socket);
        let listener = Listener::bind("observability", place, settings.tls.as_ref(), HTTP).await?;
        let listener = listener.at_most(settings.max_connections);
        let address = (!listener.is_socket()).then(|| listener.address());
        let certificates = listener.certificates();
        let _ = self.observed.set(Observed { address, certificates });
        let router = observe::router(self.metrics.clone(), self.health.clone(), &settings.paths());
        self.supervisor.spawn(Stage::Observe, "observability listener", |stop| async move {
            listener.serve_pages(router, stop).await;
            Ok(())
        });
        Ok(())
    }

    /// Serves probes at an address of their own, too, as the other listener is served.
    pub async fn serve_probes(&self, at: SocketAddr, settings: &Observability) -> Result<(), Problem> {
        let listener = Listener::bind("probes", Place::Tcp(at), settings.tls.as_ref(), HTTP).await?;
        let listener = listener.at_most(settings.max_connections);
        let paths = observe::Paths { metrics: Vec::new(), ..settings.paths() };
        let router = observe::router(self.metrics.clone(), self.health.clone(), &paths);
        self.supervisor.spawn(Stage::Observe, "probe listener", |stop| async move {
            listener.serve_pages(router, stop).await;
            Ok(())
        });
        Ok(())
    }

    fn flush(&self) {
        let Some(traces) = &self.traces else { return };
        if let Err(error) = traces.flush() {
            tracing::warn!(error = %error, "The last spans could not be sent.");
        }
    }
}

/// The usual address of probes. Where another program of this machine has it, nobody chose it and only this
/// machine looks, any other will do.
async fn usual_or_free(usual: SocketAddr) -> SocketAddr {
    if !usual.ip().is_loopback() || TcpListener::bind(usual).await.is_ok() {
        return usual;
    }
    tracing::warn!(
        address = %usual,
        "The usual address of probes and metrics is taken, another is used; --observability-listen chooses one."
    );
    SocketAddr::new(usual.ip(), 0)
}

/// How the address of a listener is chosen.
fn remedy(name: &str) -> &'static str {
    match name {
        "observability" => "stop the other process, or choose another address with --observability-listen",
        "console" => "stop the other process, or choose another address with --set console.listen=ADDR",
        _ => "stop the other process, or choose another address in the configuration",
    }
}

/// Binds a listener and logs where.
pub async fn bind(address: SocketAddr, name: &str) -> Result<TcpListener, Problem> {
    let listener = TcpListener::bind(address).await.map_err(|error| {
        Problem::new(&ground::ADDRESS_IN_USE, format!("The {name} listener cannot bind {address}."))
            .because(error.to_string())
            .advising(remedy(name))
    })?;
    let bound = listener.local_addr().map_or_else(|_| address.to_string(), |bound| bound.to_string());
    tracing::info!(listener = name, address = %bound, "Listening.");
    Ok(listener)
}
