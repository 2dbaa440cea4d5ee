//! Why something did not happen, whoever asked.

use tarbet_telemetry::codes::{self, nets};
use tarbet_telemetry::{Code, Coded, Problem};

use crate::plan::connect::ConnectError;
use crate::plan::rule::Mistake;
use crate::plan::space::SpaceError;
use crate::plan::tags::TagError;

/// What the original's store says of a key that it does not have; its programs look for these words.
pub(crate) const NO_VALUE: &str = "redis: nil";

/// What the orchestrator, the tag service and the plugins answer instead of what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Fields of the request are wrong.
    #[error("the request has mistakes: {}", list(.0))]
    Invalid(Vec<Mistake>),
    /// A tag cannot be read or changed so.
    #[error(transparent)]
    Tag(#[from] TagError),
    /// No such resource in this namespace.
    #[error("there is no resource `{resource}` in the namespace {namespace}")]
    Resource {
        /// Where it was looked for.
        namespace: String,
        /// Name or URI.
        resource: String,
    },
    /// No such value. In the words by which the original's plugins know it.
    #[error("there is no value `{cloud}:{key}` in the namespace {namespace} ({})", NO_VALUE)]
    Value {
        /// Where it was looked for.
        namespace: String,
        /// Whose it would be.
        cloud: String,
        /// Its key.
        key: String,
    },
    /// No such network was imported.
    #[error("no network `{network}` of {cloud} was imported")]
    Import {
        /// Its cloud.
        cloud: String,
        /// What it was called.
        network: String,
    },
    /// No such cloud, namespace or deployment.
    #[error("{0}")]
    Place(String),
    /// The resource is of another namespace.
    #[error("the resource `{resource}` does not belong to the namespace {namespace}")]
    Foreign {
        /// What the request said.
        namespace: String,
        /// The resource.
        resource: String,
    },
    /// No address space.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// The two clouds do not go together.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The plugin's own policy.
    #[error("the plugin's policy does not allow {what}: {why}")]
    Policy {
        /// What was asked.
        what: String,
        /// What the policy says.
        why: String,
    },
    /// The kind of thing is not offered.
    #[error("{0}")]
    Unsupported(String),
    /// Another plan would be carried out than the one that was confirmed.
    #[error("the plan is now {now}, not {wanted}")]
    PlanChanged {
        /// The digest that was confirmed.
        wanted: String,
        /// The digest of what would be done.
        now: String,
    },
    /// No such operation.
    #[error("there is no operation {0}")]
    Operation(String),
    /// It cannot be stopped any more.
    #[error("the operation {0} has ended already")]
    Ended(String),
    /// Somebody cancelled it.
    #[error("the operation {0} was cancelled")]
    Cancelled(String),
    /// A cloud said no, or nothing sensible.
    #[error("{cloud} answered {what} with an error")]
    Cloud {
        /// Which cloud.
        cloud: String,
        /// What was asked of it.
        what: String,
        /// What it said.
        said: String,
    },
    /// A setting is missing or wrong.
    #[error("the configuration has a mistake: {0}")]
    Setting(Mistake),
    /// Another orchestrator on the same store leads.
    #[error("another orchestrator leads{}", at(.leader))]
    Standby {
        /// Where people reach it; empty if that is not known yet.
        leader: String,
    },
    /// Root is needed.
    #[error("{0} needs root")]
    Root(&'static str),
    /// A program of the system failed.
    #[error("`{command}` failed")]
    Tool {
        /// The command line.
        command: String,
        /// What it said.
        said: String,
    },
    /// Another process told us; its words are kept.
    #[error("{0}")]
    Told(Box<Problem>),
    /// The store.
    #[error("the records cannot be read or written")]
    Store(#[source] Box<tarbet_store::Error>),
    /// A mistake of ours.
    #[error("{0}")]
    Internal(String),
}

impl Error {
    /// One wrong field.
    pub fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid(vec![Mistake { field: field.into(), message: message.into() }])
    }

    /// A setting of the role that runs here, not of a request.
    pub fn setting(name: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Setting(Mistake { field: name.into(), message: message.into() })
    }

    /// Whether the thing asked for is not there, which is what somebody who removes it wants.
    pub fn is_not_found(&self) -> bool {
        self.problem().row().http == 404
    }

    /// Whether a plugin or its cloud failed, which may pass without anybody asking for something else.
    pub fn may_pass(&self) -> bool {
        [nets::PLUGIN_UNREACHABLE.id, nets::CLOUD_FAILED.id].contains(&self.problem().code.as_str())
    }

    /// Whether something else would be done than was planned.
    pub(crate) fn is_other_plan(&self) -> bool {
        self.problem().code == nets::PLAN_CHANGED.id
    }

    /// Whether the other side does not have this at all.
    pub fn is_unsupported(&self) -> bool {
        self.problem().row().http == 501
    }

    fn code(&self) -> &'static Code {
        match self {
            Self::Invalid(_)
            | Self::Tag(TagError::Name(_) | TagError::Shape(_) | TagError::Address { .. })
            | Self::Space(SpaceError::Size(_)) => &nets::INVALID,
            Self::Tag(TagError::Unknown(_)) => &nets::TAG_UNKNOWN,
            Self::Tag(TagError::Cycle { .. } | TagError::Kind(..)) => &nets::TAG_CONFLICT,
            Self::Resource { .. } | Self::Value { .. } => &nets::RESOURCE_UNKNOWN,
            Self::Import { .. } => &nets::IMPORT_UNKNOWN,
            Self::Place(_) => &nets::PLACE_UNKNOWN,
            Self::Foreign { .. } => &nets::FOREIGN_NAMESPACE,
            Self::Space(SpaceError::Exhausted(_)) => &nets::SPACE_EXHAUSTED,
            Self::Setting(_) | Self::Space(SpaceError::NoPool | SpaceError::PoolsOverlap(..)) => {
                &codes::ground::CONFIG_INVALID
            }
            Self::Connect(_) => &nets::PAIR_REFUSED,
            Self::Policy { .. } => &nets::PLUGIN_REFUSED,
            Self::Unsupported(_) => &nets::UNSUPPORTED,
            Self::PlanChanged { .. } => &nets::PLAN_CHANGED,
            Self::Operation(_) => &nets::OPERATION_UNKNOWN,
            Self::Ended(_) => &nets::OPERATION_ENDED,
            Self::Cancelled(_) => &nets::OPERATION_CANCELLED,
            Self::Cloud { .. } => &nets::CLOUD_FAILED,
            Self::Standby { .. } => &nets::STANDBY,
            Self::Root(_) => &nets::NEEDS_ROOT,
            Self::Tool { .. } => &nets::TOOL_FAILED,
            Self::Told(problem) => problem.row(),
            Self::Store(_) | Self::Internal(_) => &codes::ground::INTERNAL,
        }
    }
}

