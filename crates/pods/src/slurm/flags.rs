//! Options of sbatch: from a flavour, from the pod's annotation, from its limits; the last wins.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::batch::split;
use crate::plan::{Limits, Plan, PlanError, Policy};

/// Options that a pod may set where the host names none: they choose among what the user may
/// have anyway, and run nothing.
const HARMLESS: &[&str] = &[
    "account",
    "begin",
    "comment",
    "constraint",
    "cpus-per-gpu",
    "cpus-per-task",
    "deadline",
    "distribution",
    "exclude",
    "exclusive",
    "gpus",
    "gpus-per-node",
    "gpus-per-task",
    "gres",
    "hint",
    "licenses",
    "mem",
    "mem-per-cpu",
    "mem-per-gpu",
    "nice",
    "nodelist",
    "nodes",
    "ntasks",
    "ntasks-per-core",
    "ntasks-per-node",
    "ntasks-per-socket",
    "partition",
    "qos",
    "reservation",
    "threads-per-core",
    "time",
    "time-min",
];

/// Options that the plugin sets itself: a job is found by its name and leaves its output in the
/// pod's folder. Whoever else sets them is not heard.
const OURS: &[&str] = &["job-name", "output", "error", "input", "parsable"];

/// sbatch's short options and their long names.
const SHORT: &[(char, &str)] = &[
    ('A', "account"),
    ('B', "extra-node-info"),
    ('C', "constraint"),
    ('D', "chdir"),
    ('F', "nodefile"),
    ('G', "gpus"),
    ('H', "hold"),
    ('I', "immediate"),
    ('J', "job-name"),
    ('L', "licenses"),
    ('M', "clusters"),
    ('N', "nodes"),
    ('O', "overcommit"),
    ('Q', "quiet"),
    ('S', "core-spec"),
    ('W', "wait"),
    ('a', "array"),
    ('b', "begin"),
    ('c', "cpus-per-task"),
    ('d', "dependency"),
    ('e', "error"),
    ('i', "input"),
    ('k', "no-kill"),
    ('m', "distribution"),
    ('n', "ntasks"),
    ('o', "output"),
    ('p', "partition"),
    ('q', "qos"),
    ('s', "oversubscribe"),
    ('t', "time"),
    ('v', "verbose"),
    ('w', "nodelist"),
    ('x', "exclude"),
];

/// A named set of options and defaults.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "PascalCase")]
pub struct Flavor {
    /// Its name, if it differs from its key.
    pub name: String,
    /// For people.
    pub description: String,
    /// Cores of pods without a limit.
    #[serde(rename = "CPUDefault")]
    pub cpu_default: Option<i64>,
    /// Memory of pods without a limit, as Kubernetes writes it.
    pub memory_default: Option<String>,
    /// The user jobs run as; needs a plugin that runs as root.
    #[serde(rename = "UID")]
    pub uid: Option<u32>,
    /// Options of sbatch.
    pub slurm_flags: Vec<String>,
}

/// How pods become options.
#[derive(Debug, Clone, Default)]
pub struct FlagConfig {
    /// By name.
    pub flavors: BTreeMap<String, Flavor>,
    /// The one of pods that name none.
    pub default_flavor: String,
    /// The user jobs run as.
    pub default_uid: Option<u32>,
}

/// One option.
type Flag = (String, Option<String>);

/// The options for a job that runs this part of a pod, ready for a script.
pub fn flags(
    plan: &Plan,
    whole: &Plan,
    config: &FlagConfig,
    policy: &Policy,
) -> Result<Vec<String>, PlanError> {
    let totals = totals(plan);
    let flavor = choose(plan, config, totals.gpus)?;
    let mut set: Vec<Flag> = Vec::new();
    for flag in flavor.iter().flat_map(|flavor| &flavor.slurm_flags) {
        // The administrator's own word; only what cannot stand on a line of the script is refused.
        parse(flag, |_| true, |c| !c.is_control() && !"\"\\".contains(c))?
            .into_iter()
            .for_each(|flag| put(&mut set, flag));
    }
    if let Some(text) = plan.annotations.get("slurm-job.vk.io/flags") {
        let allowed = |name: &str| match policy.allowed_slurm_flags.as_slice() {
            [] => HARMLESS.contains(&name),
            named => named.iter().any(|allowed| allowed.trim_start_matches('-') == name),
        };
        parse(text, allowed, plain)?.into_iter().for_each(|flag| put(&mut set, flag));
    }
    let default_cpu = flavor.and_then(|flavor| flavor.cpu_default).map(|cpus| cpus.saturating_mul(1000));
    if let Some(milli) = totals.cpu_milli.or(default_cpu.filter(|_| !has(&set, "cpus-per-task"))) {
        put(&mut set, ("cpus-per-task".into(), Some((milli.saturating_add(999) / 1000).max(1).to_string())));
    }
    let default_memory = flavor.and_then(|flavor| flavor.memory_default.as_deref());
    let default_memory = default_memory
        .and_then(crate::plan::quantity::Quantity::parse)
        .map(crate::plan::quantity::Quantity::units);
    if let Some(bytes) = totals.memory.or(default_memory.filter(|_| !has(&set, "mem"))) {
        // Slurm counts in MiB.
        put(&mut set, ("mem".into(), Some((bytes.saturating_add(0xf_ffff) >> 20).max(1).to_string())));
    }
    let asked = ["gres", "gpus", "gpus-per-node", "gpus-per-task"].iter().any(|name| has(&set, name));
    if totals.gpus > 0 && !asked {
        put(&mut set, ("gres".into(), Some(format!("gpu:{}", totals.gpus))));
    }
    // One user for all jobs of a pod: they share its folder.
    if let Some(uid) = user(whole, config, policy)? {
        put(&mut set, ("uid".into(), Some(uid.to_string())));
    }
    Ok(set.into_iter().map(written).collect())
}

