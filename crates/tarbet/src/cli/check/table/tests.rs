//! Each check is made to fail once, and must then say what it found and what to try.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::json;

use super::super::facts::{Facts, PORTS, PROGRAMS};
use super::super::live::Live;
use super::*;
use crate::cli::endpoint::Endpoint;

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
        modes: ["", "admin.token", "here.token", "authority/ca.key", "audit.log"]
            .map(|file| (file, 0o600))
            .into(),
        store: "redb".into(),
        gateway_tls: true,
        gateway_public: true,
        audit: true,
        free_ports: PORTS.map(|port| (port, true)).into(),
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
        ("state.authority-key", Some(|f| { f.modes.insert("authority/ca.key", 0o604); })),
        ("state.audit-file", Some(|f| { f.modes.insert("audit.log", 0o644); })),
        ("config.valid", Some(|f| f.config_mistake = Some("store.kind: unknown".into()))),
        ("config.store", Some(|f| f.store = "memory".into())),
        ("config.gateway-tls", Some(|f| f.gateway_tls = false)),
        ("config.audit", Some(|f| f.audit = false)),
        ("port.console", Some(|f| { f.free_ports.insert(7480, false); })),
        ("port.observability", Some(|f| { f.free_ports.insert(7481, false); })),
        ("port.agents", Some(|f| { f.free_ports.insert(8150, false); })),
        ("port.metrics", Some(|f| { f.free_ports.insert(8151, false); })),
        ("port.api", Some(|f| { f.free_ports.insert(8153, false); })),
        ("port.kubernetes", Some(|f| { f.free_ports.insert(8154, false); })),
        ("port.private", Some(|f| { f.free_ports.insert(8155, false); })),
        ("port.interlink", Some(|f| { f.free_ports.insert(3000, false); })),
        ("port.nets", Some(|f| { f.free_ports.insert(8080, false); })),
        ("port.nets-grpc", Some(|f| { f.free_ports.insert(8081, false); })),
        ("port.tags", Some(|f| { f.free_ports.insert(8085, false); })),
        ("port.values", Some(|f| { f.free_ports.insert(8086, false); })),
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
