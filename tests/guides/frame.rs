//! Follows a guide as a reader does: its files are written, its commands run in one shell, in order.
//!
//! A block ```` ```console ```` holds commands after `$ ` and, below each, lines that its output must
//! contain; `…` stands for anything. A line that ends in `\` goes on, and so does a here-document. A block
//! ```` ```yaml ```` or ```` ```json ```` whose first line is a comment with a name (`# a.yaml`,
//! `// a.json`) is a file. ```` ```sh run: TEST ```` is run by the test of that name, which takes the lines
//! from the page. ```` ```sh not run: REASON ```` is shown and not run; its commands must still be ones the
//! program understands, which `every_documented_command_is_understood` holds. ```` ```yaml settings ```` is a
//! piece of a configuration, ```` ```yaml spec of KIND ```` of an object: `fences.rs` tries these.

use std::fmt::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tarbet_testbed::Folder;
use tokio::process::Command;

const LIMIT: Duration = Duration::from_mins(5);
const MARK: &str = "@@ command";

/// A command with what must be seen of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) command: String,
    pub(super) output: Vec<String>,
}

/// The root of the tree.
pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The fenced blocks of a page: what follows the backquotes, and the lines.
pub(super) fn blocks(page: &str) -> Vec<(&str, Vec<&str>)> {
    let mut found = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(kind) = line.strip_prefix("```") {
            found.push((kind.trim(), lines.by_ref().take_while(|line| !line.starts_with("```")).collect()));
        }
    }
    found
}

/// The name of the file that a block is, if it is one.
pub(super) fn file_name<'a>(kind: &str, block: &[&'a str]) -> Option<&'a str> {
    let (start, end) = match kind {
        "yaml" => ("# ", "yaml"),
        "json" => ("// ", "json"),
        _ => return None,
    };
    let name = block.first()?.strip_prefix(start)?;
    Path::new(name).extension().is_some_and(|found| found == end).then_some(name)
}

/// The page with one number in the place of another, where it stands as a whole number.
fn renumbered(page: &str, from: u16, to: u16) -> String {
    let (from, digit) = (from.to_string(), |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_digit));
    let (bytes, mut whole, mut told) = (page.as_bytes(), String::new(), 0);
    for (at, found) in page.match_indices(&from) {
        let end = at + found.len();
        let before = at.checked_sub(1).and_then(|at| bytes.get(at));
        if !digit(before) && !digit(bytes.get(end)) {
            whole.push_str(&page[told..at]);
            whole.push_str(&to.to_string());
            told = end;
        }
    }
    whole.push_str(&page[told..]);
    whole
}

/// The word that ends the here-document which the line begins.
fn here_document(line: &str) -> Option<String> {
    let word = line.split_once("<<")?.1.split_whitespace().next()?;
    Some(word.trim_matches(['\'', '"', '-']).to_owned())
}

/// The commands and the files of a guide.
pub(super) fn read(page: &str) -> (Vec<Shown>, Vec<(String, String)>) {
    let (mut commands, mut files): (Vec<Shown>, Vec<(String, String)>) = (vec![], vec![]);
    for (kind, block) in blocks(page) {
        if let Some(name) = file_name(kind, &block) {
            // JSON knows no comments; YAML keeps its own.
            let skip = usize::from(kind == "json");
            files.push((name.to_owned(), block[skip..].join("\n") + "\n"));
        }
        if kind != "console" {
            continue;
        }
        let (mut continued, mut document): (bool, Option<String>) = (false, None);
        for line in block {
            match (line.strip_prefix("$ "), commands.last_mut()) {
                (_, Some(last)) if continued || document.is_some() => {
                    write!(last.command, "\n{line}").unwrap();
                }
                (Some(command), _) => commands.push(Shown { command: command.to_owned(), output: vec![] }),
                (None, Some(last)) => last.output.push(line.to_owned()),
                (None, None) => panic!("output without a command: {line}"),
            }
            document = match document {
                Some(end) if end == line => None,
                None if continued || line.starts_with("$ ") => here_document(line),
                open => open,
            };
            continued = document.is_none() && line.ends_with('\\');
        }
    }
    (commands, files)
}

/// Whether the text contains the line, words apart by any space, `…` standing for anything.
pub(super) fn contains(text: &str, wanted: &str) -> bool {
    let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let wanted = squeeze(wanted);
    text.lines().map(squeeze).any(|line| {
        let mut rest = line.as_str();
        wanted.split('…').map(str::trim).all(|part| match rest.find(part) {
            Some(at) => {
                rest = &rest[at + part.len()..];
                true
            }
            None => false,
        })
    })
}

