//! What a start needs.

use super::super::facts::Facts;
use super::{Check, Finding, aside, fine, must, should, warning, wrong};

const fn check(
    name: &'static str,
    looks_at: &'static str,
    hint: &'static str,
    judge: fn(&Facts) -> Finding,
) -> Check {
    Check { name, looks_at, hint, live: false, judge }
}

#[rustfmt::skip]
pub(super) fn checks() -> Vec<Check> {
    vec![
        check("os.kernel", "the version of the kernel", "use Linux 4.18 or newer", kernel),
        check("os.cores", "how many cores there are", "one core works; two or more keep links responsive under load", |f| should(f.cores >= 2, format!("{} cores", f.cores), "only one core")),
        check("os.memory", "memory that is left", "free at least 256 MiB, or leave parts out with `tarbet up --without nets,pods`", |f| must(f.memory_mib >= 256, format!("{} MiB available", f.memory_mib), format!("only {} MiB available", f.memory_mib))),
        check("os.disk", "room on the disk of the state folder", "free at least 200 MiB, or set TARBET_STATE to a folder on another disk", |f| must(f.disk_mib >= 200, format!("{} MiB free", f.disk_mib), format!("only {} MiB free", f.disk_mib))),
        check("os.descriptors", "the limit of open files", "raise it: `ulimit -n 65536`, or LimitNOFILE= in the unit", |f| should(f.descriptors >= 4096, format!("{} may be open", f.descriptors), format!("only {} may be open; each link and request needs some", f.descriptors))),
        check("os.clock", "whether the clock is plausible", "set the clock (`timedatectl set-ntp true`); certificates and tokens are judged by it", |f| must((2025..2100).contains(&f.year), format!("it is {}", f.year), format!("it says {}", f.year))),
        check("os.hostname", "the machine's name", "give the machine a name with `hostnamectl`, or set agent.name", |f| should(!f.hostname.is_empty(), f.hostname.clone(), "it has none; agents show it to people")),
        check("os.temporary", "whether temporary files can be written", "set TMPDIR to a folder you may write", |f| must(f.temporary_writable, "writable", "not writable")),
        check("os.home", "whether HOME is set", "set HOME, or TARBET_STATE to an absolute path", |f| should(f.home, "set", "not set, so /var/lib/tarbet is used")),
        check("net.loopback", "whether IPv4 loopback works", "bring it up: `ip link set lo up`", |f| must(f.loopback4, "works", "nothing can listen on 127.0.0.1")),
        check("net.loopback6", "whether IPv6 loopback works", "nothing to do unless you use IPv6 addresses in the configuration", |f| if f.loopback6 { fine("works") } else { aside("not there") }),
        check("net.names", "whether names can be resolved", "name a server in /etc/resolv.conf, or give gateways by address", |f| should(f.nameservers > 0, format!("{} name servers", f.nameservers), "/etc/resolv.conf names no server")),
        check("net.proxy", "the proxy variables", "write it as http://HOST:PORT", proxy),
        check("net.no-proxy", "whether loopback goes around the proxy", "add 127.0.0.1,localhost to NO_PROXY", no_proxy),
        check("net.authorities", "the system's certificate authorities", "install ca-certificates, or give --ca-file", |f| should(f.certificates, "there", "none found; public gateways cannot be verified")),
        check("state.folder", "whether the state folder can be written", "set TARBET_STATE to a folder you may write", |f| must(f.state_writable, f.state.display().to_string(), format!("{} cannot be written", f.state.display()))),
        check("state.owner", "whose the state folder is", "run as its owner, or set TARBET_STATE to a folder of your own", |f| must(f.state_own, "yours", format!("{} belongs to somebody else", f.state.display()))),
        check("state.lasting", "whether the state folder survives a reboot", "set TARBET_STATE to a folder on a disk", |f| should(!f.state_on_tmpfs, "on a disk", format!("{} is gone after a reboot", f.state.display()))),
        check("state.private", "who may look into the state folder", "chmod 700 the state folder: tokens and keys lie there", |f| private(f, "", "the folder")),
        check("state.admin-token", "who may read the administrator's token", "chmod 600 admin.token, then replace the token if others may have read it", |f| private(f, "admin.token", "admin.token")),
        check("state.site-token", "who may read this machine's own token", "chmod 600 here.token, then `tarbet site token here`", |f| private(f, "here.token", "here.token")),
        check("state.authority-key", "who may read the authority's key", "chmod 600 authority/authority.pem; if others may have read it, remove the folder and join agents again", |f| private(f, "authority/authority.pem", "authority.pem")),
        check("state.audit-file", "who may read the audit log", "chmod 600 audit.log", |f| private(f, "audit.log", "audit.log")),
        check("config.valid", "the configuration", "run `tarbet config check` and correct each listed place", |f| f.config_mistake.as_ref().map_or_else(|| fine("no mistakes"), |mistake| wrong(mistake.clone()))),
        check("config.store", "what the store survives", "set store.kind to redb (one process) or redis (several gateways)", |f| should(f.store != "memory", f.store.clone(), "in memory: everything is forgotten at the end of the process")),
        check("store.redis", "what Redis survives", "set in redis.conf what is named, or with `redis-cli config set`", |f| match &f.redis { None => aside("Redis is not used"), Some(Err(why)) => wrong(why.clone()), Some(Ok(losses)) => should(losses.is_empty(), "it keeps every change", losses.join(" ")) }),
        check("config.gateway-tls", "whether tokens travel over encrypted listeners", "set the tls of each that is named, or put a TLS proxy before it and listen on loopback", |f| if f.gateway_public.is_empty() { aside("the gateway listens on loopback") } else { must(f.gateway_plain.is_empty(), "encrypted", format!("tokens would travel in the clear to {}", f.gateway_plain.join(", "))) }),
        check("config.audit", "whether a record of requests is kept", "set gateway.audit.file", |f| should(f.audit, "kept", "no record is kept")),
        check("port.console", "where the console listens", "end what listens there (`ss -ltnp`), or set console.listen", |f| port(f, "port.console")),
        check("port.observability", "where `tarbet up` has its probes and metrics", "nothing to do unless observability.listen names it; then end what listens there (`ss -ltnp`), or name another", |f| probes(f, "port.observability")),
        check("port.agents", "where agents dial in", "end what listens there (`ss -ltnp`), or set gateway.agents.listen", |f| port(f, "port.agents")),
        check("port.metrics", "where a gateway has its probes and metrics", "nothing to do unless observability.listen names it; then end what listens there (`ss -ltnp`), or name another", |f| probes(f, "port.metrics")),
        check("port.api", "where the gateway's API listens", "end what listens there (`ss -ltnp`), or set gateway.api.listen", |f| port(f, "port.api")),
        check("port.kubernetes", "where kubectl comes in", "end what listens there (`ss -ltnp`), or set gateway.kubernetes.listen", |f| port(f, "port.kubernetes")),
        check("port.private", "where other gateways come in", "end what listens there (`ss -ltnp`), or set gateway.private.listen", |f| port(f, "port.private")),
        check("port.interlink", "where interLink's API listens", "nothing to do for `tarbet up`, which takes another; else set edge.InterlinkPort", |f| spare(f, "port.interlink")),
        check("port.nets", "where the orchestrator listens", "nothing to do for `tarbet up`, which takes another; else set nets.server.port", |f| spare(f, "port.nets")),
        check("port.nets-grpc", "where the orchestrator's gRPC listens", "nothing to do for `tarbet up`, which takes another; else set nets.server.rpcPort", |f| spare(f, "port.nets-grpc")),
        check("port.tags", "where the tag service listens", "nothing to do for `tarbet up`, which takes another; else set nets.tagService.port", |f| spare(f, "port.tags")),
        check("port.values", "where the values of networks are served", "nothing to do for `tarbet up`, which takes another; else set nets.kvStore.port", |f| spare(f, "port.values")),
        check("nets.root", "whether networks can be made", "run as root (`sudo tarbet up`) for real packets; planning works without", |f| should(f.root, "you are root", "you are not root: networks are planned, not made")),
        check("nets.namespaces", "whether the kernel has network namespaces", "use a kernel with CONFIG_NET_NS", |f| should(f.netns, "there", "/proc/self/ns/net is missing")),
        check("nets.ip", "the program ip", "apt install iproute2", |f| program(f, "ip", "local clouds")),
        check("nets.nft", "the program nft", "apt install nftables", |f| program(f, "nft", "permit lists of local clouds")),
        check("nets.strongswan", "the program swanctl", "apt install strongswan-swanctl charon-systemd", |f| program(f, "swanctl", "VPNs between local clouds")),
        check("nets.bird", "the program bird", "apt install bird2", |f| program(f, "bird", "routes between local clouds")),
        check("pods.docker", "whether a Docker daemon answers", "start Docker, or set DOCKER_HOST; without it pods run as plain processes", |f| should(f.docker, "answers", "no daemon answers")),
        check("pods.bash", "the shell of job scripts", "install bash, or set edge.BashPath", |f| must(f.bash, "/bin/bash", "/bin/bash is missing")),
        check("pods.bwrap", "the program bwrap", "apt install bubblewrap; without it pods as plain processes have no mounts", |f| program(f, "bwrap", "mounts of pods as plain processes")),
        check("pods.user-namespaces", "whether ordinary users may make namespaces", "sysctl user.max_user_namespaces=15000", |f| should(f.user_namespaces, "they may", "they may not; bwrap needs it")),
        check("pods.slurm", "Slurm's programs", "install Slurm's client programs, or set edge.SbatchPath, SqueuePath and ScancelPath", slurm),
        check("pods.singularity", "the program singularity", "install apptainer or singularity, or set edge.ContainerRuntime", |f| if f.programs.get("sbatch").is_some_and(Option::is_some) { program(f, "singularity", "containers in Slurm jobs") } else { aside("only Slurm needs it") }),
        check("cluster.kubeconfig", "whether there is a kubeconfig", "set KUBECONFIG, or give --kubeconfig FILE", |f| f.kubeconfig.as_ref().map_or_else(|| aside("none; only jobs, node and mesh need one"), |path| fine(path.display().to_string()))),
        check("cluster.kubeconfig-private", "who may read the kubeconfig", "chmod 600 the file", |f| match f.kubeconfig_mode { None => aside("there is none"), Some(mode) => should(is_private(mode), "only you", format!("its mode is {mode:o}: others may read your credentials")) }),
        check("cluster.kubectl", "the program kubectl", "install kubectl to use sites from the command line", |f| if f.programs.get("kubectl").is_some_and(Option::is_some) { fine("there") } else { aside("not on the path") }),
    ]
}

