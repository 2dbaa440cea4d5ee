//! Tunnels: IPsec by strongSwan in user space, routes by BIRD. Both outlive this process and are found again.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::kernel;
use super::names::Names;
use super::plan;
use super::state::{Hub, Peer, State, Tunnel};
use crate::error::Error;

/// Where Debian puts it.
const CHARON: &str = "/usr/lib/ipsec/charon";
/// Starting takes a second on an idle machine.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(50);

/// Files of one tunnel or one hub.
pub(super) fn folder(root: &Path, netns: &str) -> PathBuf {
    root.join(netns)
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    let failed = |error: std::io::Error| Error::Tool {
        command: format!("write {}", path.display()),
        said: error.to_string(),
    };
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(failed)?;
        fs::set_permissions(parent, fs::Permissions::from_mode(0o700)).map_err(failed)?;
    }
    // Keys are in here: nobody else reads it.
    let file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    file.and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes())).map_err(failed)
}

/// Brings one tunnel up, or back up.
pub(super) async fn tunnel(
    root: &Path,
    names: &Names,
    namespace: &str,
    tunnel: &Tunnel,
    peer: &Peer,
) -> Result<(), Error> {
    let netns = names.tunnel(namespace, tunnel.index);
    let folder = folder(root, &netns);
    let socket = folder.join("vici");
    write(&folder.join("strongswan.conf"), &strongswan(&folder))?;
    let (conf, wanted) = (folder.join("swanctl.conf"), swanctl(tunnel, peer));
    let changed = fs::read_to_string(&conf).is_ok_and(|before| before != wanted);
    write(&conf, &wanted)?;
    if UnixStream::connect(&socket).is_err() {
        start_charon(&netns, &folder)?;
        wait("strongSwan answers", || UnixStream::connect(&socket).is_ok()).await?;
    }
    // Before any traffic selector of 0.0.0.0/0 is installed: otherwise IPsec swallows its own packets.
    let rules = kernel::run(None, "ip", words(&["-n", &netns, "rule", "show"])).await?;
    if rules.contains("lookup 220") {
        kernel::carry_out(vec![plan::ip(&netns, "rule del pref 220")]).await?;
    }
    if !rules.contains("iif hub0 lookup 100") {
        kernel::carry_out(vec![plan::ip(&netns, "rule add pref 100 iif hub0 lookup 100")]).await?;
    }
    kernel::carry_out(vec![plan::ip(&netns, "route replace default dev ipsec0 table 100")]).await?;
    let file = conf.display().to_string();
    let uri = format!("unix://{}", socket.display());
    kernel::run(None, "swanctl", words(&["--load-all", "--noprompt", "--file", &file, "--uri", &uri]))
        .await?;
    if changed {
        begin_anew(&uri).await;
    }
    Ok(())
}

/// A key is looked at only when ends meet, so they meet again. The end that learns it first is refused by the
/// other, which begins once it has learnt it, too.
async fn begin_anew(uri: &str) {
    for what in [&["--terminate", "--ike", "peer", "--force"][..], &["--initiate", "--child", "all"]] {
        let command = [what, &["--timeout", "2", "--uri", uri]].concat();
        if let Err(error) = kernel::run(None, "swanctl", words(&command)).await {
            tracing::debug!(%error, "An end of a tunnel does not begin anew yet.");
        }
    }
}

fn start_charon(netns: &str, folder: &Path) -> Result<(), Error> {
    let failed = |error: std::io::Error| Error::Tool {
        command: format!("[{netns}] {CHARON}"),
        said: error.to_string(),
    };
    let log = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(folder.join("charon.log"))
        .map_err(failed)?;
    let mut command = tokio::process::Command::new("ip");
    // Each has a /run of its own, for its process id file.
    command
        .args(["netns", "exec", netns, "sh", "-c", "mount -t tmpfs tmpfs /run && exec \"$0\"", CHARON])
        .env("STRONGSWAN_CONF", folder.join("strongswan.conf"))
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(failed)?)
        .stderr(log)
        .process_group(0);
    command.spawn().map(drop).map_err(failed)
}

/// Brings the routing of a hub in line with its tunnels.
pub(super) async fn routing(
    root: &Path,
    names: &Names,
    namespace: &str,
    hub: &Hub,
    state: &State,
) -> Result<(), Error> {
    let netns = names.hub(namespace);
    let folder = folder(root, &netns);
    let Some(config) = bird(namespace, hub, state) else { return Ok(()) };
    write(&folder.join("bird.conf"), &config)?;
    let path = |name: &str| folder.join(name).display().to_string();
    let control = path("bird.ctl");
    if UnixStream::connect(&control).is_ok() {
        kernel::run(None, "birdc", words(&["-s", &control, "configure"])).await?;
    } else {
        let args = words(&["-c", &path("bird.conf"), "-s", &control, "-P", &path("bird.pid")]);
        kernel::run(Some(netns), "bird", args).await?;
    }
    Ok(())
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

async fn wait(what: &str, mut look: impl FnMut() -> bool) -> Result<(), Error> {
    let end = Instant::now() + PATIENCE;
    while !look() {
        if Instant::now() >= end {
            return Err(Error::Tool {
                command: what.into(),
                said: format!("not within {} s", PATIENCE.as_secs()),
            });
        }
        sleep(PAUSE).await;
    }
    Ok(())
}

fn strongswan(folder: &Path) -> String {
    format!(
        "charon {{
  load = random nonce aes sha1 sha2 hmac kdf gmp pem pkcs1 x509 kernel-libipsec kernel-netlink socket-default vici
  install_routes = no
  install_virtual_ip = no
  retransmit_timeout = 1.0
  retransmit_base = 1.3
  retransmit_tries = 4
  plugins {{
    vici {{
      socket = unix://{}
    }}
    kernel-libipsec {{
      allow_peer_ts = yes
    }}
  }}
}}
",
        folder.join("vici").display()
    )
}

