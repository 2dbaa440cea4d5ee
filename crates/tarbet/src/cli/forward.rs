//! `tarbet forward SITE HOST:PORT`: a local port that leads to a host behind a site.

use std::net::SocketAddr;

use clap::Args;
use tarbet_link::{Address, Dialer, Target, relay};
use tarbet_reach::client::{self, Client};
use tarbet_reach::names::SiteName;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::supervisor::Signals;
use tokio::net::TcpListener;

use super::endpoint::ServerArgs;

pub const EXAMPLES: &str = "Examples:
  tarbet forward lab db.internal:5432 --listen 127.0.0.1:15432
  psql -h 127.0.0.1 -p 15432

The site's policy must permit the host: its `tcp` rules.";

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
}

pub async fn run(args: ForwardArgs) -> Result<(), Problem> {
    let server = args.server.connect()?;
    let gateway = Client::new(&server.url, server.token.clone(), server.ca_file.as_deref())?;
    let site = gateway.site(args.site.clone());
    let listener = TcpListener::bind(args.listen).await.map_err(|error| {
        Problem::new(&ground::ADDRESS_IN_USE, format!("{} cannot be bound.", args.listen))
            .because(error.to_string())
    })?;
    let address = listener.local_addr().unwrap_or(args.listen);
    crate::output::Format::Table
        .text(&format!("{address} leads to {} at `{}`. Ctrl-C ends it.", args.target, args.site))?;
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
