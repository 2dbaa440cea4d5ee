//! `tarbet config check|show|schema`.

use std::io;

use clap::Subcommand;
use flate2::read::GzDecoder;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;

use crate::config::Config;
use crate::output::Format;

pub const EXAMPLES: &str = "Examples:
  tarbet config check -c tarbet.yaml
  TARBET__LOG__FILTER=debug tarbet config show
  tarbet config schema > tarbet.schema.json";

/// Made from [`Config`] by `tools/reference`, and packed: to make it here would take half a megabyte of program.
const SCHEMA: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/settings.schema.json.gz"));

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
        ConfigCommand::Schema => {
            let unpacked = io::read_to_string(GzDecoder::new(SCHEMA));
            let schema = unpacked.map_err(|error| Problem::new(&ground::INTERNAL, error.to_string()))?;
            Format::Json.text(schema.trim_end())
        }
    }
}
