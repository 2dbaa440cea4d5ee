//! The script of a pod says exactly what the pod says, and nothing of the pod is ever run by it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;
use tarbet_pods::batch::inside::exec_script;
use tarbet_pods::batch::runtime::Runtime;
use tarbet_pods::batch::script::{ScriptConfig, Share, script};
use tarbet_pods::batch::tsocks::Tsocks;
use tarbet_pods::plan::{Plan, Policy, plan};
use tarbet_pods::slurm::flags::{FlagConfig, Flavor, flags};
use tarbet_pods::wire::{RetrievedPod, read};

use super::pods::{effort, with};

const UID: &str = "cf9e6237-0c5f-47c2-a6d8-912b12f93a20";

fn config(runtime: Runtime, shared: bool) -> ScriptConfig {
    ScriptConfig {
        bash: "/bin/bash".into(),
        prefix: String::new(),
        runtime,
        image_prefix: "docker://".into(),
        shared,
        tsocks: None,
        kill_wait: Duration::from_secs(25),
    }
}

fn singularity(path: &Path) -> Runtime {
    let options = ["--nv", "--no-eval", "--containall"].map(str::to_owned).to_vec();
    Runtime::Singularity { path: path.display().to_string(), options }
}

fn sample() -> Plan {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples/api-to-plugin-create.json");
    let text = fs::read_to_string(path).unwrap();
    let body = &text[text.find("\n{\n \"pod\"").unwrap()..];
    let mut pod: RetrievedPod = read(body.as_bytes(), "a pod").unwrap();
    pod.pod.metadata.uid = Some(UID.into());
    plan(&pod, &Policy::default()).unwrap()
}

fn written(plan: &Plan, config: &ScriptConfig) -> String {
    let flavors = [(
        "small".to_owned(),
        Flavor { slurm_flags: vec!["--partition=debug".into()], ..Default::default() },
    )];
    let flag_config =
        FlagConfig { flavors: flavors.into(), default_flavor: "small".into(), default_uid: None };
    let flags = flags(plan, plan, &flag_config, &Policy::default()).unwrap();
    script(plan, config, Path::new("/data/pods/default-uid"), &flags).unwrap()
}

/// The part that differs between scripts.
fn own(script: &str) -> String {
    let functions = script.find("t_put()").unwrap();
    let rest = script.find("# Whoever").unwrap();
    format!("{}...\n{}", &script[..functions], &script[rest..])
}

#[test]
fn the_recorded_pod_for_singularity() {
    let mut config = config(singularity(Path::new("singularity")), false);
    config.prefix = "module load singularity".into();
    insta::assert_snapshot!(own(&written(&sample(), &config)));
}

#[test]
fn the_recorded_pod_for_podman_on_a_shared_file_system_through_tsocks() {
    let mut config = config(Runtime::Podman { path: "podman".into(), options: vec![] }, true);
    config.tsocks = Some(Tsocks { library: "/usr/lib/libtsocks.so".into(), login_node: "login01".into() });
    insta::assert_snapshot!(own(&written(&sample(), &config)));
}

#[test]
fn the_recorded_pod_for_enroot_and_for_processes() {
    let enroot = Runtime::Enroot { path: "enroot".into(), options: vec!["--root".into()] };
    let process = Runtime::Process { bwrap: "/usr/bin/bwrap".into() };
    let tail = |script: &str| script[script.find("t_ctn_0()").unwrap()..].to_owned();
    let both = [enroot, process].map(|runtime| tail(&written(&sample(), &config(runtime, false))));
    insta::assert_snapshot!(both.join("----\n"));
}

