//! What the cluster is told of a pod, from what the other side says of its containers.
//!
//! Everything here is a pure function. States only go forward: a phase that has ended stays, a
//! container that has ended does not run again unless it is another run, counters never fall, and
//! what is not known never becomes an end.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodSpec, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::wire::{self, Origin};

/// What is known of a pod.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Report<'a> {
    /// It has not been taken over by the other side, and why its containers wait.
    Waiting {
        /// Kubernetes' word for it.
        reason: &'a str,
        /// The sentence.
        message: &'a str,
    },
    /// The other side told how it is.
    Told(&'a wire::PodStatus),
    /// It has ended here, whatever it did last: refused, too late, lost or deleted.
    Ended {
        /// Kubernetes' word for it.
        reason: &'a str,
        /// The sentence.
        message: &'a str,
        /// What its containers are said to have ended with.
        code: i32,
    },
}

/// The code of a process that was killed.
pub const KILLED: i32 = 137;
/// interLink's annotation for the address of a pod.
pub const POD_IP: &str = "interlink.eu/pod-ip";
/// The condition that tells that states are old.
pub const STALE: &str = "StateStale";

/// Whether a phase is final.
pub fn is_final(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}

/// The phase the cluster knows.
pub fn phase_of(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// The status of a pod as it should be now.
pub fn status(pod: &Pod, report: Report<'_>, origin: Origin, host_ip: &str, now: Timestamp) -> PodStatus {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let mut status = pod.status.clone().unwrap_or_default();
    if is_final(status.phase.as_deref().unwrap_or_default()) {
        return status;
    }
    let now = seconds(now);
    let main_told = containers(report, |told| &told.containers);
    let init_told = containers(report, |told| &told.init_containers);
    let begun = main_told.iter().any(started);
    let init_specs = spec.init_containers.as_deref().unwrap_or_default();
    let old_init = status.init_container_statuses.take().unwrap_or_default();
    let old_main = status.container_statuses.take().unwrap_or_default();
    let init: Vec<ContainerStatus> = init_specs
        .iter()
        .map(|container| {
            let view =
                View { container, old: find(&old_init, container), told: find(init_told, container), spec };
            // Some tell nothing of what came before the containers that run.
            view.status(
                report,
                now,
                if begun && init_told.is_empty() { Unsaid::Done } else { Unsaid::Initializing },
            )
        })
        .collect();
    let initialized = init_specs.iter().zip(&init).all(|(container, status)| passed(container, status));
    let unsaid = if initialized { Unsaid::Creating } else { Unsaid::Initializing };
    let main: Vec<ContainerStatus> = spec
        .containers
        .iter()
        .map(|container| {
            let view =
                View { container, old: find(&old_main, container), told: find(main_told, container), spec };
            view.status(report, now, unsaid)
        })
        .collect();
    let once = !origin.is_ours() && matches!(report, Report::Told(_));
    let phase = phase(spec, init_specs, &init, &main, report, once);
    (status.reason, status.message) = match report {
        Report::Ended { reason, message, .. } => (text(reason), text(message)),
        _ => (None, None),
    };
    let mut conditions = status.conditions.take().unwrap_or_default();
    set_conditions(&mut conditions, spec, &phase, &init, &main, initialized, report, now);
    status.conditions = Some(conditions);
    status.phase = Some(phase);
    status.start_time = status.start_time.or(Some(Time(now)));
    status.init_container_statuses = (!init.is_empty()).then_some(init);
    status.container_statuses = (!main.is_empty()).then_some(main);
    let own = match report {
        Report::Told(told) => told.pod_ip.as_str(),
        _ => "",
    };
    addresses(&mut status, pod, host_ip, own);
    status
}

/// What is noted on the pod counts before what is told of it.
fn addresses(status: &mut PodStatus, pod: &Pod, host_ip: &str, own: &str) {
    if status.host_ip.is_none() && !host_ip.is_empty() {
        status.host_ip = Some(host_ip.to_owned());
        status.host_ips = Some(vec![HostIP { ip: host_ip.to_owned() }]);
    }
    let noted = pod.metadata.annotations.as_ref().and_then(|notes| notes.get(POD_IP));
    let found = noted.map(String::as_str).into_iter().chain([own]);
    if let Some(ip) = found.into_iter().find(|ip| ip.parse::<std::net::IpAddr>().is_ok()) {
        status.pod_ip = Some(ip.to_owned());
        status.pod_ips = Some(vec![PodIP { ip: ip.to_owned() }]);
    }
}

fn containers<'a>(
    report: Report<'a>,
    pick: impl Fn(&'a wire::PodStatus) -> &'a Vec<ContainerStatus>,
) -> &'a [ContainerStatus] {
    match report {
        Report::Told(told) => pick(told),
        _ => &[],
    }
}

