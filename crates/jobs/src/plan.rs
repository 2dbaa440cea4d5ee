//! The next step for a request, from what is seen of it.
//!
//! Pure and total: any sight gives a step, and a step that is repeated because the process died
//! after it does no harm. Three rules carry the promise of at most one run and exactly one end:
//! a run's name follows from its request, so a second one is refused by the API server; a run is
//! kept by our finalizer until the end of its request is written, so that a missing run was never
//! there; and nothing is written over an end.

use crate::crd::InternalServicesConfigSpec;
use crate::fair::Turn;
use crate::machine::{Ending, Phase};
use crate::policy::{self, Order};
use crate::request::Request;
use crate::run::Run;

/// What is known when a step is chosen.
#[derive(Debug, Clone, Copy)]
pub struct Sight<'a> {
    /// The request.
    pub request: &'a Request,
    /// The run under the name that belongs to it.
    pub run: RunSight<'a>,
    /// The configuration, once read for this look.
    pub config: Option<&'a InternalServicesConfigSpec>,
    /// The Pipeline it asks for, once looked for.
    pub pipeline: PipelineSight<'a>,
    /// Its turn, once asked for.
    pub turn: Option<Turn>,
    /// What is known of it besides.
    pub known: Known,
}

/// What is known of a request from before this look.
#[derive(Debug, Clone, Copy, Default)]
pub struct Known {
    /// Its namespace is no longer allowed and watched: what we began there is brought to its end, and
    /// nothing else is touched, for it may be another controller's by now.
    pub leaving: bool,
    /// Its status names the run that we would make for it.
    pub begun: bool,
    /// It had its run.
    pub ran: bool,
}

/// What is known of a run.
#[derive(Debug, Clone, Copy)]
pub enum RunSight<'a> {
    /// The watch has not shown one; it may lag.
    Unseen,
    /// The API says there is none.
    Absent,
    /// It is there.
    Present(&'a Run),
}

/// What is known of a Pipeline of our namespace.
#[derive(Debug, Clone, Copy)]
pub enum PipelineSight<'a> {
    /// Not looked for yet.
    Unread,
    /// There is none.
    Missing,
    /// It declares these workspaces.
    Declares(&'a [String]),
}

/// What to do next.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Read the configuration.
    ReadConfig,
    /// Look for this Pipeline.
    ReadPipeline(String),
    /// Ask the API for the run.
    ReadRun,
    /// Ask for a turn.
    AskTurn(Order),
    /// Put our finalizer on the request.
    Hold,
    /// Create the run.
    Create(Order),
    /// Write that the request is in line.
    MarkQueued(u32),
    /// Write that it runs.
    MarkRunning,
    /// Write its end.
    End(Ending),
    /// Write that it is refused.
    Reject(String),
    /// Delete the run: its end is written.
    Dismiss,
    /// Leave the run to the administrators: its end is written and it is to be kept.
    Leave,
    /// End and delete the run: nobody waits for it any more.
    Cancel,
    /// Take our finalizer off the request.
    LetGo,
    /// Nothing until something changes.
    Rest,
}

/// Chooses the next step.
pub fn plan(sight: &Sight<'_>) -> Step {
    let Sight { request, run, .. } = *sight;
    if request.deleting {
        return match run {
            // One that is over and without our finalizer was left to the administrators.
            RunSight::Present(run) if run.kept || run.ending.is_none() => Step::Cancel,
            _ => let_go(sight),
        };
    }
    if request.phase.is_final() {
        return match run {
            RunSight::Present(run) if run.kept => match sight.config {
                None => Step::ReadConfig,
                Some(config) if config.debug => Step::Leave,
                Some(_) => Step::Dismiss,
            },
            _ if sight.known.leaving => let_go(sight),
            _ => Step::Rest,
        };
    }
    if let RunSight::Present(run) = run {
        return with_run(request, run);
    }
    if sight.known.leaving && !sight.known.begun {
        return if request.phase == Phase::New { let_go(sight) } else { Step::Rest };
    }
    // A run that was there is never made again.
    if request.phase == Phase::Running || sight.known.ran {
        return match run {
            RunSight::Unseen => Step::ReadRun,
            _ => Step::End(Ending::failed("the PipelineRun was deleted before it finished")),
        };
    }
    without_run(sight)
}

/// Takes our finalizer off, once it is certain that there is no run to look after.
fn let_go(sight: &Sight<'_>) -> Step {
    match sight.run {
        _ if !sight.request.held => Step::Rest,
        RunSight::Unseen => Step::ReadRun,
        _ => Step::LetGo,
    }
}

fn with_run(request: &Request, run: &Run) -> Step {
    if !run.is_of(request) {
        return Step::End(Ending::failed(
            "a PipelineRun of the same name exists that belongs to another request",
        ));
    }
    match &run.ending {
        Some(ending) => Step::End(ending.clone()),
        None if run.deleting => Step::End(Ending {
            started: run.created,
            ..Ending::failed("the PipelineRun was deleted before it finished")
        }),
        None if request.phase == Phase::New => Step::MarkRunning,
        None => Step::Rest,
    }
}

fn without_run(sight: &Sight<'_>) -> Step {
    let request = sight.request;
    let spec = match &request.spec {
        Ok(spec) => spec,
        Err(why) => return Step::Reject(format!("the request cannot be read: {why}")),
    };
    let Some(config) = sight.config else { return Step::ReadConfig };
    let order = match policy::judge(&request.key.remote, &request.key.namespace, spec, config) {
        Ok(order) => order,
        Err(why) => return Step::Reject(why),
    };
    if let Some(name) = order.source.local() {
        match sight.pipeline {
            PipelineSight::Unread => return Step::ReadPipeline(name.to_owned()),
            PipelineSight::Missing => {
                return Step::Reject(format!("No endpoint to handle '{name}' requests"));
            }
            PipelineSight::Declares(_) => {}
        }
    }
    match sight.turn {
        None => Step::AskTurn(order),
        Some(Turn::Waiting(position)) if request.phase == Phase::New => Step::MarkQueued(position),
        Some(Turn::Waiting(_)) => Step::Rest,
        Some(Turn::Granted) if !request.held => Step::Hold,
        Some(Turn::Granted) => Step::Create(order),
    }
}

#[cfg(test)]
mod tests;
