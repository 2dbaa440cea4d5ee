//! `--kas-config`: the configuration file and the environment of a kas, for a gateway in its place.

use std::net::IpAddr;
use std::path::Path;

use tarbet_identity::jwt::SharedSecrets;
use tarbet_reach::kas::config::{KasConfig, LogLevel, OwnUrlSettings, own_url};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::problem::chain;

use crate::config::Config;

/// Lays the file over what is configured, and gives what an operator should be told once there is a log.
pub fn lay_over(config: &mut Config, file: &Path) -> Result<Vec<String>, Problem> {
    let invalid = |cause: String| {
        let message = format!("The kas configuration {} cannot be used.", file.display());
        Problem::new(&ground::CONFIG_INVALID, message).because(cause)
    };
    let text = std::fs::read_to_string(file).map_err(|error| {
        let message = format!("The kas configuration {} cannot be read.", file.display());
        Problem::new(&ground::CONFIG_UNREADABLE, message).because(error.to_string())
    })?;
    let kas = KasConfig::parse(&text).map_err(|error| invalid(chain(&error)))?;
    kas.apply(&mut config.gateway).map_err(|error| invalid(chain(&error)))?;
    let observability = kas.observability().map_err(|error| invalid(chain(&error)))?;
    if config.observability.listen.is_none() && config.observability.socket.is_none() {
        (config.observability.listen, config.observability.socket) = observability;
    }
    let pages = &mut config.observability;
    pages.tls = pages.tls.take().or_else(|| kas.observability_tls());
    for (path, asked) in [
        (&mut pages.metrics_path, &kas.observability.prometheus),
        (&mut pages.liveness_path, &kas.observability.liveness_probe),
        (&mut pages.readiness_path, &kas.observability.readiness_probe),
    ] {
        *path = path.take().or_else(|| asked.url_path.clone());
    }
    if let Some((setting, message)) = pages.mistakes().into_iter().next() {
        return Err(invalid(format!("observability: {setting}: {message}")));
    }
    if config.store.is_none() {
        config.store = kas.store().map_err(|error| invalid(chain(&error)))?;
    }
    if let (true, Some(deadline)) = (config.shutdown.is_usual(), kas.shutdown_deadline()) {
        config.shutdown.deadline = deadline;
    }
    if config.log.filter == "info" {
        config.log.filter = level(kas.observability.logging.level).into();
    }
    advertise(config)?;
    let mistakes = config.gateway.mistakes();
    if !mistakes.is_empty() {
        let lines: Vec<String> =
            mistakes.iter().map(|(setting, text)| format!("{setting}: {text}")).collect();
        return Err(invalid(lines.join("; ")));
    }
    let mut warnings = kas.warnings();
    if !config.gateway.serve_kubernetes {
        warnings.push("`agent.kubernetes_api` is absent: Kubernetes clients are not let in".into());
    }
    if same_secret(config) && !warnings.iter().any(|warning| warning.contains("share one secret")) {
        warnings.push(
            "`api` and `private_api` have equal secrets: whoever may call one may call the other".into(),
        );
    }
    Ok(warnings)
}

fn level(level: LogLevel) -> &'static str {
    match level {
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
        LogLevel::Warn => "warn",
        LogLevel::Error => "error",
    }
}

