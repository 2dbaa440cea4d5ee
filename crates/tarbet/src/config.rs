//! The configuration of every role: one YAML file, then the environment, then flags.
//!
//! All of it is checked before a role does anything, and every mistake is reported at once with
//! the place it was written.

mod layers;
mod sections;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;

pub use layers::{Node, Origin};
pub use sections::{Config, Log, Observability};

/// Where settings come from, lowest first.
#[derive(Debug, Default)]
pub struct Sources {
    /// The file, if one is named.
    pub file: Option<PathBuf>,
    /// The process environment.
    pub environment: Vec<(String, String)>,
    /// Flags: dotted setting, value and the flag as typed.
    pub flags: Vec<(String, String, String)>,
}

/// Variables such as `TARBET__STORE__PATH` set `store.path`.
const VARIABLE_PREFIX: &str = "TARBET__";

/// One mistake in the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// The setting, dotted.
    pub setting: String,
    /// Where it is written, if anywhere.
    pub origin: Option<Origin>,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(origin) = &self.origin {
            write!(f, "{origin}: ")?;
        }
        if !self.setting.is_empty() {
            write!(f, "{}: ", self.setting)?;
        }
        f.write_str(&self.message)
    }
}

/// A configuration that cannot be used.
#[derive(Debug)]
pub enum ConfigError {
    /// The file cannot be read or is not YAML.
    Unreadable(PathBuf, String),
    /// The settings have mistakes.
    Mistakes(Vec<Mistake>),
}

impl ConfigError {
    /// The outside form.
    pub fn problem(&self) -> Problem {
        match self {
            Self::Unreadable(path, cause) => Problem::new(
                &ground::CONFIG_UNREADABLE,
                format!("The configuration file {} cannot be read.", path.display()),
            )
            .because(cause.clone()),
            Self::Mistakes(mistakes) => {
                let lines =
                    mistakes.iter().map(|mistake| format!("\n  {mistake}")).collect::<Vec<_>>().concat();
                let count = match mistakes.len() {
                    1 => "1 mistake".to_owned(),
                    n => format!("{n} mistakes"),
                };
                Problem::new(&ground::CONFIG_INVALID, format!("The configuration has {count}:{lines}"))
            }
        }
    }
}

/// Collects what the sections find wrong.
#[derive(Debug, Default)]
pub struct Report(Vec<(String, String)>);

impl Report {
    /// The setting at this dotted path is wrong.
    pub fn wrong(&mut self, setting: &str, message: impl Into<String>) {
        self.0.push((setting.to_owned(), message.into()));
    }
}

/// Reads, joins and checks everything.
pub fn load(sources: &Sources) -> Result<Config, ConfigError> {
    let mut mistakes = Vec::new();
    let mut tree = join(sources, &mut mistakes)?;
    let config = decode(&mut tree, &mut mistakes);
    let mut report = Report::default();
    config.check(&mut report);
    for (setting, message) in report.0 {
        // A setting that could not be read was replaced by its default: do not judge that one too.
        if !mistakes.iter().any(|known| setting.starts_with(&known.setting) && !known.setting.is_empty()) {
            mistakes.push(mistake(tree.as_ref(), &setting, message));
        }
    }
    if mistakes.is_empty() { Ok(config) } else { Err(ConfigError::Mistakes(mistakes)) }
}

fn join(sources: &Sources, mistakes: &mut Vec<Mistake>) -> Result<Option<Node>, ConfigError> {
    let mut tree: Option<Node> = sources.file.as_deref().map(read).transpose()?.flatten();
    let mut lay = |setting: &str, value: &str, origin: &Origin| match Node::single(setting, value, origin) {
        Ok(node) => match &mut tree {
            Some(tree) => tree.overlay(node),
            None => tree = Some(node),
        },
        Err(error) => mistakes.push(Mistake {
            setting: setting.to_owned(),
            origin: Some(origin.clone()),
            message: first_line(&error.to_string()),
        }),
    };
    for (name, value) in &sources.environment {
        if let Some(rest) = name.strip_prefix(VARIABLE_PREFIX) {
            lay(&rest.to_ascii_lowercase().replace("__", "."), value, &Origin::Variable(name.clone()));
        }
    }
    for (setting, value, flag) in &sources.flags {
        lay(setting, value, &Origin::Flag(flag.clone()));
    }
    Ok(tree)
}

fn read(path: &Path) -> Result<Option<Node>, ConfigError> {
    let unreadable = |cause: String| ConfigError::Unreadable(path.to_owned(), cause);
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
    // The lines around a mistake are not quoted: passwords may stand there.
    Node::from_yaml(&text, path).map_err(|error| unreadable(error.without_snippet().to_string()))
}