fn kernel(facts: &Facts) -> Finding {
    let mut numbers = facts.kernel.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    must(version >= (4, 18), facts.kernel.clone(), format!("`{}` is too old", facts.kernel))
}

fn proxy(facts: &Facts) -> Finding {
    match facts.proxy.as_deref() {
        None => aside("no proxy is set"),
        Some(proxy) => {
            let parsed = tarbet_link::ProxySettings::new(None, Some(proxy), None);
            // A proxy may hold a password: it is not shown.
            parsed.map_or_else(|error| wrong(error.to_string()), |_| fine("well written"))
        }
    }
}

fn no_proxy(facts: &Facts) -> Finding {
    if facts.proxy.is_none() {
        return aside("no proxy is set");
    }
    let around = facts
        .no_proxy
        .split(',')
        .map(str::trim)
        .any(|host| ["*", "127.0.0.1", "localhost", "127.0.0.0/8"].contains(&host));
    should(around, "it does", "a local gateway would be dialled through the proxy")
}

/// Nobody but the owner has any right.
fn is_private(mode: u32) -> bool {
    mode.trailing_zeros() >= 6
}

fn private(facts: &Facts, file: &str, name: &str) -> Finding {
    match facts.modes.get(file) {
        None => aside("not there yet"),
        Some(&mode) => {
            must(is_private(mode), "only you", format!("{name} has mode {mode:o}: others may read it"))
        }
    }
}