fn find<'a>(statuses: &'a [ContainerStatus], container: &Container) -> Option<&'a ContainerStatus> {
    statuses.iter().find(|status| status.name == container.name)
}

fn text(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// Kubernetes keeps whole seconds; anything finer would look like a change for ever.
fn seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

fn whole(time: &mut Option<Time>) {
    if let Some(Time(time)) = time {
        *time = seconds(*time);
    }
}

fn state(status: &ContainerStatus) -> Option<&ContainerState> {
    status.state.as_ref()
}

fn running(status: &ContainerStatus) -> bool {
    state(status).is_some_and(|state| state.running.is_some())
}

fn terminated(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    state(status).and_then(|state| state.terminated.as_ref())
}

fn started(status: &ContainerStatus) -> bool {
    running(status) || terminated(status).is_some()
}

/// What stands for a container of which nothing is said.
#[derive(Clone, Copy)]
enum Unsaid {
    Creating,
    Initializing,
    Done,
}

/// One container from all sides.
struct View<'a> {
    container: &'a Container,
    old: Option<&'a ContainerStatus>,
    told: Option<&'a ContainerStatus>,
    spec: &'a PodSpec,
}

impl View<'_> {
    fn status(&self, report: Report<'_>, now: Timestamp, unsaid: Unsaid) -> ContainerStatus {
        let mut status = match self.told {
            Some(told) if self.believable(told) => self.merged(told),
            _ => self.old.cloned().unwrap_or_else(|| self.blank()),
        };
        match report {
            Report::Ended { reason, message, code } => end(&mut status, reason, message, code, now),
            Report::Waiting { reason, message } if !started(&status) => {
                status.state = Some(waiting(reason, message));
            }
            _ => {}
        }
        if status.state.as_ref().is_none_or(|state| *state == ContainerState::default()) {
            status.state = Some(match unsaid {
                Unsaid::Creating => waiting("ContainerCreating", ""),
                Unsaid::Initializing => waiting("PodInitializing", ""),
                Unsaid::Done => ContainerState {
                    terminated: Some(ContainerStateTerminated {
                        reason: Some("Completed".into()),
                        ..Default::default()
                    }),
                    ..Default::default()
                },
            });
        }
        status.ready &= running(&status);
        if let Some(ended) = terminated(&status)
            && self.is_init()
        {
            // An init container that did its part counts as ready.
            status.ready = ended.exit_code == 0;
        }
        status.started = Some(running(&status));
        status
    }

    fn is_init(&self) -> bool {
        self.spec.init_containers.iter().flatten().any(|init| init.name == self.container.name)
    }

    /// Whether a state says something, and nothing that cannot be.
    fn believable(&self, told: &ContainerStatus) -> bool {
        let Some(state) = state(told).filter(|state| **state != ContainerState::default()) else {
            return false;
        };
        let Some(old) = self.old else { return true };
        if state.waiting.is_some() && running(old) && told.container_id == old.container_id {
            // A container between two runs says so by its counter or its last end.
            return told.restart_count > old.restart_count || last_end(told).is_some();
        }
        let ended_before = terminated(old).is_some() && state.terminated.is_none();
        // The same run does not begin again; old news may arrive late.
        !(ended_before && told.restart_count <= old.restart_count && told.container_id == old.container_id)
    }

    fn merged(&self, told: &ContainerStatus) -> ContainerStatus {
        let mut status = told.clone();
        let old = self.old;
        let image = self.container.image.clone().unwrap_or_default();
        if status.image.is_empty() {
            status.image.clone_from(&image);
        }
        if status.image_id.is_empty() {
            // Whoever records where results come from needs something here.
            status.image_id =
                old.map(|old| old.image_id.clone()).filter(|id| !id.is_empty()).unwrap_or(image);
        }
        status.container_id = status.container_id.or_else(|| old.and_then(|old| old.container_id.clone()));
        status.restart_count = status.restart_count.max(old.map_or(0, |old| old.restart_count));
        if last_end(&status).is_none() {
            status.last_state = old.and_then(|old| old.last_state.clone());
            // The end of the run before this one is kept.
            if let Some(end) = old.and_then(terminated)
                && told.restart_count > old.map_or(0, |old| old.restart_count)
            {
                status.last_state =
                    Some(ContainerState { terminated: Some(end.clone()), ..Default::default() });
            }
        }
        status.last_state = status.last_state.or_else(|| Some(ContainerState::default()));
        for state in [&mut status.state, &mut status.last_state].into_iter().flatten() {
            if let Some(running) = &mut state.running {
                whole(&mut running.started_at);
            }
            if let Some(end) = &mut state.terminated {
                whole(&mut end.started_at);
                whole(&mut end.finished_at);
                let usual = if end.exit_code == 0 { "Completed" } else { "Error" };
                end.reason = end.reason.take().filter(|reason| !reason.is_empty()).or_else(|| text(usual));
            }
        }
        status
    }

    fn blank(&self) -> ContainerStatus {
        ContainerStatus {
            name: self.container.name.clone(),
            image: self.container.image.clone().unwrap_or_default(),
            last_state: Some(ContainerState::default()),
            ..Default::default()
        }
    }
}

