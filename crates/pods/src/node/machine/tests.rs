use proptest::prelude::*;

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn pod(init: usize, main: usize, policy: &str) -> Pod {
    let make = |prefix: &str, count: usize| -> Vec<Container> {
        (0..count)
            .map(|n| Container {
                name: format!("{prefix}{n}"),
                image: Some("busybox:1".into()),
                ..Default::default()
            })
            .collect()
    };
    let init = (init > 0).then(|| make("i", init));
    let spec = PodSpec {
        init_containers: init,
        containers: make("m", main),
        restart_policy: Some(policy.to_owned()),
        ..Default::default()
    };
    Pod { spec: Some(spec), ..Default::default() }
}

fn told(name: &str, state: ContainerState, restarts: i32) -> ContainerStatus {
    let ready = state.running.is_some();
    ContainerStatus {
        name: name.to_owned(),
        state: Some(state),
        ready,
        restart_count: restarts,
        container_id: Some(format!("docker://{name}-{restarts}")),
        ..Default::default()
    }
}

fn ended(code: i32) -> ContainerState {
    let end = ContainerStateTerminated { exit_code: code, message: Some("m".into()), ..Default::default() };
    ContainerState { terminated: Some(end), ..Default::default() }
}

fn run(pod: &mut Pod, report: Report<'_>, now: i64) -> PodStatus {
    let status = status(pod, report, Origin::Ours, "10.0.0.1", at(now));
    pod.status = Some(status.clone());
    status
}

fn condition<'a>(status: &'a PodStatus, type_: &str) -> &'a PodCondition {
    status.conditions.iter().flatten().find(|condition| condition.type_ == type_).unwrap()
}

#[test]
fn a_pod_goes_from_pending_to_succeeded() {
    let mut pod = pod(1, 2, "Never");
    let status = run(&mut pod, Report::Waiting { reason: "ContainerCreating", message: "" }, 1);
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    assert_eq!(status.start_time, Some(Time(at(1))));
    assert_eq!(condition(&status, "Ready").status, "False");
    let running = || running_state(Some(at(5)));
    let say = |init: Vec<ContainerStatus>, main: Vec<ContainerStatus>| wire::PodStatus {
        containers: main,
        init_containers: init,
        ..Default::default()
    };
    let report = say(vec![told("i0", running(), 0)], vec![]);
    let status = run(&mut pod, Report::Told(&report), 2);
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    assert_eq!(condition(&status, "Initialized").status, "False");
    let report = say(vec![told("i0", ended(0), 0)], vec![told("m0", running(), 0), told("m1", running(), 0)]);
    let status = run(&mut pod, Report::Told(&report), 3);
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(
        (condition(&status, "Ready").status.as_str(), condition(&status, "Initialized").status.as_str()),
        ("True", "True")
    );
    assert_eq!(status.container_statuses.as_ref().unwrap()[0].image_id, "busybox:1");
    let report = say(vec![told("i0", ended(0), 0)], vec![told("m0", ended(0), 0), told("m1", ended(0), 0)]);
    let status = run(&mut pod, Report::Told(&report), 4);
    assert_eq!(status.phase.as_deref(), Some("Succeeded"));
    let end = terminated(&status.container_statuses.as_ref().unwrap()[1]).unwrap();
    assert_eq!((end.reason.as_deref(), end.message.as_deref()), (Some("Completed"), Some("m")));
    assert_eq!(condition(&status, "Ready").reason.as_deref(), Some("PodCompleted"));
    assert_eq!(condition(&status, "Initialized").last_transition_time, Some(Time(at(3))));
}

#[test]
fn a_failed_init_container_fails_the_pod_unless_it_is_tried_again() {
    for (policy, phase) in [("Never", "Failed"), ("OnFailure", "Pending"), ("Always", "Pending")] {
        let mut pod = pod(2, 1, policy);
        let report = wire::PodStatus { init_containers: vec![told("i0", ended(3), 0)], ..Default::default() };
        assert_eq!(run(&mut pod, Report::Told(&report), 1).phase.as_deref(), Some(phase), "{policy}");
    }
}

#[test]
fn restart_policies_decide_what_an_end_means() {
    for (policy, code, phase) in [
        ("Never", 0, "Succeeded"),
        ("Never", 7, "Failed"),
        ("OnFailure", 0, "Succeeded"),
        ("OnFailure", 7, "Running"),
        ("Always", 0, "Running"),
        ("Always", 7, "Running"),
    ] {
        let mut pod = pod(0, 1, policy);
        let report = wire::PodStatus { containers: vec![told("m0", ended(code), 0)], ..Default::default() };
        assert_eq!(run(&mut pod, Report::Told(&report), 1).phase.as_deref(), Some(phase), "{policy} {code}");
    }
}

