//! The script of a pod: one job with all its containers. A pure function of the plan.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::runtime::{self, Runtime};
use super::word::{Word, quote, quote_bytes};
use crate::plan::{Container, Content, File, Plan, PlanError, RelPath, Restart};

/// How scripts are written at a site.
#[derive(Debug, Clone)]
pub struct ScriptConfig {
    /// The shell; bash, or anything that knows `compgen`.
    pub bash: String,
    /// Lines of the administrator before everything else.
    pub prefix: String,
    /// What runs containers.
    pub runtime: Runtime,
    /// What images without a scheme are below.
    pub image_prefix: String,
    /// Whether the machines of jobs see the data root: files are then written before the job
    /// begins instead of being carried in the script.
    pub shared: bool,
    /// The library and the login node through which jobs reach the outside.
    pub tsocks: Option<Tsocks>,
    /// How long after SIGTERM a job has before it is killed.
    pub kill_wait: Duration,
}

/// How jobs reach the outside through a login node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tsocks {
    /// The library.
    pub library: PathBuf,
    /// The node to ssh to.
    pub login_node: String,
}

const FUNCTIONS: &str = r#"t_put() { printf '%s\n' "$2" >"$T_DIR/$1.new" && mv -f -- "$T_DIR/$1.new" "$T_DIR/$1"; }
t_end() { t_calm; [ -z "$T_FOLLOW" ] || { kill "$T_FOLLOW"; wait "$T_FOLLOW"; } 2>/dev/null; [ "$T_WORK" = "$T_DIR" ] || rm -rf -- "$T_WORK"; [ -z "$T_SSH" ] || kill "$T_SSH" 2>/dev/null; exit "$1"; }
t_fail() { printf 'tarbet: %s\n' "$1" >&2; t_put job.failed "$1"; t_end 125; }
t_wait() { while :; do wait "$1"; T_CODE=$?; kill -0 "$1" 2>/dev/null || return 0; done; }
t_calm() { [ -z "$T_KILLER" ] || kill "$T_KILLER" 2>/dev/null; }
t_term() { t_calm; for t_pid in $T_PIDS; do kill -TERM "$t_pid" 2>/dev/null; done; (sleep "$T_GRACE"; for t_pid in $T_PIDS; do kill -KILL "$t_pid" 2>/dev/null; done) & T_KILLER=$!; }
t_clean() { for t_name in $(compgen -e); do case $t_name in PATH|HOME|USER|LOGNAME|SHELL|LANG|TERM|TMPDIR|TZ) ;; *) unset "$t_name" 2>/dev/null ;; esac; done; }
t_folder() { mkdir -p -- "$T_WORK/$1" && chmod "$2" -- "$T_WORK/$1" || t_fail "cannot make the folder $1"; }
t_file() { mkdir -p -- "$T_WORK/${1%/*}" && printf "$3" "$4" >"$T_WORK/$1" && chmod "$2" -- "$T_WORK/$1" || t_fail "cannot write the file $1"; }
t_swap() { mkdir -p -- "$T_WORK/${1%/*}" && printf "$3" "$4" >"$T_WORK/${1%/*}/..new" && chmod "$2" -- "$T_WORK/${1%/*}/..new" && mv -f -- "$T_WORK/${1%/*}/..new" "$T_WORK/$1" || printf 'tarbet: cannot change the file %s\n' "$1" >&2; }
t_only() { t_in=$T_WORK/$1; shift; find "$t_in" -type f -print0 | while IFS= read -r -d '' t_path; do for t_name; do [ "$t_path" = "$t_in/$t_name" ] && continue 2; done; rm -f -- "$t_path"; done; }
t_files() { { read -r t_new <"$T_DIR/files.version"; } 2>/dev/null && [ "$t_new" != "$T_FILES" ] || return 0; T_FILES=$t_new; . "$T_DIR/files.sh"; }
t_follow() { t_files; (while sleep 1; do t_files; done) & T_FOLLOW=$!; }
t_stop() { T_STOP=1; t_term; }
t_run() {
  T_STOP= t_count=0 t_pause=0 T_GRACE=$((T_GRACE > 1 ? T_GRACE - 1 : 1))
  while :; do
    : >"$T_DIR/$1.started"
    rm -f -- "$T_DIR/$1.waiting"
    trap : TERM INT
    ( trap - TERM INT; "$2" ) >"$T_DIR/$1.out" 2>&1 </dev/null &
    T_PIDS=$!
    trap t_stop TERM INT
    t_put "$1.pid" "$T_PIDS"
    t_wait "$T_PIDS"
    t_calm
    case $3:$T_CODE in Always:* | OnFailure:[1-9]*) ;; *) break ;; esac
    [ -z "$T_STOP" ] && [ ! -e "$T_DIR/$1.stop" ] || break
    t_count=$((t_count + 1)) t_last=$T_CODE
    mv -f -- "$T_DIR/$1.out" "$T_DIR/$1.previous.out"
    t_put "$1.restarts" "$t_count $t_last"
    : >"$T_DIR/$1.waiting"
    sleep "$t_pause" & T_PIDS=$!
    t_wait "$T_PIDS"
    t_pause=$((t_pause < 10 ? 10 : t_pause < 150 ? t_pause * 2 : 300)) T_CODE=$t_last
    [ -z "$T_STOP" ] && [ ! -e "$T_DIR/$1.stop" ] || break
  done
  t_put "$1.status" "$T_CODE"
}
t_init() { t_run "init-$1" "$2" "$3" & T_PIDS="$T_SIDES $!"; t_wait "$!"; T_PIDS=$T_SIDES; read -r T_CODE <"$T_DIR/init-$1.status" || T_CODE=137; [ "$T_CODE" = 0 ] || { t_put init.failed "$T_CODE"; t_leave; t_end "$T_CODE"; }; }
t_side() { t_run "init-$1" "$2" Always & T_SIDES="$T_SIDES $!"; T_PIDS=$T_SIDES; while [ ! -e "$T_DIR/init-$1.started" ]; do sleep 0.1; done; }
t_leave() { [ -z "$T_SIDES" ] || { T_PIDS=$T_SIDES; t_term; for t_pid in $T_SIDES; do t_wait "$t_pid"; done; }; }
t_main() { t_run "run-$1" "$2" "$3" & T_PIDS="$T_PIDS $!" T_MAINS="$T_MAINS $!"; }
t_ready() { while [ ! -e "$T_DIR/init.done" ]; do [ ! -e "$T_DIR/init.failed" ] && [ -d "$T_DIR" ] || t_end 125; sleep 1; done; }
"#;