/// The user that a pod's job runs as: the pod's own where the policy names it, else the flavour's,
/// else the site's.
pub fn user(plan: &Plan, config: &FlagConfig, policy: &Policy) -> Result<Option<u32>, PlanError> {
    let asked = plan.containers.iter().find_map(|container| container.security.user);
    let asked = asked.and_then(|user| u32::try_from(user).ok());
    let flavor = choose(plan, config, totals(plan).gpus)?.and_then(|flavor| flavor.uid);
    let named = asked.filter(|user| policy.allowed_users.contains(user));
    Ok(named.or(flavor).or(config.default_uid))
}

/// An option as sbatch reads it in a script: blanks and `#` need quotes there, as for a shell.
fn written((name, value): Flag) -> String {
    match value {
        None => format!("--{name}"),
        Some(value) if value.chars().any(|c| c.is_whitespace() || c == '#' || c == '\'') => {
            format!("--{name}=\"{value}\"")
        }
        Some(value) => format!("--{name}={value}"),
    }
}

/// What values of pods are made of: nothing that a shell or sbatch would read as more than itself.
fn plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_.,:/@%+=*|&()[]!- ".contains(c)
}

/// What the pod needs at once: its containers together, or an init container that needs more.
fn totals(plan: &Plan) -> Limits {
    let of = |container: &crate::plan::Container| Limits {
        cpu_milli: container.limits.cpu_milli.or(container.requests.cpu_milli),
        memory: container.limits.memory.or(container.requests.memory),
        gpus: container.limits.gpus.max(container.requests.gpus),
    };
    let sum = |a: Option<i64>, b: Option<i64>| match (a, b) {
        (None, None) => None,
        (a, b) => Some(a.unwrap_or_default().saturating_add(b.unwrap_or_default())),
    };
    let together = plan.containers.iter().map(of).fold(Limits::default(), |a, b| Limits {
        cpu_milli: sum(a.cpu_milli, b.cpu_milli),
        memory: sum(a.memory, b.memory),
        gpus: a.gpus.saturating_add(b.gpus),
    });
    plan.init.iter().map(of).fold(together, |a, b| Limits {
        cpu_milli: a.cpu_milli.max(b.cpu_milli),
        memory: a.memory.max(b.memory),
        gpus: a.gpus.max(b.gpus),
    })
}

fn choose<'a>(plan: &Plan, config: &'a FlagConfig, gpus: i64) -> Result<Option<&'a Flavor>, PlanError> {
    if let Some(name) = plan.annotations.get("slurm-job.vk.io/flavor") {
        let found = config.flavors.get(name);
        return found
            .map(Some)
            .ok_or_else(|| PlanError::Missing(format!("the flavour `{}`", name.escape_debug())));
    }
    if gpus > 0 {
        let gres =
            |flavor: &Flavor, wanted: &str| flavor.slurm_flags.iter().any(|flag| flag.contains(wanted));
        let exact = format!("gpu:{gpus}");
        let ends = |flavor: &Flavor| flavor.slurm_flags.iter().any(|flag| flag.ends_with(&exact));
        let found = config.flavors.values().find(|flavor| ends(flavor));
        if let Some(flavor) = found.or_else(|| config.flavors.values().find(|flavor| gres(flavor, "gpu"))) {
            return Ok(Some(flavor));
        }
    }
    Ok(config.flavors.get(&config.default_flavor))
}

fn has(set: &[Flag], name: &str) -> bool {
    set.iter().any(|(known, _)| known == name)
}

/// The last value wins at the place of the first.
fn put(set: &mut Vec<Flag>, (name, value): Flag) {
    match set.iter_mut().find(|(known, _)| *known == name) {
        Some((_, old)) => *old = value,
        None => set.push((name, value)),
    }
}

