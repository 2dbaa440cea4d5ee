//! Logs: text for a terminal, JSON for everything else, always on standard error.

use std::io::{IsTerminal, stderr};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::trace::Traces;

/// The filter in use, once logging has started.
static FILTER: OnceLock<Handle<EnvFilter, Registry>> = OnceLock::new();

/// How log lines look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Text on a terminal, JSON otherwise.
    #[default]
    Auto,
    /// Text with colours where the terminal has them.
    Text,
    /// One JSON object a line.
    Json,
}

/// Logging cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter is not of the form `level` or `target=level,…`.
    #[error("the log filter `{filter}` is not understood")]
    Filter {
        /// What was given.
        filter: String,
        /// What is wrong with it.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    /// A subscriber was set before.
    #[error("logging is already set up")]
    Twice(#[source] tracing_subscriber::util::TryInitError),
}

/// Whether a filter would be accepted.
pub fn check_filter(filter: &str) -> Result<(), tracing_subscriber::filter::ParseError> {
    EnvFilter::try_new(filter).map(drop)
}

/// Starts logging for the whole process; spans also go to `traces` when given.
pub fn init(format: Format, filter: &str, traces: Option<&Traces>) -> Result<(), LogError> {
    let (filter, handle) = reload::Layer::new(read(filter)?);
    let json = match format {
        Format::Auto => !stderr().is_terminal(),
        Format::Text => false,
        Format::Json => true,
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(stderr);
    let lines = if json {
        lines.json().flatten_event(true).with_current_span(true).with_span_list(false).boxed()
    } else {
        lines
            .with_ansi(stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
            .with_target(false)
            .boxed()
    };
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .with(traces.map(Traces::layer))
        .try_init()
        .map_err(LogError::Twice)?;
    // Logging starts once, and so is this set once.
    let _ = FILTER.set(handle);
    Ok(())
}

/// Another filter from now on.
pub fn set_filter(filter: &str) -> Result<(), LogError> {
    let filter = read(filter)?;
    if let Some(handle) = FILTER.get() {
        // It fails only when nobody logs any more.
        let _ = handle.reload(filter);
    }
    Ok(())
}

fn read(filter: &str) -> Result<EnvFilter, LogError> {
    EnvFilter::try_new(filter).map_err(|source| LogError::Filter { filter: filter.to_owned(), source })
}