/// Which of a pod's containers a job runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// All of them.
    Whole,
    /// The container at this place; the first one's job also runs those that come before.
    One(usize),
}

impl Share {
    /// Its place among the jobs of the pod.
    pub fn place(self) -> usize {
        match self {
            Self::Whole => 0,
            Self::One(at) => at,
        }
    }

    /// The name of the job of a pod.
    pub fn job_name(self, uid: &str) -> String {
        match self.place() {
            0 => uid.to_owned(),
            at => format!("{uid}.{at}"),
        }
    }

    /// What files of the job are called, before the dot.
    pub fn stem(self) -> String {
        match self.place() {
            0 => "job".to_owned(),
            at => format!("job-{at}"),
        }
    }
}

/// The whole script. `flags` are options of the batch system, already checked.
pub fn script(
    plan: &Plan,
    config: &ScriptConfig,
    folder: &Path,
    flags: &[String],
) -> Result<String, PlanError> {
    share(plan, config, folder, flags, Share::Whole)
}

/// The script of one job of a pod.
pub fn share(
    plan: &Plan,
    config: &ScriptConfig,
    folder: &Path,
    flags: &[String],
    share: Share,
) -> Result<String, PlanError> {
    let stem = share.stem();
    let mut out = format!("#!{}\n", config.bash);
    let folder = folder.display().to_string();
    if folder.contains(|c: char| c.is_control() || c == '"') || config.bash.contains(char::is_whitespace) {
        return Err(PlanError::Value("the data root".into()));
    }
    let own = [
        format!("--job-name={}", share.job_name(&plan.id.uid)),
        format!("--output={}", escape_output(&folder, &stem)),
        "--no-requeue".to_owned(),
    ];
    for flag in own.iter().chain(flags) {
        let _ = writeln!(out, "#SBATCH {flag}");
    }
    let _ =
        writeln!(out, "# The pod {}/{}. All values of the pod are quoted.", plan.id.namespace, plan.id.name);
    out.push_str("umask 022\n");
    let _ = writeln!(out, "T_DIR={}", quote(&folder));
    if config.shared {
        out.push_str("T_WORK=$T_DIR\n");
    } else {
        let name = share.job_name(&plan.id.uid);
        let _ = writeln!(out, "T_WORK=${{SLURM_TMPDIR:-${{TMPDIR:-/tmp}}}}/tarbet-{name}");
    }
    let _ = writeln!(
        out,
        "T_PIDS= T_SIDES= T_MAINS= T_SSH= T_KILLER= T_STOP= T_FOLLOW= T_FILES=0 T_GRACE={}",
        config.kill_wait.as_secs().max(1)
    );
    out.push_str(FUNCTIONS);
    out.push_str("# Whoever makes this folder runs the pod; a second job of the same pod does not.\n");
    let _ = writeln!(out, "mkdir -- \"$T_DIR/{stem}.lock\" 2>/dev/null || exit 75");
    let _ = writeln!(out, "t_put {stem}.pid \"$$\"");
    out.push_str("trap t_term TERM INT\n");
    if !config.prefix.trim().is_empty() {
        let _ = writeln!(out, "{}", config.prefix.trim_end());
    }
    if let Some(tsocks) = &config.tsocks {
        out.push_str(&tsocks_lines(tsocks));
    }
    let older = plan.annotations.get("job.vk.io/pre-exec");
    let before = plan.annotations.get("slurm-job.vk.io/pre-exec").or(older);
    // Only here if the host's policy names the annotations.
    for lines in plan.annotations.get("interlink.eu/wstunnel-client-commands").into_iter().chain(before) {
        let _ = writeln!(out, "{}", lines.trim_end());
    }
    if !config.shared {
        out.push_str("rm -rf -- \"$T_WORK\"; mkdir -m 700 -- \"$T_WORK\" || t_fail 'cannot make the folder of volumes'\n");
        carry(plan, &mut out);
        if follows(plan) {
            out.push_str("t_follow\n");
        }
    }
    for (at, container) in plan.all().enumerate().filter(|(at, _)| share.runs(plan, *at)) {
        let launch = config.runtime.launch(plan, container, &config.image_prefix)?;
        let _ = writeln!(out, "t_ctn_{at}() {{");
        for line in runtime::lines(&launch) {
            let _ = writeln!(out, "  {line}");
        }
        out.push_str("}\n");
    }
    order(plan, share, &mut out);
    Ok(out)
}

