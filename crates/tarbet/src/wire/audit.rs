//! The panel of the audit log: its newest records, and whether the chain is whole.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tarbet_console::Panel;
use tarbet_reach::audit;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;

/// How many records are shown.
const NEWEST: usize = 100;
/// Checking reads the whole file, so it is done now and then.
const CHECK: Duration = Duration::from_secs(30);

type Checked = Arc<Mutex<Option<(Instant, Value)>>>;

pub(super) fn panel(file: PathBuf) -> Panel {
    let checked = Checked::default();
    Panel::live("audit", move || {
        let (file, checked) = (file.clone(), Arc::clone(&checked));
        async move {
            let failed = |cause: String| {
                Problem::new(&ground::INTERNAL, "The audit log cannot be shown.")
                    .at(file.display().to_string())
                    .because(cause)
            };
            let (path, state) = (file.clone(), Arc::clone(&checked));
            let reading = tokio::task::spawn_blocking(move || read(&path, &state));
            reading
                .await
                .map_err(|error| failed(error.to_string()))?
                .map_err(|error| failed(error.to_string()))
        }
    })
}

fn read(file: &Path, checked: &Checked) -> std::io::Result<Value> {
    let mut entries = audit::tail(file, NEWEST)?;
    entries.reverse();
    let known = checked.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let chain = match known {
        Some((when, value)) if when.elapsed() < CHECK => value,
        _ => {
            let value = whole(file)?;
            *checked.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), value.clone()));
            value
        }
    };
    Ok(json!({ "file": file, "entries": entries, "chain": chain }))
}

fn whole(file: &Path) -> std::io::Result<Value> {
    // The head beside the file may be a moment ahead of or behind the file while both are written.
    let log = std::io::BufReader::new(std::fs::File::open(file)?);
    Ok(match audit::verify(log, None) {
        Ok(verified) => json!({ "whole": true, "records": verified.records }),
        Err(broken) => json!({ "whole": false, "why": broken.to_string() }),
    })
}
