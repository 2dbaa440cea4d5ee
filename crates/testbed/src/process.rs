//! A supervised child: its own process group, its output in a log file, ended by its own id.
//!
//! Children die with us. Each is launched through `setpriv --pdeathsig`, which asks the kernel
//! to kill it when its parent *thread* ends; so all are spawned by one thread that lives as
//! long as the process, never by the thread of a test.

use std::{
    ffi::{OsStr, OsString},
    fmt,
    fs::{self, OpenOptions},
    future::Future,
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    pin::pin,
    process::{self, Child, Command, ExitStatus, Stdio},
    str::FromStr,
    sync::{LazyLock, mpsc},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
    process::{
        Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, pidfd_open, waitid,
    },
};
use tokio::time::{Instant, sleep, timeout};

use crate::{eventually::Outcome, folder::Folder, typed::line};

/// Runs the program only if the parent is still the one that launched it: had it died before
/// the death signal was set, nobody would ever send that signal.
const GUARD: &str = r#"[ "$PPID" = "$0" ] && exec "$@""#;
/// How often a child is looked at while it starts or ends.
const PAUSE: Duration = Duration::from_millis(20);
/// Lines of the log that a failure shows.
const TAIL: usize = 20;

/// What to run: a program, its arguments and environment.
#[derive(Clone, Debug)]
pub struct Program {
    path: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    grace: Duration,
}

impl Program {
    /// A program by path, or by name as `PATH` finds it.
    pub fn new(path: impl AsRef<OsStr>) -> Self {
        let path = path.as_ref().to_owned();
        Self { path, args: Vec::new(), env: Vec::new(), grace: Duration::from_secs(3) }
    }

    /// Adds one argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// How long it may take to end after SIGTERM before SIGKILL follows (3 s unless told).
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// The line that a person would type for it, with the program under this name.
    pub(crate) fn typed(&self, name: &str) -> String {
        let variables =
            self.env.iter().map(|(name, value)| (name.to_string_lossy(), value.to_string_lossy()));
        let words = self.args.iter().map(|word| word.to_string_lossy());
        line(variables, [name.into()].into_iter().chain(words))
    }

    fn command(&self, log: &Path) -> io::Result<Command> {
        let output = OpenOptions::new().create(true).append(true).open(log)?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "sh", "-c", GUARD]).arg(process::id().to_string());
        command.arg(&self.path).args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        Ok(command)
    }
}

/// A running child; dropping it ends it and waits for the end.
#[derive(Debug)]
pub struct Process {
    name: String,
    program: Program,
    log: PathBuf,
    record: PathBuf,
    child: Child,
}

impl Process {
    /// Starts `program` under `name`, with `NAME.log` and `NAME.pid` in `folder`.
    pub fn start(folder: &Folder, name: &str, program: Program) -> Result<Self> {
        let log = folder.path().join(format!("{name}.log"));
        let record = folder.path().join(format!("{name}.pid"));
        let child = launch(name, &program, &log, &record)?;
        Ok(Self { name: name.to_owned(), program, log, record, child })
    }

