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
            RunSight::Present(_) => Step::Cancel,
            RunSight::Unseen if request.held => Step::ReadRun,
            _ if request.held => Step::LetGo,
            _ => Step::Rest,
        };
    }
    if request.phase.is_final() {
        let RunSight::Present(run) = run else { return Step::Rest };
        return match sight.config {
            None => Step::ReadConfig,
            Some(config) if !config.debug => Step::Dismiss,
            Some(_) if run.kept => Step::Leave,
            Some(_) => Step::Rest,
        };
    }
    if let RunSight::Present(run) = run {
        return with_run(request, run);
    }
    match request.phase {
        Phase::Running if matches!(run, RunSight::Unseen) => Step::ReadRun,
        Phase::Running => Step::End(Ending::failed("the PipelineRun was deleted before it finished")),
        _ => without_run(sight),
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
    let order = match policy::judge(&request.key.namespace, spec, config) {
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