impl Share {
    /// Whether the container at this place of all, init first, is the job's.
    fn runs(self, plan: &Plan, at: usize) -> bool {
        match self {
            Self::Whole => true,
            Self::One(0) => at <= plan.init.len(),
            Self::One(own) => at == plan.init.len() + own,
        }
    }
}

/// Who runs when, and what becomes of the job.
fn order(plan: &Plan, share: Share, out: &mut String) {
    // Those of the beginning have done their part once they ended well.
    let (first, then) = match plan.restart {
        Restart::Never => ("Never", "Never"),
        Restart::OnFailure => ("OnFailure", "OnFailure"),
        Restart::Always => ("OnFailure", "Always"),
    };
    if share.place() > 0 && !plan.init.is_empty() {
        out.push_str("t_ready\n");
    }
    for (at, container) in plan.init.iter().enumerate().filter(|_| share.place() == 0) {
        let name = quote(&container.name);
        let _ = if container.sidecar {
            writeln!(out, "t_side {name} t_ctn_{at}")
        } else {
            writeln!(out, "t_init {name} t_ctn_{at} {first}")
        };
    }
    if share != Share::Whole && share.place() == 0 {
        out.push_str("t_put init.done 0\n");
    }
    let mut names = Vec::new();
    for (at, container) in plan.containers.iter().enumerate() {
        let at = at + plan.init.len();
        if share.runs(plan, at) {
            let name = quote(&container.name);
            let _ = writeln!(out, "t_main {name} t_ctn_{at} {then}");
            names.push(name);
        }
    }
    out.push_str("for t_pid in $T_MAINS; do t_wait \"$t_pid\"; done\nt_leave\nT_LAST=0\n");
    let _ = writeln!(out, "for t_name in {}; do", names.join(" "));
    out.push_str("  read -r T_CODE <\"$T_DIR/run-$t_name.status\" || T_CODE=137\n");
    out.push_str("  [ \"$T_CODE\" -le \"$T_LAST\" ] || T_LAST=$T_CODE\ndone\nt_end \"$T_LAST\"\n");
}

/// A script that ends one container within these seconds.
pub fn end_script(stem: &str, seconds: u64, config: &ScriptConfig, folder: &Path) -> String {
    let folder = quote(&folder.display().to_string());
    format!(
        "#!{bash}\nT_DIR={folder}\nrm -f -- \"$0\"\nread -r t_pid <\"$T_DIR/{stem}.pid\" || exit 0\n\
         kill -TERM \"$t_pid\" 2>/dev/null || exit 0\nt_left={seconds}\n\
         while kill -0 \"$t_pid\" 2>/dev/null; do\n  \
         [ \"$t_left\" -gt 0 ] || {{ kill -KILL \"$t_pid\" 2>/dev/null; exit 0; }}\n  \
         sleep 1; t_left=$((t_left - 1))\ndone\n",
        bash = config.bash,
    )
}

