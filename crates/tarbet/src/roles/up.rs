//! `tarbet up`: everything that needs no cluster, in one process.

use std::net::{Ipv4Addr, SocketAddr};

use clap::Args;
use tarbet_telemetry::Problem;

use super::process::Process;
use crate::config::Config;

pub const EXAMPLES: &str = "Examples:
  tarbet up
  tarbet up --observability-listen 127.0.0.1:9000
  tarbet up --set store.path=/tmp/tarbet.redb";

const OBSERVE_AT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7481);

#[derive(Debug, Args)]
pub struct UpArgs {}

pub fn run(config: Config, _args: UpArgs) -> Result<(), Problem> {
    Process::run("up", &config, OBSERVE_AT, |process| {
        process.health.part("up").ready();
        std::future::ready(Ok(()))
    })
}