impl From<Mistake> for Error {
    fn from(mistake: Mistake) -> Self {
        Self::Invalid(vec![mistake])
    }
}

impl From<Problem> for Error {
    fn from(problem: Problem) -> Self {
        Self::Told(Box::new(problem))
    }
}

impl From<tarbet_store::Error> for Error {
    fn from(error: tarbet_store::Error) -> Self {
        Self::Store(Box::new(error))
    }
}

impl From<tarbet_store::Invalid> for Error {
    fn from(invalid: tarbet_store::Invalid) -> Self {
        Self::Store(Box::new(invalid.into()))
    }
}

impl Coded for Error {
    fn problem(&self) -> Problem {
        match self {
            Self::Told(problem) => return (**problem).clone(),
            Self::Store(error) => return error.problem(),
            _ => {}
        }
        let problem = Problem::new(self.code(), sentence(&self.to_string()));
        match self {
            Self::Cloud { cloud, said, .. } => {
                problem.at(format!("cloud plugin → {cloud}")).because(said.clone())
            }
            Self::Tool { said, .. } => problem.because(said.clone()),
            _ => problem,
        }
    }
}

fn at(leader: &str) -> String {
    if leader.is_empty() { String::new() } else { format!(", at {leader}") }
}

fn list(mistakes: &[Mistake]) -> String {
    mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let capital = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    let end = if text.ends_with('.') { "" } else { "." };
    format!("{capital}{}{end}", letters.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outside_form_names_field_and_remedy() {
        let problem = Error::invalid("rules[0].dst_port", "70000 is not a port or -1").problem();
        assert_eq!(problem.code, "TB-4101");
        assert_eq!(
            problem.message,
            "The request has mistakes: rules[0].dst_port: 70000 is not a port or -1."
        );
        assert!(Error::Resource { namespace: "a".into(), resource: "b".into() }.is_not_found());
        assert!(!Error::Root("the local cloud").is_not_found());
        assert_eq!(Error::Root("the local cloud").problem().exit_code(), 4);
    }
}
