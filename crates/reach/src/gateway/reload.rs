//! What of a gateway may change while it runs: certificates and their authorities, limits, waits, ages, and
//! what the holders of certificates may do. Connections and streams that exist go on.

use serde_json::Value;
use tarbet_telemetry::Problem;

use super::{Node, Secrets};
use crate::config::{GatewayConfig, TlsFiles};
use crate::dial::Trust;
use crate::listen::{Certificates, Ready};

/// The settings that count from the next connection or request on, whole or with all below them.
const LIVE: [&str; 10] = [
    "quotas",
    "max_wait",
    "max_connection_age",
    "certificates",
    "agents.tls",
    "api.tls",
    "kubernetes.tls",
    "private.tls",
    "private.ca_file",
    "private.tls_server_name",
];

/// Takes over a configuration that was read again.
#[derive(Clone)]
pub struct Reloader {
    node: Node,
    certificates: Vec<Certificates>,
    trust: Trust,
    secrets: Secrets,
}

impl Reloader {
    pub(super) fn new(node: Node, certificates: Vec<Certificates>, trust: Trust, secrets: Secrets) -> Self {
        Self { node, certificates, trust, secrets }
    }

    /// Takes over what may change, and reads every certificate and shared secret anew; gives the settings that have changed and
    /// need a new start. If anything cannot be used, nothing changes at all.
    pub fn reload(&self, config: &GatewayConfig) -> Result<Vec<String>, Problem> {
        let private = &config.private;
        let (authorities, name) = (private.ca_file.as_deref(), private.tls_server_name.as_deref());
        let trust = Trust::new(authorities, name)?;
        let of_kas = Trust::for_http2(authorities, name)?;
        let read = |of: &Certificates| tls(config, of.listener()).map(|files| of.read(files)).transpose();
        let ready = self.certificates.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        // What a file holds may change, and not which file it is.
        let current = self.node.config();
        let secrets = Secrets::read(&current)?;
        // Everything is good: from here on nothing fails.
        self.secrets.become_like(&secrets);
        self.trust.become_like(&trust);
        self.node.trust(&of_kas);
        ready.into_iter().flatten().for_each(Ready::put_into_use);
        let mut settled = config.clone();
        // What is told to other gateways was found out at the start.
        settled.private.advertise = settled.private.advertise.or_else(|| current.private.advertise.clone());
        let waiting = pending(&current, &settled);
        self.node.reload(config);
        Ok(waiting)
    }
}

fn tls<'a>(config: &'a GatewayConfig, listener: &str) -> Option<&'a TlsFiles> {
    match listener {
        "agents" => config.agents.tls.as_ref(),
        "api" => config.api.tls.as_ref(),
        "kubernetes" => config.kubernetes.tls.as_ref(),
        "private" => config.private.tls.as_ref(),
        _ => None,
    }
}

/// The settings in which two configurations differ and that count only after a new start.
fn pending(before: &GatewayConfig, after: &GatewayConfig) -> Vec<String> {
    // Settings always become JSON.
    let json = |config: &GatewayConfig| serde_json::to_value(config).unwrap_or_default();
    let mut found = Vec::new();
    differ("", &json(before), &json(after), &mut found);
    // A listener that has no certificate cannot get one, nor lose it.
    let turned = |name: &str, had: bool, has: bool| (had != has).then(|| format!("{name}.tls"));
    let turns = [
        turned("agents", before.agents.tls.is_some(), after.agents.tls.is_some()),
        turned("api", before.api.tls.is_some(), after.api.tls.is_some()),
        turned("kubernetes", before.kubernetes.tls.is_some(), after.kubernetes.tls.is_some()),
        turned("private", before.private.tls.is_some(), after.private.tls.is_some()),
    ];
    found.retain(|setting| !LIVE.iter().any(|live| is_below(setting, live)));
    found.extend(turns.into_iter().flatten());
    found
}

fn is_below(setting: &str, above: &str) -> bool {
    setting.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn differ(path: &str, before: &Value, after: &Value, found: &mut Vec<String>) {
    if before == after {
        return;
    }
    let (Value::Object(one), Value::Object(other)) = (before, after) else {
        return found.push(path.to_owned());
    };
    let mut names: Vec<&String> = one.keys().chain(other.keys()).collect();
    names.sort();
    names.dedup();
    for name in names {
        let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        differ(&below, one.get(name).unwrap_or(&Value::Null), other.get(name).unwrap_or(&Value::Null), found);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_needs_a_new_start_is_named_and_nothing_else() {
        let before = GatewayConfig::default();
        let mut after = before.clone();
        after.quotas.site.links = 3;
        after.max_wait = Duration::from_secs(1);
        after.certificates.grants = Vec::new();
        assert_eq!(pending(&before, &after), Vec::<String>::new());
        after.agents.listen.set_port(1);
        after.kas.calls_per_minute = 7;
        after.api.tls = Some(TlsFiles::default());
        assert_eq!(pending(&before, &after), ["agents.listen", "kas.calls_per_minute", "api.tls"]);
        assert!(!is_below("quotas_of_others", "quotas") && is_below("quotas.site", "quotas"));
    }

    #[test]
    fn every_live_setting_exists() {
        let mut config = GatewayConfig::default();
        for tls in [&mut config.agents.tls, &mut config.api.tls, &mut config.kubernetes.tls] {
            *tls = Some(TlsFiles::default());
        }
        let json = serde_json::to_value(config).unwrap();
        for live in LIVE {
            let pointer = format!("/{}", live.replace('.', "/"));
            assert!(json.pointer(&pointer).is_some(), "{live}");
        }
    }
}
