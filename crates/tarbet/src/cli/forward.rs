//! `tarbet forward SITE HOST:PORT`: a local port that leads to a host behind a site.

use std::net::SocketAddr;

use clap::Args;
use tarbet_link::{Address, Dialer, Target, relay};
use tarbet_reach::client;
use tarbet_reach::names::SiteName;
use tarbet_telemetry::Problem;

use super::endpoint::ServerArgs;
use super::known_sites;
use super::port::Port;

pub const EXAMPLES: &str = "Examples:
  tarbet forward lab db.internal:5432 --listen 127.0.0.1:15432
  psql -h 127.0.0.1 -p 15432

The site's policy must permit the host: its `tcp` rules. Where they name callers, --caller-key and --caller
prove who calls.";

/// What is never done unasked.
const UNSEALED: &str = "give --plain, which lets gateways read along";

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
    if !args.plain {
        let keys = known_sites::must_have(&server, &args.site, args.trust_new_key, UNSEALED).await?;
        site = site.sealed(keys, server.prove(&args.site)?)?;
        how = "sealed up to the agent";
    } else if server.voucher.is_some() {
        return Err(known_sites::unprovable(&args.site));
    } else {
        super::site_now::of(&server, &args.site).await?;
    }
    let port = Port::bind(args.listen).await?;
    let address = port.address;
    crate::output::Format::Table
        .text(&format!("{address} leads to {} at `{}`, {how}. Ctrl-C ends it.", args.target, args.site))?;
    port.run(|stream| {
        let (site, target) = (site.clone(), Target::tcp(args.target.clone()));
        async move {
            match site.open(target).await {
                // Either end may break off at any time; both know why by themselves.
                Ok(far) => drop(relay(stream, far).await),
                Err(error) => crate::output::problem(&client::problem(&error)),
            }
        }
    })
    .await
}
