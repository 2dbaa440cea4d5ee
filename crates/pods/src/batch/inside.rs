//! Scripts that run beside a job: one that ends a container, one that runs a command in it.

use std::fmt::Write as _;
use std::path::Path;

use super::runtime::{self, Launch};
use super::script::{FUNCTIONS, ScriptConfig, Share};
use super::tsocks::CONF_INSIDE;
use super::word::{Word, quote};
use crate::plan::{Container, Plan, PlanError};

/// Finds the process in the container's own view of the file system, as the child of the one that
/// made it, and tries whether it can be entered. A view of another user must be entered as that one.
const FIND: &str = r#"t_in= t_way=
{ read -r t_pid <"$T_DIR/$T_STEM.pid" && read -r t_in t_more <"/proc/$t_pid/task/$t_pid/children"; } 2>/dev/null
if [ -n "$t_in" ]; then
  if [ "$(readlink /proc/self/ns/user)" = "$(readlink "/proc/$t_in/ns/user")" ]; then
    nsenter --target "$t_in" --mount --wd -- true && t_way=t_same
  else
    nsenter --target "$t_in" --user --preserve-credentials --mount --wd -- true && t_way=t_other
  fi
fi </dev/null >/dev/null 2>&1
"#;

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

/// A script that runs one command in a container: inside the running one where that is possible, else
/// as the container itself would be run. `stem` begins the names of the container's files. A command with a
/// terminal is told which kind it is, unless the container says so itself.
pub fn exec_script(
    plan: &Plan,
    (container, stem): (&Container, &str),
    (command, terminal): (&[String], bool),
    config: &ScriptConfig,
    folder: &Path,
    share: Share,
) -> Result<String, PlanError> {
    let mut out = format!("#!{}\nT_DIR={}\n", config.bash, quote(&folder.display().to_string()));
    out.push_str(&config.work(&share.job_name(&plan.id.uid)));
    let clean = FUNCTIONS.lines().find(|line| line.starts_with("t_clean")).unwrap_or_default();
    let _ = writeln!(out, "T_STEM={}\n{clean}\nrm -f -- \"$0\"", quote(stem));
    if let Some(command) = config.runtime.enter(plan, container, command, terminal) {
        let launch = Launch { command, ..Default::default() };
        out.extend(runtime::lines(&launch).into_iter().map(|line| line + "\n"));
        return Ok(out);
    }
    let mut once = Container { command: Some(command.to_vec()), args: None, ..container.clone() };
    if terminal && once.env.iter().all(|(key, _)| key != "TERM") {
        once.env.push(("TERM".into(), "xterm".into()));
    }
    let site = config.site(share);
    let mut launch = config.runtime.launch(plan, &once, &site)?;
    // The container's own preparations have been made.
    launch.before.clear();
    if launch.view {
        for (name, user) in [("t_same", &[][..]), ("t_other", &["--user", "--preserve-credentials"][..])] {
            let mut words: Vec<Word> = vec!["nsenter".into(), "--target".into(), Word::variable("t_in")];
            words.extend(user.iter().map(|word| Word::from(*word)));
            words.extend(["--mount", "--wd", "--"].map(Word::from));
            let proxied = runtime::proxied(site.proxy_for(container), CONF_INSIDE.into());
            words.extend(proxied.first().map(|_| Word::from("env")));
            words.extend(proxied.into_iter().map(|(key, value)| Word::text(format!("{key}=")).join(value)));
            words.extend(command.iter().map(|word| Word::from(word.as_str())));
            let _ = writeln!(out, "{name}() {{");
            for line in runtime::lines(&Launch { command: words, ..launch.clone() }) {
                let _ = writeln!(out, "  {line}");
            }
            out.push_str("}\n");
        }
        out.push_str(FIND);
        out.push_str("[ -z \"$t_way\" ] || \"$t_way\"\n");
    }
    out.extend(runtime::lines(&launch).into_iter().map(|line| line + "\n"));
    Ok(out)
}
