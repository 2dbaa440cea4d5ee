//! The form of every error that reaches a person or an API.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::codes::{self, Code, Whose};
use crate::request::RequestId;

/// What went wrong, where, why and what to try.
///
/// It is written to be read by somebody who does not know the inside: the chain of causes stays
/// in the log. `hop`, `cause` and `try` begin as what is usual for the code and are replaced by
/// what is known of this case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// Stable code, `TB-` and four digits.
    pub code: String,
    /// One sentence about this case.
    pub message: String,
    /// Where on the path it broke.
    pub hop: String,
    /// Why.
    pub cause: String,
    /// What to do about it.
    #[serde(rename = "try")]
    pub remedy: String,
    /// The request it belongs to, for `tarbet why`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
}

impl Problem {
    /// A problem of this code, with the code's usual hop, cause and remedy.
    pub fn new(code: &Code, message: impl Into<String>) -> Self {
        Self {
            code: code.id.into(),
            message: message.into(),
            hop: code.hop.into(),
            cause: code.cause.into(),
            remedy: code.remedy.into(),
            request_id: None,
        }
    }

    /// Names the hop that broke.
    #[must_use]
    pub fn at(mut self, hop: impl Into<String>) -> Self {
        self.hop = hop.into();
        self
    }

    /// Names the cause.
    #[must_use]
    pub fn because(mut self, cause: impl Into<String>) -> Self {
        self.cause = cause.into();
        self
    }

    /// Names what to do.
    #[must_use]
    pub fn advising(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }

    /// Ties it to a request.
    #[must_use]
    pub fn of(mut self, request: RequestId) -> Self {
        self.request_id = Some(request);
        self
    }

    /// The row of the table; a code of a newer version counts as an internal one.
    pub fn row(&self) -> &'static Code {
        codes::find(&self.code).unwrap_or(&codes::ground::INTERNAL)
    }

    /// Whether repeating the same request may help.
    pub fn retry(&self) -> bool {
        self.row().retry
    }

    /// Whose doing it is.
    pub fn whose(&self) -> Whose {
        self.row().whose
    }

    /// The HTTP status for it.
    pub fn status(&self) -> http::StatusCode {
        http::StatusCode::from_u16(self.row().http).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// The exit code for it.
    pub fn exit_code(&self) -> u8 {
        self.row().exit
    }
}

/// One line: enough for a log or a status message.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}; {})", self.message, self.code, self.hop)
    }
}

impl std::error::Error for Problem {}

/// An error of ours that knows how to be told to the outside.
pub trait Coded {
    /// The outside form of this error.
    fn problem(&self) -> Problem;
}

impl Coded for Problem {
    fn problem(&self) -> Problem {
        self.clone()
    }
}

/// The whole chain of an error for the log, each cause once.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let line = cause.to_string();
        // Foreign errors often repeat their source in their own text.
        if !text.ends_with(&line) {
            text.push_str(": ");
            text.push_str(&line);
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::reach;

    #[test]
    fn carries_its_parts_through_json() {
        let problem = Problem::new(&reach::SITE_NOT_CONNECTED, "No agent of lab connected in 20 s.")
            .at("gateway gw-1 → site lab")
            .because("the last agent left 3 minutes ago")
            .of(RequestId::fresh());
        let text = serde_json::to_string(&problem).unwrap();
        assert!(text.contains("\"try\":"), "{text}");
        let back: Problem = serde_json::from_str(&text).unwrap();
        assert_eq!(back, problem);
        assert_eq!((back.status().as_u16(), back.exit_code(), back.retry()), (504, 5, true));
    }

    #[test]
    fn an_unknown_code_from_a_newer_peer_is_treated_as_internal() {
        let mut problem = Problem::new(&reach::SITE_UNKNOWN, "x");
        problem.code = "TB-8888".into();
        assert_eq!(problem.status().as_u16(), 500);
    }

    #[test]
    fn a_chain_names_each_cause_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot open the file")]
        struct Inner;
        #[derive(Debug, thiserror::Error)]
        #[error("outer: cannot open the file")]
        struct Repeating(#[source] Inner);
        #[derive(Debug, thiserror::Error)]
        #[error("cannot start")]
        struct Outer(#[source] Repeating);
        assert_eq!(chain(&Outer(Repeating(Inner))), "cannot start: outer: cannot open the file");
    }
}
