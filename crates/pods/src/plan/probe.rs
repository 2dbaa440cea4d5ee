//! What is asked of a running container, and how its answers are counted. Nothing is done here.

use std::fmt::Write as _;
use std::time::Duration;

use k8s_openapi::api::core::v1 as k8s;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::error::PlanError;

/// The questions to a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Probes {
    /// Whether it has come up; the others wait for this one.
    pub startup: Option<Probe>,
    /// Whether it can serve.
    pub readiness: Option<Probe>,
    /// Whether it is alive; one that is not is started again.
    pub liveness: Option<Probe>,
}

/// What is done when a container begins and before it ends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hooks {
    /// Right after it began.
    pub post_start: Option<Check>,
    /// Before it is told to end.
    pub pre_stop: Option<Check>,
}

/// One question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// How it is asked.
    pub check: Check,
    /// Not before the container has run this long.
    pub delay: Duration,
    /// How often.
    pub period: Duration,
    /// How long an answer may take.
    pub timeout: Duration,
    /// Good answers in a row that count.
    pub successes: u32,
    /// Bad answers in a row that count.
    pub failures: u32,
}

/// How a question is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Check {
    /// A command in the container must end well.
    Command(Vec<String>),
    /// A port of the pod must take a connection.
    Connect(u16),
    /// A page of the pod must be there.
    Page {
        /// The port.
        port: u16,
        /// The request, ready to be sent.
        request: String,
    },
    /// Only time passes.
    Sleep(Duration),
}

fn seconds(value: Option<i32>, usual: u64, least: u64) -> Duration {
    let given = value.and_then(|value| u64::try_from(value).ok()).filter(|&value| value > 0);
    Duration::from_secs(given.unwrap_or(usual).max(least))
}

fn count(value: Option<i32>, usual: u32) -> u32 {
    value.and_then(|value| u32::try_from(value).ok()).filter(|&value| value > 0).unwrap_or(usual)
}

fn port(port: &IntOrString, container: &k8s::Container) -> Option<u16> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let ports = container.ports.iter().flatten();
            let named = ports.clone().find(|port| port.name.as_deref() == Some(name.as_str()));
            named.map(|port| port.container_port).or_else(|| name.parse().ok())?
        }
    };
    u16::try_from(number).ok().filter(|&port| port > 0)
}

/// A page as a request. Nothing of the pod can add a line to it.
fn page(http: &k8s::HTTPGetAction, container: &k8s::Container) -> Option<Check> {
    let port = port(&http.port, container)?;
    let plain = |text: &str| !text.contains(|c: char| c.is_control() || c == ' ');
    let path = http.path.clone().filter(|path| !path.is_empty()).unwrap_or_else(|| "/".into());
    let path = if path.starts_with('/') { path } else { format!("/{path}") };
    let host = http.host.clone().filter(|host| !host.is_empty()).unwrap_or_else(|| "localhost".into());
    // TLS inside the pod would be needed, with a certificate that nobody checks.
    let encrypted = http.scheme.as_deref().is_some_and(|scheme| scheme.eq_ignore_ascii_case("https"));
    if encrypted || !plain(&path) || !plain(&host) {
        return None;
    }
    let mut request =
        format!("GET {path} HTTP/1.1\r\nConnection: close\r\nUser-Agent: kube-probe/tarbet\r\n");
    let mut own_host = false;
    for header in http.http_headers.iter().flatten() {
        let (name, value) = (&header.name, &header.value);
        if name.is_empty() || !plain(name) || name.contains(':') || value.contains(char::is_control) {
            return None;
        }
        own_host |= name.eq_ignore_ascii_case("host");
        let _ = write!(request, "{name}: {value}\r\n");
    }
    if !own_host {
        let _ = write!(request, "Host: {host}:{port}\r\n");
    }
    request.push_str("\r\n");
    Some(Check::Page { port, request })
}

fn command(exec: &k8s::ExecAction) -> Option<Check> {
    let words = exec.command.clone().filter(|words| !words.is_empty())?;
    (!words.iter().any(|word| word.contains('\0'))).then_some(Check::Command(words))
}

fn probe(probe: &k8s::Probe, container: &k8s::Container, what: &str) -> Result<Probe, PlanError> {
    let check = if let Some(exec) = &probe.exec {
        command(exec)
    } else if let Some(http) = &probe.http_get {
        page(http, container)
    } else if let Some(tcp) = &probe.tcp_socket {
        port(&tcp.port, container).map(Check::Connect)
    } else {
        // gRPC's health call is more than a connection; that its port answers is what can be told.
        probe.grpc.as_ref().and_then(|grpc| u16::try_from(grpc.port).ok()).map(Check::Connect)
    };
    let check = check.ok_or_else(|| PlanError::Value(format!("the {what} of `{}`", container.name)))?;
    Ok(Probe {
        check,
        delay: seconds(probe.initial_delay_seconds, 0, 0),
        period: seconds(probe.period_seconds, 10, 1),
        timeout: seconds(probe.timeout_seconds, 1, 1),
        successes: count(probe.success_threshold, 1),
        failures: count(probe.failure_threshold, 3),
    })
}