fn swanctl(tunnel: &Tunnel, peer: &Peer) -> String {
    let (ours, theirs) = (tunnel.outside, peer.outside);
    let key = peer.key.expose().replace('\\', "\\\\").replace('"', "\\\"");
    format!(
        "connections {{
  peer {{
    version = 2
    local_addrs = {ours}
    remote_addrs = {theirs}
    proposals = aes256-sha384-modp2048
    encap = yes
    mobike = no
    dpd_delay = 2s
    keyingtries = 0
    unique = replace
    local {{
      auth = psk
      id = {ours}
    }}
    remote {{
      auth = psk
      id = {theirs}
    }}
    children {{
      all {{
        local_ts = 0.0.0.0/0
        remote_ts = 0.0.0.0/0
        esp_proposals = aes256-sha256
        start_action = start
        close_action = start
        dpd_action = restart
      }}
    }}
  }}
}}
secrets {{
  ike-peer {{
    id-1 = {ours}
    id-2 = {theirs}
    secret = \"{key}\"
  }}
}}
"
    )
}

/// The hub's routing, if any tunnel has both its ends.
fn bird(namespace: &str, hub: &Hub, state: &State) -> Option<String> {
    let sessions: Vec<(&Tunnel, std::net::Ipv4Addr, &Peer)> = hub
        .tunnels
        .values()
        .filter_map(|tunnel| Some((tunnel, tunnel.inside?, tunnel.peer.as_ref()?)))
        .collect();
    let router = sessions.first()?.1;
    let mut text = format!(
        "router id {router};
log stderr {{ warning, error, fatal, bug }};
protocol device {{ scan time 5; }}
protocol direct {{ ipv4; interface \"t*\"; }}
protocol bfd {{ multihop {{ min rx interval 300 ms; min tx interval 300 ms; multiplier 3; }}; }}
protocol kernel {{ merge paths on; ipv4 {{ import none; export where source = RTS_BGP; }}; }}
protocol static nets {{
  ipv4;
"
    );
    for (_, network) in state.networks_in(namespace) {
        let _ = writeln!(text, "  route {} blackhole;", network.space);
    }
    text.push_str("}\n");
    for (tunnel, inside, peer) in sessions {
        let _ = write!(
            text,
            "protocol bgp t{} {{
  local {inside} as {};
  neighbor {} as {};
  multihop 4;
  hold time 9;
  connect delay time 1;
  connect retry time 2;
  error wait time 1, 5;
  bfd on;
  ipv4 {{ import all; export where proto = \"nets\"; }};
}}
",
            tunnel.index, hub.asn, peer.inside, peer.asn
        );
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::super::state::{Network, NetworkName};
    use super::*;
    use crate::model::SharedKey;

    #[test]
    fn routing_tells_our_networks_to_each_peer() {
        let peer = Peer {
            inside: "169.254.0.2".parse().unwrap(),
            outside: "198.18.0.2".parse().unwrap(),
            asn: 64513,
            key: SharedKey::new("secret"),
        };
        let tunnel = Tunnel {
            index: 3,
            cloud: "west".into(),
            inside: Some("169.254.0.1".parse().unwrap()),
            outside: "198.18.0.1".parse().unwrap(),
            peer: Some(peer.clone()),
        };
        let mut hub = Hub {
            asn: 64512,
            tunnels: [("x".to_owned(), tunnel.clone())].into(),
            public: false,
            next_tunnel: 4,
        };
        let network = Network {
            space: "10.0.0.0/16".parse().unwrap(),
            space6: None,
            peers: std::collections::BTreeSet::default(),
            next_port: 1,
        };
        let name = NetworkName { namespace: "default".into(), region: "r".into() };
        let state = State { networks: [(name, network)].into(), ..State::default() };
        let text = bird("default", &hub, &state).unwrap();
        for line in
            ["route 10.0.0.0/16 blackhole;", "local 169.254.0.1 as 64512;", "neighbor 169.254.0.2 as 64513;"]
        {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
        assert!(
            !bird("other", &hub, &state).unwrap().contains("10.0.0.0/16"),
            "networks of other namespaces stay out"
        );
        hub.tunnels.clear();
        assert!(bird("default", &hub, &state).is_none());
        assert!(swanctl(&tunnel, &peer).contains("secret = \"secret\""));
    }
}
