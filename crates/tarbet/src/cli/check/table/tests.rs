//! Each check is made to fail once, and must then say what it found and what to try.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::json;

use super::super::facts::{Facts, PROGRAMS, listeners};
use super::super::live::Live;
use super::*;
use crate::cli::endpoint::Endpoint;
use crate::config::Config;

fn healthy() -> Facts {
    Facts {
        root: true,
        kernel: "6.1.0-18-amd64".into(),
        cores: 4,
        memory_mib: 4096,
        disk_mib: 10_000,
        descriptors: 65_536,
        year: 2026,
        hostname: "lab".into(),
        nameservers: 1,
        temporary_writable: true,
        loopback4: true,
        loopback6: true,
        netns: true,
        user_namespaces: true,
        bash: true,
        certificates: true,
        home: true,
        state: "/home/ann/.local/state/tarbet".into(),
        state_writable: true,
        state_own: true,
        modes: ["", "admin.token", "here.token", "authority/authority.pem", "audit.log"]
            .map(|file| (file, 0o600))
            .into(),
        store: "redb".into(),
        gateway_public: vec!["gateway.agents"],
        audit: true,
        redis: Some(Ok(Vec::new())),
        listeners: listeners(&Config::default()).into_iter().map(|(name, at)| (name, (at, true))).collect(),
        programs: PROGRAMS.map(|name| (name, Some(PathBuf::from(name)))).into(),
        docker: true,
        kubeconfig: Some("/home/ann/.kube/config".into()),
        kubeconfig_mode: Some(0o600),
        proxy: Some("http://proxy:3128".into()),
        no_proxy: "localhost".into(),
        version: "1.0.0",
        live: Live {
            ready: Some(Ok(json!({ "parts": { "gateway": { "state": "ready" } } }))),
            console: Some(Ok(json!({}))),
            sites: Some(Ok(vec![("lab".into(), true)])),
            refused: Some(0),
            waiting: Some(0),
            version: Some("1.0.0".into()),
            pods: Some(Ok("ok".into())),
            nets: Some(Ok(json!({ "links": [{ "complete": true }] }))),
            drift: Some(Ok(0)),
            audit: Some(Ok(3)),
            audit_head: Some(true),
        },
        ..Facts::default()
    }
}

fn running() -> Endpoint {
    serde_json::from_value(
        json!({ "api": "", "kubernetes": "", "agents": "", "token_file": "", "ca_file": null }),
    )
    .unwrap()
}

/// Somebody else listens there.
fn take(facts: &mut Facts, name: &'static str) {
    facts.listeners.get_mut(name).unwrap().1 = false;
}

/// Spoils one fact.
type Broken = fn(&mut Facts);

