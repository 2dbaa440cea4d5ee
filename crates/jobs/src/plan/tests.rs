//! A small world in which steps are taken, processes die and people interfere at any moment.

use super::*;
use crate::machine::Before;
use crate::request::Key;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn request(phase: Phase) -> Request {
    let object = serde_json::json!({
        "metadata": { "name": "r", "namespace": "team-a", "uid": "u-1", "resourceVersion": "1", "generation": 1 },
        "spec": { "request": "build" },
    });
    let mut request = Request::keep(&"remote".into(), serde_json::from_value(object).unwrap());
    request.phase = phase;
    request.before = Before::default();
    request
}

fn run(uid: &str) -> Run {
    Run {
        name: "internalrequest-x".into(),
        uid: "run".into(),
        version: 1,
        serves: Some(Key::new("remote", "team-a", "r")),
        request_uid: uid.into(),
        offer: "build".into(),
        created: None,
        deleting: false,
        kept: true,
        children: false,
        ending: None,
    }
}

fn config(allowed: bool, debug: bool) -> InternalServicesConfigSpec {
    let allow_list = if allowed { vec!["team-a".into()] } else { vec![] };
    InternalServicesConfigSpec { allow_list, debug, ..Default::default() }
}

fn sight(request: &Request) -> Sight<'_> {
    Sight {
        request,
        run: RunSight::Unseen,
        config: None,
        pipeline: PipelineSight::Unread,
        turn: None,
        known: Known::default(),
    }
}

#[test]
fn an_unreadable_request_is_rejected_with_the_reason() {
    let mut odd = request(Phase::New);
    odd.spec = Err("missing field `spec`".into());
    assert_eq!(plan(&sight(&odd)), Step::Reject("the request cannot be read: missing field `spec`".into()));
}

#[test]
fn a_run_that_vanished_fails_its_request_once_the_api_confirms_it() {
    let running = request(Phase::Running);
    let mut seen = sight(&running);
    assert_eq!(plan(&seen), Step::ReadRun);
    seen.run = RunSight::Absent;
    assert!(matches!(plan(&seen), Step::End(Ending { succeeded: false, .. })));
}

#[test]
fn an_end_survives_the_deletion_of_its_run() {
    let running = request(Phase::Running);
    let mut done = run("u-1");
    done.deleting = true;
    done.ending = Some(Ending { succeeded: true, ..Ending::failed("") });
    let seen = Sight { run: RunSight::Present(&done), ..sight(&running) };
    assert!(matches!(plan(&seen), Step::End(Ending { succeeded: true, .. })));
}

#[test]
fn a_stranger_under_our_name_is_not_taken_for_ours() {
    let new = request(Phase::New);
    let stranger = run("u-2");
    let seen = Sight { run: RunSight::Present(&stranger), ..sight(&new) };
    assert!(matches!(plan(&seen), Step::End(Ending { succeeded: false, .. })));
}

#[test]
fn a_missing_pipeline_is_told_in_the_words_callers_know() {
    let new = request(Phase::New);
    let allowed = config(true, false);
    let mut seen = Sight { config: Some(&allowed), ..sight(&new) };
    assert_eq!(plan(&seen), Step::ReadPipeline("build".into()));
    seen.pipeline = PipelineSight::Missing;
    assert_eq!(plan(&seen), Step::Reject("No endpoint to handle 'build' requests".into()));
}

#[test]
fn a_run_that_was_seen_is_not_made_again_for_a_request_that_waited() {
    let queued = request(Phase::Queued);
    let mut seen = sight(&queued);
    assert_eq!(plan(&seen), Step::ReadConfig, "nothing says that it ran");
    seen.known.ran = true;
    assert_eq!(plan(&seen), Step::ReadRun);
    seen.run = RunSight::Absent;
    assert!(matches!(plan(&seen), Step::End(Ending { succeeded: false, .. })));
}

#[test]
fn a_run_that_was_left_stays_whatever_is_configured_later() {
    let mut done = run("u-1");
    done.ending = Some(Ending::failed(""));
    let mut over = request(Phase::Failed);
    over.held = true;
    for debug in [true, false] {
        let config = config(true, debug);
        done.kept = true;
        let seen = Sight { run: RunSight::Present(&done), config: Some(&config), ..sight(&over) };
        assert_eq!(plan(&seen), if debug { Step::Leave } else { Step::Dismiss });
        done.kept = false;
        let seen = Sight { run: RunSight::Present(&done), config: Some(&config), ..sight(&over) };
        assert_eq!(plan(&seen), Step::Rest);
        let mut deleted = over.clone();
        deleted.deleting = true;
        let seen = Sight { request: &deleted, ..seen };
        assert_eq!(plan(&seen), Step::LetGo);
    }
}