/// Decodes the tree. A setting that cannot be read is reported and taken out, and the rest is read
/// again, so that one pass finds every mistake.
fn decode(tree: &mut Option<Node>, mistakes: &mut Vec<Mistake>) -> Config {
    let mut seen = BTreeSet::new();
    while let Some(node) = tree {
        let error = match serde_path_to_error::deserialize::<_, Config>(node.value()) {
            Ok(config) => return config,
            Err(error) => error,
        };
        let path: Vec<String> = error.path().iter().map(ToString::to_string).collect();
        let setting = path.join(".");
        let known = !seen.insert(setting.clone());
        mistakes.push(mistake(tree.as_ref(), &setting, error.inner().to_string()));
        let pruned = tree.as_mut().is_some_and(|node| node.prune(&path));
        if known || !pruned {
            break;
        }
    }
    Config::default()
}

fn mistake(tree: Option<&Node>, setting: &str, message: String) -> Mistake {
    let path: Vec<String> = setting.split('.').map(str::to_owned).collect();
    let origin = tree.map(|tree| tree.origin(&path).clone());
    Mistake { setting: setting.to_owned(), origin, message }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn load_text(text: &str, environment: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tarbet.yaml");
        std::fs::write(&file, text).unwrap();
        let environment = environment.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect();
        load(&Sources { file: Some(file), environment, flags: vec![] })
    }

    fn mistakes(text: &str, environment: &[(&str, &str)]) -> Vec<String> {
        match load_text(text, environment).unwrap_err() {
            ConfigError::Mistakes(mistakes) => mistakes
                .iter()
                .map(|m| {
                    m.to_string()
                        .rsplit_once("tarbet.yaml:")
                        .map_or(m.to_string(), |(_, rest)| rest.to_owned())
                })
                .collect(),
            ConfigError::Unreadable(_, cause) => panic!("{cause}"),
        }
    }

    #[test]
    fn nothing_at_all_is_a_sound_configuration() {
        assert!(load(&Sources::default()).is_ok());
        assert!(load_text("", &[]).is_ok());
    }

    #[test]
    fn every_mistake_is_reported_at_once_with_its_place() {
        let text = "log:\n  format: loud\n  colour: red\nobservability:\n  listen: nowhere\nshutdown:\n  deadline: soon\nunknown: 1\n";
        let found = mistakes(text, &[("TARBET__LOG__FILTER", "][")]);
        let found = found.join("\n");
        for expected in [
            "2: log.format: unknown variant `loud`",
            "3: log.colour: unknown field `colour`",
            "5: observability.listen: ",
            "7: shutdown.deadline: ",
            "8: unknown: unknown field `unknown`",
            "environment variable TARBET__LOG__FILTER: log.filter: ",
        ] {
            assert!(found.contains(expected), "{expected} is missing in\n{found}");
        }
        assert_eq!(found.lines().count(), 6, "{found}");
    }

    #[test]
    fn environment_wins_over_the_file_and_flags_over_both() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tarbet.yaml");
        std::fs::write(&file, "log:\n  filter: error\nobservability:\n  listen: 127.0.0.1:1\n").unwrap();
        let config = load(&Sources {
            file: Some(file),
            environment: vec![
                ("TARBET__LOG__FILTER".into(), "warn".into()),
                ("TARBET__OBSERVABILITY__LISTEN".into(), "127.0.0.1:2".into()),
            ],
            flags: vec![(
                "observability.listen".into(),
                "127.0.0.1:3".into(),
                "--observability-listen".into(),
            )],
        })
        .unwrap();
        assert_eq!(config.log.filter, "warn");
        assert_eq!(config.observability.listen.unwrap().port(), 3);
    }

    #[test]
    fn no_file_near_a_sound_one_breaks_it_or_is_quoted_where_it_cannot_be_read() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/configuration");
        let (mut tried, folder) = (0, tempfile::tempdir().unwrap());
        let file = folder.path().join("tarbet.yaml");
        for input in tarbet_testbed::strange_bytes(&corpus, 500 * tarbet_testbed::effort()).unwrap() {
            std::fs::write(&file, &input).unwrap();
            let loaded = load(&Sources { file: Some(file.clone()), ..Sources::default() });
            if let Err(error @ ConfigError::Unreadable(..)) = loaded {
                let told = format!("{:?}", error.problem());
                assert!(!told.contains("canary"), "{told}");
            }
            tried += 1;
        }
        tarbet_testbed::verified("strange bytes for the configuration of all roles", tried);
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "\\PC*") {
            let _ = load_text(&text, &[]);
        }

        #[test]
        fn any_yaml_shaped_text_is_read_without_panic(
            keys in proptest::collection::vec("(log|store|shutdown|observability|x)(: |:\n  )(kind|listen|[a-z]{1,4})?:? ?(\\[a, 1\\]|\\{\\}|~|7|abc)?\n", 0..8)
        ) {
            let _ = load_text(&keys.concat(), &[]);
        }
    }
}