fn last_end(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    status.last_state.as_ref().and_then(|state| state.terminated.as_ref())
}

fn waiting(reason: &str, message: &str) -> ContainerState {
    let waiting = ContainerStateWaiting { reason: text(reason), message: text(message) };
    ContainerState { waiting: Some(waiting), ..Default::default() }
}

fn end(status: &mut ContainerStatus, reason: &str, message: &str, code: i32, now: Timestamp) {
    if terminated(status).is_some() {
        return;
    }
    let began =
        state(status).and_then(|state| state.running.as_ref()).and_then(|running| running.started_at.clone());
    status.state = Some(ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: code,
            reason: text(reason),
            message: text(message),
            started_at: began,
            finished_at: Some(Time(now)),
            container_id: status.container_id.clone(),
            ..Default::default()
        }),
        ..Default::default()
    });
}

/// Whether an init container lets those after it begin.
fn passed(container: &Container, status: &ContainerStatus) -> bool {
    if container.restart_policy.as_deref() == Some("Always") {
        return started(status);
    }
    terminated(status).is_some_and(|end| end.exit_code == 0)
}

fn phase(
    spec: &PodSpec,
    init_specs: &[Container],
    init: &[ContainerStatus],
    main: &[ContainerStatus],
    report: Report<'_>,
    once: bool,
) -> String {
    // Only ours run a container again; with others what has ended has ended, whatever the pod asks for.
    let policy = if once { "Never" } else { spec.restart_policy.as_deref().unwrap_or("Always") };
    let all_ended = main.iter().all(|status| terminated(status).is_some());
    let all_well = main.iter().all(|status| terminated(status).is_some_and(|end| end.exit_code == 0));
    let phase = if let Report::Ended { .. } = report {
        if all_well && !main.is_empty() { "Succeeded" } else { "Failed" }
    } else if let Some((container, status)) =
        init_specs.iter().zip(init).find(|(container, status)| !passed(container, status))
    {
        if once && main.iter().any(running) {
            return "Running".to_owned();
        }
        let failed = terminated(status).is_some() && container.restart_policy.as_deref() != Some("Always");
        if failed && policy == "Never" { "Failed" } else { "Pending" }
    } else if main.iter().any(|status| !started(status) && last_end(status).is_none()) {
        "Pending"
    } else if all_ended && all_well && policy != "Always" {
        "Succeeded"
    } else if all_ended && policy == "Never" {
        "Failed"
    } else {
        "Running"
    };
    phase.to_owned()
}