#[test]
fn in_a_namespace_that_leaves_only_what_we_began_is_brought_to_its_end() {
    let leaving = Known { leaving: true, ..Known::default() };
    let begun = Known { begun: true, ..leaving };
    let refused = config(false, false);
    let step =
        |request: &Request, run, known| plan(&Sight { run, known, config: Some(&refused), ..sight(request) });
    let mut over = request(Phase::Succeeded);
    assert_eq!(step(&over, RunSight::Unseen, leaving), Step::Rest, "it carries nothing of ours");
    over.held = true;
    assert_eq!(step(&over, RunSight::Unseen, leaving), Step::ReadRun);
    assert_eq!(step(&over, RunSight::Absent, leaving), Step::LetGo);
    assert_eq!(step(&over, RunSight::Absent, Known::default()), Step::Rest);
    assert_eq!(step(&request(Phase::New), RunSight::Absent, leaving), Step::Rest, "nobody took it up");
    for phase in [Phase::Queued, Phase::Running] {
        assert_eq!(step(&request(phase), RunSight::Absent, leaving), Step::Rest, "another's {phase:?}");
    }
    assert!(matches!(step(&request(Phase::Queued), RunSight::Absent, begun), Step::Reject(_)));
    assert!(matches!(step(&request(Phase::Running), RunSight::Absent, begun), Step::End(_)));
}

/// What happens between two steps.
#[derive(Debug, Clone, Copy)]
enum Event {
    Nothing,
    /// The process dies and another starts.
    Crash,
    /// The watch catches up.
    Deliver,
    RunEnds(bool),
    /// Somebody deletes the run.
    HandDelete,
    /// Somebody deletes the request.
    DeleteRequest,
    Allow(bool),
    /// The namespace goes off the list of those that are watched, or on it.
    Drop(bool),
    /// The line moves.
    Room(bool),
    Debug(bool),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => Just(Event::Nothing),
        2 => Just(Event::Crash),
        3 => Just(Event::Deliver),
        2 => any::<bool>().prop_map(Event::RunEnds),
        1 => Just(Event::HandDelete),
        1 => Just(Event::DeleteRequest),
        1 => any::<bool>().prop_map(Event::Allow),
        1 => any::<bool>().prop_map(Event::Drop),
        1 => any::<bool>().prop_map(Event::Room),
        1 => any::<bool>().prop_map(Event::Debug),
    ]
}

/// Both clusters, what the watch has shown, and what was ever done.
struct World {
    request: Option<Request>,
    run: Option<Run>,
    shown: Option<Run>,
    allowed: bool,
    leaving: bool,
    debug: bool,
    // Whether a run was left to the administrators.
    left: bool,
    room: bool,
    creates: usize,
    ends: Vec<Phase>,
    writes: BTreeMap<&'static str, usize>,
}

/// What one process knows; gone when it dies.
#[derive(Default)]
struct Memory {
    #[expect(clippy::option_option, reason = "not asked, not there, there")]
    run: Option<Option<Run>>,
    config: Option<InternalServicesConfigSpec>,
    pipeline: Option<Vec<String>>,
    turn: Option<Turn>,
    ran: bool,
}

impl Memory {
    /// A look is over.
    fn rest(&mut self) {
        *self = Self { ran: self.ran, ..Self::default() };
    }
}

impl World {
    fn new() -> Self {
        Self {
            request: Some(request(Phase::New)),
            run: None,
            shown: None,
            allowed: true,
            leaving: false,
            debug: false,
            left: false,
            room: true,
            creates: 0,
            ends: vec![],
            writes: BTreeMap::new(),
        }
    }

    fn happen(&mut self, event: Event, memory: &mut Memory) {
        match event {
            Event::Nothing => {}
            Event::Crash => *memory = Memory::default(),
            Event::Deliver => self.shown = self.run.clone(),
            Event::RunEnds(succeeded) => {
                if let Some(run) = self.run.as_mut().filter(|run| run.ending.is_none()) {
                    run.ending = Some(Ending { succeeded, ..Ending::failed("") });
                }
            }
            Event::HandDelete => self.delete_run(),
            Event::DeleteRequest => {
                if self.request.as_ref().is_some_and(|request| !request.held) {
                    self.request = None;
                } else if let Some(request) = &mut self.request {
                    request.deleting = true;
                }
            }
            Event::Allow(allowed) => self.allowed = allowed && !self.leaving,
            Event::Drop(leaving) => (self.allowed, self.leaving) = (!leaving, leaving),
            Event::Room(room) => self.room = room,
            Event::Debug(debug) => self.debug = debug,
        }
    }

    fn delete_run(&mut self) {
        if let Some(run) = &mut self.run {
            run.deleting = true;
            if !run.kept {
                self.run = None;
            }
        }
    }

    fn let_run_go(&mut self) {
        if let Some(run) = &mut self.run {
            run.kept = false;
            if run.deleting {
                self.run = None;
            }
        }
    }

