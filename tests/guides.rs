//! The guides are true: their commands run as they stand there, and say what is written below them.
//!
//! A block ```` ```console ```` holds commands after `$ ` and, below each, lines that its output must
//! contain; `…` stands for anything. A block ```` ```yaml ```` whose first line is a comment with a
//! name is a file. All commands of a guide share one shell.

use std::fmt::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tarbet_testbed::{Folder, Helm, Lease, shared_pair};
use tokio::process::Command;

use crate::jobs::private_with_tekton;

const LIMIT: Duration = Duration::from_mins(5);
const MARK: &str = "@@ command";

/// A command with what must be seen of it.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    command: String,
    output: Vec<String>,
}

/// The commands and the files of a guide.
fn read(page: &str) -> (Vec<Shown>, Vec<(String, String)>) {
    let (mut commands, mut files): (Vec<Shown>, Vec<(String, String)>) = (vec![], vec![]);
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(kind) = line.strip_prefix("```") else { continue };
        let block: Vec<&str> = lines.by_ref().take_while(|line| !line.starts_with("```")).collect();
        if kind == "yaml"
            && let Some(name) = block.first().and_then(|first| first.strip_prefix("# "))
            && Path::new(name).extension().is_some_and(|kind| kind == "yaml")
        {
            files.push((name.to_owned(), block.join("\n") + "\n"));
        }
        if kind != "console" {
            continue;
        }
        let mut continued = false;
        for line in block {
            match (line.strip_prefix("$ "), commands.last_mut()) {
                (Some(command), _) => commands.push(Shown { command: command.to_owned(), output: vec![] }),
                (None, Some(last)) if continued => write!(last.command, "\n{line}").unwrap(),
                (None, Some(last)) => last.output.push(line.to_owned()),
                (None, None) => panic!("output without a command: {line}"),
            }
            continued = line.ends_with('\\');
        }
    }
    (commands, files)
}

/// Whether the text contains the line, words apart by any space, `…` standing for anything.
fn contains(text: &str, wanted: &str) -> bool {
    let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let wanted = squeeze(wanted);
    text.lines().map(squeeze).any(|line| {
        let mut rest = line.as_str();
        wanted.split('…').all(|part| match rest.find(part) {
            Some(at) => {
                rest = &rest[at + part.len()..];
                true
            }
            None => false,
        })
    })
}

/// Runs a guide in this folder. `programs` are put on the path by name.
async fn follow(guide: &str, folder: &Path, programs: &[(&str, String)], environment: &[(&str, String)]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/guides").join(guide)).unwrap();
    let (commands, files) = read(&page);
    assert!(!commands.is_empty(), "{guide} has no commands");
    symlink(std::fs::canonicalize(root.join("deploy")).unwrap(), folder.join("deploy")).unwrap();
    for (name, text) in files {
        std::fs::write(folder.join(name), text).unwrap();
    }
    let bin = folder.join("bin");
    std::fs::create_dir(&bin).unwrap();
    for (name, start) in programs {
        let file = bin.join(name);
        std::fs::write(&file, format!("#!/bin/sh\nexec {start} \"$@\"\n")).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
    }
    // What the guide leaves running ends with its shell.
    let mut script = String::from("set -e\ntrap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n");
    for (index, shown) in commands.iter().enumerate() {
        writeln!(script, "echo '{MARK} {index}'\n{}", shown.command).unwrap();
    }
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("bash");
    shell.arg("-c").arg(format!("exec 2>&1\n{script}")).current_dir(folder).env("PATH", path);
    shell.envs(environment.iter().map(|(name, value)| (*name, value)));
    shell.stdin(Stdio::null()).kill_on_drop(true);
    let output =
        tokio::time::timeout(LIMIT, shell.output()).await.expect("the guide takes too long").unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{guide} ended with {}:\n{said}", output.status);
    for (index, Shown { command, output }) in commands.iter().enumerate() {
        let mark = format!("{MARK} {index}\n");
        let part = said.split_once(&mark).map(|(_, rest)| rest).unwrap_or_default();
        let part = part.split(MARK).next().unwrap_or_default();
        for line in output {
            assert!(contains(part, line), "`{command}` does not say\n{line}\nbut\n{part}");
        }
    }
}

fn wrapper(program: &Path, first: &str) -> String {
    format!("'{}' {first}", program.display()).trim_end().to_owned()
}

#[test]
fn commands_files_and_expectations_are_told_apart() {
    let page = "text\n```yaml\n# a.yaml\nx: 1\n```\n```yaml\nno: file\n```\n```console\n$ one \\\n  more\nout…put\n$ two\n```\n```\nignored\n```\n";
    let (commands, files) = read(page);
    let shown = |command: &str, output: &[&str]| Shown {
        command: command.to_owned(),
        output: output.iter().map(|line| (*line).to_owned()).collect(),
    };
    assert_eq!(commands, [shown("one \\\n  more", &["out…put"]), shown("two", &[])]);
    assert_eq!(files, [("a.yaml".to_owned(), "# a.yaml\nx: 1\n".to_owned())]);
    assert!(contains("say   out and put\n", "out…put") && !contains("put out", "out…put"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guide_to_jobs_is_true() {
    let private = private_with_tekton().await;
    // The guide's controller answers every request of its public cluster, so it has one of its own.
    let public = shared_pair().await.unwrap().public.beside("guide").await.unwrap();
    let (folder, ports) = (Folder::new("guide").unwrap(), Lease::block(1).unwrap());
    for (plane, name) in [(private, "private.kubeconfig"), (&public, "public.kubeconfig")] {
        std::fs::copy(plane.kubeconfig(), folder.path().join(name)).unwrap();
    }
    let kubectl = wrapper(private.kubectl().program(), "kubectl");
    let helm = wrapper(Helm::alone().await.unwrap().program(), "");
    let tarbet = wrapper(&PathBuf::from(env!("CARGO_BIN_EXE_tarbet")), "");
    let programs = [("kubectl", kubectl), ("helm", helm), ("tarbet", tarbet)];
    let environment = [
        ("HOME", folder.path().display().to_string()),
        ("TARBET__OBSERVABILITY__LISTEN", format!("127.0.0.1:{}", ports.port(0))),
    ];
    follow("jobs.md", folder.path(), &programs, &environment).await;
}