#[expect(clippy::too_many_arguments, reason = "all of them are one view of the pod")]
fn set_conditions(
    conditions: &mut Vec<PodCondition>,
    spec: &PodSpec,
    phase: &str,
    init: &[ContainerStatus],
    main: &[ContainerStatus],
    initialized: bool,
    report: Report<'_>,
    now: Timestamp,
) {
    let names = |statuses: &[ContainerStatus], choose: &dyn Fn(&ContainerStatus) -> bool| -> String {
        let names: Vec<&str> = statuses.iter().filter(|s| choose(s)).map(|s| s.name.as_str()).collect();
        names.join(" ")
    };
    let unready = names(main, &|status| !status.ready);
    let not_ready = || ("ContainersNotReady", format!("containers with unready status: [{unready}]"));
    let (ready, because) = match phase {
        "Succeeded" => (false, ("PodCompleted", String::new())),
        "Failed" => (false, ("PodFailed", String::new())),
        _ if !unready.is_empty() || !initialized || main.is_empty() => (false, not_ready()),
        _ => (true, ("", String::new())),
    };
    let gates = spec.readiness_gates.iter().flatten();
    let open = |conditions: &[PodCondition], name: &str| {
        conditions.iter().any(|condition| condition.type_ == name && condition.status == "True")
    };
    let shut: Vec<String> = gates
        .filter(|gate| !open(conditions, &gate.condition_type))
        .map(|gate| {
            format!(
                "corresponding condition of pod readiness gate \"{}\" is not \"True\".",
                gate.condition_type
            )
        })
        .collect();
    let pending = names(init, &|status| terminated(status).is_none_or(|end| end.exit_code != 0));
    let begun = init.iter().chain(main).any(started);
    let mut set = |type_: &str, status: bool, reason: &str, message: &str| {
        set_condition(conditions, type_, status, reason, message, now);
    };
    set("PodScheduled", true, "", "");
    set("PodReadyToStartContainers", begun && !is_final(phase), "", "");
    if initialized {
        set("Initialized", true, if phase == "Succeeded" { "PodCompleted" } else { "" }, "");
    } else {
        set(
            "Initialized",
            false,
            "ContainersNotInitialized",
            &format!("containers with incomplete status: [{pending}]"),
        );
    }
    set("ContainersReady", ready, because.0, &because.1);
    if ready && !shut.is_empty() {
        set("Ready", false, "ReadinessGatesNotReady", &shut.join(" "));
    } else {
        set("Ready", ready, because.0, &because.1);
    }
    let old = matches!(report, Report::Told(told) if told.stale_seconds > 0);
    if old || conditions.iter().any(|condition| condition.type_ == STALE) {
        let (reason, message) = if old {
            ("RuntimeAway", "the plugin cannot reach what runs the pod; the last known states are shown")
        } else {
            ("", "")
        };
        set_condition(conditions, STALE, old, reason, message, now);
    }
}

fn set_condition(
    conditions: &mut Vec<PodCondition>,
    type_: &str,
    status: bool,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let status = if status { "True" } else { "False" };
    let at = conditions.iter().position(|condition| condition.type_ == type_).unwrap_or_else(|| {
        conditions.push(PodCondition { type_: type_.to_owned(), ..Default::default() });
        conditions.len() - 1
    });
    let condition = &mut conditions[at];
    if condition.status != status {
        status.clone_into(&mut condition.status);
        condition.last_transition_time = Some(Time(now));
    }
    condition.reason = text(reason);
    condition.message = text(message);
}

/// A running state, for tests and for peers that tell nothing more.
pub fn running_state(since: Option<Timestamp>) -> ContainerState {
    let running = ContainerStateRunning { started_at: since.map(Time) };
    ContainerState { running: Some(running), ..Default::default() }
}

#[cfg(test)]
mod tests;