    /// Ends it if it runs, then starts the same program again, appending to the same log.
    pub async fn restart(&mut self) -> Result<()> {
        self.stop().await?;
        self.child = launch(&self.name, &self.program, &self.log, &self.record)?;
        Ok(())
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it runs, paused or not.
    pub fn is_running(&self) -> bool {
        matches!(self.peek(), Ok(None))
    }

    /// How it ended, or `None` while it runs.
    pub fn exited(&mut self) -> Result<Option<ExitStatus>> {
        match self.peek() {
            Ok(None) => return Ok(None),
            // Its own children, if it left any, go before its id is given back.
            Ok(Some(_)) => self.signal(Signal::KILL),
            Err(_) => {}
        }
        self.child.wait().map(Some).with_context(|| format!("look at {}", self.name))
    }

    /// Waits until `probe` gives `Ok`, `Some` or `true`.
    ///
    /// Fails as soon as the child ends, or at the deadline, with the last lines of its log.
    pub async fn ready<O, F, Fut>(&mut self, deadline: Duration, mut probe: F) -> Result<O::Value>
    where
        O: Outcome,
        F: FnMut() -> Fut,
        Fut: Future<Output = O>,
    {
        let end = Instant::now() + deadline;
        let mut last = "it did not answer".to_owned();
        loop {
            let mut look = pin!(probe());
            // A look that hangs must not hide that the child has ended.
            let outcome = loop {
                if let Some(status) = self.exited()? {
                    bail!("{} ended while starting ({status})\n{}", self.name, self.log_tail());
                }
                if Instant::now() >= end {
                    bail!("{} was not ready after {deadline:?}: {last}\n{}", self.name, self.log_tail());
                }
                if let Ok(outcome) = timeout(PAUSE, look.as_mut()).await {
                    break outcome;
                }
            };
            match outcome.settle() {
                Ok(value) => return Ok(value),
                Err(seen) => last = seen,
            }
            sleep(PAUSE).await;
        }
    }

    /// The last lines of its log, under a line that names the file.
    pub fn log_tail(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let tail = &lines[lines.len().saturating_sub(TAIL)..];
        format!("last lines of {}:\n{}", self.log.display(), tail.join("\n"))
    }

    /// Ends it: SIGTERM, and SIGKILL if it is still there after its grace.
    pub async fn stop(&mut self) -> Result<()> {
        let end = Instant::now() + self.program.grace;
        self.ask_to_end();
        while self.exited()?.is_none() {
            if Instant::now() >= end {
                return self.kill9();
            }
            sleep(PAUSE).await;
        }
        self.forget();
        Ok(())
    }

    /// Ends it at once, as a crash would, and waits until it is gone.
    pub fn kill9(&mut self) -> Result<()> {
        if self.exited()?.is_none() {
            self.signal(Signal::KILL);
            self.child.wait().with_context(|| format!("wait for the end of {}", self.name))?;
        }
        self.forget();
        Ok(())
    }

    /// Asks it to read its configuration again.
    pub fn hangup(&self) -> Result<()> {
        ensure!(self.is_running(), "{} does not run, so it reads nothing again", self.name);
        self.signal(Signal::HUP);
        Ok(())
    }

    /// Stops its clock: it keeps its connections and answers nothing.
    pub fn pause(&self) -> Result<()> {
        ensure!(self.is_running(), "{} does not run, so it cannot be paused", self.name);
        self.signal(Signal::STOP);
        Ok(())
    }

    /// Lets it go on after [`Process::pause`].
    pub fn resume(&self) -> Result<()> {
        ensure!(self.is_running(), "{} does not run, so it cannot go on", self.name);
        self.signal(Signal::CONT);
        Ok(())
    }

    /// Looks without waiting: nothing while it runs, an error once it has been waited for.
    fn peek(&self) -> rustix::io::Result<Option<WaitIdStatus>> {
        let pid = raw_pid(self.pid()).ok_or(rustix::io::Errno::CHILD)?;
        waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT)
    }

    /// To its whole group, and only until it has been waited for: the id cannot be reused before.
    fn signal(&self, signal: Signal) {
        if let Some(group) = raw_pid(self.pid()) {
            let _ = kill_process_group(group, signal);
        }
    }

    fn ask_to_end(&self) {
        if self.is_running() {
            self.signal(Signal::TERM);
            // A paused process acts on SIGTERM only once it goes on.
            self.signal(Signal::CONT);
        }
    }

    fn forget(&self) {
        let _ = fs::remove_file(&self.record);
    }

    /// Waits, without a runtime, until it has ended or its grace is over.
    fn await_end(&self) {
        let Some(pid) = raw_pid(self.pid()) else { return };
        if let Ok(descriptor) = pidfd_open(pid, PidfdFlags::empty()) {
            let grace = Timespec::try_from(self.program.grace).ok();
            let _ = retry_on_intr(|| poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], grace.as_ref()));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.is_running() {
            self.ask_to_end();
            self.await_end();
        }
        let _ = self.kill9();
    }
}

fn launch(name: &str, program: &Program, log: &Path, record: &Path) -> Result<Child> {
    let what = || format!("start {name} (log {})", log.display());
    let child = spawn_detached(program.command(log).with_context(what)?).with_context(what)?;
    if let Some(identity) = ProcessId::of(child.id()) {
        fs::write(record, identity.to_string()).with_context(|| format!("write {}", record.display()))?;
    }
    Ok(child)
}