/// What makes each check fail. Those that cannot be anything but fine or aside are listed with `None`.
#[rustfmt::skip]
fn breaks() -> Vec<(&'static str, Option<Broken>)> {
    vec![
        ("os.kernel", Some(|f| f.kernel = "3.10.0".into())),
        ("os.cores", Some(|f| f.cores = 1)),
        ("os.memory", Some(|f| f.memory_mib = 10)),
        ("os.disk", Some(|f| f.disk_mib = 1)),
        ("os.descriptors", Some(|f| f.descriptors = 256)),
        ("os.clock", Some(|f| f.year = 1970)),
        ("os.hostname", Some(|f| f.hostname.clear())),
        ("os.temporary", Some(|f| f.temporary_writable = false)),
        ("os.home", Some(|f| f.home = false)),
        ("net.loopback", Some(|f| f.loopback4 = false)),
        ("net.loopback6", None),
        ("net.names", Some(|f| f.nameservers = 0)),
        ("net.proxy", Some(|f| f.proxy = Some("http://[".into()))),
        ("net.no-proxy", Some(|f| f.no_proxy = "example.org".into())),
        ("net.authorities", Some(|f| f.certificates = false)),
        ("state.folder", Some(|f| f.state_writable = false)),
        ("state.owner", Some(|f| f.state_own = false)),
        ("state.lasting", Some(|f| f.state_on_tmpfs = true)),
        ("state.private", Some(|f| { f.modes.insert("", 0o755); })),
        ("state.admin-token", Some(|f| { f.modes.insert("admin.token", 0o644); })),
        ("state.site-token", Some(|f| { f.modes.insert("here.token", 0o640); })),
        ("state.authority-key", Some(|f| { f.modes.insert("authority/authority.pem", 0o604); })),
        ("state.audit-file", Some(|f| { f.modes.insert("audit.log", 0o644); })),
        ("config.valid", Some(|f| f.config_mistake = Some("store.kind: unknown".into()))),
        ("config.store", Some(|f| f.store = "memory".into())),
        ("store.redis", Some(|f| f.redis = Some(Ok(vec!["Redis may lose changes."])))),
        ("config.gateway-tls", Some(|f| f.gateway_plain = vec!["gateway.kubernetes"])),
        ("config.audit", Some(|f| f.audit = false)),
        ("port.console", Some(|f| { take(f, "port.console"); })),
        ("port.observability", Some(|f| { take(f, "port.observability"); })),
        ("port.agents", Some(|f| { take(f, "port.agents"); })),
        ("port.metrics", Some(|f| { take(f, "port.metrics"); })),
        ("port.api", Some(|f| { take(f, "port.api"); })),
        ("port.kubernetes", Some(|f| { take(f, "port.kubernetes"); })),
        ("port.private", Some(|f| { take(f, "port.private"); })),
        ("port.interlink", Some(|f| { take(f, "port.interlink"); })),
        ("port.nets", Some(|f| { take(f, "port.nets"); })),
        ("port.nets-grpc", Some(|f| { take(f, "port.nets-grpc"); })),
        ("port.tags", Some(|f| { take(f, "port.tags"); })),
        ("port.values", Some(|f| { take(f, "port.values"); })),
        ("nets.root", Some(|f| f.root = false)),
        ("nets.namespaces", Some(|f| f.netns = false)),
        ("nets.ip", Some(|f| { f.programs.insert("ip", None); })),
        ("nets.nft", Some(|f| { f.programs.insert("nft", None); })),
        ("nets.strongswan", Some(|f| { f.programs.insert("swanctl", None); })),
        ("nets.bird", Some(|f| { f.programs.insert("bird", None); })),
        ("pods.docker", Some(|f| f.docker = false)),
        ("pods.bash", Some(|f| f.bash = false)),
        ("pods.bwrap", Some(|f| { f.programs.insert("bwrap", None); })),
        ("pods.user-namespaces", Some(|f| f.user_namespaces = false)),
        ("pods.slurm", Some(|f| { f.programs.insert("squeue", None); })),
        ("pods.singularity", Some(|f| { f.programs.insert("singularity", None); })),
        ("cluster.kubeconfig", None),
        ("cluster.kubeconfig-private", Some(|f| f.kubeconfig_mode = Some(0o644))),
        ("cluster.kubectl", None),
        ("up.running", Some(|f| f.endpoint = None)),
        ("up.ready", Some(|f| f.live.ready = Some(Ok(json!({ "parts": { "store": { "state": "failing", "reason": "gone" } } }))))),
        ("up.version", Some(|f| f.live.version = Some("0.9.0".into()))),
        ("up.console", Some(|f| f.live.console = Some(Err("refused".into())))),
        ("reach.api", Some(|f| f.live.sites = Some(Err("refused".into())))),
        ("reach.sites", Some(|f| f.live.sites = Some(Ok(vec![])))),
        ("reach.connected", Some(|f| f.live.sites = Some(Ok(vec![("edge".into(), false)])))),
        ("reach.refused", Some(|f| f.live.refused = Some(3))),
        ("reach.waiting", Some(|f| f.live.waiting = Some(500))),
        ("pods.interlink", Some(|f| f.live.pods = Some(Err("refused".into())))),
        ("pods.runtime", Some(|f| f.live.pods = Some(Ok("Docker does not answer".into())))),
        ("nets.answers", Some(|f| f.live.nets = Some(Err("refused".into())))),
        ("nets.drift", Some(|f| f.live.drift = Some(Ok(2)))),
        ("nets.vpns", Some(|f| f.live.nets = Some(Ok(json!({ "links": [{ "complete": false }] }))))),
        ("audit.whole", Some(|f| f.live.audit = Some(Err("record 7 was changed".into())))),
        ("audit.head", Some(|f| f.live.audit_head = Some(false))),
    ]
}

