//! The checks: a name, what is looked at, a judgement, and what to try.

use super::facts::Facts;

mod running;
mod start;

/// One check.
pub struct Check {
    /// Its name, for people and scripts.
    pub name: &'static str,
    /// What it looks at.
    pub looks_at: &'static str,
    /// What to try if it is not fine.
    pub hint: &'static str,
    /// Whether it looks at something that runs.
    pub live: bool,
    /// Judges; pure.
    pub judge: fn(&Facts) -> Finding,
}

/// What a check says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// As it should be.
    Fine(String),
    /// Not needed here, or nothing to look at.
    Aside(String),
    /// Works, but somebody should know.
    Warning(String),
    /// Does not work.
    Wrong(String),
}

impl Finding {
    pub fn word(&self) -> &'static str {
        match self {
            Self::Fine(_) => "fine",
            Self::Aside(_) => "aside",
            Self::Warning(_) => "warning",
            Self::Wrong(_) => "wrong",
        }
    }

    pub fn text(&self) -> &str {
        let (Self::Fine(text) | Self::Aside(text) | Self::Warning(text) | Self::Wrong(text)) = self;
        text
    }
}

fn fine(text: impl Into<String>) -> Finding {
    Finding::Fine(text.into())
}
fn aside(text: impl Into<String>) -> Finding {
    Finding::Aside(text.into())
}
fn warning(text: impl Into<String>) -> Finding {
    Finding::Warning(text.into())
}
fn wrong(text: impl Into<String>) -> Finding {
    Finding::Wrong(text.into())
}

/// Fine if it holds, else wrong, with words for both.
fn must(holds: bool, good: impl Into<String>, bad: impl Into<String>) -> Finding {
    if holds { fine(good) } else { wrong(bad) }
}

/// Fine if it holds, else a warning.
fn should(holds: bool, good: impl Into<String>, bad: impl Into<String>) -> Finding {
    if holds { fine(good) } else { warning(bad) }
}

/// Every check, those of a start first.
pub static CHECKS: std::sync::LazyLock<Vec<Check>> =
    std::sync::LazyLock::new(|| start::checks().into_iter().chain(running::checks()).collect());

#[cfg(test)]
mod tests;
