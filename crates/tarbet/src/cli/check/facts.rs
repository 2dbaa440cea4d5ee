//! What is so on this machine. Gathered, not judged.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tarbet_reach::listen::Place;
use tarbet_telemetry::Problem;

use super::live::Live;
use crate::cli::endpoint::{Endpoint, state_folder};
use crate::config::Config;
use crate::roles::up::pods::docker_answers;

/// Programs that some capability runs.
pub const PROGRAMS: [&str; 12] = [
    "ip",
    "nft",
    "swanctl",
    "bird",
    "wg",
    "kubectl",
    "docker",
    "sbatch",
    "squeue",
    "scancel",
    "singularity",
    "bwrap",
];

/// Everything the checks look at.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    pub root: bool,
    pub kernel: String,
    pub cores: usize,
    pub memory_mib: u64,
    pub disk_mib: u64,
    pub descriptors: u64,
    pub year: i16,
    pub hostname: String,
    pub nameservers: usize,
    pub temporary_writable: bool,
    pub loopback4: bool,
    pub loopback6: bool,
    pub netns: bool,
    pub user_namespaces: bool,
    pub bash: bool,
    pub certificates: bool,
    pub home: bool,
    pub state: PathBuf,
    pub state_writable: bool,
    pub state_own: bool,
    pub state_on_tmpfs: bool,
    /// Permission bits of private files that are there.
    pub modes: BTreeMap<&'static str, u32>,
    pub config_mistake: Option<String>,
    pub store: String,
    /// The gateway's listeners that others than this machine reach, by their settings.
    pub gateway_public: Vec<&'static str>,
    /// Those of them that have no certificate.
    pub gateway_plain: Vec<&'static str>,
    pub audit: bool,
    /// What Redis may lose, or why it does not say; nothing if there is another store.
    pub redis: Option<Result<Vec<&'static str>, String>>,
    /// Where something shall listen, by the name of the check, and whether it could.
    pub listeners: BTreeMap<&'static str, (String, bool)>,
    /// Whether somebody said where probes and metrics are: they are nowhere else then.
    pub observability_chosen: bool,
    pub programs: BTreeMap<&'static str, Option<PathBuf>>,
    pub docker: bool,
    pub kubeconfig: Option<PathBuf>,
    pub kubeconfig_mode: Option<u32>,
    pub proxy: Option<String>,
    pub no_proxy: String,
    pub version: &'static str,
    pub endpoint: Option<Endpoint>,
    pub live: Live,
}

/// Looks around. What cannot be read counts as absent.
pub fn gather(config: Result<&Config, &Problem>) -> Facts {
    let state = state_folder();
    let settings = config.ok();
    let variable =
        |names: [&str; 2]| names.iter().find_map(|name| std::env::var(name).ok()).filter(|v| !v.is_empty());
    let endpoint = Endpoint::read(&state);
    let nearest = state.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/")).to_owned();
    let kubeconfig = std::env::var_os("KUBECONFIG")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".kube/config")))
        .filter(|path| path.exists());
    let docker_host = std::env::var("DOCKER_HOST").ok().filter(|host| !host.is_empty());
    let docker_host =
        docker_host.or_else(|| settings.map(|config| config.edge.docker_host.clone())).unwrap_or_default();
    Facts {
        root: rustix::process::geteuid().is_root(),
        kernel: read("/proc/sys/kernel/osrelease"),
        cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        memory_mib: available_memory(&read("/proc/meminfo")),
        disk_mib: rustix::fs::statvfs(&nearest).map_or(0, |disk| disk.f_bavail * disk.f_frsize / 1024 / 1024),
        descriptors: descriptors(&read("/proc/self/limits")),
        year: jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).year(),
        hostname: read("/proc/sys/kernel/hostname"),
        nameservers: read("/etc/resolv.conf").lines().filter(|line| line.starts_with("nameserver")).count(),
        temporary_writable: writable(&std::env::temp_dir()),
        loopback4: TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).is_ok(),
        loopback6: TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok(),
        netns: Path::new("/proc/self/ns/net").exists(),
        user_namespaces: read("/proc/sys/user/max_user_namespaces").parse::<u64>().is_ok_and(|most| most > 0),
        bash: Path::new("/bin/bash").exists(),
        certificates: ["/etc/ssl/certs", "/etc/pki/tls/certs"].iter().any(|path| Path::new(path).exists()),
        home: std::env::var_os("HOME").is_some(),
        state_writable: writable(&nearest),
        state_own: nearest != state
            || std::fs::metadata(&state).is_ok_and(|meta| meta.uid() == rustix::process::geteuid().as_raw()),
        state_on_tmpfs: state.starts_with("/run") || state.starts_with("/dev/shm"),
        modes: modes(&state),
        config_mistake: config.err().map(|problem| format!("{} {}", problem.message, problem.cause)),
        store: settings.map_or_else(String::new, store_kind),
        gateway_public: settings.map(|config| config.gateway.public_listeners()).unwrap_or_default(),
        gateway_plain: settings.map(|config| config.gateway.plain_listeners()).unwrap_or_default(),
        audit: settings.is_some_and(|config| config.gateway.audit.file.is_some()) || endpoint.is_some(),
        redis: None,
        listeners: listeners(settings.unwrap_or(&Config::default()))
            .into_iter()
            .map(|(name, at)| {
                let free = TcpListener::bind(at.as_str()).is_ok();
                (name, (at, free))
            })
            .collect(),
        observability_chosen: settings.is_some_and(|config| config.observability.listen.is_some()),
        programs: PROGRAMS.iter().map(|&program| (program, which(program))).collect(),
        docker: docker_answers(&docker_host),
        kubeconfig_mode: kubeconfig.as_ref().and_then(|path| mode(path)),
        kubeconfig,
        proxy: variable(["HTTPS_PROXY", "https_proxy"]).or_else(|| variable(["HTTP_PROXY", "http_proxy"])),
        no_proxy: variable(["NO_PROXY", "no_proxy"]).unwrap_or_default(),
        version: env!("CARGO_PKG_VERSION"),
        live: Live::default(),
        endpoint,
        state,
    }
}