fn parse(
    text: &str,
    allowed: impl Fn(&str) -> bool,
    plain: impl Fn(char) -> bool,
) -> Result<Vec<Flag>, PlanError> {
    let mut flags: Vec<Flag> = Vec::new();
    let mut open = false;
    for word in split::words(text).ok_or_else(|| refused(text))? {
        if let Some(long) = word.strip_prefix("--") {
            let (name, value) =
                long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            flags.push((name.to_owned(), value.map(str::to_owned)));
            open = value.is_none();
        } else if let Some(short) = word.strip_prefix('-') {
            let mut letters = short.chars();
            let letter = letters.next().unwrap_or_default();
            let name = SHORT.iter().find(|(short, _)| *short == letter).map(|(_, name)| *name);
            let name = name.ok_or_else(|| refused(&word))?;
            let value = letters.as_str().trim_start_matches('=');
            flags.push((name.to_owned(), (!value.is_empty()).then(|| value.to_owned())));
            open = value.is_empty();
        } else if let (true, Some((_, value))) = (open, flags.last_mut()) {
            *value = Some(word);
            open = false;
        } else {
            return Err(refused(&word));
        }
    }
    flags.retain(|(name, _)| !OURS.contains(&name.as_str()));
    for (name, value) in &flags {
        let named = !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        if !named || !allowed(name) || !value.as_deref().unwrap_or_default().chars().all(&plain) {
            return Err(refused(name));
        }
    }
    Ok(flags)
}

fn refused(what: &str) -> PlanError {
    PlanError::Refused {
        what: format!("the sbatch option `{}`", what.escape_debug()),
        setting: "Policy.AllowedSlurmFlags",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Flag>, PlanError> {
        parse(text, |name| HARMLESS.contains(&name), plain)
    }

    #[test]
    fn all_forms_are_one() {
        let wanted = vec![("time".to_owned(), Some("00:10:00".to_owned()))];
        for text in [
            "--time=00:10:00",
            "--time 00:10:00",
            "-t 00:10:00",
            "-t00:10:00",
            "--time='00:10:00'",
            "-t \"00:10:00\"",
        ] {
            assert_eq!(read(text).unwrap(), wanted, "{text}");
        }
    }

    #[test]
    fn what_people_write_is_understood() {
        let some = |name: &str, value: &str| (name.to_owned(), Some(value.to_owned()));
        assert_eq!(read("--job-name=x -t 2800").unwrap(), [some("time", "2800")]);
        assert_eq!(read("-J 'my job' -o /dev/null -e x.err -p gpu").unwrap(), [some("partition", "gpu")]);
        assert_eq!(read("--constraint=\"a&b\"").unwrap(), [some("constraint", "a&b")]);
        assert_eq!(
            read("-w node[1-3] -x node2").unwrap(),
            [some("nodelist", "node[1-3]"), some("exclude", "node2")]
        );
        let comment = read("--comment='one two'").unwrap();
        assert_eq!(comment.into_iter().map(written).collect::<Vec<_>>(), ["--comment=\"one two\""]);
    }

    #[test]
    fn an_administrator_may_say_anything_that_fits_a_line() {
        let own = |text: &str| parse(text, |_| true, |c| !c.is_control() && !"\"\\".contains(c));
        let told = own("--chdir=/scratch -M other --mail-user=a@b --comment='x; $y # z'").unwrap();
        let told: Vec<String> = told.into_iter().map(written).collect();
        assert_eq!(
            told,
            ["--chdir=/scratch", "--clusters=other", "--mail-user=a@b", "--comment=\"x; $y # z\""]
        );
        assert!(own("--comment='a\nb'").is_err());
    }

    #[test]
    fn the_user_is_the_pods_where_it_is_named_else_the_flavours_else_the_sites() {
        let pod = serde_json::json!({"pod": {
            "metadata": {"name": "p", "namespace": "n", "uid": "cf9e6237-0c5f-47c2-a6d8-912b12f93a20"},
            "spec": {"securityContext": {"runAsUser": 7}, "containers": [{"name": "c", "image": "i"}]},
        }});
        let policy = |users: &[u32]| Policy { allowed_users: users.to_vec(), ..Default::default() };
        let plan = crate::plan::plan(&serde_json::from_value(pod).unwrap(), &policy(&[])).unwrap();
        let flavor = |uid| ("f".to_owned(), Flavor { uid, ..Default::default() });
        let config = |uid| FlagConfig {
            flavors: [flavor(uid)].into(),
            default_flavor: "f".into(),
            default_uid: Some(5),
        };
        assert_eq!(user(&plan, &config(None), &policy(&[])).unwrap(), Some(5));
        assert_eq!(user(&plan, &config(Some(6)), &policy(&[])).unwrap(), Some(6));
        assert_eq!(user(&plan, &config(Some(6)), &policy(&[7])).unwrap(), Some(7));
        let options = flags(&plan, &plan, &config(Some(6)), &policy(&[7])).unwrap();
        assert_eq!(options, ["--uid=7"]);
    }

    #[test]
    fn what_could_do_harm_is_refused() {
        for text in [
            "--wrap=id",
            "--uid=0",
            "--export=ALL",
            "--chdir=/",
            "-D /",
            "x",
            "--time=$(id)",
            "--time='$(id)'",
            "--time='1",
            "--comment=a\u{1}b",
            "--comment='a\nb'",
            "--comment='a\"b'",
            "--comment=a\\\\b",
            "--Time=1",
            "--",
            "--partition=a;b",
            "--partition=a#b",
            "--get-user-env",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