#[test]
fn with_others_what_has_ended_has_ended_whatever_the_policy() {
    let phase = |pod: &Pod, init: Vec<ContainerStatus>, main: Vec<ContainerStatus>| {
        let told = wire::PodStatus { init_containers: init, containers: main, ..Default::default() };
        status(pod, Report::Told(&told), Origin::Other, "10.0.0.1", at(1)).phase.unwrap()
    };
    for policy in ["Never", "OnFailure", "Always"] {
        let two = pod(0, 2, policy);
        let ends = |first, second| vec![told("m0", ended(first), 0), told("m1", ended(second), 0)];
        assert_eq!(phase(&two, vec![], ends(0, 0)), "Succeeded", "{policy}");
        assert_eq!(phase(&two, vec![], ends(0, 7)), "Failed", "{policy}");
        let half = vec![told("m0", ended(7), 0), told("m1", running_state(None), 0)];
        assert_eq!(phase(&two, vec![], half), "Running", "{policy}");
        let first = pod(1, 1, policy);
        assert_eq!(phase(&first, vec![told("i0", ended(3), 0)], vec![]), "Failed", "{policy}");
        let on = vec![told("m0", running_state(None), 0)];
        assert_eq!(phase(&first, vec![told("i0", ended(3), 0)], on), "Running", "{policy}");
    }
    // Nothing was told since this process began: a pod between two runs is not at its end.
    let mut between = pod(0, 1, "Always");
    let report = wire::PodStatus { containers: vec![told("m0", ended(1), 0)], ..Default::default() };
    run(&mut between, Report::Told(&report), 1);
    let waiting = Report::Waiting { reason: "ContainerCreating", message: "" };
    let now = status(&between, waiting, Origin::Other, "10.0.0.1", at(2));
    assert_eq!(now.phase.as_deref(), Some("Running"));
}

#[test]
fn what_ends_here_ends_everything_that_ran() {
    let mut pod = pod(0, 2, "Always");
    let report = wire::PodStatus {
        containers: vec![told("m0", running_state(Some(at(1))), 0), told("m1", ended(0), 0)],
        ..Default::default()
    };
    run(&mut pod, Report::Told(&report), 1);
    let report = Report::Ended { reason: "DeadlineExceeded", message: "too late", code: KILLED };
    let status = run(&mut pod, report, 2);
    assert_eq!(
        (status.phase.as_deref(), status.reason.as_deref()),
        (Some("Failed"), Some("DeadlineExceeded"))
    );
    let containers = status.container_statuses.unwrap();
    assert_eq!(terminated(&containers[0]).unwrap().exit_code, KILLED);
    assert_eq!(terminated(&containers[0]).unwrap().started_at, Some(Time(at(1))));
    assert_eq!(terminated(&containers[1]).unwrap().exit_code, 0, "what had ended keeps its end");
}

#[test]
fn silence_and_old_news_change_nothing() {
    let mut pod = pod(0, 1, "Never");
    let tell = |state, restarts| wire::PodStatus {
        containers: vec![told("m0", state, restarts)],
        ..Default::default()
    };
    run(&mut pod, Report::Told(&tell(running_state(Some(at(1))), 0)), 1);
    let before = pod.status.clone();
    for silent in [wire::PodStatus::default(), tell(ContainerState::default(), 0)] {
        run(&mut pod, Report::Told(&silent), 2);
        assert_eq!(pod.status, before);
    }
    let mut sidecar = pod.clone();
    sidecar.spec.as_mut().unwrap().containers.push(Container { name: "m1".into(), ..Default::default() });
    let both = |first: ContainerState, restarts| wire::PodStatus {
        containers: vec![told("m0", first, restarts), told("m1", running_state(None), 0)],
        ..Default::default()
    };
    run(&mut sidecar, Report::Told(&both(ended(1), 0)), 3);
    let status = run(&mut sidecar, Report::Told(&both(running_state(None), 0)), 4);
    assert!(terminated(&status.container_statuses.unwrap()[0]).is_some(), "an ended run does not run again");
    let status = run(&mut sidecar, Report::Told(&both(running_state(None), 1)), 5);
    let first = &status.container_statuses.unwrap()[0];
    assert!(running(first), "another run does");
    assert_eq!(last_end(first).unwrap().exit_code, 1);
}

#[test]
fn states_that_are_old_are_marked_and_never_an_end() {
    let mut pod = pod(0, 1, "Never");
    let mut report = wire::PodStatus {
        containers: vec![told("m0", running_state(None), 0)],
        stale_seconds: 40,
        ..Default::default()
    };
    let status = run(&mut pod, Report::Told(&report), 1);
    assert_eq!(
        (status.phase.as_deref(), condition(&status, STALE).status.as_str()),
        (Some("Running"), "True")
    );
    report.stale_seconds = 0;
    assert_eq!(condition(&run(&mut pod, Report::Told(&report), 2), STALE).status, "False");
}

