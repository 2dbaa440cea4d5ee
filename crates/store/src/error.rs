//! Why the store said no, whose doing that is, and whether to try again.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tarbet_telemetry::codes::ground;
use tarbet_telemetry::{Coded, Problem, Whose};

use crate::key::{Invalid, Key};

/// A cause that can be told to several waiting callers at once.
pub(crate) type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// What may be done about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// The same request will fail again.
    No,
    /// Read again, then decide again.
    AfterReading,
    /// The same request may succeed in a while.
    Later,
}

/// Whose doing an error is, and what may be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// Whose doing.
    pub whose: Whose,
    /// Whether to retry.
    pub retry: Retry,
}

/// A request to the store that did not do what was asked.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A condition of the commit does not hold. Nothing was changed.
    #[error("{key} is not as expected: somebody else changed it first")]
    Conflict {
        /// The key of the first such condition.
        key: Key,
    },
    /// The request breaks a limit. Nothing was sent.
    #[error("the store cannot take this request")]
    Invalid(
        #[source]
        #[from]
        Invalid,
    ),
    /// No answer in time, and certainly no change made.
    #[error("the store at {at} could not {operation} within {waited:?}")]
    Unavailable {
        /// What was asked.
        operation: &'static str,
        /// Of which server.
        at: Arc<str>,
        /// For how long it was tried.
        waited: Duration,
        /// The last thing that went wrong.
        #[source]
        cause: Cause,
    },
    /// The commit was sent but not confirmed: it was done in full or not at all. A server will not do it later; in a file
    /// whose flush failed it may be there once the process has started anew.
    #[error("the store at {at} did not confirm a commit within {waited:?}; it may have been made")]
    Uncertain {
        /// Which server.
        at: Arc<str>,
        /// For how long it was tried.
        waited: Duration,
        /// The last thing that went wrong.
        #[source]
        cause: Cause,
    },
    /// The server answered, and the answer was no.
    #[error("the store at {at} refused to {operation}")]
    Refused {
        /// What was asked.
        operation: &'static str,
        /// Of which server.
        at: Arc<str>,
        /// What it said.
        #[source]
        cause: Cause,
    },
    /// The file or the server holds data of a newer version.
    #[error("the store at {at} has schema {found}; this program knows up to {known}")]
    Schema {
        /// Which file or server.
        at: Arc<str>,
        /// What it holds.
        found: u64,
        /// The newest that is understood here.
        known: u64,
    },
    /// Another process has the file open.
    #[error("the store file {} is in use by {owner}", path.display())]
    Locked {
        /// The file.
        path: PathBuf,
        /// Who has it, as far as is known.
        owner: String,
    },
    /// The file cannot be read or written.
    #[error("cannot {operation} the store file {}", path.display())]
    File {
        /// What was tried.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// What went wrong.
        #[source]
        cause: Cause,
    },
    /// The disk failed to flush the file. Nobody knows what of it is there, so nothing more is written or
    /// read until the process starts anew.
    #[error("the disk did not take what was written to the store file {}", path.display())]
    Unflushed {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        #[source]
        cause: Cause,
    },
    /// A record is there but makes no sense to this program.
    #[error("the record at {key} cannot be read")]
    Record {
        /// Where.
        key: Key,
        /// Why.
        #[source]
        cause: Cause,
    },
    /// A restore began and did not finish, so some of the records are missing.
    #[error("the store at {at} holds a half-finished restore")]
    HalfRestored {
        /// Which file or server.
        at: Arc<str>,
    },
    /// A setting, or a file it names, cannot be used.
    #[error("the store setting `{setting}` cannot be used")]
    Setting {
        /// Which.
        setting: &'static str,
        /// Why.
        #[source]
        cause: Cause,
    },
}

impl Error {
    /// Whose doing it is and whether to retry.
    pub fn class(&self) -> Class {
        let (whose, retry) = match self {
            Self::Conflict { .. } => (Whose::Caller, Retry::AfterReading),
            Self::Invalid(_) | Self::Setting { .. } | Self::Locked { .. } | Self::Schema { .. } => {
                (Whose::Caller, Retry::No)
            }
            Self::Unavailable { .. } | Self::File { .. } => (Whose::Upstream, Retry::Later),
            Self::Uncertain { .. } => (Whose::Upstream, Retry::AfterReading),
            Self::Refused { .. } | Self::Unflushed { .. } | Self::HalfRestored { .. } => {
                (Whose::Upstream, Retry::No)
            }
            Self::Record { .. } => (Whose::Ours, Retry::No),
        };
        Class { whose, retry }
    }

    /// Whether it is the failed condition of a commit, which many callers expect.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict { .. })
    }
}

impl Coded for Error {
    fn problem(&self) -> Problem {
        let code = match self {
            Self::Conflict { .. } => &ground::STORE_CONFLICT,
            Self::Invalid(_) => &ground::INTERNAL,
            Self::Setting { .. } => &ground::CONFIG_INVALID,
            Self::Locked { .. } => &ground::STORE_LOCKED,
            Self::Schema { .. } | Self::Record { .. } | Self::HalfRestored { .. } => &ground::STORE_SCHEMA,
            Self::Unavailable { .. }
            | Self::Uncertain { .. }
            | Self::Refused { .. }
            | Self::File { .. }
            | Self::Unflushed { .. } => &ground::STORE_UNAVAILABLE,
        };
        let mut problem = Problem::new(code, sentence(&self.to_string()));
        if let Self::Unavailable { at, .. } | Self::Uncertain { at, .. } | Self::Refused { at, .. } = self {
            problem = problem.at(format!("role → store at {at}"));
        }
        if let Some(cause) = std::error::Error::source(self) {
            problem = problem.because(tarbet_telemetry::problem::chain(cause));
        }
        match self {
            Self::Uncertain { .. } => problem.advising(
                "look whether the change was made before repeating it; if a disk failed, once the process \
                 has started again on one that works",
            ),
            Self::Refused { .. } => {
                problem.advising("check user, password file, permissions and memory limit of the server")
            }
            Self::Unflushed { .. } => problem.advising(
                "check the disk, then start this process again on one that works; if records are missing \
                 then, restore a backup",
            ),
            Self::HalfRestored { .. } => problem
                .because("a restore was interrupted")
                .advising("run `tarbet store restore --replace` again"),
            _ => problem,
        }
    }
}

fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| format!("{}{}.", first.to_uppercase(), letters.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::TableName;

    #[test]
    fn a_problem_names_hop_cause_and_remedy() {
        let cause: Cause = Arc::new(std::io::Error::other("connection refused"));
        let at: Arc<str> = "redis://cache:6379".into();
        let error = Error::Unavailable { operation: "read", at, waited: Duration::from_secs(3), cause };
        let problem = error.problem();
        assert_eq!(problem.message, "The store at redis://cache:6379 could not read within 3s.");
        assert_eq!(problem.hop, "role → store at redis://cache:6379");
        assert_eq!(problem.cause, "connection refused");
        assert!(!problem.remedy.is_empty() && problem.retry());
        assert_eq!(error.class(), Class { whose: Whose::Upstream, retry: Retry::Later });
    }

    #[test]
    fn a_conflict_asks_to_read_again() {
        let error = Error::Conflict { key: TableName::new("t").unwrap().key("k") };
        assert_eq!(error.class().retry, Retry::AfterReading);
        assert_eq!(error.problem().code, "TB-0303");
    }
}