type Spawned = mpsc::Sender<io::Result<Child>>;

/// Spawns in a process group of its own, from the one thread that outlives every test.
pub(crate) fn spawn_detached(mut command: Command) -> Result<Child> {
    static SPAWNER: LazyLock<mpsc::Sender<(Command, Spawned)>> = LazyLock::new(|| {
        let (sender, orders) = mpsc::channel::<(Command, Spawned)>();
        let work = move || {
            for (mut command, reply) in orders {
                let _ = reply.send(command.spawn());
            }
        };
        // If the thread cannot start, the channel is closed and every spawn says so.
        let _ = thread::Builder::new().name("testbed-spawner".to_owned()).spawn(work);
        sender
    });
    command.process_group(0);
    let program = command.get_program().to_string_lossy().into_owned();
    let (reply, answer) = mpsc::channel();
    SPAWNER.send((command, reply)).map_err(|_| anyhow!("the thread that starts programs is gone"))?;
    let child = answer.recv().context("the thread that starts programs is gone")?;
    child.with_context(|| format!("run {program}; is it installed?"))
}

fn raw_pid(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

/// A process beyond doubt: its id and the moment it started, in clock ticks since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessId {
    pid: u32,
    started: u64,
}

impl ProcessId {
    /// The process that has this id now; `None` if there is none or it has ended.
    pub fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some(Self { pid, started: start_time(&stat)? })
    }

    /// Whether this very process still runs.
    pub fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Kills the process group it leads, if it is still the same process.
    pub(crate) fn kill_group(self) {
        if self.is_alive()
            && let Some(group) = raw_pid(self.pid)
        {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.pid, self.started)
    }
}

impl FromStr for ProcessId {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (pid, started) = text.split_once('-').context("expected PID-STARTTIME")?;
        Ok(Self { pid: pid.parse()?, started: started.parse()? })
    }
}

/// The start time in a line of `/proc/PID/stat`; `None` for one that has ended already.
fn start_time(stat: &str) -> Option<u64> {
    // The program's name, in parentheses, may itself hold spaces and parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") { None } else { fields.nth(18)?.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_survives_odd_names() {
        let stat = |state| {
            format!("12 (a) b) (c) {state} 1 12 12 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 987654 1 2 3")
        };
        assert_eq!(start_time(&stat("S")), Some(987_654));
        assert_eq!(start_time(&stat("Z")), None);
        assert_eq!(start_time("nonsense"), None);
    }

    #[test]
    fn this_process_is_alive_and_a_namesake_is_not() {
        let me = ProcessId::of(process::id()).unwrap();
        assert!(me.is_alive());
        assert_eq!(me.to_string().parse::<ProcessId>().unwrap(), me);
        assert!(!ProcessId { started: me.started + 1, ..me }.is_alive());
    }

    #[tokio::test]
    async fn the_end_of_a_child_is_the_end_of_its_group() {
        let folder = Folder::new("group").unwrap();
        let program = Program::new("sh").args(["-c", "sleep 600 & echo $! > \"$0\"; wait"]);
        let written = folder.path().join("grandchild");
        let mut child = Process::start(&folder, "group", program.arg(&written)).unwrap();
        let grandchild = child.ready(Duration::from_secs(10), || async {
            fs::read_to_string(&written).ok()?.trim().parse().ok().and_then(ProcessId::of)
        });
        let grandchild = grandchild.await.unwrap();
        child.pause().unwrap();
        child.stop().await.unwrap();
        assert!(!child.is_running());
        assert!(child.pause().is_err());
        let gone = || !grandchild.is_alive();
        crate::wait_for(Duration::from_secs(10), "the end of the grandchild", gone).await.unwrap();
    }

    #[tokio::test]
    async fn a_child_that_ends_early_shows_its_log() {
        let folder = Folder::new("early").unwrap();
        let program = Program::new("sh").args(["-c", "echo no luck; exit 7"]);
        let mut child = Process::start(&folder, "early", program).unwrap();
        let error = child.ready(Duration::from_secs(10), std::future::pending::<bool>).await;
        let error = error.unwrap_err().to_string();
        assert!(error.contains("no luck") && error.contains('7'), "{error}");
    }
}
