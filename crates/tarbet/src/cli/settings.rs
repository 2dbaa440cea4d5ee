//! `tarbet config check|show|schema`.

use clap::Subcommand;
use tarbet_telemetry::Problem;

use crate::config::Config;
use crate::output::Format;

pub const EXAMPLES: &str = "Examples:
  tarbet config check -c tarbet.yaml
  TARBET__LOG__FILTER=debug tarbet config show
  tarbet config schema > tarbet.schema.json";

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Report every mistake, with file and line
    #[command(after_help = "Examples:\n  tarbet config check -c tarbet.yaml")]
    Check,
    /// Print the settings that would be used, defaults included
    #[command(after_help = "Examples:\n  tarbet config show\n  tarbet config show -c tarbet.yaml -o json")]
    Show,
    /// Print the JSON Schema of the file, for editors and other tools
    #[command(after_help = "Examples:\n  tarbet config schema > tarbet.schema.json")]
    Schema,
}

pub fn run(
    command: ConfigCommand,
    load: impl FnOnce() -> Result<Config, Problem>,
    format: Format,
) -> Result<(), Problem> {
    match command {
        ConfigCommand::Check => {
            load()?;
            let facts = serde_json::json!({ "sound": true });
            format.done("The configuration is sound.", "tarbet config show", &facts)
        }
        ConfigCommand::Show => {
            let config = load()?;
            // A table cannot hold a tree; YAML is what the file is written in.
            let format = if format == Format::Table { Format::Yaml } else { format };
            format.value(&config)
        }
        ConfigCommand::Schema => Format::Json.value(&schemars::schema_for!(Config)),
    }
}