    fn write(&mut self, phase: Phase, name: &'static str) {
        let Some(request) = &mut self.request else { return };
        assert!(request.phase.may_become(phase), "{:?} became {phase:?}", request.phase);
        request.phase = phase;
        *self.writes.entry(name).or_default() += 1;
        if phase.is_final() {
            self.ends.push(phase);
        }
    }

    /// Takes one step; false when there is nothing to do.
    fn step(&mut self, memory: &mut Memory) -> bool {
        let Some(request) = self.request.clone() else { return self.orphan() };
        let run = match &memory.run {
            Some(Some(run)) => RunSight::Present(run),
            Some(None) => RunSight::Absent,
            None => self.shown.as_ref().map_or(RunSight::Unseen, RunSight::Present),
        };
        if let RunSight::Present(run) = run {
            memory.ran |= run.is_of(&request) && !request.phase.is_final();
        }
        let known = Known { leaving: self.leaving, begun: request.phase != Phase::New, ran: memory.ran };
        let sight = Sight {
            request: &request,
            run,
            known,
            config: memory.config.as_ref(),
            pipeline: memory.pipeline.as_deref().map_or(PipelineSight::Unread, PipelineSight::Declares),
            turn: memory.turn,
        };
        let step = plan(&sight);
        match &step {
            Step::ReadConfig => memory.config = Some(config(self.allowed, self.debug)),
            Step::ReadPipeline(_) => memory.pipeline = Some(vec![]),
            Step::ReadRun => memory.run = Some(self.run.clone()),
            Step::AskTurn(_) => memory.turn = Some(if self.room { Turn::Granted } else { Turn::Waiting(1) }),
            Step::Hold => {
                self.request.as_mut().unwrap().held = !request.deleting;
                *self.writes.entry("hold").or_default() += 1;
            }
            Step::Create(_) => {
                if self.run.is_none() {
                    self.run = Some(run_of_request());
                    self.creates += 1;
                }
                memory.run = Some(self.run.clone());
            }
            Step::MarkQueued(_) => self.write(Phase::Queued, "running"),
            Step::MarkRunning => self.write(Phase::Running, "running"),
            Step::End(ending) => self.write(ending.phase(), "end"),
            Step::Reject(_) => self.write(Phase::Rejected, "end"),
            Step::Dismiss | Step::Cancel => {
                assert!(
                    request.deleting || request.phase.is_final(),
                    "a run is deleted only after the end is written"
                );
                self.delete_run();
                self.let_run_go();
                self.shown = None;
                memory.run = Some(None);
            }
            Step::Leave => {
                self.left = true;
                self.let_run_go();
                memory.run = Some(self.run.clone());
            }
            Step::LetGo if request.deleting => self.request = None,
            Step::LetGo => {
                self.request.as_mut().unwrap().held = false;
                // Where its namespace is allowed again it is held anew.
                self.writes.remove("hold");
            }
            Step::Rest => memory.rest(),
        }
        step != Step::Rest
    }

    /// A run whose request is gone.
    fn orphan(&mut self) -> bool {
        let orphaned = self.shown.is_some();
        if self.run.as_ref().is_some_and(|run| run.kept) {
            self.delete_run();
            self.let_run_go();
        }
        self.shown = None;
        orphaned
    }
}

fn run_of_request() -> Run {
    run("u-1")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn whatever_happens_there_is_at_most_one_run_one_end_and_three_writes(
        events in proptest::collection::vec(event(), 0..40)
    ) {
        let (mut world, mut memory) = (World::new(), Memory::default());
        for event in events {
            world.happen(event, &mut memory);
            world.step(&mut memory);
        }
        // People leave it alone now; the controller must bring everything to its end by itself.
        world.room = true;
        world.debug = false;
        for _ in 0..4 {
            world.happen(Event::Deliver, &mut memory);
            for _ in 0..30 {
                if !world.step(&mut memory) {
                    break;
                }
            }
            world.happen(Event::RunEnds(true), &mut memory);
            memory = Memory::default();
        }
        prop_assert!(world.creates <= 1, "{} runs", world.creates);
        prop_assert!(world.ends.len() <= 1, "{:?}", world.ends);
        prop_assert!(world.writes.values().sum::<usize>() <= 3, "{:?}", world.writes);
        match &world.request {
            None => prop_assert!(world.run.is_none() || world.left, "the run of a deleted request stays"),
            Some(request) => {
                let untouched = world.leaving && request.phase == Phase::New;
                prop_assert!(request.phase.is_final() || untouched, "it never ends: {:?}", request.phase);
                prop_assert!(!(world.leaving && request.held), "nobody could delete it");
                prop_assert!(world.run.is_none() || world.left, "the run of a finished request stays");
                if request.phase == Phase::Succeeded {
                    prop_assert_eq!(world.creates, 1);
                }
            }
        }
    }
}
