//! How far long work got, told while it goes on.

use std::collections::HashSet;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::nets;

use super::client::{Glide, lines};
use crate::output::note;

/// How often the orchestrator is asked.
const EVERY: Duration = Duration::from_secs(1);

/// Follows an operation to its end and says what it made.
pub async fn watch(glide: &Glide, begun: Value) -> Result<Value, Problem> {
    let id = begun["id"].as_str().unwrap_or_default().to_owned();
    note(&format!("This takes a while; to stop it: tarbet glide operation cancel {id}"));
    let (mut operation, mut told) = (begun, Told::default());
    loop {
        for line in told.news(&operation) {
            note(&line);
        }
        match operation["state"].as_str() {
            Some("running") => {}
            Some("done") => return Ok(outcome(&operation)),
            Some("cancelled") => {
                return Err(Problem::new(
                    &nets::OPERATION_CANCELLED,
                    format!("The operation {id} was cancelled."),
                ));
            }
            _ => {
                let unknown = |_| Problem::new(&nets::CLOUD_FAILED, format!("The operation {id} failed."));
                return Err(serde_json::from_value(operation["problem"].clone()).unwrap_or_else(unknown));
            }
        }
        tokio::time::sleep(EVERY).await;
        operation = glide.ask(Method::GET, &format!("/operations/{id}"), Value::Null).await?;
    }
}

/// What is told at the end: what was made, or what nobody needs any more.
fn outcome(operation: &Value) -> Value {
    let made = &operation["made"];
    if made.is_null() { json!({ "unneeded": operation["unneeded"] }) } else { made.clone() }
}

/// What was told already.
#[derive(Default)]
struct Told {
    done: usize,
    /// Steps of the call it is at that were seen open.
    open: Vec<String>,
}

impl Told {
    /// What ended since the last look.
    fn news(&mut self, operation: &Value) -> Vec<String> {
        let (calls, steps) = (lines(&operation["calls"]), lines(&operation["steps"]));
        let done = operation["done"].as_u64().unwrap_or_default() as usize;
        let left: HashSet<&String> = steps.iter().collect();
        let mut news: Vec<String> = self
            .open
            .iter()
            .filter(|step| done > self.done || !left.contains(step))
            .map(|step| format!("    ✓ {step}"))
            .collect();
        news.extend(calls.iter().take(done).skip(self.done).map(|call| format!("  ✓ {call}")));
        self.done = self.done.max(done);
        self.open = steps;
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_and_step_is_told_once_when_it_ended() {
        let mut told = Told::default();
        let calls = ["ConnectClouds a with b", "a: AddPermitListRules web to x"];
        let look = |done: usize, steps: &[&str]| json!({ "calls": calls, "done": done, "steps": steps });
        assert_eq!(told.news(&look(0, &["gateway", "key", "tunnels"])), Vec::<String>::new());
        assert_eq!(told.news(&look(0, &["key", "tunnels"])), ["    ✓ gateway"]);
        assert_eq!(told.news(&look(0, &["key", "tunnels"])), Vec::<String>::new());
        let wanted = ["    ✓ key", "    ✓ tunnels", "  ✓ ConnectClouds a with b"];
        assert_eq!(told.news(&look(1, &[])), wanted);
        assert_eq!(told.news(&look(2, &[])), ["  ✓ a: AddPermitListRules web to x"]);
    }
}
