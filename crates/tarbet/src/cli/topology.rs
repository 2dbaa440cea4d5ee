//! `tarbet topology`: a picture of who reaches whom.

use std::collections::BTreeSet;

use clap::Args;
use reqwest::Method;
use serde_json::Value;
use tarbet_reach::gateway::SiteView;
use tarbet_reach::story::StoryView;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;

use super::endpoint::ServerArgs;
use super::glide;
use crate::output::Format;
use crate::picture::neck::{Neck, Site};
use crate::picture::nets::Networks;

pub const EXAMPLES: &str = "Examples:
  tarbet topology
  tarbet topology -o svg > sites.svg
  tarbet topology --nets -o svg > networks.svg

Without --nets: callers, gateways and sites. With it: clouds, resources, VPNs and what may pass.";

#[derive(Debug, Args)]
pub struct TopologyArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Draw the networks of clouds instead
    #[arg(long)]
    nets: bool,
    /// The orchestrator's REST listener, with --nets
    #[arg(long, env = "TARBET_NETS_SERVER", value_name = "URL", requires = "nets")]
    nets_server: Option<String>,
}

pub async fn run(args: TopologyArgs, format: Format) -> Result<(), Problem> {
    if args.nets {
        let found = glide::topology(args.nets_server).await?;
        return show_nets(found, format);
    }
    let server = args.server.connect()?;
    let sites: Vec<SiteView> = server.ask(Method::GET, "/v1/sites", None).await?;
    let stories: Vec<StoryView> = server.ask(Method::GET, "/v1/requests", None).await?;
    let neck = neck(&sites, &stories);
    match format {
        Format::Svg => format.text(&neck.svg()),
        Format::Table | Format::Text => format.text(&neck.text()),
        Format::Json | Format::Yaml => format.value(&serde_json::json!({
            "callers": neck.callers, "gateways": neck.gateways, "sites": sites,
        })),
    }
}

fn show_nets(found: Value, format: Format) -> Result<(), Problem> {
    if matches!(format, Format::Json | Format::Yaml) {
        return format.value(&found);
    }
    let networks: Networks = serde_json::from_value(found).map_err(|error| {
        Problem::new(&ground::INTERNAL, "The orchestrator's answer is not understood.")
            .because(error.to_string())
    })?;
    format.text(&if format == Format::Svg { networks.svg() } else { networks.text() })
}

/// Who stands where, by name.
fn neck(sites: &[SiteView], stories: &[StoryView]) -> Neck {
    let callers: BTreeSet<_> = stories.iter().map(|story| story.principal.clone()).collect();
    let links = || sites.iter().flat_map(|site| &site.links);
    let mut gateways: BTreeSet<_> = links().map(|link| link.gateway.clone()).collect();
    gateways.extend(stories.iter().map(|story| story.gateway.clone()));
    let each = |names: Vec<String>| names.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
    let sites = sites.iter().map(|site| Site {
        name: site.name.to_string(),
        gateways: each(site.links.iter().map(|link| link.gateway.clone()).collect()),
        services: each(site.links.iter().flat_map(|link| link.services.clone()).collect()),
    });
    Neck {
        callers: callers.into_iter().collect(),
        gateways: gateways.into_iter().collect(),
        sites: sites.collect(),
    }
}
