//! `tarbet interlink`: the interLink API server, between nodes and a plugin.

use std::net::{Ipv4Addr, SocketAddr};

use tarbet_pods::edge::Part;
use tarbet_telemetry::Problem;

use super::plugin::{EdgeArgs, start};
use crate::config::Config;

pub const EXAMPLES: &str = "Examples:
  tarbet interlink
  SIDECARPORT=4001 tarbet interlink --listen 127.0.0.1:3000
  tarbet interlink --interlink-config /etc/interlink/InterLinkConfig.yaml

It serves today's interLink calls and those of 2023 on one port (3000), and takes interLink's own
configuration file and variables: INTERLINKCONFIGPATH, INTERLINKURL, INTERLINKPORT, SIDECARURL,
SIDECARPORT and CUSTOMKUBECONF. It listens on loopback unless AcceptedTokensFile or client
certificates say who may call.";

const OBSERVE_AT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8096);

pub fn run(config: Config, args: EdgeArgs) -> Result<(), Problem> {
    start(config, "interlink", Part::Interlink, args, OBSERVE_AT)
}
