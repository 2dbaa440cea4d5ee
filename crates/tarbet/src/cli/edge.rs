//! `tarbet edge install`: the side where pods run, set up for one account in one folder.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;

use crate::output::Format;

pub const EXAMPLES: &str = "Examples:
  tarbet edge install --plugin slurm --gateway wss://gateway.example.org --token-file token
  tarbet edge install --plugin docker --folder ~/.tarbet --plan
  systemctl --user enable --now tarbet-edge      # what it tells you to do next";

#[derive(Debug, Subcommand)]
pub enum EdgeCommand {
    /// Write the settings and the service of a place where pods run
    #[command(after_help = EXAMPLES)]
    Install(InstallArgs),
}

#[derive(Debug, Args)]
pub struct InstallArgs {
    /// What runs the pods
    #[arg(long, value_enum)]
    plugin: Plugin,
    /// The gateway to dial; without one the API server listens on loopback
    #[arg(long, value_name = "URL", requires = "token_file")]
    gateway: Option<String>,
    /// The file with the site's token, as `tarbet site add` gave it
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The authority of the gateway's certificate, besides those of the system
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Where everything is kept; ~/.tarbet if absent
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Where systemd looks for units; ~/.config/systemd/user if absent
    #[arg(long, value_name = "FOLDER")]
    units: Option<PathBuf>,
    /// Only show what would be written
    #[arg(long)]
    plan: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Plugin {
    Docker,
    Slurm,
    Process,
}

impl Plugin {
    fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Slurm => "slurm",
            Self::Process => "process",
        }
    }
}

/// What the machine is like.
struct Place {
    binary: PathBuf,
    folder: PathBuf,
    units: PathBuf,
}

/// A file to write.
#[derive(Debug, PartialEq, Eq)]
struct Planned {
    path: PathBuf,
    content: String,
    /// Settings that are there already are the administrator's.
    keep: bool,
}

pub fn run(command: EdgeCommand, format: Format) -> Result<(), Problem> {
    let EdgeCommand::Install(args) = command;
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let below = |given: &Option<PathBuf>, usual: &str| {
        given.clone().or_else(|| home.as_ref().map(|home| home.join(usual))).ok_or_else(|| {
            Problem::new(&ground::CONFIG_INVALID, "There is no home folder to install into.")
                .advising("name folders with --folder and --units")
        })
    };
    let unusable = |what: &Path, cause: String| {
        Problem::new(&ground::CONFIG_INVALID, format!("{} cannot be used.", what.display()))
            .at("this machine")
            .because(cause)
    };
    let absolute =
        |path: PathBuf| std::path::absolute(&path).map_err(|error| unusable(&path, error.to_string()));
    let place = Place {
        binary: std::env::current_exe().map_err(|error| unusable(Path::new("tarbet"), error.to_string()))?,
        folder: absolute(below(&args.folder, ".tarbet")?)?,
        units: absolute(below(&args.units, ".config/systemd/user")?)?,
    };
    for path in [Some(&place.binary), Some(&place.folder), args.ca_file.as_ref()].into_iter().flatten() {
        // Units quote by rules of their own; a name without surprises needs none.
        if path
            .to_string_lossy()
            .contains(|c: char| c.is_control() || c.is_whitespace() || "\"'\\%$".contains(c))
        {
            return Err(unusable(path, "its name has blanks or signs that units read otherwise".into()));
        }
    }
    let mut files = planned(&args, &place);
    if let Some(file) = &args.token_file {
        let token = fs::read_to_string(file).map_err(|error| unusable(file, error.to_string()))?;
        files.push(Planned { path: place.folder.join("token"), content: token, keep: false });
    }
    if args.plan {
        let shown: Vec<_> = files
            .iter()
            .map(|file| {
                let kept = file.keep && file.path.exists();
                json!({"file": file.path.display().to_string(), "what": if kept { "kept as it is" } else { "written" }})
            })
            .collect();
        return format.rows(&["file", "what"], &["file", "what"], &shown);
    }
    for file in &files {
        write(file).map_err(|error| unusable(&file.path, error.to_string()))?;
    }
    format.text(&format!(
        "Installed in {}.\nNext: systemctl --user daemon-reload && systemctl --user enable --now tarbet-edge",
        place.folder.display()
    ))
}

