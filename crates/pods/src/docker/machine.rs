//! What to do next for a pod, decided from its plan and what Docker has of it.

use serde::{Deserialize, Serialize};

use crate::plan::Plan;

/// The part of a pod that an action is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Slot {
    /// The holder of the pod's network.
    Pause,
    /// A container by name.
    Container(String),
}

/// What Docker has in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// Nothing, and it was never started.
    Absent,
    /// Made, not started.
    Created,
    /// Running, or between two runs that Docker makes by itself.
    Running,
    /// Ended for good with this code.
    Ended(i64),
    /// It was started once and is no more; it is not started again.
    Lost,
}

/// Something to do now. Those returned together may be done at the same time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Make it and start it.
    Run(Slot),
    /// Start what is made already.
    Start(Slot),
    /// End what has nothing left to accompany.
    Stop(Slot),
}

/// The actions that are due; none while something has to happen first, or all is done.
pub fn next(plan: &Plan, state: impl Fn(&Slot) -> State) -> Vec<Action> {
    let due = |slot: Slot| match state(&slot) {
        State::Absent => Some(Action::Run(slot)),
        State::Created => Some(Action::Start(slot)),
        State::Running | State::Ended(_) | State::Lost => None,
    };
    let container = |container: &crate::plan::Container| due(Slot::Container(container.name.clone()));
    let mut actions = Vec::new();
    for init in &plan.init {
        let slot = Slot::Container(init.name.clone());
        match state(&slot) {
            State::Ended(0) => {}
            // It goes on beside those after it; one that ended is Docker's to start again.
            State::Running | State::Ended(_) | State::Lost if init.sidecar => {}
            State::Running | State::Ended(_) | State::Lost => return Vec::new(),
            State::Absent | State::Created => {
                actions.extend(due(slot));
                break;
            }
        }
    }
    if actions.is_empty() {
        actions = plan.containers.iter().filter_map(container).collect();
    }
    let over = |container: &crate::plan::Container| {
        matches!(state(&Slot::Container(container.name.clone())), State::Ended(_) | State::Lost)
    };
    if actions.is_empty() && plan.containers.iter().all(over) {
        let sidecars = plan.init.iter().filter(|init| init.sidecar);
        let left = sidecars.map(|init| Slot::Container(init.name.clone()));
        return left.filter(|slot| state(slot) == State::Running).map(Action::Stop).collect();
    }
    if actions.is_empty() || plan.host_network || plan.is_alone() {
        return actions;
    }
    // The pod's network comes first. It holds nothing of the pod's own, so it may start again.
    match state(&Slot::Pause) {
        State::Running => actions,
        State::Absent | State::Lost => vec![Action::Run(Slot::Pause)],
        State::Created | State::Ended(_) => vec![Action::Start(Slot::Pause)],
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::api::core::v1 as k8s;
    use proptest::prelude::*;

    use super::*;
    use crate::plan::{Policy, plan};
    use crate::wire::RetrievedPod;

    fn pod(init: usize, main: usize) -> Plan {
        let make = |prefix: &str, count: usize| -> Vec<k8s::Container> {
            (0..count)
                .map(|n| k8s::Container { name: format!("{prefix}{n}"), ..Default::default() })
                .collect()
        };
        let mut pod = k8s::Pod::default();
        pod.metadata.name = Some("p".into());
        pod.metadata.namespace = Some("n".into());
        pod.metadata.uid = Some("cf9e6237-0c5f-47c2-a6d8-912b12f93a20".into());
        let init = Some(make("i", init));
        pod.spec =
            Some(k8s::PodSpec { init_containers: init, containers: make("m", main), ..Default::default() });
        plan(&RetrievedPod { pod, ..Default::default() }, &Policy::default()).unwrap()
    }

    #[test]
    fn sidecars_come_first_and_go_last() {
        let mut plan = pod(1, 1);
        plan.init[0].sidecar = true;
        let (side, main) = (Slot::Container("i0".into()), Slot::Container("m0".into()));
        let seen = |side_state: State, main_state: State| {
            next(&plan, |slot| match slot {
                Slot::Pause => State::Running,
                slot if *slot == side => side_state,
                Slot::Container(_) => main_state,
            })
        };
        assert_eq!(seen(State::Absent, State::Absent), [Action::Run(side.clone())]);
        assert_eq!(seen(State::Running, State::Absent), [Action::Run(main)]);
        assert_eq!(seen(State::Running, State::Running), []);
        assert_eq!(seen(State::Running, State::Ended(0)), [Action::Stop(side.clone())]);
        assert_eq!(seen(State::Ended(143), State::Ended(0)), []);
    }

    #[test]
    fn a_container_that_runs_once_and_alone_needs_nobody_to_hold_its_network() {
        let mut plan = pod(0, 1);
        let main = || vec![Action::Run(Slot::Container("m0".into()))];
        let pause = || vec![Action::Run(Slot::Pause)];
        assert_eq!(next(&plan, |_| State::Absent), pause(), "its network outlives a restart");
        plan.restart = crate::plan::Restart::Never;
        assert_eq!(next(&plan, |_| State::Absent), main());
        for mut plan in [pod(1, 1), pod(0, 2)] {
            plan.restart = crate::plan::Restart::Never;
            assert_eq!(next(&plan, |_| State::Absent), pause(), "the network is shared");
        }
    }

    /// Docker and its accidents, as far as the machine can see them.
    #[derive(Debug, Clone, Copy)]
    enum Luck {
        Proceed,
        CrashBeforeStart,
        End(i64),
        Vanish,
    }

    proptest! {
        #[test]
        fn order_is_kept_and_nothing_starts_twice(
            init in 0usize..3,
            main in 1usize..4,
            luck in proptest::collection::vec((prop_oneof![
                6 => Just(Luck::Proceed), 2 => Just(Luck::CrashBeforeStart),
                3 => (0i64..2).prop_map(Luck::End), 1 => Just(Luck::Vanish)
            ], 0usize..8), 1..60),
        ) {
            let plan = pod(init, main);
            let mut states: BTreeMap<Slot, State> = BTreeMap::new();
            let mut starts: BTreeMap<Slot, u32> = BTreeMap::new();
            let names: Vec<Slot> = plan.all().map(|c| Slot::Container(c.name.clone())).collect();
            for (luck, pick) in luck {
                let get = |slot: &Slot| states.get(slot).copied().unwrap_or(State::Absent);
                match luck {
                    Luck::Proceed | Luck::CrashBeforeStart => {
                        for action in next(&plan, get) {
                            let (slot, made) = match action {
                                Action::Run(slot) => (slot, false),
                                Action::Start(slot) => (slot, true),
                                Action::Stop(_) => continue,
                            };
                            if !made && matches!(luck, Luck::CrashBeforeStart) {
                                states.insert(slot, State::Created);
                                continue;
                            }
                            if let Slot::Container(name) = &slot {
                                let at = plan.init.iter().position(|c| &c.name == name).unwrap_or(plan.init.len());
                                for earlier in &plan.init[..at] {
                                    let state = states.get(&Slot::Container(earlier.name.clone()));
                                    prop_assert_eq!(state, Some(&State::Ended(0)));
                                }
                                prop_assert_eq!(states.get(&Slot::Pause), Some(&State::Running));
                                *starts.entry(slot.clone()).or_default() += 1;
                            }
                            states.insert(slot, State::Running);
                        }
                    }
                    Luck::End(code) => {
                        let slot = names[pick % names.len()].clone();
                        if states.get(&slot) == Some(&State::Running) {
                            states.insert(slot, State::Ended(code));
                        }
                    }
                    Luck::Vanish => {
                        let slot = names[pick % names.len()].clone();
                        if starts.contains_key(&slot) {
                            states.insert(slot, State::Lost);
                        }
                    }
                }
            }
            prop_assert!(starts.values().all(|&count| count == 1), "{:?}", starts);
        }
    }
}