/// Takes the place of singularity: writes down its arguments, its variables and what is bound.
const RECORDER: &str = r#"#!/bin/bash
mkdir -p "$REC_OUT"
printf '%s\0' "$@" >"$REC_OUT/arguments"
env -0 >"$REC_OUT/variables"
n=0
while [ $# -gt 0 ]; do
  if [ "$1" = --bind ]; then shift; cp -a -- "${1%:*:*}" "$REC_OUT/bind-$n"; n=$((n + 1)); fi
  shift
done
"#;

/// Text that a careless script would run, split or swallow.
fn nasty(canary: &Path) -> impl Strategy<Value = String> + use<> {
    let touch = format!("touch {}", canary.display());
    prop_oneof![
        Just(format!("$({touch})")),
        Just(format!("`{touch}`")),
        Just(format!("'; {touch}; '")),
        Just(format!("\"; {touch}; \"")),
        Just(format!("\n{touch}\n")),
        Just(format!("\\'; {touch} #")),
        Just(format!("' || {touch} && echo '")),
        Just(format!("${{x:-$({touch})}}")),
        Just(format!("EOF\n{touch}\n")),
        Just(format!("#SBATCH --wrap='{touch}'\n")),
        Just("-n -e --help -- * ? [a] ~ ! {a,b} & | < > %s %b \\0101".to_owned()),
        "[^\\x00]{0,30}",
        Just(String::new()),
    ]
}

#[derive(Debug)]
struct Case {
    command: Vec<String>,
    args: Vec<String>,
    env: BTreeMap<String, String>,
    image: String,
    files: BTreeMap<String, String>,
    target: String,
    /// Words that become options of sbatch, quoted as a person would.
    comment: String,
    root: Option<String>,
}

fn case(canary: &Path) -> impl Strategy<Value = Case> + use<> {
    let words = |least: usize| proptest::collection::vec(nasty(canary), least..4);
    let name = prop_oneof![4 => "[A-Z_][A-Z0-9_]{0,8}", 1 => "[a-z]{1,4}[.-][a-z$`']{1,6}"];
    let file = nasty(canary)
        .prop_map(|text| text.replace(['/', '\n'], "_"))
        .prop_filter("a name", |name| tarbet_pods::plan::RelPath::new(name.clone()).is_ok());
    let target = nasty(canary)
        .prop_map(|text| format!("/mnt/x{}", text.replace([':', ',', '"', '\\', '\n', '/'], "_")));
    let target = target.prop_filter("a place", |text| tarbet_pods::plan::path::mount_target(text).is_ok());
    let image = nasty(canary).prop_map(|text| format!("img{}", text.replace(char::is_whitespace, "")));
    let image = image.prop_filter("an image", |text| !text.contains(char::is_control));
    (
        words(1),
        words(0),
        proptest::collection::btree_map(name, nasty(canary), 0..4),
        image,
        proptest::collection::btree_map(file, nasty(canary), 0..3),
        target,
        nasty(canary),
        proptest::option::of(nasty(canary).prop_map(|text| format!("/root{}", text.replace(is_gap, "")))),
    )
        .prop_map(|(command, args, env, image, files, target, comment, root)| Case {
            command,
            args,
            env,
            image,
            files,
            target,
            comment,
            root,
        })
}

fn is_gap(c: char) -> bool {
    c.is_whitespace() || c.is_control()
}

/// The options of a pod that wants this comment, in three ways of quoting; `None` if it is refused.
fn commented(case: &Case, notes: &mut serde_json::Map<String, serde_json::Value>) -> Option<Vec<String>> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_.,:/@%+=*|&()[]!- ".contains(c);
    let quoted = format!("--comment='{}' -J 'x y'", case.comment.replace('\'', r"'\''"));
    let text =
        if case.comment.len().is_multiple_of(2) { quoted } else { format!("--comment={}", case.comment) };
    let bare = serde_json::json!({"containers": [{"name": "main", "image": "x", "command": ["x"]}]});
    let with_note = with(bare, json!([]), json!({"annotations": {"slurm-job.vk.io/flags": text}}));
    let plan = plan(&with_note, &Policy::default()).unwrap();
    let made = flags(&plan, &plan, &FlagConfig::default(), &Policy::default()).ok()?;
    for flag in &made {
        assert!(flag.starts_with("--") && !flag.contains(is_line), "{flag:?}");
        let value = flag.split_once('=').map_or("", |(_, value)| value);
        let value = value.strip_prefix('"').and_then(|v| v.strip_suffix('"')).unwrap_or(value);
        assert!(value.chars().all(plain), "{flag:?}");
    }
    notes.insert("slurm-job.vk.io/flags".into(), text.into());
    Some(made)
}

fn is_line(c: char) -> bool {
    c.is_control()
}

#[test]
fn a_real_shell_gives_the_container_exactly_what_the_pod_says() {
    let folder = tempfile::tempdir().unwrap();
    let canary = folder.path().join("canary");
    let recorder = folder.path().join("recorder");
    fs::write(&recorder, RECORDER).unwrap();
    fs::set_permissions(&recorder, fs::Permissions::from_mode(0o755)).unwrap();
    let cases = Config { cases: effort(100), failure_persistence: None, ..Config::default() };
    let run = TestRunner::new(cases).run(&case(&canary), |case| {
        check(&case, folder.path(), &recorder);
        prop_assert!(!canary.exists(), "the canary was touched");
        Ok(())
    });
    run.unwrap();
    tarbet_testbed::verified(
        "generated pods: the shell gives the container what the pod says, and runs nothing else",
        usize::try_from(effort(100)).unwrap(),
    );
}

