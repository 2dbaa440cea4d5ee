//! Prometheus metrics: one registry a process, given to each part as a value.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry, Unit};

/// The registry of one process. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
}

impl Metrics {
    /// A registry that already tells the build and the process.
    pub fn new(role: &str, version: &str) -> Self {
        let mut registry = Registry::default();
        let labels = vec![("role".to_owned(), role.to_owned()), ("version".to_owned(), version.to_owned())];
        registry.register("tarbet_build", "Version and role of this process", Info::new(labels));
        registry.register_collector(Box::new(Process));
        Self { registry: Arc::new(Mutex::new(registry)) }
    }

    /// Adds a metric under its full name and hands it back.
    pub fn register<M: Metric + Clone>(&self, name: &str, help: &str, metric: M) -> M {
        self.with(|registry| registry.register(name, help, metric.clone()));
        metric
    }

    /// Runs `f` on the registry, for collectors and originals' names with units.
    pub fn with<T>(&self, f: impl FnOnce(&mut Registry) -> T) -> T {
        f(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The page Prometheus reads.
    pub fn render(&self) -> Result<String, fmt::Error> {
        let mut page = String::new();
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        prometheus_client::encoding::text::encode(&mut page, &registry)?;
        Ok(page)
    }
}

/// The process as the kernel sees it, read when the page is asked for.
#[derive(Debug)]
struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut gauge = |name: &str, help: &str, unit: Option<&Unit>, value: Option<f64>| -> fmt::Result {
            let Some(value) = value else { return Ok(()) };
            let metric = ConstGauge::new(value);
            let family = encoder.encode_descriptor(name, help, unit, metric.metric_type())?;
            metric.encode(family)
        };
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name))?;
            line.split_whitespace().nth(1)?.parse::<f64>().ok()
        };
        let descriptors = std::fs::read_dir("/proc/self/fd").ok().map(|dir| dir.count() as f64);
        gauge(
            "process_resident_memory",
            "Memory in use",
            Some(&Unit::Bytes),
            field("VmRSS:").map(|kb| kb * 1024.0),
        )?;
        gauge("process_threads", "Threads", None, field("Threads:"))?;
        gauge("process_open_fds", "Open file descriptors", None, descriptors)?;
        // Asked for by a task, so there is a runtime; a unit test may have none.
        let tasks = tokio::runtime::Handle::try_current().ok();
        let tasks = tasks.map(|runtime| runtime.metrics().num_alive_tasks() as f64);
        gauge("tarbet_tasks", "Tasks that have not ended", None, tasks)?;

        let usage = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let seconds = ConstCounter::new(usage.tv_sec as f64 + usage.tv_nsec as f64 / 1e9);
        let family = encoder.encode_descriptor(
            "process_cpu",
            "CPU time used",
            Some(&Unit::Seconds),
            seconds.metric_type(),
        )?;
        seconds.encode(family)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::metrics::counter::Counter;

    #[tokio::test]
    async fn tasks_are_counted_while_they_live() {
        let tasks = |metrics: &Metrics| {
            let page = metrics.render().unwrap();
            let line = page.lines().find_map(|line| line.strip_prefix("tarbet_tasks ")).unwrap().to_owned();
            line.parse::<f64>().unwrap()
        };
        let (metrics, waiting) = (Metrics::new("gateway", "1.2.3"), tokio::sync::oneshot::channel::<()>());
        let before = tasks(&metrics);
        let task = tokio::spawn(waiting.1);
        assert!((tasks(&metrics) - before - 1.0).abs() < 0.1);
        drop(waiting.0);
        assert!(task.await.unwrap().is_err());
        assert!((tasks(&metrics) - before).abs() < 0.1);
    }

    #[test]
    fn the_page_tells_build_process_and_what_was_registered() {
        let metrics = Metrics::new("gateway", "1.2.3");
        let requests = metrics.register("tarbet_requests", "Requests seen", Counter::<u64>::default());
        requests.inc_by(7);
        let page = metrics.render().unwrap();
        for line in ["tarbet_build_info{role=\"gateway\",version=\"1.2.3\"} 1", "tarbet_requests_total 7"] {
            assert!(page.contains(line), "{line} is missing in\n{page}");
        }
        let memory = page.lines().find(|line| line.starts_with("process_resident_memory_bytes ")).unwrap();
        assert!(memory.rsplit(' ').next().unwrap().parse::<f64>().unwrap() > 100_000.0, "{memory}");
        assert!(page.contains("process_cpu_seconds_total "), "{page}");
    }
}