#[test]
fn every_check_can_fail_and_then_says_what_to_try() {
    let breaks = breaks();
    let named: BTreeSet<&str> = breaks.iter().map(|(name, _)| *name).collect();
    let all: BTreeSet<&str> = CHECKS.iter().map(|check| check.name).collect();
    assert_eq!(named, all);
    assert_eq!(all.len(), CHECKS.len(), "a name is used twice");
    assert!(all.len() >= 40);
    for (name, broken) in breaks {
        let check = CHECKS.iter().find(|check| check.name == name).unwrap();
        assert!(check.hint.len() > 8 && check.looks_at.len() > 5, "{name}");
        let mut facts = healthy();
        if check.live {
            facts.endpoint = Some(running());
        }
        let before = (check.judge)(&facts);
        assert!(matches!(before, Finding::Fine(_)), "{name} is not fine on a healthy machine: {before:?}");
        let Some(broken) = broken else { continue };
        broken(&mut facts);
        let after = (check.judge)(&facts);
        assert!(matches!(after, Finding::Warning(_) | Finding::Wrong(_)), "{name} did not notice: {after:?}");
        let row = super::super::row(check, &after);
        assert_eq!(row["try"], check.hint);
        assert!(!row["found"].as_str().unwrap().is_empty(), "{name} does not say what it found");
    }
}

#[test]
fn before_a_start_nothing_that_runs_is_looked_at() {
    let found = super::super::judge(&healthy(), true);
    assert!(found.iter().all(|(check, _)| !check.live));
    assert!(found.len() >= 40);
}

#[test]
fn a_machine_that_says_nothing_is_judged_without_a_panic() {
    for (_, finding) in super::super::judge(&Facts::default(), false) {
        assert!(!finding.word().is_empty());
    }
}

#[test]
fn the_addresses_that_are_configured_are_looked_at() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = Config::default();
    config.console.listen = taken.local_addr().unwrap();
    let facts = super::super::facts::gather(Ok(&config));
    let (at, free) = facts.listeners["port.console"].clone();
    assert_eq!((at.as_str(), free), (taken.local_addr().unwrap().to_string().as_str(), false));
    let found = super::super::judge(&Facts { endpoint: None, ..facts }, true);
    let console = found.iter().find(|(check, _)| check.name == "port.console").unwrap();
    assert!(matches!(&console.1, Finding::Wrong(text) if text.contains(at.as_str())), "{:?}", console.1);
}

#[test]
fn the_address_of_probes_matters_only_if_somebody_chose_it() {
    for name in ["port.observability", "port.metrics"] {
        let check = CHECKS.iter().find(|check| check.name == name).unwrap();
        let mut facts = healthy();
        take(&mut facts, name);
        assert!(matches!((check.judge)(&facts), Finding::Warning(_)), "{name}");
        facts.observability_chosen = true;
        assert!(matches!((check.judge)(&facts), Finding::Wrong(_)), "{name}");
    }
}

#[test]
fn what_has_no_address_is_not_looked_at() {
    let mut config = Config::default();
    config.observability.socket = Some("/run/observe.sock".into());
    config.gateway.api.socket = Some("/run/api.sock".into());
    config.gateway.serve_kubernetes = false;
    let looked: Vec<&str> = listeners(&config).into_iter().map(|(name, _)| name).collect();
    for none in ["port.observability", "port.metrics", "port.api", "port.kubernetes"] {
        assert!(!looked.contains(&none), "{none}");
    }
    assert!(looked.contains(&"port.agents") && looked.contains(&"port.private"));
}