fn check(case: &Case, folder: &Path, recorder: &Path) {
    // Kubernetes' own `$(NAME)` in commands is not what is tested here.
    let literal = |text: &String| text.replace('$', "$$");
    let env: Vec<_> = case.env.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    let spec = json!({
        "volumes": [{"name": "v", "configMap": {"name": "cm"}}],
        "containers": [{
            "name": "main", "image": case.image, "env": env,
            "command": case.command.iter().map(literal).collect::<Vec<_>>(),
            "args": case.args.iter().map(literal).collect::<Vec<_>>(),
            "volumeMounts": [{"name": "v", "mountPath": case.target}],
        }],
    });
    let data = json!([{"name": "main", "configMaps": [{"metadata": {"name": "cm"}, "data": case.files}]}]);
    let mut notes = serde_json::Map::new();
    let options = commented(case, &mut notes).unwrap_or_default();
    if let Some(root) = &case.root {
        notes.insert("slurm-job.vk.io/image-root".into(), root.as_str().into());
    }
    let plan = plan(&with(spec, data, json!({"annotations": notes})), &Policy::default()).unwrap();
    let (home, out) = (folder.join(&plan.id.uid), folder.join("out"));
    fs::create_dir(&home).unwrap();
    let _ = fs::remove_dir_all(&out);
    let text = script(&plan, &config(singularity(recorder), false), &home, &options).unwrap();
    fs::write(home.join("job.sh"), &text).unwrap();
    fs::write(home.join("pod.json"), "{}").unwrap();
    let status = Command::new("/bin/bash")
        .arg(home.join("job.sh"))
        .env("REC_OUT", &out)
        .env("TMPDIR", folder)
        .status();
    assert!(status.unwrap().success(), "{text}");

    let arguments = fs::read(out.join("arguments")).unwrap_or_else(|_| panic!("{text}"));
    let bind = format!("{}/tarbet-{}/configMaps/cm:{}:ro", folder.display(), plan.id.uid, case.target);
    let mut wanted: Vec<&str> = vec!["exec", "--nv", "--no-eval", "--containall", "--bind", &bind];
    let slash = |root: &String| if root.ends_with('/') { root.clone() } else { format!("{root}/") };
    let root = case.root.as_ref().map_or_else(|| "docker://".to_owned(), slash);
    let image = format!("{root}{}", case.image);
    wanted.push(if case.image.contains("://") { &case.image } else { &image });
    wanted.extend(case.command.iter().chain(&case.args).map(String::as_str));
    let wanted: Vec<u8> = wanted.into_iter().flat_map(|word| [word.as_bytes(), &[0]].concat()).collect();
    assert_eq!(String::from_utf8_lossy(&arguments), String::from_utf8_lossy(&wanted));

    let variables = fs::read(out.join("variables")).unwrap();
    let variables: Vec<&[u8]> = variables.split(|byte| *byte == 0).collect();
    for (name, value) in &case.env {
        let line = format!("SINGULARITYENV_{name}={value}");
        assert!(variables.contains(&line.as_bytes()), "{line}");
    }
    for (name, content) in &case.files {
        assert_eq!(&fs::read_to_string(out.join("bind-0").join(name)).unwrap(), content);
    }
    let count = fs::read_dir(out.join("bind-0")).unwrap().count();
    assert_eq!(count, case.files.len());
    let left: PathBuf = folder.join(format!("tarbet-{}", plan.id.uid));
    assert!(!left.exists(), "volumes do not outlive the job");
    fs::remove_dir_all(home).unwrap();
}

#[test]
fn an_image_root_of_the_pod_goes_before_that_of_the_site() {
    let image = |image: &str, root: &str| {
        let spec = json!({"containers": [{"name": "main", "image": image, "command": ["x"]}]});
        let notes = json!({"annotations": {"slurm-job.vk.io/image-root": root}});
        let plan = plan(&with(spec, json!([]), notes), &Policy::default()).unwrap();
        script(&plan, &config(singularity(Path::new("singularity")), false), Path::new("/data"), &[])
    };
    assert!(image("alpine:3", "/cvmfs/images").unwrap().contains("'/cvmfs/images/alpine:3' 'x'"));
    assert!(image("alpine:3", "oras://site/").unwrap().contains("'oras://site/alpine:3' 'x'"));
    assert!(image("/own.sif", "/cvmfs").unwrap().contains("'/own.sif' 'x'"));
    assert!(image("alpine:3", "").unwrap().contains("'docker://alpine:3' 'x'"));
    for odd in ["--writable", "a b", "a\nb"] {
        assert!(image("alpine:3", odd).is_err(), "{odd}");
    }
}

