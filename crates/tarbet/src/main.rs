//! `tarbet`: carry it across, open nothing.
//!
//! The first word chooses the role or the command. This file only composes: arguments, then
//! configuration, then the role; everything with a decision in it lives in a module or a crate.

#![expect(unreachable_pub, reason = "in a binary `pub` marks what a module offers its siblings")]

mod cli;
mod config;
mod output;
mod picture;
mod roles;
mod wire;

use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = cli::parse();
    match cli::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            output::problem(&problem);
            ExitCode::from(problem.exit_code())
        }
    }
}