#[test]
fn init_containers_nobody_tells_of_are_taken_as_done_once_the_others_run() {
    let mut pod = pod(1, 1, "Never");
    let report =
        wire::PodStatus { containers: vec![told("m0", running_state(None), 0)], ..Default::default() };
    let status = run(&mut pod, Report::Told(&report), 1);
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(condition(&status, "Initialized").status, "True");
}

fn any_state() -> impl Strategy<Value = ContainerState> {
    prop_oneof![
        Just(ContainerState::default()),
        Just(waiting("ContainerCreating", "")),
        Just(running_state(Some(at(3)))),
        (0i32..3).prop_map(ended),
    ]
}

fn any_report() -> impl Strategy<Value = wire::PodStatus> {
    let statuses = |prefix: &'static str| {
        proptest::collection::vec((any_state(), 0i32..3), 0..4).prop_map(move |states| {
            let tell = |(n, (state, restarts))| told(&format!("{prefix}{n}"), state, restarts);
            states.into_iter().enumerate().map(tell).collect::<Vec<_>>()
        })
    };
    (statuses("i"), statuses("m"), 0u64..3).prop_map(|(init_containers, containers, stale_seconds)| {
        wire::PodStatus { containers, init_containers, stale_seconds, ..Default::default() }
    })
}

#[test]
fn the_address_of_a_pod_is_that_on_its_note_or_else_as_told_and_stays() {
    let mut pod = pod(0, 1, "Never");
    let status = run(&mut pod, Report::Waiting { reason: "ContainerCreating", message: "" }, 1);
    assert_eq!((status.pod_ip, status.host_ip.as_deref()), (None, Some("10.0.0.1")));
    let tell = |ip: &str| wire::PodStatus {
        containers: vec![told("m0", running_state(None), 0)],
        pod_ip: ip.into(),
        ..Default::default()
    };
    let status = run(&mut pod, Report::Told(&tell("172.17.0.2")), 2);
    assert_eq!(status.pod_ips, Some(vec![PodIP { ip: "172.17.0.2".into() }]));
    for unusable in ["", "nonsense"] {
        assert_eq!(run(&mut pod, Report::Told(&tell(unusable)), 3).pod_ip.as_deref(), Some("172.17.0.2"));
    }
    pod.metadata.annotations = Some([(POD_IP.to_owned(), "10.1.2.3".to_owned())].into());
    assert_eq!(run(&mut pod, Report::Told(&tell("172.17.0.2")), 4).pod_ip.as_deref(), Some("10.1.2.3"));
}

proptest! {
    #[test]
    fn whatever_is_told_states_only_go_forward(
        init in 0usize..3,
        main in 1usize..4,
        policy in prop_oneof![Just("Never"), Just("OnFailure"), Just("Always")],
        reports in proptest::collection::vec(any_report(), 1..12),
    ) {
        let mut pod = pod(init, main, policy);
        let mut last = PodStatus::default();
        for (n, report) in reports.iter().enumerate() {
            let now = i64::try_from(n).unwrap() + 1;
            let new = run(&mut pod, Report::Told(report), now);
            // The same news twice is no news.
            prop_assert_eq!(&status(&pod, Report::Told(report), Origin::Ours, "10.0.0.1", at(now + 1)), &new);
            let phase = new.phase.clone().unwrap();
            prop_assert!(["Pending", "Running", "Succeeded", "Failed"].contains(&phase.as_str()));
            if last.phase.as_deref().is_some_and(is_final) {
                prop_assert_eq!(&last, &new);
            }
            let containers = new.container_statuses.clone().unwrap_or_default();
            prop_assert_eq!(containers.len(), main);
            prop_assert_eq!(new.init_container_statuses.as_ref().map_or(0, Vec::len), init);
            for (n, now) in containers.iter().enumerate() {
                let kinds = state(now).map_or(0, |s| usize::from(s.waiting.is_some()) + usize::from(s.running.is_some()) + usize::from(s.terminated.is_some()));
                prop_assert_eq!(kinds, 1, "exactly one kind of state");
                prop_assert!(!now.ready || running(now));
                if let Some(before) = last.container_statuses.as_ref().and_then(|list| list.get(n)) {
                    prop_assert!(now.restart_count >= before.restart_count);
                    if terminated(before).is_some() && terminated(now).is_none() {
                        prop_assert!(now.restart_count > before.restart_count || now.container_id != before.container_id);
                    }
                }
            }
            if phase == "Succeeded" {
                prop_assert!(containers.iter().all(|c| terminated(c).is_some_and(|end| end.exit_code == 0)));
            }
            if phase == "Failed" {
                let all = containers.iter().chain(new.init_container_statuses.iter().flatten());
                prop_assert!(all.into_iter().any(|c| terminated(c).is_some_and(|end| end.exit_code != 0)));
            }
            let mut types: Vec<&str> = new.conditions.iter().flatten().map(|c| c.type_.as_str()).collect();
            types.sort_unstable();
            let count = types.len();
            types.dedup();
            prop_assert_eq!(types.len(), count);
            last = new;
        }
    }
}
