//! A link's error in the form that people and APIs read.

use tarbet_telemetry::codes::{ground, reach};
use tarbet_telemetry::problem::chain;
use tarbet_telemetry::{Coded, Problem, codes};

use crate::error::{CloseReason, LinkError};

impl Coded for LinkError {
    fn problem(&self) -> Problem {
        let code = match self {
            Self::Denied(denial) => {
                let code = codes::find(&denial.code).unwrap_or(&ground::INTERNAL);
                let mut problem = Problem::new(code, denial.message.clone()).at(denial.hop.clone());
                // A newer agent may know codes that this build does not.
                problem.code.clone_from(&denial.code);
                return problem;
            }
            Self::Draining => &reach::DRAINING,
            Self::Busy { .. } => &reach::QUOTA_EXCEEDED,
            Self::Closed { reason: CloseReason::Protocol(_), .. } | Self::Request(_) => {
                &reach::PROTOCOL_VIOLATION
            }
            Self::Closed { .. } | Self::Reset { .. } | Self::RequestBody(_) => &reach::LINK_LOST,
            Self::Unsupported(_) => &reach::SERVICE_NOT_OFFERED,
            Self::Connect { .. } => &reach::TARGET_UNREACHABLE,
        };
        let mut sentence = self.to_string();
        if let Some(first) = sentence.get(..1).map(str::to_ascii_uppercase) {
            sentence.replace_range(..1, &first);
        }
        Problem::new(code, sentence + ".").at(self.hop().to_string()).because(chain(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Denial, Reached};

    #[test]
    fn a_problem_names_hop_and_cause() {
        let error = LinkError::Closed { reason: CloseReason::PeerClosed, reached: Reached::Unknown };
        let problem = error.problem();
        assert_eq!(
            (problem.code.as_str(), problem.hop.as_str(), problem.message.as_str()),
            ("TB-1104", "gateway → agent", "The link to the agent ended.")
        );
        assert!(problem.cause.ends_with("the other end closed the connection"), "{}", problem.cause);
    }

    #[test]
    fn what_the_site_said_is_kept_as_it_said_it() {
        let denial = Denial::new(http::StatusCode::FORBIDDEN, "TB-1999", "Not here.").at("agent lab");
        let problem = LinkError::Denied(Box::new(denial)).problem();
        assert_eq!((problem.code.as_str(), problem.hop.as_str()), ("TB-1999", "agent lab"));
        assert_eq!(problem.message, "Not here.");
    }
}
