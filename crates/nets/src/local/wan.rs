//! The wide area: one bridge in a namespace of its own, shared by all local clouds that name it alike.
//!
//! Each port carries its address as its alias, which is how clouds in different processes keep from
//! choosing the same one. A lock file makes choosing and plugging in one step.

use std::fs::{File, OpenOptions};
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use super::kernel::{self, blocking};
use super::names::Names;
use super::plan::{self, Seen, Step};
use crate::error::Error;

/// Set aside for measuring between networks (RFC 2544), so no private address meets it.
const RANGE: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(198, 18, 0, 0), 15);
/// One for all: choosing an address is quick, and no file is left behind for each wide area.
const LOCK: &str = "/run/lock/tarbet-wan.lock";

/// Plugs a namespace into the wide area as `wan0`, and says under which address. Asking again finds the same.
pub(super) async fn attach(wan: String, netns: String) -> Result<Ipv4Addr, Error> {
    blocking(move || {
        let _lock = lock()?;
        let known = kernel::names(&wan).contains(&wan);
        let ports = if known { kernel::described_links(&wan)? } else { Vec::new() };
        let links = ports.iter().map(|(name, _)| name.clone()).collect();
        let mut seen = Seen::default();
        if known {
            seen.netns.insert(wan.clone());
            seen.links.insert(wan.clone(), links);
        }
        let mut steps = plan::netns(&wan, false, &seen);
        if !seen.has_link(&wan, "wan0") {
            steps.push(plan::ip(&wan, "link add wan0 type bridge"));
            steps.push(plan::ip(&wan, "link set wan0 up"));
        }
        let port = Names::wan_port(&netns);
        let taken = |name: Option<&str>| -> Vec<Ipv4Addr> {
            let wanted = ports.iter().filter(|(port, _)| name.is_none_or(|name| name == port));
            wanted.filter_map(|(_, alias)| alias.as_ref()?.parse().ok()).collect()
        };
        let address = match taken(Some(&port)).first() {
            Some(address) => *address,
            None => RANGE
                .hosts()
                .find(|host| !taken(None).contains(host))
                .ok_or_else(|| Error::Internal("the wide area has no address left".into()))?,
        };
        // A port whose other end went with its namespace is of no use.
        if !seen.has_link(&wan, &port) || !kernel::links(&netns)?.contains("wan0") {
            steps.push(plan::unplug(&wan, &port));
            steps.push(plan::ip(&wan, &format!("link add {port} type veth peer name wan0 netns {netns}")));
            steps.push(plan::ip(&wan, &format!("link set {port} alias {address}")));
        }
        steps.push(plan::ip(&wan, &format!("link set {port} master wan0 up")));
        steps.push(plan::ip(&netns, &format!("addr replace {address}/{} dev wan0", RANGE.prefix_len())));
        steps.push(plan::ip(&netns, "link set wan0 up"));
        for step in &steps {
            match step {
                Step::Ip(args) => kernel::ip_batch(std::slice::from_ref(args))?,
                Step::Set { netns, key, value } => kernel::set(netns, key, value)?,
                Step::Try(args) => drop(kernel::ip_batch(std::slice::from_ref(args))),
                Step::Filter { .. } => {}
            }
        }
        Ok(address)
    })
    .await
}

/// Unplugs a namespace. Its port would go with it by itself, but later: the kernel takes its time.
pub(super) async fn detach(wan: String, netns: String) -> Result<(), Error> {
    blocking(move || {
        let _lock = lock()?;
        let port = Names::wan_port(&netns);
        if kernel::names(&wan).contains(&wan) && kernel::links(&wan)?.contains(&port) {
            return kernel::ip_batch(&[["-n", &wan, "link", "del", &port].map(str::to_owned).to_vec()]);
        }
        Ok(())
    })
    .await
}

/// Removes the wide area if nothing is plugged into it.
pub(super) async fn release(wan: String) -> Result<(), Error> {
    blocking(move || {
        let _lock = lock()?;
        if !kernel::names(&wan).contains(&wan) {
            return Ok(());
        }
        let used = kernel::links(&wan)?.iter().any(|link| link.starts_with('w') && link != "wan0");
        if used { Ok(()) } else { kernel::ip_batch(&[vec!["netns".into(), "del".into(), wan.clone()]]) }
    })
    .await
}

fn lock() -> Result<File, Error> {
    let failed =
        |error: std::io::Error| Error::Tool { command: format!("lock {LOCK}"), said: error.to_string() };
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(LOCK).map_err(failed)?;
    file.lock().map_err(failed)?;
    Ok(file)
}