/// A script that runs one command as the container would.
pub fn exec_script(
    plan: &Plan,
    container: &Container,
    command: &[String],
    config: &ScriptConfig,
    folder: &Path,
    share: Share,
) -> Result<String, PlanError> {
    let once = Container { command: Some(command.to_vec()), args: None, ..container.clone() };
    let mut launch = config.runtime.launch(plan, &once, &config.image_prefix)?;
    // The container's own preparations have been made.
    launch.before.clear();
    let mut out = format!("#!{}\nT_DIR={}\n", config.bash, quote(&folder.display().to_string()));
    if config.shared {
        out.push_str("T_WORK=$T_DIR\n");
    } else {
        let _ = writeln!(
            out,
            "T_WORK=${{SLURM_TMPDIR:-${{TMPDIR:-/tmp}}}}/tarbet-{}",
            share.job_name(&plan.id.uid)
        );
    }
    let clean = FUNCTIONS.lines().find(|line| line.starts_with("t_clean")).unwrap_or_default();
    let _ = writeln!(out, "{clean}\nrm -f -- \"$0\"");
    for line in runtime::lines(&launch) {
        let _ = writeln!(out, "{line}");
    }
    Ok(out)
}

/// The volumes as commands: folders, and files with their contents.
fn carry(plan: &Plan, out: &mut String) {
    for volume in &plan.volumes {
        let folder = &volume.folder;
        match &volume.content {
            Content::Empty => {
                let _ = writeln!(out, "t_folder {} 777", quote(folder.as_str()));
            }
            Content::Files(files) => {
                let _ = writeln!(out, "t_folder {} 755", quote(folder.as_str()));
                for (path, file) in files {
                    let _ = writeln!(out, "t_file {}", written(folder, path, file));
                }
            }
            Content::Host(_) => {}
        }
    }
    for container in plan.all() {
        for mount in &container.mounts {
            let volume = &plan.volumes[mount.volume];
            if let (Some(part), Content::Empty) = (&mount.sub_path, &volume.content) {
                let _ = writeln!(out, "t_folder {} 777", quote(&format!("{}/{part}", volume.folder)));
            }
        }
    }
}

/// Whether the job looks for changed files: those that it carried itself may change.
pub(super) fn follows(plan: &Plan) -> bool {
    plan.volumes.iter().any(|volume| matches!(volume.content, Content::Files(_)))
}

/// The files of all volumes as they are now, read by jobs that carried older ones. Each file is
/// replaced at once, and what is no more is removed.
pub fn files_script(plan: &Plan) -> String {
    let mut out = String::new();
    for volume in &plan.volumes {
        let Content::Files(files) = &volume.content else { continue };
        for (path, file) in files {
            let _ = writeln!(out, "t_swap {}", written(&volume.folder, path, file));
        }
        let names = std::iter::once(&volume.folder).chain(files.keys()).map(|path| quote(path.as_str()));
        let _ = writeln!(out, "t_only {}", names.collect::<Vec<_>>().join(" "));
    }
    out
}

/// Place, permissions and content of a file as arguments.
fn written(folder: &RelPath, path: &RelPath, file: &File) -> String {
    let place = quote(&format!("{folder}/{path}"));
    let text = std::str::from_utf8(&file.content).ok().filter(|text| !text.contains('\0'));
    let (form, content) = match text {
        Some(text) => ("%s", quote(text)),
        None => ("%b", quote_bytes(&file.content)),
    };
    format!("{place} {:o} {form} {content}", file.mode)
}

/// A SOCKS connection to the login node, and the library that uses it.
fn tsocks_lines(tsocks: &Tsocks) -> String {
    let (node, library) = (Word::text(&tsocks.login_node), Word::text(tsocks.library.display().to_string()));
    format!(
        r#"t_port=$((10000 + ${{SLURM_JOB_ID:-$$}} % 50000)) t_try=0
while [ "$t_try" -lt 20 ]; do
  ssh -4 -N -o BatchMode=yes -o ExitOnForwardFailure=yes -D "127.0.0.1:$t_port" -- {node} </dev/null & T_SSH=$!
  sleep 1
  kill -0 "$T_SSH" 2>/dev/null && break
  T_SSH= t_port=$((t_port + 1)) t_try=$((t_try + 1))
done
[ -n "$T_SSH" ] || t_fail 'no connection to the login node for tsocks'
printf 'local = 10.0.0.0/255.0.0.0\nserver = 127.0.0.1\nserver_port = %s\n' "$t_port" >"$T_DIR/tsocks.conf"
export TSOCKS_CONF_FILE="$T_DIR/tsocks.conf" LD_PRELOAD={library}
"#
    )
}

/// Slurm replaces `%x` in names of output files, and reads quotes.
fn escape_output(folder: &str, stem: &str) -> String {
    format!("\"{}/{stem}.out\"", folder.replace('%', "%%"))
}