/// The questions of a container.
pub(super) fn probes(container: &k8s::Container) -> Result<Probes, PlanError> {
    let read = |given: &Option<k8s::Probe>, what: &str| {
        given.as_ref().map(|given| probe(given, container, what)).transpose()
    };
    Ok(Probes {
        startup: read(&container.startup_probe, "startup probe")?,
        readiness: read(&container.readiness_probe, "readiness probe")?,
        liveness: read(&container.liveness_probe, "liveness probe")?,
    })
}

/// The hooks of a container.
pub(super) fn hooks(container: &k8s::Container) -> Result<Hooks, PlanError> {
    let read = |given: Option<&k8s::LifecycleHandler>, what: &str| -> Result<Option<Check>, PlanError> {
        let Some(given) = given else { return Ok(None) };
        let check = if let Some(exec) = &given.exec {
            command(exec)
        } else if let Some(http) = &given.http_get {
            page(http, container)
        } else {
            let sleep = given.sleep.as_ref().and_then(|sleep| u64::try_from(sleep.seconds).ok());
            sleep.map(|seconds| Check::Sleep(Duration::from_secs(seconds)))
        };
        check.map(Some).ok_or_else(|| PlanError::Value(format!("the {what} of `{}`", container.name)))
    };
    let lifecycle = container.lifecycle.as_ref();
    Ok(Hooks {
        post_start: read(lifecycle.and_then(|hooks| hooks.post_start.as_ref()), "postStart hook")?,
        pre_stop: read(lifecycle.and_then(|hooks| hooks.pre_stop.as_ref()), "preStop hook")?,
    })
}

/// The answers of one question so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    good: u32,
    bad: u32,
}

/// What a tally says once enough answers agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    /// It is so.
    Good,
    /// It is not.
    Bad,
    /// Not enough was heard to change anything.
    Open,
}

impl Tally {
    /// Counts one more answer.
    pub fn count(&mut self, good: bool, probe: &Probe) -> Finding {
        if good {
            (self.good, self.bad) = (self.good.saturating_add(1), 0);
            if self.good >= probe.successes { Finding::Good } else { Finding::Open }
        } else {
            (self.good, self.bad) = (0, self.bad.saturating_add(1));
            if self.bad >= probe.failures { Finding::Bad } else { Finding::Open }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn container(probe: serde_json::Value) -> k8s::Container {
        let whole = json!({"name": "main", "ports": [{"name": "web", "containerPort": 8080}], "readinessProbe": probe});
        serde_json::from_value(whole).unwrap()
    }

    #[test]
    fn questions_are_read_with_the_usual_times() {
        let found = probes(&container(json!({"httpGet": {"port": "web", "path": "healthz"}}))).unwrap();
        let probe = found.readiness.unwrap();
        assert_eq!((probe.period.as_secs(), probe.timeout.as_secs(), probe.failures), (10, 1, 3));
        let Check::Page { port, request } = probe.check else { panic!("{:?}", probe.check) };
        assert_eq!(port, 8080);
        assert!(request.starts_with("GET /healthz HTTP/1.1\r\n"), "{request}");
        let found = probes(&container(json!({"tcpSocket": {"port": 5432}, "periodSeconds": 3}))).unwrap();
        assert_eq!(
            found.readiness.map(|probe| (probe.check, probe.period.as_secs())),
            Some((Check::Connect(5432), 3))
        );
    }

    #[test]
    fn a_page_cannot_smuggle_lines() {
        for http in [
            json!({"port": 80, "path": "/ HTTP/1.1\r\nX: y"}),
            json!({"port": 80, "host": "a\r\nX: y"}),
            json!({"port": 80, "httpHeaders": [{"name": "A", "value": "b\r\nX: y"}]}),
            json!({"port": 80, "httpHeaders": [{"name": "A: b", "value": "c"}]}),
            json!({"port": 0}),
            json!({"port": "nothing"}),
        ] {
            assert!(probes(&container(json!({"httpGet": http}))).is_err(), "{http}");
        }
    }

    proptest! {
        #[test]
        fn only_answers_in_a_row_count(answers in proptest::collection::vec(any::<bool>(), 1..40), successes in 1u32..4, failures in 1u32..4) {
            let probe = Probe {
                check: Check::Connect(1), delay: Duration::ZERO, period: Duration::from_secs(1),
                timeout: Duration::from_secs(1), successes, failures,
            };
            let mut tally = Tally::default();
            for (at, &good) in answers.iter().enumerate() {
                let row = answers[..=at].iter().rev().take_while(|&&other| other == good).count();
                let found = tally.count(good, &probe);
                let enough = u32::try_from(row).unwrap() >= if good { successes } else { failures };
                prop_assert_eq!(found, match (enough, good) { (false, _) => Finding::Open, (true, true) => Finding::Good, (true, false) => Finding::Bad });
            }
        }
    }
}
