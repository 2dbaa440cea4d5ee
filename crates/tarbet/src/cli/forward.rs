//! `tarbet forward SITE HOST:PORT`: a local port that leads to a host behind a site.

use std::net::SocketAddr;

use clap::Args;
use tarbet_link::{Address, Dialer, Target, relay};
use tarbet_reach::client;
use tarbet_reach::names::SiteName;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::supervisor::Signals;
use tokio::net::TcpListener;

use super::endpoint::ServerArgs;
use super::known_sites;

pub const EXAMPLES: &str = "Examples:
  tarbet forward lab db.internal:5432 --listen 127.0.0.1:15432
  psql -h 127.0.0.1 -p 15432

The site's policy must permit the host: its `tcp` rules. Where they name callers, --caller-key and --caller
prove who calls.";

#[derive(Debug, Args)]
pub struct ForwardArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// The site
    site: SiteName,
    /// The host and port as the site's agent sees them
    target: Address,
    /// Where to listen on this machine
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDR")]
    listen: SocketAddr,
    /// Trust keys of the site that are not known on this machine yet
    #[arg(long)]
    trust_new_key: bool,
    /// Let the gateway read what is forwarded, instead of sealing it up to the site's agent
    #[arg(long, conflicts_with = "trust_new_key")]
    plain: bool,
}

pub async fn run(args: ForwardArgs) -> Result<(), Problem> {
    let server = args.server.connect()?;
    let gateway = server.client()?;
    let mut site = gateway.site(args.site.clone());
    let mut how = "readable at the gateway";
    if !args.plain
        && let Some(keys) = known_sites::of_site(&server, &args.site, args.trust_new_key).await?
    {
        site = site.sealed(keys, server.prove(&args.site)?)?;
        how = "sealed up to the agent";
    } else if server.voucher.is_some() {
        return Err(known_sites::unprovable(&args.site));
    }
    let listener = TcpListener::bind(args.listen).await.map_err(|error| {
        Problem::new(&ground::ADDRESS_IN_USE, format!("{} cannot be bound.", args.listen))
            .because(error.to_string())
    })?;
    let address = listener.local_addr().unwrap_or(args.listen);
    crate::output::Format::Table
        .text(&format!("{address} leads to {} at `{}`, {how}. Ctrl-C ends it.", args.target, args.site))?;
    let signals = Signals::listen().map_err(|error| {
        Problem::new(&ground::INTERNAL, "The command cannot listen for signals.").because(error.to_string())
    })?;
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted,
            () = signals.clone().next() => return Ok(()),
        };
        let Ok((stream, _)) = stream else { continue };
        let (site, target) = (site.clone(), Target::tcp(args.target.clone()));
        tokio::spawn(async move {
            match site.open(target).await {
                // Either end may break off at any time; both know why by themselves.
                Ok(far) => drop(relay(tarbet_link::tcp(stream), far).await),
                Err(error) => crate::output::problem(&client::problem(&error)),
            }
        });
    }
}