#[test]
fn an_image_without_a_place_comes_from_dockers_registry() {
    let line = |runtime: Runtime, image: &str| {
        let spec = json!({"containers": [{"name": "main", "image": image, "command": ["x"]}]});
        let plan = plan(&with(spec, json!([]), json!({})), &Policy::default()).unwrap();
        let config = ScriptConfig { image_prefix: String::new(), ..config(runtime, false) };
        script(&plan, &config, Path::new("/data"), &[]).unwrap()
    };
    let in_singularity = |image: &str| line(singularity(Path::new("singularity")), image);
    assert!(in_singularity("busybox:1.36").contains("'docker://busybox:1.36' 'x'"));
    for image in ["/images/a.sif", "a.sif", "./folder", "oras://site/a"] {
        assert!(in_singularity(image).contains(&format!(" '{image}' 'x'")), "{image}");
    }
    let in_enroot = |image: &str| line(Runtime::Enroot { path: "enroot".into(), options: vec![] }, image);
    assert!(in_enroot("busybox").contains("'docker://busybox' ||"));
    assert!(in_enroot("localhost:5000/a/b:2").contains("'docker://localhost:5000#a/b:2' ||"));
    let file = in_enroot("/images/a.sqsh");
    assert!(file.contains("'/images/a.sqsh' ||") && !file.contains("'import'"), "{file}");
    let in_podman = line(Runtime::Podman { path: "podman".into(), options: vec![] }, "busybox");
    assert!(in_podman.contains("'busybox'"), "podman looks in registries by itself");
}

#[test]
fn singularity_gets_the_way_through_the_login_node_into_the_container() {
    let mut config = config(singularity(Path::new("singularity")), true);
    config.tsocks = Some(Tsocks { library: "/usr/lib/libtsocks.so".into(), login_node: "login01".into() });
    let text = written(&sample(), &config);
    for wanted in [
        "export SINGULARITYENV_LD_PRELOAD='/usr/lib/libtsocks.so'",
        "export APPTAINERENV_TSOCKS_CONF_FILE='/run/tarbet-tsocks.conf'",
        "'--bind' '/usr/lib/libtsocks.so:/usr/lib/libtsocks.so:ro'",
        "'--bind' \"$T_DIR\"'/job.tsocks.conf:/run/tarbet-tsocks.conf:ro'",
    ] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
}

#[test]
fn commands_go_into_the_running_container_of_podman() {
    let plan = sample();
    let config = config(Runtime::Podman { path: "podman".into(), options: vec![] }, false);
    let words = ["sh".to_owned(), "-c".to_owned(), "it's $HOME".to_owned()];
    let main = (&plan.containers[0], "run-main");
    for (terminal, more) in [(false, ""), (true, " '--tty'")] {
        let command = (&words[..], terminal);
        let text = exec_script(&plan, main, command, &config, Path::new("/data/pod"), Share::Whole).unwrap();
        let last =
            format!("exec 'podman' 'exec' '--interactive'{more} 'main-{UID}' 'sh' '-c' 'it'\\''s $HOME'\n");
        assert!(text.ends_with(&last), "{text}");
    }
}

#[test]
fn a_job_without_its_pod_does_nothing_and_tells_apart_why() {
    let root = tempfile::tempdir().unwrap();
    let home = root.path().join("tests-pod");
    let ran = root.path().join("ran");
    let line = format!("touch {}", ran.display());
    let spec = json!({"containers": [{"name": "main", "image": "i", "command": ["sh", "-c", line]}]});
    let plan = plan(&with(spec, json!([]), json!({})), &Policy::default()).unwrap();
    let config = config(Runtime::Process { bwrap: "bwrap".into() }, false);
    let path = root.path().join("job.sh");
    fs::write(&path, script(&plan, &config, &home, &[]).unwrap()).unwrap();
    let run = || Command::new("/bin/bash").arg(&path).env("TMPDIR", root.path()).status().unwrap().code();
    assert_eq!(run(), Some(76), "nothing of the data root is here");
    // Slurm makes the folder of a job's output by itself.
    fs::create_dir(&home).unwrap();
    fs::write(home.join("job.out"), "").unwrap();
    fs::create_dir(root.path().join(".deleted")).unwrap();
    assert_eq!(run(), Some(75), "the pod was removed");
    assert!(!home.exists(), "nothing is left of it");
    fs::create_dir_all(home.join("job.lock")).unwrap();
    fs::write(home.join("pod.json"), "{}").unwrap();
    assert_eq!(run(), Some(75), "another job runs it");
    assert!(!ran.exists());
    fs::remove_dir(home.join("job.lock")).unwrap();
    fs::write(home.join("job.failed"), "Slurm refused to take the job\n").unwrap();
    assert_eq!(run(), Some(75), "the pod was given up");
    assert!(!ran.exists() && !home.join("job.lock").exists());
    fs::remove_file(home.join("job.failed")).unwrap();
    assert_eq!(run(), Some(0));
    assert!(ran.exists());
}