/// A guide and the place where it is followed.
pub(super) struct Guide {
    page: &'static str,
    folder: Folder,
    programs: Vec<(&'static str, String)>,
    environment: Vec<(&'static str, String)>,
    apart: bool,
    ports: Vec<(u16, u16)>,
    before: String,
}

impl Guide {
    /// A page of docs/guides, in a folder of its own with the tree's `deploy` and `tarbet` on the path.
    pub(super) fn new(page: &'static str) -> Self {
        let folder = Folder::new("guide").unwrap();
        let home = folder.path().display().to_string();
        let tarbet = wrapper(Path::new(env!("CARGO_BIN_EXE_tarbet")), "");
        Self {
            page,
            folder,
            programs: vec![("tarbet", tarbet)],
            environment: vec![("HOME", home), ("NO_PROXY", "127.0.0.1".into())],
            apart: false,
            ports: vec![],
            before: String::new(),
        }
    }

    /// The folder in which the commands run.
    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A program that the reader has: its name, and a shell command that starts it (see [`wrapper`]).
    pub(super) fn program(mut self, name: &'static str, start: String) -> Self {
        self.programs.push((name, start));
        self
    }

    /// A variable that the reader has set.
    pub(super) fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// With a network, processes, `/run` and `/var/lib/tarbet` of its own: the usual ports are free, and all ends with it.
    pub(super) fn apart(mut self) -> Self {
        self.apart = true;
        self
    }

    /// Ports that the page names, wherever it does, each with one that is free here.
    pub(super) fn ports(mut self, ports: impl IntoIterator<Item = (u16, u16)>) -> Self {
        self.ports.extend(ports);
        self
    }

    /// Lines of shell that run before those of the page: what the reader has running already.
    pub(super) fn before(mut self, script: impl Into<String>) -> Self {
        self.before = script.into();
        self
    }

    /// Runs the page and checks what it shows. What the guide leaves running ends with its shell.
    pub(super) async fn follow(self) -> Folder {
        let mut page = std::fs::read_to_string(root().join("docs/guides").join(self.page)).unwrap();
        for (shown, free) in &self.ports {
            page = renumbered(&page, *shown, *free);
        }
        let (commands, files) = read(&page);
        assert!(!commands.is_empty(), "{} has no commands", self.page);
        for (name, text) in files {
            std::fs::write(self.folder.path().join(name), text).unwrap();
        }
        let mut script = self.before.clone() + "\n";
        for (index, shown) in commands.iter().enumerate() {
            writeln!(script, "echo '{MARK} {index}'\n{}", shown.command).unwrap();
        }
        let said = self.run(&script).await;
        for (index, Shown { command, output }) in commands.iter().enumerate() {
            let mark = format!("{MARK} {index}\n");
            let part = said.split_once(&mark).map(|(_, rest)| rest).unwrap_or_default();
            let part = part.split(MARK).next().unwrap_or_default();
            for line in output {
                assert!(contains(part, line), "`{command}` does not say\n{line}\nbut\n{part}");
            }
        }
        self.folder
    }

    /// Runs lines of shell where a guide would be followed, and gives what they say.
    pub(super) async fn run(&self, lines: &str) -> String {
        let folder = self.folder.path();
        symlink(root().join("deploy"), folder.join("deploy")).unwrap();
        let bin = folder.join("bin");
        std::fs::create_dir(&bin).unwrap();
        for (name, start) in &self.programs {
            let file = bin.join(name);
            std::fs::write(&file, format!("#!/bin/sh\nexec {start} \"$@\"\n")).unwrap();
            std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
        }
        let mut script = String::from("exec 2>&1\nset -eo pipefail\n");
        if self.apart {
            script.push_str(
                "mount -t tmpfs tmpfs /run\nmkdir -p /run/netns /run/lock /var/lib/tarbet\n\
                 mount -t tmpfs tmpfs /var/lib/tarbet\nip link set lo up\nset -u\n",
            );
        } else {
            script.push_str("trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n");
        }
        script.push_str(lines);
        let mut shell = if self.apart {
            let mut apart = Command::new("unshare");
            apart.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash"]);
            apart
        } else {
            Command::new("bash")
        };
        shell.arg("-c").arg(script).current_dir(self.folder.path());
        shell.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()));
        for name in ["TARBET_STATE", "XDG_STATE_HOME", "TARBET_CONFIG", "TARBET_SERVER", "KUBECONFIG"] {
            shell.env_remove(name);
        }
        shell.envs(self.environment.iter().map(|(name, value)| (*name, value)));
        // Into a file, so that what was said is known also of a guide that does not end.
        let told = folder.join("said.txt");
        shell.stdin(Stdio::null()).stdout(std::fs::File::create(&told).unwrap()).kill_on_drop(true);
        let ended = tokio::time::timeout(LIMIT, shell.status()).await;
        let said = String::from_utf8_lossy(&std::fs::read(&told).unwrap()).into_owned();
        let status = ended.unwrap_or_else(|_| panic!("{} takes too long:\n{said}", self.page)).unwrap();
        assert!(status.success(), "{} ended with {status}:\n{said}", self.page);
        said
    }
}

/// A program of this machine, with the first word it is called with.
pub(super) fn wrapper(program: &Path, first: &str) -> String {
    format!("'{}' {first}", program.display()).trim_end().to_owned()
}

#[test]
fn commands_files_and_expectations_are_told_apart() {
    let page = "text\n```yaml\n# a.yaml\nx: 1\n```\n```yaml\nno: file\n```\n```console\n$ one \\\n  more\nout…put\n$ two\n```\n```\nignored\n```\n\
                ```json\n// b.json\n{}\n```\n```console\n$ cat <<'END'\n$ inside\nEND\nseen\n```\n```sh not run: it is far\nthree\n```\n";
    let (commands, files) = read(page);
    let shown = |command: &str, output: &[&str]| Shown {
        command: command.to_owned(),
        output: output.iter().map(|line| (*line).to_owned()).collect(),
    };
    let wanted = [
        shown("one \\\n  more", &["out…put"]),
        shown("two", &[]),
        shown("cat <<'END'\n$ inside\nEND", &["seen"]),
    ];
    assert_eq!(commands, wanted);
    let files: Vec<_> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    assert_eq!(files, [("a.yaml", "# a.yaml\nx: 1\n"), ("b.json", "{}\n")]);
    assert_eq!(renumbered("80, 8080, :80/x", 80, 9), "9, 8080, :9/x");
    assert!(contains("say   out and put\n", "out…put") && !contains("put out", "out…put"));
}
