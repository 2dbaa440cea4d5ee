//! `tarbet tags`: the tag service and the key-value service alone.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use clap::{Args, ValueEnum};
use tarbet_nets::config::ListenConfig;
use tarbet_nets::role::tags;
use tarbet_telemetry::{Coded, Problem};

use super::nets::{own_store, surroundings};
use super::process::{Process, Threads};
use crate::config::Config;

pub const EXAMPLES: &str = "Examples:
  tarbet tags                                        today's wire on 8085, values on 8086
  tarbet tags --wire seed                            the first generation's wire on 8089
  tarbet tags --set store.kind=redis --set store.url=redis://127.0.0.1:6379";

const OBSERVE_AT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8094);
const TODAY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8085);
const SEED: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8089);

/// The two generations share one gRPC path with different messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Wire {
    /// Paraglider's
    Today,
    /// Invisinets'
    Seed,
}

#[derive(Debug, Args)]
pub struct TagsArgs {
    /// Whose messages are spoken
    #[arg(long, value_enum, default_value_t = Wire::Today)]
    wire: Wire,
    /// Address of the tag service
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Address of the key-value service
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8086")]
    kv_listen: SocketAddr,
}

/// An address as the services take it.
pub fn listen(address: SocketAddr) -> ListenConfig {
    ListenConfig { host: address.ip().to_string(), port: address.port() }
}

pub fn run(config: Config, args: TagsArgs) -> Result<(), Problem> {
    Process::run("tags", &config, OBSERVE_AT, Threads::Half, |process| {
        let config = config.clone();
        async move {
            let around = surroundings(&process, &own_store(&config, "tags")).await?;
            let today = (args.wire == Wire::Today).then(|| listen(args.listen.unwrap_or(TODAY)));
            let seed = (args.wire == Wire::Seed).then(|| listen(args.listen.unwrap_or(SEED)));
            let kv = listen(args.kv_listen);
            let (trust, kept) = (&config.nets.security, config.nets.subscriptions_kept);
            tags(today.as_ref(), seed.as_ref(), Some(&kv), trust, kept, &around)
                .await
                .map_err(|error| error.problem())
        }
    })
}