#[test]
fn a_job_that_is_told_to_end_kills_the_rest_in_the_pods_grace_and_cleans_up() {
    let root = tempfile::tempdir().unwrap();
    let home = root.path().join("tests-pod");
    let line = "trap '' TERM; echo ready; while :; do sleep 0.1; done";
    let spec = json!({"containers": [{"name": "main", "image": "i", "command": ["sh", "-c", line]}]});
    let plan = plan(&with(spec, json!([]), json!({})), &Policy::default()).unwrap();
    // Nobody would wait for that: only the pod's own grace can end it.
    let mut config = config(Runtime::Process { bwrap: "bwrap".into() }, false);
    config.kill_wait = Duration::from_hours(1);
    fs::create_dir(&home).unwrap();
    fs::write(home.join("pod.json"), "{}").unwrap();
    fs::write(home.join("job.sh"), script(&plan, &config, &home, &[]).unwrap()).unwrap();
    // Whatever the job leaves behind holds this open.
    let (mut left, held) = std::io::pipe().unwrap();
    let mut job = Command::new("/bin/bash")
        .arg(home.join("job.sh"))
        .env("TMPDIR", root.path())
        .stdout(held.try_clone().unwrap())
        .stderr(held)
        .spawn()
        .unwrap();
    while fs::read_to_string(home.join("run-main.out")).unwrap_or_default() != "ready\n" {
        assert!(job.try_wait().unwrap().is_none(), "it goes on");
        std::thread::yield_now();
    }
    fs::write(home.join("grace"), "0\n").unwrap();
    let pid = rustix::process::Pid::from_child(&job);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(job.wait().unwrap().code(), Some(137));
    assert_eq!(fs::read_to_string(home.join("run-main.status")).unwrap(), "137\n");
    assert!(!root.path().join(format!("tarbet-{}", plan.id.uid)).exists());
    std::io::Read::read_to_end(&mut left, &mut Vec::new()).unwrap();
}

#[test]
fn raw_options_that_policy_names_become_words_and_nothing_else() {
    let notes = json!({"annotations": {
        "slurm-job.vk.io/singularity-mounts": "--bind /a:/b",
        "slurm-job.vk.io/singularity-options": "--env 'A=$(touch /tmp/x) y'",
        "interlink.eu/wstunnel-client-commands": "wstunnel client ws://x &",
        "slurm-job.vk.io/mpi-flags": "mpiexec -np 4",
        "docker-options.vk.io/flags": "--privileged",
        "interlink.eu/wireguard-client-snippet": "wg",
    }});
    let spec = json!({"containers": [{"name": "main", "image": "i", "command": ["x"]}]});
    let pod = with(spec, json!([]), notes);
    assert!(plan(&pod, &Policy::default()).is_err());
    let keys = [
        "slurm-job.vk.io/singularity-mounts",
        "slurm-job.vk.io/singularity-options",
        "interlink.eu/wstunnel-client-commands",
    ];
    let policy = Policy { allowed_annotations: keys.map(str::to_owned).to_vec(), ..Default::default() };
    let plan = plan(&pod, &policy).unwrap();
    assert_eq!(plan.left_out.len(), 3, "{:?}", plan.left_out);
    let text = script(&plan, &config(singularity(Path::new("s")), false), Path::new("/data"), &[]).unwrap();
    assert!(
        text.contains("'--containall' '--bind' '/a:/b' '--env' 'A=$(touch /tmp/x) y' 'docker://i'"),
        "{text}"
    );
    assert!(text.contains("\nwstunnel client ws://x &\n"));
    assert!(!text.contains("mpiexec") && !text.contains("--privileged"));
}