/// The addresses at which roles and `tarbet up` listen with these settings. What is switched off, or a socket in
/// the file system, has none.
pub fn listeners(config: &Config) -> Vec<(&'static str, String)> {
    let (gateway, nets) = (&config.gateway, &config.nets);
    let observability = &config.observability;
    let probes = |usual: u16| {
        let at = observability.listen.unwrap_or_else(|| (Ipv4Addr::LOCALHOST, usual).into());
        observability.socket.is_none().then(|| at.to_string())
    };
    let tcp = |place: Place| match place {
        Place::Tcp(at) => Some(at.to_string()),
        Place::Socket(_) => None,
    };
    let at = |host: &str, port: u16| Some(format!("{host}:{port}"));
    let interlink = config.edge.interlink_port.parse().unwrap_or(0);
    let all = [
        ("port.console", Some(config.console.listen.to_string())),
        ("port.observability", probes(7481)),
        ("port.agents", tcp(gateway.agents.place())),
        ("port.metrics", probes(8151)),
        ("port.api", tcp(gateway.api.place())),
        ("port.kubernetes", tcp(gateway.kubernetes.place()).filter(|_| gateway.serve_kubernetes)),
        ("port.private", tcp(gateway.private.place())),
        ("port.interlink", at("127.0.0.1", interlink)),
        ("port.nets", at(&nets.server.host, nets.server.port)),
        ("port.nets-grpc", at(&nets.server.host, nets.server.rpc_port)),
        ("port.tags", at(&nets.tag_service.host, nets.tag_service.port)),
        ("port.values", at(&nets.kv_store.host, nets.kv_store.port)),
    ];
    all.into_iter().filter_map(|(name, at)| Some((name, at?))).collect()
}

/// What Redis with these settings may lose; nothing if the store is another.
pub async fn redis(config: &Config) -> Option<Result<Vec<&'static str>, String>> {
    let store = config.store();
    if !matches!(store, tarbet_store::StoreConfig::Redis(_)) {
        return None;
    }
    let found = tarbet_store::durability(&store).await;
    Some(found.map(|found| found.warnings()).map_err(|error| tarbet_telemetry::problem::chain(&error)))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn store_kind(config: &Config) -> String {
    match config.store() {
        tarbet_store::StoreConfig::Memory {} => "memory".into(),
        tarbet_store::StoreConfig::Redb(_) => "redb".into(),
        tarbet_store::StoreConfig::Redis(_) => "redis".into(),
    }
}

fn available_memory(text: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or_default() / 1024
}

fn descriptors(text: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"));
    match line.and_then(|rest| rest.split_whitespace().next()) {
        Some("unlimited") => u64::MAX,
        Some(number) => number.parse().unwrap_or_default(),
        None => 0,
    }
}

fn writable(folder: &Path) -> bool {
    rustix::fs::access(folder, rustix::fs::Access::WRITE_OK).is_ok()
}

fn mode(path: &Path) -> Option<u32> {
    std::fs::metadata(path).ok().map(|meta| meta.permissions().mode() & 0o777)
}

fn modes(state: &Path) -> BTreeMap<&'static str, u32> {
    let files = [
        "",
        "admin.token",
        "here.token",
        "authority/authority.pem",
        "audit.log",
        "tarbet.redb",
        "tarbet.redb.journal",
    ];
    files.into_iter().filter_map(|file| Some((file, mode(&state.join(file))?))).collect()
}

fn which(program: &str) -> Option<PathBuf> {
    // What administrators run is not on everybody's path.
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin:/usr/local/sbin";
    path.split(':').map(|folder| Path::new(folder).join(program)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_read() {
        assert_eq!(available_memory("MemTotal: 9 kB\nMemAvailable:   2097152 kB\n"), 2048);
        let limits = "Limit  Soft  Hard  Units\nMax open files            20000                20000                files\n";
        assert_eq!(descriptors(limits), 20_000);
        assert_eq!(descriptors("Max open files  unlimited unlimited files"), u64::MAX);
        assert_eq!((available_memory(""), descriptors("")), (0, 0));
    }
}
