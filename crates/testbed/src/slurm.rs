//! A real Slurm cluster of one node, with a munge of its own.
//!
//! There is no accounting, as on many small sites: finished jobs are known to the controller for
//! a while and then forgotten. The node's daemon and all jobs live in one process namespace and
//! die together. Jobs run as the user of the tests.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use tokio::{process::Command, time::timeout};

use crate::{Folder, Lease, Process, Program, tools};

const READY: Duration = Duration::from_mins(1);
const COMMAND: Duration = Duration::from_secs(30);

/// How to start a [`Slurm`].
#[derive(Clone, Debug)]
pub struct SlurmOptions {
    /// Cores the node says it has, whatever the machine has.
    pub cpus: u32,
    /// Memory the node says it has, in MiB.
    pub memory: u32,
    /// Seconds after which the controller forgets a finished job.
    pub min_job_age: u32,
}

impl Default for SlurmOptions {
    fn default() -> Self {
        Self { cpus: 64, memory: 200_000, min_job_age: 300 }
    }
}

/// Controller, node and munge; all of it goes when dropped.
#[derive(Debug)]
pub struct Slurm {
    // In the order they must go.
    node: Process,
    controller: Process,
    _munge: Process,
    config: PathBuf,
    _lease: Lease,
    folder: Folder,
}

impl Slurm {
    /// A cluster as it comes.
    pub async fn start() -> Result<Self> {
        Self::start_with(SlurmOptions::default()).await
    }

    /// A cluster with options, once its node is idle.
    pub async fn start_with(options: SlurmOptions) -> Result<Self> {
        let (munged, slurmctld) = (tools::slurm("munged").await?, tools::slurm("slurmctld").await?);
        let slurmd = tools::slurm("slurmd").await?;
        let folder = Folder::new("slurm")?;
        let lease = Lease::block(2)?;
        let munge = start_munge(&folder, &munged)?;
        let config = folder.write("slurm.conf", &config(folder.path(), &lease, &options)?)?;
        // Everybody who submits jobs reads it.
        fs::set_permissions(&config, fs::Permissions::from_mode(0o644))?;
        for name in ["ctld", "d"] {
            fs::create_dir_all(folder.path().join(name))?;
        }
        let daemon = |program: Program| program.args(["-D", "-f"]).arg(&config).env("SLURM_CONF", &config);
        let controller = Process::start(&folder, "slurmctld", daemon(Program::new(slurmctld)))?;
        // A process namespace of its own: jobs leave the process group, but not this.
        let inside = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
        let node = Program::new("unshare").args(inside).arg(slurmd);
        let node = Process::start(&folder, "slurmd", daemon(node).grace(Duration::from_secs(1)))?;
        let mut slurm = Self { node, controller, _munge: munge, config, _lease: lease, folder };
        slurm.ready().await?;
        Ok(slurm)
    }

    /// Its `slurm.conf`; every command needs it as `SLURM_CONF`.
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// A folder that jobs may write to.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Runs one of Slurm's programs and returns its output without the last newline.
    pub async fn run(&self, program: &str, words: &[&str]) -> Result<String> {
        run(&self.config, program, words).await
    }

    /// The controller's process, for faults.
    pub fn controller(&mut self) -> &mut Process {
        &mut self.controller
    }

    /// The node's process, for faults: all jobs die with it.
    pub fn node(&mut self) -> &mut Process {
        &mut self.node
    }

    async fn ready(&mut self) -> Result<()> {
        let config = self.config.clone();
        let look = || async {
            let state = run(&config, "sinfo", &["--noheader", "--format=%T"]).await?;
            if state == "idle" { Ok(()) } else { bail!("the node is {state:?}") }
        };
        self.controller.ready(READY, look).await.map_err(|error| error.context(self.node.log_tail()))
    }
}

fn start_munge(folder: &Folder, program: &Path) -> Result<Process> {
    let key: String =
        (0..4).map(|_| fs::read_to_string("/proc/sys/kernel/random/uuid")).collect::<Result<_, _>>()?;
    let key = folder.write("munge.key", &key)?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    // `--force`: it refuses folders below a world-writable one, as the temporary folder is.
    let program = Program::new(program)
        .args(["--foreground", "--force", "--num-threads=2", &format!("--socket={}", path("munge.sock"))])
        .args([format!("--key-file={}", key.display()), format!("--pid-file={}", path("munged-own.pid"))])
        .args([
            format!("--log-file={}", path("munged-own.log")),
            format!("--seed-file={}", path("munge.seed")),
        ]);
    Process::start(folder, "munged", program)
}

fn config(folder: &Path, lease: &Lease, options: &SlurmOptions) -> Result<String> {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").context("read the machine's name")?;
    let host = host.trim().split('.').next().unwrap_or_default().to_owned();
    let (here, SlurmOptions { cpus, memory, min_job_age }) = (folder.display(), options);
    let (controller, node) = (lease.port(0), lease.port(1));
    Ok(format!(
        "ClusterName=testbed
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/munge
AuthInfo=socket={here}/munge.sock
CredType=cred/munge
MpiDefault=none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={here}/ctld
SlurmdSpoolDir={here}/d
SlurmctldPidFile={here}/slurmctld-own.pid
SlurmdPidFile={here}/slurmd-own.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=100
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=5
ReturnToService=2
MinJobAge={min_job_age}
MaxJobCount=20000
InactiveLimit=0
KillWait=5
SlurmdParameters=config_overrides
SwitchType=switch/none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} State=UNKNOWN
PartitionName=debug Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"
    ))
}

async fn run(config: &Path, program: &str, words: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(words).env("SLURM_CONF", config).stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(COMMAND, command.output()).await;
    let output = output.with_context(|| format!("{program} did not end in {COMMAND:?}"))?;
    let output = output.with_context(|| format!("run {program}; `tools/install slurm` installs it"))?;
    if !output.status.success() {
        bail!("{program} failed: {}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}
