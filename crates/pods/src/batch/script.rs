//! The script of a pod: one job with all its containers. A pure function of the plan.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use super::runtime::{self, Runtime, Site};
use super::tsocks::Tsocks;
use super::word::{line, quote, quote_bytes};
use crate::plan::{Content, File, Plan, PlanError, RelPath, Restart};

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

// The end of a container waits ten minutes for a disk that does not take it: without it nobody knows how it ended.
pub(super) const FUNCTIONS: &str = r#"t_put() { printf '%s\n' "$2" >"$T_DIR/$1.new" && mv -f -- "$T_DIR/$1.new" "$T_DIR/$1"; }
t_keep() { t_tries=600; until t_put "$1" "$2"; do [ -z "$T_STOP" ] && [ -d "$T_DIR" ] && [ "$((t_tries -= 1))" -gt 0 ] || return 1; sleep 1; done; } 2>/dev/null
t_after() { :; }
t_end() { t_calm; [ -z "$T_FOLLOW" ] || { kill "$T_FOLLOW"; wait "$T_FOLLOW"; } 2>/dev/null; t_after; [ "$T_WORK" = "$T_DIR" ] || rm -rf -- "$T_WORK"; [ -z "$T_SSH" ] || kill "$T_SSH" 2>/dev/null; exit "$1"; }
t_fail() { printf 'tarbet: %s\n' "$1" >&2; t_put "$T_JOB.failed" "$1"; t_end 125; }
t_claim() {
  if [ ! -e "$T_DIR/pod.json" ]; then
    { rm -f -- "$T_DIR/$T_JOB.out"; rmdir -- "$T_DIR"; } 2>/dev/null
    [ ! -d "${T_DIR%/*}/.deleted" ] || exit 75
    exit 76
  fi
  [ ! -e "$T_DIR/$T_JOB.failed" ] || exit 75
  mkdir -- "$T_DIR/$T_JOB.lock" 2>/dev/null && { printf '%s\n' "$SLURM_JOB_ID" >"$T_DIR/$T_JOB.lock/id"; return; }
  [ ! -d "$T_DIR/$T_JOB.lock" ] || exit 75
  t_fail "the pod's folder $T_DIR cannot be written on this machine"
}
t_address() { for t_ip in $(hostname -I 2>/dev/null); do case $t_ip in *:* | 169.254.* | 22[4-9].* | 23[0-9].*) ;; *) t_put "$T_JOB.address" "$t_ip"; break ;; esac; done; }
t_sweep() {
  command -v flock >/dev/null || return 0
  for t_old in "${T_WORK%/*}"/tarbet-*/.alive; do
    [ -f "$t_old" ] && [ -O "$t_old" ] && [ ! -L "${t_old%/.alive}" ] && [ -n "$(find "$t_old" -mmin +1 2>/dev/null)" ] || continue
    ( flock -n 8 && rm -rf -- "${t_old%/.alive}" ) 8<"$t_old"
  done
}
t_alive() { exec 9>"$T_WORK/.alive" && ! command -v flock >/dev/null || flock -n 9; }
t_once() { [ -e "$1" ] || "${@:2}" || { rm -f -- "$1"; return 1; }; }
t_wait() { while :; do wait "$1"; T_CODE=$?; kill -0 "$1" 2>/dev/null || return 0; done; }
t_calm() { [ -z "$T_KILLER" ] || kill "$T_KILLER" 2>/dev/null; }
t_term() { t_calm; for t_pid in $T_PIDS; do kill -TERM "$t_pid" 2>/dev/null; done; (trap 'kill "$t_nap" 2>/dev/null; exit' TERM; sleep "$T_GRACE" & t_nap=$!; wait "$t_nap"; for t_pid in $T_PIDS; do kill -KILL "$t_pid" 2>/dev/null; done) & T_KILLER=$!; }
t_clean() { for t_name in $(compgen -e); do case $t_name in PATH|HOME|USER|LOGNAME|SHELL|LANG|TERM|TMPDIR|TZ) ;; *) unset "$t_name" 2>/dev/null ;; esac; done; }
t_folder() { mkdir -p -- "$T_WORK/$1" && chmod "$2" -- "$T_WORK/$1" || t_fail "cannot make the folder $1"; }
t_file() { mkdir -p -- "$T_WORK/${1%/*}" && printf "$3" "$4" >"$T_WORK/$1" && chmod "$2" -- "$T_WORK/$1" || t_fail "cannot write the file $1"; }
t_swap() { mkdir -p -- "$T_WORK/${1%/*}" && printf "$3" "$4" >"$T_WORK/${1%/*}/..new" && chmod "$2" -- "$T_WORK/${1%/*}/..new" && mv -f -- "$T_WORK/${1%/*}/..new" "$T_WORK/$1" || printf 'tarbet: cannot change the file %s\n' "$1" >&2; }
t_only() { t_in=$T_WORK/$1; shift; find "$t_in" -type f -print0 | while IFS= read -r -d '' t_path; do for t_name; do [ "$t_path" = "$t_in/$t_name" ] && continue 2; done; rm -f -- "$t_path"; done; }
t_files() { { read -r t_new <"$T_DIR/files.version"; } 2>/dev/null && [ "$t_new" != "$T_FILES" ] || return 0; T_FILES=$t_new; . "$T_DIR/files.sh"; }
t_follow() { t_files; (while sleep 1; do t_files; done) & T_FOLLOW=$!; }
t_quit() { T_STOP=1; t_term; }
t_stop() { if { read -r t_left <"$T_DIR/grace"; } 2>/dev/null && [ "$t_left" -lt "$T_GRACE" ]; then T_GRACE=$t_left; fi; t_quit; }
t_run() {
  T_STOP= t_count=0 t_pause=0 T_GRACE=$((T_GRACE > 1 ? T_GRACE - 1 : 1))
  while :; do
    : >"$T_DIR/$1.started"
    rm -f -- "$T_DIR/$1.waiting"
    trap : TERM INT
    ( trap - TERM INT; "$2" ) >"$T_DIR/$1.out" 2>&1 </dev/null 9>&- &
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
  t_keep "$1.status" "$T_CODE"
}
t_begin() { [ -z "$T_STOP" ] || { for t_pid in $T_MAINS; do t_wait "$t_pid"; done; t_leave; t_end 143; }; }
t_init() { t_begin; t_run "init-$1" "$2" "$3" & T_PIDS="$T_SIDES $!"; t_wait "$!"; T_PIDS=$T_SIDES; read -r T_CODE <"$T_DIR/init-$1.status" || T_CODE=137; [ "$T_CODE" = 0 ] || { t_put init.failed "$T_CODE"; t_leave; t_end "$T_CODE"; }; }
t_side() { t_begin; t_run "init-$1" "$2" Always & T_SIDES="$T_SIDES $!"; T_PIDS=$T_SIDES; while [ ! -e "$T_DIR/init-$1.started" ]; do sleep 0.1; done; }
t_leave() { [ -z "$T_SIDES" ] || { T_PIDS=$T_SIDES; t_term; for t_pid in $T_SIDES; do t_wait "$t_pid"; done; }; }
t_main() { t_begin; t_run "run-$1" "$2" "$3" & T_PIDS="$T_PIDS $!" T_MAINS="$T_MAINS $!"; }
t_ready() { while [ ! -e "$T_DIR/init.done" ]; do [ ! -e "$T_DIR/init.failed" ] && [ -d "$T_DIR" ] && [ -z "$T_STOP" ] || t_end 125; sleep 1; done; }
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
    out.push_str(&config.work(&share.job_name(&plan.id.uid)));
    let _ = writeln!(
        out,
        "T_JOB={stem} T_PIDS= T_SIDES= T_MAINS= T_SSH= T_KILLER= T_STOP= T_FOLLOW= T_FILES=0 T_GRACE={}",
        config.kill_wait.as_secs().max(1)
    );
    out.push_str(FUNCTIONS);
    out.push_str("# Whoever makes this folder runs the pod; a second job of the same pod does not.\n");
    out.push_str("t_claim\nt_put \"$T_JOB.pid\" \"$$\"\ntrap t_quit TERM INT\n");
    if config.runtime.shares_network() {
        out.push_str("t_address\n");
    }
    if !config.prefix.trim().is_empty() {
        let _ = writeln!(out, "{}", config.prefix.trim_end());
    }
    if let Some(tsocks) = &config.tsocks {
        out.push_str(&tsocks.lines(share));
    }
    let older = plan.annotations.get("job.vk.io/pre-exec");
    let before = plan.annotations.get("slurm-job.vk.io/pre-exec").or(older);
    // Only here if the host's policy names the annotations.
    for lines in plan.annotations.get("interlink.eu/wstunnel-client-commands").into_iter().chain(before) {
        let _ = writeln!(out, "{}", lines.trim_end());
    }
    if !config.shared {
        out.push_str("t_sweep\nrm -rf -- \"$T_WORK\"; mkdir -m 700 -- \"$T_WORK\" && t_alive || t_fail 'cannot make the folder of volumes'\n");
        carry(plan, &mut out);
        if follows(plan) {
            out.push_str("t_follow\n");
        }
    }
    let mut after = Vec::new();
    for (at, container) in plan.all().enumerate().filter(|(at, _)| share.runs(plan, *at)) {
        let launch = config.runtime.launch(plan, container, &config.site(share))?;
        after.extend(launch.after.iter().map(|words| line(words)));
        let _ = writeln!(out, "t_ctn_{at}() {{");
        for line in runtime::lines(&launch) {
            let _ = writeln!(out, "  {line}");
        }
        out.push_str("}\n");
    }
    if !after.is_empty() {
        let _ = writeln!(out, "t_after() {{ {}; }} >/dev/null 2>&1", after.join("; "));
    }
    order(plan, share, &mut out);
    Ok(out)
}

impl ScriptConfig {
    /// What the commands of containers need of it.
    pub(super) fn site(&self, share: Share) -> Site<'_> {
        let proxy = self.tsocks.as_ref().map(|tsocks| tsocks.proxy(share));
        Site { image_prefix: &self.image_prefix, proxy }
    }

    /// The line that says where the volumes of a job are.
    pub(super) fn work(&self, job: &str) -> String {
        if self.shared {
            return "T_WORK=$T_DIR\n".to_owned();
        }
        format!("T_WORK=${{SLURM_TMPDIR:-${{TMPDIR:-/tmp}}}}/tarbet-{job}\n")
    }
}

impl Share {
    /// What a job of this share needs of the batch system: the pod without what others run.
    pub fn part(self, plan: &Plan) -> Plan {
        let Self::One(own) = self else { return plan.clone() };
        let mut part = plan.clone();
        part.containers = plan.containers.get(own).cloned().into_iter().collect();
        if own > 0 {
            part.init.clear();
        }
        part
    }

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

/// Slurm replaces `%x` in names of output files, and reads quotes.
fn escape_output(folder: &str, stem: &str) -> String {
    format!("\"{}/{stem}.out\"", folder.replace('%', "%%"))
}
