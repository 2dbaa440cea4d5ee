//! What the private side makes of a request: an order, or a refusal with a reason.
//!
//! Pure: request and configuration in, verdict out. Nothing a request says widens what the
//! configuration allows; what the private side pins is taken from the configuration, not from the
//! request. The rule in one sentence: a request of an allowed namespace runs if an offer names it;
//! the listed git URLs are offered to all of these, and without any offer so is every Pipeline of
//! the controller's own namespace.

mod offers;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::crd::{InternalRequestSpec, InternalServicesConfigSpec, NamedValue, Offer, PipelineRef, Timeouts};
use crate::duration;
use crate::params::{self, quoted};
use crate::tenant;

/// What is to be run, complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// What it is called in the line and in metrics.
    pub offer: String,
    /// How many of this offer may run at once.
    pub limit: Option<u32>,
    /// Where the pipeline comes from.
    pub source: PipelineSource,
    /// Its parameters.
    pub params: BTreeMap<String, String>,
    /// The service account it runs as.
    pub service_account: Option<String>,
    /// What its pods get besides.
    pub pod_template: Option<serde_json::Value>,
    /// How long it may take.
    pub timeouts: Timeouts,
    /// Whether a pipeline we cannot look into gets the workspace.
    pub workspace: bool,
}

/// Where a pipeline comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PipelineSource {
    /// A Pipeline of the controller's namespace; the flag asks for it by the cluster resolver.
    Local {
        /// Its name.
        name: String,
        /// Whether the request named a resolver.
        resolver: bool,
    },
    /// A resolver with its parameters.
    Resolver {
        /// The Tekton resolver.
        name: String,
        /// What it is to find.
        params: Vec<NamedValue>,
    },
}

impl PipelineSource {
    /// The Pipeline of our own namespace that must exist, if it is one.
    pub fn local(&self) -> Option<&str> {
        match self {
            Self::Local { name, .. } => Some(name),
            Self::Resolver { .. } => None,
        }
    }
}

/// Judges a request of a remote's namespace. A refusal is a message for the requester.
pub fn judge(
    remote: &str,
    namespace: &str,
    spec: &InternalRequestSpec,
    config: &InternalServicesConfigSpec,
) -> Result<Order, String> {
    if !config.allow_list.iter().any(|allowed| tenant::means(allowed, remote, namespace)) {
        return Err(format!("the internal request namespace ({namespace}) is not in the allow list"));
    }
    let wish = wish(spec)?;
    params::check(&wish.params)?;
    let granted = offers::grant((remote, namespace), &wish, config)?;
    let service_account = service_account(&wish, granted.offer, config)?;
    let timeouts = timeouts(&wish.timeouts, granted.offer)?;
    if let Some(offer) = granted.offer {
        offers::check_params(offer, &wish.params)?;
    }
    let workspace = granted.offer.and_then(|offer| offer.workspace).unwrap_or(true);
    let limit = granted.offer.and_then(|offer| offer.concurrency);
    Ok(Order {
        offer: granted.name,
        limit,
        source: granted.source,
        params: wish.params,
        service_account,
        pod_template: granted.offer.and_then(|offer| offer.pod_template.clone()),
        timeouts,
        workspace,
    })
}

/// A request in one form, whichever it was written in.
struct Wish<'a> {
    asked: Asked<'a>,
    params: BTreeMap<String, String>,
    service_account: Option<&'a str>,
    timeouts: Timeouts,
}