/// Where the other gateways are told to find this one, by `OWN_PRIVATE_API_*`.
fn advertise(config: &mut Config) -> Result<(), Problem> {
    let variable = |name: &str| std::env::var(format!("OWN_PRIVATE_API_{name}")).ok();
    let settings = OwnUrlSettings {
        url: variable("URL"),
        cidr: variable("CIDR"),
        scheme: variable("SCHEME"),
        port: variable("PORT"),
        host: variable("HOST"),
    };
    let private = &mut config.gateway.private;
    private.tls_server_name = settings.host.clone().filter(|host| !host.is_empty());
    let said = settings.url.is_some() || settings.cidr.is_some();
    if config.gateway.kas.beside.is_some() && private.socket.is_some() && !said && private.advertise.is_none()
    {
        return Err(Problem::new(&ground::CONFIG_INVALID, "Other gateways cannot dial this one.")
            .because("`private_api.listen` is a socket in the file system, and `redis` is there for replicas")
            .advising("set OWN_PRIVATE_API_URL to where others reach the private API"));
    }
    // Only replicas need to be told; one address that is listened on is told by itself.
    let is_open = config.gateway.kas.beside.is_some() && private.listen.ip().is_unspecified();
    if !said && (private.advertise.is_some() || !is_open) {
        return Ok(());
    }
    let invalid = |cause: String| {
        Problem::new(&ground::CONFIG_INVALID, "The OWN_PRIVATE_API_ variables cannot be used.").because(cause)
    };
    let own = own_url(&settings, private.listen, &addresses()).map_err(|error| invalid(chain(&error)))?;
    if own.url.starts_with("unix:") {
        return Err(invalid("gateways reach each other by grpc:// or grpcs://, not by a socket".into()));
    }
    private.advertise = Some(own.url);
    Ok(())
}

/// The addresses of this machine, as Linux tells them.
fn addresses() -> Vec<IpAddr> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let mut found = local_v4(&read("/proc/net/fib_trie"));
    found.extend(local_v6(&read("/proc/net/if_inet6")));
    found
}

/// Lines such as `|-- 10.0.0.5`, followed by `/32 host LOCAL` if the address is ours.
fn local_v4(trie: &str) -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = Vec::new();
    let mut last = None;
    for line in trie.lines() {
        if let Some((_, address)) = line.split_once("|-- ") {
            last = address.trim().parse().ok();
        } else if line.contains("/32 host LOCAL")
            && let Some(address) = last
            && !found.contains(&address)
        {
            found.push(address);
        }
    }
    found
}

/// Lines that begin with the 32 digits of an address.
fn local_v6(table: &str) -> Vec<IpAddr> {
    let digits = table.lines().filter_map(|line| line.split_whitespace().next());
    let numbers = digits.filter_map(|digits| u128::from_str_radix(digits, 16).ok());
    numbers.map(|number| IpAddr::V6(number.into())).collect()
}

fn same_secret(config: &Config) -> bool {
    let (Some(api), Some(private)) =
        (&config.gateway.kas.api_secret_file, &config.gateway.private.secret_file)
    else {
        return false;
    };
    match (SharedSecrets::from_file(api), SharedSecrets::from_file(private)) {
        (Ok(api), Ok(private)) => api.meets(&private),
        // Whoever needs them reports that they cannot be read.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_listens_everywhere_is_asked_for_its_address_as_the_original_would() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kas.yaml");
        let text = "redis: {server: {address: 'redis:6379'}}
private_api: {listen: {address: ':8155', authentication_secret_file: /nowhere}}";
        std::fs::write(&file, text).unwrap();
        let problem = lay_over(&mut Config::default(), &file).unwrap_err();
        assert!(problem.cause.contains("set OWN_PRIVATE_API_URL"), "{problem:?}");
        // The product's own setting says it as well.
        let mut config = Config::default();
        config.gateway.private.advertise = Some("grpc://10.0.0.5:8155".into());
        lay_over(&mut config, &file).unwrap();
        assert_eq!(config.gateway.private.advertise.as_deref(), Some("grpc://10.0.0.5:8155"));
    }

    #[test]
    fn the_addresses_of_this_machine() {
        let trie = "Local:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.1.2.0\n        /24 link UNICAST\n     |-- 10.1.2.3\n        /32 host LOCAL\n     |-- 127.0.0.1\n        /32 host LOCAL\n     |-- 127.255.255.255\n        /32 link BROADCAST\n     |-- 10.1.2.3\n        /32 host LOCAL\n";
        assert_eq!(local_v4(trie), ["10.1.2.3", "127.0.0.1"].map(|text| text.parse::<IpAddr>().unwrap()));
        let table = "00000000000000000000000000000001 01 80 10 80       lo\nfd000000000000000000000000000007 02 40 00 00 eth0\n";
        assert_eq!(local_v6(table), ["::1", "fd00::7"].map(|text| text.parse::<IpAddr>().unwrap()));
        assert!(addresses().contains(&"127.0.0.1".parse().unwrap()));
    }
}
