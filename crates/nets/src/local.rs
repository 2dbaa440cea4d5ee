//! The local cloud: the kernel's own network namespaces as networks and machines, with real packets.
//!
//! A network is a namespace with a bridge and a packet filter, a machine a namespace with one cable to it,
//! a peering a cable between networks, a VPN strongSwan with BIRD. What should be is written down first;
//! [`Local::open`] brings the kernel in line with it, so a crash or a reboot is mended by starting again.
//! It needs root and touches nothing outside of namespaces that carry its prefix.

mod cloud;
mod drift;
mod filters;
mod foreign;
mod kernel;
mod make;
mod names;
mod nft;
mod pending;
mod plan;
mod six;
mod state;
mod vpn;
mod wan;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipnet::Ipv6Net;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tarbet_store::Store;

use crate::cloud::Policy;
use crate::controller::Controller;
use crate::error::Error;
use crate::turns::Turns;
use filters::Filters;
use names::Names;
use state::{Records, State};

/// Settings of a local cloud.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct LocalConfig {
    /// What the names of all its network namespaces begin with.
    pub prefix: String,
    /// The namespace of the wide area; local clouds that name it alike can be connected.
    pub wan: String,
    /// Where the files of VPNs are kept. Not below /run, which each VPN has to itself.
    pub folder: PathBuf,
    /// New networks have IPv6 as well, below this prefix of at most 32 bits; IPv4 only if absent. Local
    /// clouds may name the same one.
    #[schemars(with = "Option<String>")]
    pub ipv6: Option<Ipv6Net>,
    /// What this cloud does for anybody.
    pub policy: Policy,
}

impl Default for LocalConfig {
    fn default() -> Self {
        Self {
            prefix: "tarbet".into(),
            wan: "tarbet-wan".into(),
            folder: "/var/lib/tarbet/local".into(),
            ipv6: None,
            policy: Policy::default(),
        }
    }
}

/// A local cloud.
pub struct Local {
    name: String,
    config: LocalConfig,
    names: Names,
    records: Records,
    state: Mutex<State>,
    controller: Arc<dyn Controller>,
    /// Networks, machines and tunnels are made one at a time. Never held while the orchestrator is asked.
    shape: tokio::sync::Mutex<()>,
    turns: Turns,
    filters: Filters,
}

impl Local {
    /// The local cloud of this name, as it was left. As root, what is missing in the kernel is made.
    pub async fn open(
        name: &str,
        config: &LocalConfig,
        store: &Store,
        controller: Arc<dyn Controller>,
    ) -> Result<Self, Error> {
        let local = Self::open_as_is(name, config, store, controller).await?;
        if kernel::is_root() {
            local.restore().await?;
        } else {
            tracing::warn!(
                "The local cloud runs without root: it answers questions and plans, but makes nothing."
            );
        }
        Ok(local)
    }

    /// The same without touching the kernel.
    pub async fn open_as_is(
        name: &str,
        config: &LocalConfig,
        store: &Store,
        controller: Arc<dyn Controller>,
    ) -> Result<Self, Error> {
        names::part("name", name)?;
        names::part("prefix", &config.prefix)?;
        names::part("wan", &config.wan)?;
        if config.folder.starts_with("/run") || config.folder.starts_with("/var/run") {
            return Err(Error::invalid("folder", "must not be below /run"));
        }
        if config.ipv6.is_some_and(|prefix| !six::has_room(prefix)) {
            return Err(Error::invalid("ipv6", "must be a prefix of at most 32 bits"));
        }
        let records = Records::new(store, name)?;
        let state = records.load().await?;
        Ok(Self {
            name: name.into(),
            config: config.clone(),
            names: Names::new(&config.prefix, name),
            records,
            state: Mutex::new(state),
            controller,
            shape: tokio::sync::Mutex::default(),
            turns: Turns::default(),
            filters: Filters::default(),
        })
    }

    /// Removes every namespace and file of this cloud, and forgets all of it.
    pub async fn remove(&self) -> Result<(), Error> {
        require_root()?;
        let _turn = self.shape.lock().await;
        let state = std::mem::take(&mut *self.lock());
        for name in state.machines.keys() {
            self.records.put_machine(name, None).await?;
        }
        for name in state.networks.keys() {
            self.records.put_network(name, None).await?;
        }
        for namespace in state.hubs.keys() {
            self.records.put_hub(namespace, None).await?;
        }
        for netns in kernel::names(&self.names.everything()) {
            self.remove_netns(&netns).await?;
        }
        wan::release(self.config.wan.clone()).await
    }

    /// The commands that would bring the kernel in line, for people.
    pub async fn commands(&self) -> Result<Vec<String>, Error> {
        let steps = self.missing(true).await?;
        Ok(steps.iter().map(ToString::to_string).collect())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn require_root() -> Result<(), Error> {
    if kernel::is_root() { Ok(()) } else { Err(Error::Root("the local cloud")) }
}