/// An address that `tarbet up` needs.
fn port(facts: &Facts, name: &str) -> Finding {
    if facts.endpoint.is_some() {
        return aside("`tarbet up` runs here");
    }
    match facts.listeners.get(name) {
        None => aside("nothing listens there"),
        Some((at, free)) => must(*free, format!("{at} is free"), format!("{at} is taken")),
    }
}

/// An address for which `tarbet up` takes another if it must.
fn spare(facts: &Facts, name: &str) -> Finding {
    match port(facts, name) {
        Finding::Wrong(text) => warning(text),
        other => other,
    }
}

/// The address of probes and metrics, for which every role takes another unless somebody chose it.
fn probes(facts: &Facts, name: &str) -> Finding {
    if facts.observability_chosen { port(facts, name) } else { spare(facts, name) }
}

/// A program that only root's networks, or some pods, need.
fn program(facts: &Facts, name: &str, needed_for: &str) -> Finding {
    match facts.programs.get(name) {
        Some(Some(path)) => fine(path.display().to_string()),
        _ => warning(format!("{name} is missing; {needed_for} need it")),
    }
}

fn slurm(facts: &Facts) -> Finding {
    let there = |name: &str| facts.programs.get(name).is_some_and(Option::is_some);
    match (there("sbatch"), there("squeue") && there("scancel")) {
        (false, _) => aside("no Slurm here"),
        (true, true) => fine("sbatch, squeue and scancel are there"),
        (true, false) => warning("sbatch is there, but squeue or scancel is not"),
    }
}
