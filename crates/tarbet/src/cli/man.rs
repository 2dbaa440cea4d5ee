//! `tarbet man`: the help of every command as manual pages.

use std::io;
use std::path::PathBuf;

use clap::{Args, CommandFactory};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;

use super::Cli;
use crate::output::{Format, counted};

pub const EXAMPLES: &str = "Examples:
  tarbet man | man -l -                                  read the page of tarbet
  sudo tarbet man --dir /usr/local/share/man/man1        then: man tarbet-gateway
  tarbet man --dir pages --plan                          only say which files it would write";

#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write a page for every command into this folder, instead of printing the first
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Only say which files would be written
    #[arg(long, requires = "dir")]
    plan: bool,
}

pub fn run(args: ManArgs) -> Result<(), Problem> {
    let failed = |what: String| {
        move |error: io::Error| Problem::new(&ground::INTERNAL, what).because(error.to_string())
    };
    let pages = pages(Cli::command()).map_err(failed("The manual pages cannot be made.".into()))?;
    let Some(dir) = args.dir else {
        let first = pages.first().map(|(_, page)| String::from_utf8_lossy(page).into_owned());
        return Format::Table.text(first.unwrap_or_default().trim_end());
    };
    if args.plan {
        let files: Vec<String> =
            pages.iter().map(|(name, _)| format!("write {}", dir.join(name).display())).collect();
        return Format::Table.plan(&files);
    }
    let write = || {
        std::fs::create_dir_all(&dir)?;
        pages.iter().try_for_each(|(name, page)| std::fs::write(dir.join(name), page))
    };
    write()
        .map_err(failed(format!("The manual pages cannot be written to {}.", dir.display())))
        .map_err(|problem| problem.advising("choose a folder you may write"))?;
    let count = counted(pages.len(), "page");
    Format::Table.text(&format!("Wrote {count}. Next: man -l {}", dir.join("tarbet.1").display()))
}

/// A page for each command, under the name of its file.
fn pages(command: clap::Command) -> io::Result<Vec<(String, Vec<u8>)>> {
    fn visit(command: &clap::Command, pages: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
        let man = clap_mangen::Man::new(command.clone());
        let mut page = Vec::new();
        man.render(&mut page)?;
        pages.push((man.get_filename(), page));
        command.get_subcommands().filter(|sub| sub.get_name() != "help").try_for_each(|sub| visit(sub, pages))
    }
    let mut command = command.disable_help_subcommand(true);
    // Names the commands as they are typed, from the first word on.
    command.build();
    let mut pages = Vec::new();
    visit(&command, &mut pages)?;
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_that_says_what_its_help_says() {
        fn count(command: &clap::Command) -> usize {
            1 + command.get_subcommands().filter(|sub| sub.get_name() != "help").map(count).sum::<usize>()
        }
        let pages = pages(Cli::command()).unwrap();
        assert_eq!(pages.len(), count(&Cli::command()));
        let page = |name: &str| {
            let (_, page) =
                pages.iter().find(|(file, _)| file == name).unwrap_or_else(|| panic!("no {name}"));
            String::from_utf8(page.clone()).unwrap()
        };
        assert!(page("tarbet.1").contains("Carry it across, open nothing"));
        let add = page("tarbet-site-add.1");
        assert!(add.contains("tarbet site add") && add.contains("Examples:"), "{add}");
        assert!(page("tarbet-gateway.1").contains("kas\\-config"));
    }
}
