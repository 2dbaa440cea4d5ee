//! What is shipped beside the program: charts, bases, units, the installer, the page.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest, Sha256};
use tarbet_testbed::{Booted, Folder, Helm, eventually, shared_pair};

const BINARY: &str = env!("CARGO_BIN_EXE_tarbet");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn run(program: impl AsRef<std::ffi::OsStr>, args: &[&str]) -> Output {
    Command::new(program).args(args).output().unwrap()
}

/// A configuration inside a rendered ConfigMap, checked by the program that will read it.
fn understood(folder: &Folder, objects: &[Value], file: &str) {
    let map = objects.iter().find(|object| object["kind"] == "ConfigMap" && object["data"][file].is_string());
    let config = map.unwrap_or_else(|| panic!("no ConfigMap holds {file}"))["data"][file].as_str().unwrap();
    let path = folder.write(file, config).unwrap();
    let checked = run(BINARY, &["config", "check", "--config", path.to_str().unwrap()]);
    assert!(checked.status.success(), "{file}: {}\n{config}", text(&checked.stderr));
}

fn objects(yaml: &str) -> Vec<Value> {
    let documents = yaml.split("\n---").map(|one| one.trim_start_matches("---"));
    documents.filter_map(|one| serde_saphyr::from_str::<Value>(one).ok()).filter(Value::is_object).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn charts_are_sound_refuse_nonsense_and_are_taken_by_a_cluster() {
    let (helm, folder) = (Helm::alone().await.unwrap(), Folder::new("charts").unwrap());
    let charts = root().join("deploy/helm");
    let (gateway, agent) = (
        charts.join("tarbet-gateway").display().to_string(),
        charts.join("tarbet-agent").display().to_string(),
    );
    let dial = "gateways={grpcs://gateway.example.org:8150}";
    helm.run(&["lint", "--strict", &gateway]).await.unwrap();
    helm.run(&["lint", "--strict", &agent, "--set", dial]).await.unwrap();
    let drawn = objects(&helm.run(&["template", "gw", &gateway]).await.unwrap());
    understood(&folder, &drawn, "gateway.yaml");
    // Gateways speak to each other in private, and tell each other so.
    let all = serde_json::to_string(&drawn).unwrap();
    assert!(all.contains("grpcs://$(POD_IP):8155") && all.contains("gw.default.svc"), "{all}");
    assert!(drawn.iter().any(|object| object["kind"] == "PodDisruptionBudget"));
    let drawn = objects(&helm.run(&["template", "lab", &agent, "--set", dial]).await.unwrap());
    understood(&folder, &drawn, "agent.yaml");
    // The key outlives the pod: what callers have pinned stays good.
    let all = serde_json::to_string(&drawn).unwrap();
    assert!(all.contains("/etc/tarbet/secret/agent.key"), "{all}");
    placed_where_the_cluster_wants(&helm, &charts, &folder).await;
    for (chart, wrong, named) in [
        (&gateway, "replicas=0", "replicas"),
        (&gateway, "store.kind=redb", "more than one replica"),
        (&gateway, "replica=3", "replica"),
        (&agent, "gateways={ftp://x}", "gateways"),
        (&agent, "gateways={}", "gateways"),
    ] {
        let refused = helm.run(&["template", "x", chart, "--set", wrong]).await.unwrap_err().to_string();
        assert!(refused.contains(named), "{wrong}: {refused}");
    }

    let plane = &shared_pair().await.unwrap().private;
    let namespace = plane.unique_namespace("charts").await.unwrap();
    let helm = Helm::on(plane).await.unwrap();
    helm.run(&["install", "gw", &gateway, "--namespace", &namespace]).await.unwrap();
    helm.run(&["install", "lab", &agent, "--namespace", &namespace, "--set", dial]).await.unwrap();
    let kubectl = plane.kubectl();
    for object in
        ["statefulset/gw", "service/gw", "service/gw-private", "pdb/gw", "deployment/lab", "configmap/lab"]
    {
        kubectl.run(&["get", object, "--namespace", &namespace]).await.unwrap();
    }
    for release in ["gw", "lab"] {
        helm.run(&["uninstall", release, "--namespace", &namespace]).await.unwrap();
    }
    let left = kubectl
        .run(&["get", "statefulset,deployment,service", "-o", "name", "--namespace", &namespace])
        .await;
    assert_eq!(left.unwrap().trim(), "");
}

/// Every chart takes what clusters ask of any pod, and says it of each that it makes.
async fn placed_where_the_cluster_wants(helm: &Helm, charts: &Path, folder: &Folder) {
    let wanted = "imagePullSecrets: [{name: registry}]\nnodeSelector: {zone: a}\npriorityClassName: high\n\
                  tolerations: [{key: x, operator: Exists}]\naffinity: {nodeAffinity: {}}\n\
                  env: [{name: HTTPS_PROXY, value: 'http://proxy:3128'}]\npodAnnotations: {a: b}\n";
    let wanted = folder.write("wanted.yaml", wanted).unwrap().display().to_string();
    for (chart, more) in [
        ("tarbet-gateway", "secrets.redis=redis,networkPolicy.enabled=true,networkPolicy.ports={15432}"),
        ("tarbet-agent", "gateways={grpcs://gateway:8150},networkPolicy.enabled=true"),
        ("tarbet-jobs", "remotes[0].name=public,remotes[0].kubeconfigSecret=public"),
        ("tarbet-mesh", "mesh=east"),
    ] {
        let path = charts.join(chart).display().to_string();
        let words = ["template", "x", &path, "--kube-version", "1.33.0", "-f", &wanted, "--set", more];
        let drawn = objects(&helm.run(&words).await.unwrap());
        let templates = drawn.iter().filter_map(|object| object.pointer("/spec/template"));
        let mut pods = 0;
        for template in templates {
            pods += 1;
            let spec = &template["spec"];
            assert_eq!(spec["imagePullSecrets"][0]["name"], "registry", "{chart}: {spec:#}");
            assert_eq!(spec["nodeSelector"]["zone"], "a", "{chart}");
            assert_eq!(spec["priorityClassName"], "high", "{chart}");
            assert_eq!(spec["tolerations"][0]["key"], "x", "{chart}");
            assert!(spec["affinity"]["nodeAffinity"].is_object(), "{chart}");
            assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault", "{chart}");
            assert!(spec["containers"][0]["resources"]["limits"]["memory"].is_string(), "{chart}");
        }
        assert!(pods > 0, "{chart} has no pods");
        let all = serde_json::to_string(&drawn).unwrap();
        assert!(all.contains("HTTPS_PROXY") && all.contains(r#""a":"b""#), "{chart}");
        assert!(drawn.iter().any(|object| object["kind"] == "PodDisruptionBudget"), "{chart}");
        assert_eq!(all.contains("/etc/tarbet/redis/password"), chart == "tarbet-gateway");
        let fenced = drawn.iter().any(|object| object["kind"] == "NetworkPolicy");
        assert_eq!(fenced, more.contains("networkPolicy"), "{chart}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bases_are_taken_by_a_cluster_and_their_settings_by_the_program() {
    let plane = &shared_pair().await.unwrap().private;
    let (kubectl, folder) = (plane.kubectl(), Folder::new("bases").unwrap());
    for (base, namespace, file) in [
        ("gateway", "tarbet", Some("gateway.yaml")),
        ("agent", "tarbet", Some("agent.yaml")),
        ("kustomize", "vk", None),
    ] {
        // It may be there already.
        let _ = kubectl.run(&["create", "namespace", namespace]).await;
        let path = root().join("deploy").join(base).display().to_string();
        kubectl.run(&["apply", "-k", &path]).await.unwrap();
        kubectl.run(&["diff", "-k", &path]).await.unwrap();
        if let Some(file) = file {
            understood(&folder, &objects(&kubectl.run(&["kustomize", &path]).await.unwrap()), file);
        }
        kubectl.run(&["delete", "-k", &path, "--wait=false"]).await.unwrap();
    }
}

#[test]
fn units_are_sound_and_name_commands_that_exist() {
    let folder = Folder::new("units").unwrap();
    for entry in std::fs::read_dir(root().join("deploy/systemd")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "service") {
            continue;
        }
        let unit = std::fs::read_to_string(&path).unwrap();
        let start =
            unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/tarbet ")).unwrap();
        let mut words: Vec<&str> = start.split(' ').collect();
        words.push("--help");
        let help = run(BINARY, &words);
        assert!(help.status.success(), "{}: {}", path.display(), text(&help.stderr));
        let config = path.with_file_name(words[2].rsplit('/').next().unwrap());
        let checked = run(BINARY, &["config", "check", "--config", config.to_str().unwrap()]);
        assert!(checked.status.success(), "{}: {}", config.display(), text(&checked.stderr));
        // systemd's own opinion, with the program where it says.
        let here = folder
            .write(
                path.file_name().unwrap().to_str().unwrap(),
                &unit.replace("/usr/local/bin/tarbet", BINARY),
            )
            .unwrap();
        let verified = run("systemd-analyze", &["verify", here.to_str().unwrap()]);
        let said = text(&verified.stderr);
        let ours: Vec<&str> = said.lines().filter(|line| line.contains("tarbet-")).collect();
        assert!(ours.is_empty(), "{ours:?}");
    }
}

/// The lines that a guide shows below a heading and that are run here instead.
fn shown_below(heading: &str) -> String {
    let page = std::fs::read_to_string(root().join("docs/guides/operations.md")).unwrap();
    let section = page.split_once(heading).unwrap().1;
    let section = section.split_once("\n### ").map_or(section, |(section, _)| section);
    section
        .split("```sh run: units_do_on_a_booted_machine_what_the_guide_says")
        .skip(1)
        .map(|block| block.split_once('\n').unwrap().1.split_once("```").unwrap().0)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn units_do_on_a_booted_machine_what_the_guide_says() {
    let machine = Booted::start(&root()).await.unwrap();
    // What a reader has: the program, and the folder it came with.
    let (here, program) = (root().display().to_string(), Path::new(BINARY).canonicalize().unwrap());
    machine.run(&format!("ln -s {here}/deploy deploy; strip -o tarbet {}", program.display())).await.unwrap();
    // Where both sides are one machine, the authority need not be carried.
    let copied = "ln -s /var/lib/tarbet-gateway/authority/ca.crt ca.crt\n";
    let page = shown_below("### On a server\n");
    let at = page.find("deploy/install.sh --from tarbet --role agent").unwrap();
    let gateway = &page[..at];
    machine.run(gateway).await.unwrap();
    machine.run(&format!("{copied}{}", &page[at..])).await.unwrap();

    let environment: String =
        gateway.lines().filter(|line| line.starts_with("export ")).collect::<Vec<_>>().join("\n");
    let links = async |what: &str, is: fn(&Value) -> bool| {
        let script = format!("{environment}\ntarbet site list -o json");
        let look = || async {
            let sites: Value = serde_json::from_str(&machine.run(&script).await?)?;
            anyhow::ensure!(is(&sites[0]), "{sites:#}");
            anyhow::Ok(())
        };
        if let Err(error) = eventually(Duration::from_mins(1), what, look).await {
            let journal = machine.run("journalctl --no-pager -n 30 -u 'tarbet-*'").await.unwrap();
            panic!("{error:#}\n{journal}");
        }
    };
    links("the agent's link", |site| site["connected"] == true).await;

    // Neither is root, and neither can write where it reads or read what is the other's.
    for role in ["gateway", "agent"] {
        let user = machine.run(&format!("stat -c %U /proc/$(systemctl show -P MainPID tarbet-{role})")).await;
        assert_eq!(user.unwrap().trim(), format!("tarbet-{role}"));
    }
    let kept = "stat -c '%U %a' /var/lib/tarbet-agent/agent.key /var/lib/tarbet-gateway/admin.token /etc/tarbet/agent.token";
    assert_eq!(machine.run(kept).await.unwrap(), "tarbet-agent 600\ntarbet-gateway 600\nroot 640\n");

    // A token is replaced without a restart, and the agent's key stays also with one.
    let started = "systemctl show -P ExecMainStartTimestampMonotonic tarbet-agent";
    let (before, key) = (machine.run(started).await.unwrap(), "sha256sum /var/lib/tarbet-agent/agent.key");
    let first = machine.run(key).await.unwrap();
    let replace = format!(
        "{environment}\nold=$(tarbet site tokens lab -o json | sed -n 's/.*\"id\": \"\\([^\"]*\\)\".*/\\1/p')\n\
         tarbet site token lab > lab.token\ninstall -m 640 -g tarbet lab.token /etc/tarbet/agent.token\n\
         for id in $old; do tarbet site revoke lab $id; done\nsystemctl reload tarbet-agent tarbet-gateway"
    );
    machine.run(&replace).await.unwrap();
    links("a link with the new token", |site| site["connected"] == true).await;
    assert_eq!(machine.run(started).await.unwrap(), before, "it was started anew");
    machine.run("systemctl restart tarbet-agent").await.unwrap();
    links("the link of an agent that started anew", |site| site["connected"] == true).await;
    assert_eq!(machine.run(key).await.unwrap(), first);
    machine
        .run(
            "systemctl stop tarbet-agent tarbet-gateway && ! systemctl is-failed tarbet-agent tarbet-gateway",
        )
        .await
        .unwrap();
}

#[test]
fn the_installer_installs_what_it_was_given_and_nothing_else() {
    let folder = Folder::new("install").unwrap();
    let script = root().join("deploy/install.sh");
    let to = folder.path().join("bin");
    let to = to.to_str().unwrap();
    let planned = run(&script, &["--from", BINARY, "--to", to, "--plan"]);
    assert!(
        planned.status.success() && text(&planned.stdout).contains("would run"),
        "{}",
        text(&planned.stderr)
    );
    assert!(!Path::new(to).exists());
    let wrong = run(&script, &["--from", BINARY, "--to", to, "--sha256", &"0".repeat(64)]);
    assert!(!wrong.status.success() && text(&wrong.stderr).contains("nothing was installed"));
    for refused in
        [&["--from", "http://example.org/tarbet"][..], &["--from", "https://example.org/tarbet"], &[]]
    {
        let refused = run(&script, refused);
        assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
    }
    assert!(!Path::new(to).join("tarbet").exists());
    let sum = hex(&Sha256::digest(std::fs::read(BINARY).unwrap()));
    let units = folder.path().join("units");
    let done = run(&script, &["--from", BINARY, "--to", to, "--sha256", &sum]);
    assert!(done.status.success() && text(&done.stdout).contains("Next: "), "{}", text(&done.stderr));
    for name in ["tarbet", "kubectl-tarbet"] {
        assert!(run(Path::new(to).join(name), &["version"]).status.success(), "{name}");
    }
    assert!(!units.exists());
}

#[test]
fn the_tour_says_that_it_needs_root_before_anything_is_built() {
    let folder = Folder::new("demo").unwrap();
    // A checkout may lie where only its owner can look.
    let script = folder.write("demo", &std::fs::read_to_string(root().join("tools/demo")).unwrap()).unwrap();
    let asked = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "bash"])
        .stdin(std::fs::File::open(script).unwrap())
        .output()
        .unwrap();
    let said = text(&asked.stderr);
    assert_eq!(asked.status.code(), Some(2), "{said}");
    assert!(said.contains("needs root") && said.contains("sudo"), "{said}");
}

/// The compiler is one that gives what it is told: only what becomes of it is looked at.
#[test]
fn a_program_that_is_too_large_or_not_static_is_not_given_out() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new("static").unwrap();
    let compiler =
        "#!/bin/sh\nmkdir -p $CARGO_TARGET_DIR/release && cp $MADE $CARGO_TARGET_DIR/release/tarbet\n";
    let compiler = folder.write("cargo", compiler).unwrap();
    std::fs::set_permissions(&compiler, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let release = |made: &Path, words: &[&str]| {
        let mut command = Command::new(root().join("tools/static"));
        command.arg("release").args(words).env("PATH", &path).env("MADE", made);
        command.env("CARGO_TARGET_DIR", folder.path().join("target")).output().unwrap()
    };
    let small = folder.write("small", "").unwrap();
    // As an object file: it needs no library, as a static program.
    let object = "printf 'int x;' | cc -x c -c -o \"$0\" -";
    assert!(Command::new("sh").args(["-c", object]).arg(&small).status().unwrap().success());
    let large = folder.path().join("large");
    std::fs::copy(&small, &large).unwrap();
    std::fs::File::options().append(true).open(&large).unwrap().set_len(30_000_001).unwrap();
    let given = release(&small, &[]);
    assert!(given.status.success() && text(&given.stdout).contains("release/tarbet"), "{given:?}");
    let refused = release(&large, &[]);
    assert!(!refused.status.success() && text(&refused.stderr).contains("more than 30000000"), "{refused:?}");
    assert!(release(&large, &["-C", "strip=none"]).status.success(), "names are asked for");
    let refused = release(Path::new(BINARY), &["-C", "strip=none"]);
    assert!(!refused.status.success() && text(&refused.stderr).contains("not static"), "{refused:?}");
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Computed as web/build.mjs does.
#[test]
fn the_embedded_page_is_built_from_the_sources_beside_it() {
    let web = root().join("web");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(web.join("src")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.push(web.join("package-lock.json"));
    files.push(web.join("build.mjs"));
    let mut hash = Sha256::new();
    for file in files {
        hash.update(file.file_name().unwrap().to_str().unwrap());
        hash.update([0]);
        hash.update(std::fs::read(&file).unwrap());
        hash.update([0]);
    }
    let built = std::fs::read_to_string(root().join("crates/console/dist/sources.sha256")).unwrap();
    assert_eq!(built.trim(), hex(&hash.finalize()), "the page is stale: cd web && npm ci && npm run build");
}