/// The files of an installation. Nothing is read or written.
fn planned(args: &InstallArgs, place: &Place) -> Vec<Planned> {
    let (binary, folder) = (place.binary.display(), place.folder.display());
    let settings = place.folder.join("InterLinkConfig.yaml");
    let plugin = args.plugin.name();
    let container = match args.plugin {
        Plugin::Slurm => {
            "# singularity, apptainer, enroot, podman or process\nContainerRuntime: singularity\n# true where volumes may lie in DataRootFolder, which jobs must see in any case\nSharedFS: false\n"
        }
        Plugin::Docker | Plugin::Process => "",
    };
    let content = format!(
        "# Settings of this place, by interLink's own keys. Kept by later installations.\n\
         DataRootFolder: {folder}/pods\nExportPodData: true\n{container}\
         # What pods may ask for beyond the ordinary. Empty allows nothing.\nPolicy:\n  AllowedHostPaths: []\n"
    );
    let mut files = vec![Planned { path: settings.clone(), content, keep: true }];
    let unit = |name: &str, what: &str, after: &str, start: String| Planned {
        path: place.units.join(name),
        content: format!(
            "[Unit]\nDescription={what}\nAfter=network-online.target{after}\n\n[Service]\nExecStart={start}\n\
             Restart=always\nRestartSec=2\n# Jobs and containers go on without it.\nKillMode=process\n\n\
             [Install]\nWantedBy=default.target\n"
        ),
        keep: false,
    };
    if let Some(gateway) = &args.gateway {
        let authority =
            args.ca_file.as_ref().map(|file| format!(" --ca-file {}", file.display())).unwrap_or_default();
        let start = format!(
            "{binary} agent --gateway {gateway} --token-file {folder}/token{authority} --plugin {plugin} \
             --interlink-config {}",
            settings.display()
        );
        files.push(unit("tarbet-edge.service", "Pods of other clusters, over a link", "", start));
        return files;
    }
    let port = match args.plugin {
        Plugin::Docker => 4000,
        Plugin::Slurm => 4001,
        Plugin::Process => 4002,
    };
    let start = format!("{binary} plugin {plugin} --interlink-config {}", settings.display());
    files.push(unit("tarbet-plugin.service", "What runs pods of other clusters", "", start));
    let start = format!(
        "{binary} interlink --interlink-config {} --data-root {folder}/api --set edge.SidecarPort={port}",
        settings.display()
    );
    let after = " tarbet-plugin.service\nWants=tarbet-plugin.service";
    files.push(unit("tarbet-edge.service", "The interLink API server", after, start));
    files
}

fn write(file: &Planned) -> std::io::Result<()> {
    if file.keep && file.path.exists() {
        return Ok(());
    }
    if let Some(folder) = file.path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    // Written beside and moved: a crash leaves the old file or the new one.
    let part = file.path.with_extension("part");
    let mut out = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
    out.write_all(file.content.as_bytes())?;
    out.sync_all()?;
    fs::rename(&part, &file.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(gateway: Option<&str>, plugin: Plugin) -> InstallArgs {
        InstallArgs {
            plugin,
            gateway: gateway.map(str::to_owned),
            token_file: None,
            ca_file: None,
            folder: None,
            units: None,
            plan: false,
        }
    }

    fn place() -> Place {
        Place {
            binary: "/opt/tarbet".into(),
            folder: "/home/u/.tarbet".into(),
            units: "/home/u/units".into(),
        }
    }

    #[test]
    fn one_service_dials_out_and_two_stay_at_home() {
        let files = planned(&args(Some("wss://gw"), Plugin::Slurm), &place());
        assert_eq!(files.len(), 2);
        assert!(files[1].content.contains(
            "ExecStart=/opt/tarbet agent --gateway wss://gw --token-file /home/u/.tarbet/token --plugin slurm"
        ));
        let files = planned(&args(None, Plugin::Docker), &place());
        let names: Vec<_> =
            files.iter().map(|file| file.path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["InterLinkConfig.yaml", "tarbet-plugin.service", "tarbet-edge.service"]);
        assert!(files[2].content.contains("edge.SidecarPort=4000"));
    }

    #[test]
    fn the_settings_are_settings() {
        for plugin in [Plugin::Docker, Plugin::Slurm, Plugin::Process] {
            let files = planned(&args(None, plugin), &place());
            let read: tarbet_pods::edge::EdgeConfig = serde_saphyr::from_str(&files[0].content).unwrap();
            assert_eq!(read.data_root_folder, Path::new("/home/u/.tarbet/pods"));
        }
    }
}
