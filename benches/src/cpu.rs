//! CPU time, memory and descriptors of processes, as the kernel counts them.

use anyhow::{Context, Result};

/// CPU seconds a process has used, user and system.
pub(crate) fn seconds(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name may hold anything; what follows its closing bracket is regular.
    let rest = stat.rsplit_once(')').context("no name in stat")?.1;
    let field = |index: usize| rest.split_whitespace().nth(index).and_then(|text| text.parse::<f64>().ok());
    let ticks = field(11).unwrap_or_default() + field(12).unwrap_or_default();
    Ok(ticks / rustix::param::clock_ticks_per_second() as f64)
}

/// Memory a process holds, in MiB.
pub(crate) fn resident_mib(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
    let kib: f64 = line.split_whitespace().nth(1).context("no number")?.parse()?;
    Ok(kib / 1024.0)
}

/// Descriptors this process has open.
pub(crate) fn descriptors() -> Result<usize> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}
