//! What a cluster can take, as it is told with each ping: by the site's own program, else by sinfo.

use std::collections::BTreeMap;

use super::Slurm;
use crate::error::RunError;
use crate::wire::{PingReply, Resources, read};

/// One line for each machine of each partition.
const MACHINES: &[&str] = &["--noheader", "--Node", "--format=%n|%c|%m|%t"];
/// Compact states of machines that take no jobs and will not soon.
const OUT: &[&str] = &["down", "drain", "drng", "fail", "failg", "maint", "unk", "futr", "boot", "pow_dn"];

impl Slurm {
    /// Resources, and taints where the site's program tells some.
    pub(super) async fn ask_offer(&self) -> Result<PingReply, RunError> {
        let away = |reason: String| RunError::Away { runtime: "Slurm", reason };
        let (program, words) = match &self.config.resources {
            Some(program) => (program, &[] as &[&str]),
            None => (&self.config.sinfo, MACHINES),
        };
        let output = self.run(program, words).await?;
        if !output.status.success() {
            return Err(away(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        if self.config.resources.is_some() {
            return read(&output.stdout, "an answer to a ping").map_err(|error| away(error.to_string()));
        }
        let resources = sum(&String::from_utf8_lossy(&output.stdout))
            .map_err(|line| away(format!("sinfo wrote something odd: `{}`", line.escape_debug())))?;
        Ok(PingReply { resources: Some(resources), ..Default::default() })
    }
}

/// The sum of the machines that take jobs, each counted once; or the line that is none.
fn sum(text: &str) -> Result<Resources, String> {
    let mut machines = BTreeMap::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let wrong = || line.to_owned();
        let [name, cpus, memory, state] =
            line.split('|').map(str::trim).collect::<Vec<_>>().try_into().map_err(|_| wrong())?;
        let cpus: u64 = cpus.parse().map_err(|_| wrong())?;
        let memory: u64 = memory.parse().map_err(|_| wrong())?;
        // Marks such as `*` (does not answer) or `~` (asleep) follow the state.
        let word = state.trim_end_matches(|c: char| !c.is_ascii_alphabetic());
        if !OUT.contains(&word) && !state.ends_with('*') {
            machines.insert(name.to_owned(), (cpus, memory));
        }
    }
    let (cpus, memory) =
        machines.values().fold((0u64, 0u64), |(a, b), (c, m)| (a.saturating_add(*c), b.saturating_add(*m)));
    Ok(Resources { cpu: cpus.to_string(), memory: format!("{memory}Mi"), ..Default::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_count_once_and_only_while_they_take_jobs() {
        let text = "n1|32|5667|idle\nn1|32|5667|idle\nn2|32|5667|mix\nn3|64|9000|down*\nn4|8|100|drain\nn5|8|100|idle*\n";
        let found = sum(text).unwrap();
        assert_eq!((found.cpu.as_str(), found.memory.as_str()), ("64", "11334Mi"));
        assert_eq!(sum("").unwrap().cpu, "0");
        for odd in ["x", "n|1|2", "n|a|1|idle", "sinfo: error: x|y|z|w"] {
            assert!(sum(odd).is_err(), "{odd}");
        }
    }
}