enum Asked<'a> {
    Pipeline(&'a str),
    Resolver(&'a PipelineRef),
}

fn wish(spec: &InternalRequestSpec) -> Result<Wish<'_>, String> {
    let request = spec.request.as_deref().filter(|name| !name.is_empty());
    let (asked, form) = match (request, &spec.pipeline) {
        (Some(name), None) => (Asked::Pipeline(name), None),
        (None, Some(form)) => (Asked::Resolver(&form.pipeline_ref), Some(form)),
        (Some(_), Some(_)) => return Err("spec.request and spec.pipeline cannot both be given".to_owned()),
        (None, None) => {
            return Err("neither spec.request nor spec.pipeline says which pipeline to run".to_owned());
        }
    };
    let mut params = spec.params.clone().unwrap_or_default();
    for NamedValue { name, value } in form.and_then(|form| form.params.as_ref()).into_iter().flatten() {
        // The same value twice is harmless and common; two values leave open which one counts.
        if params.insert(name.clone(), value.clone()).is_some_and(|other| other != *value) {
            return Err(format!("the parameter {} is given twice with different values", quoted(name)));
        }
    }
    let given = |text: &'_ Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
    let inner = form.map(|form| &form.service_account_name);
    let service_account = match (&spec.service_account, inner) {
        (outer, Some(inner)) if given(outer) && given(inner) && outer != inner => {
            return Err("spec.serviceAccount and spec.pipeline.serviceAccountName differ".to_owned());
        }
        (outer, _) if given(outer) => outer.as_deref(),
        (_, inner) => inner.and_then(Option::as_deref).filter(|name| !name.is_empty()),
    };
    let outer = spec.timeouts.clone().unwrap_or_default();
    let inner = form.and_then(|form| form.timeouts.clone()).unwrap_or_default();
    let timeouts = Timeouts {
        pipeline: outer.pipeline.or(inner.pipeline),
        tasks: outer.tasks.or(inner.tasks),
        finally: outer.finally.or(inner.finally),
    };
    Ok(Wish { asked, params, service_account, timeouts })
}

fn service_account(
    wish: &Wish<'_>,
    offer: Option<&Offer>,
    config: &InternalServicesConfigSpec,
) -> Result<Option<String>, String> {
    let pinned = offer.and_then(|offer| offer.service_account.as_deref());
    match (wish.service_account, pinned) {
        (None, pinned) => Ok(pinned.map(str::to_owned)),
        (Some(wanted), Some(pinned)) if wanted == pinned => Ok(Some(pinned.to_owned())),
        (Some(wanted), Some(_)) => {
            Err(format!("the service account ({wanted}) is not the one this pipeline is offered with"))
        }
        (Some(wanted), None) if config.allowed_service_accounts.iter().any(|allowed| allowed == wanted) => {
            Ok(Some(wanted.to_owned()))
        }
        (Some(wanted), None) => Err(format!(
            "the service account ({wanted}) is not allowed; the administrator of the private side can list it in allowedServiceAccounts or pin it in an offer"
        )),
    }
}

/// The wished times, none beyond the deadline of the offer.
fn timeouts(wished: &Timeouts, offer: Option<&Offer>) -> Result<Timeouts, String> {
    let read = |field: &str, text: &Option<String>| -> Result<Option<Duration>, String> {
        text.as_deref().filter(|text| !text.is_empty()).map_or(Ok(None), |text| {
            let message =
                || format!("spec.timeouts.{field} {} is not a duration such as 1h30m", quoted(text));
            duration::parse(text).map(Some).ok_or_else(message)
        })
    };
    let (pipeline, tasks, finally) = (
        read("pipeline", &wished.pipeline)?,
        read("tasks", &wished.tasks)?,
        read("finally", &wished.finally)?,
    );
    let Some(deadline) = offer.and_then(|offer| offer.deadline.as_deref()) else {
        return Ok(wished.clone());
    };
    let deadline = duration::parse(deadline).filter(|deadline| !deadline.is_zero()).ok_or(
        "the deadline of this offer is not a duration; the administrator of the private side must correct it",
    )?;
    // Zero means without end.
    let within = |time: Option<Duration>| time.filter(|time| !time.is_zero() && *time <= deadline);
    if within(pipeline).is_some() && tasks.is_none_or(|time| within(Some(time)).is_some()) {
        return Ok(wished.clone());
    }
    let pipeline = within(pipeline).unwrap_or(deadline);
    let tasks = tasks.map(|tasks| if tasks.is_zero() { pipeline } else { tasks.min(pipeline) });
    // Tekton wants tasks and finally to fit into the whole.
    let rest = tasks.map_or(pipeline, |tasks| pipeline.saturating_sub(tasks));
    let finally = finally.filter(|finally| !finally.is_zero() && *finally <= rest);
    Ok(Timeouts {
        pipeline: Some(duration::format(pipeline)),
        tasks: tasks.map(duration::format),
        finally: finally.map(duration::format),
    })
}

#[cfg(test)]
mod tests;
