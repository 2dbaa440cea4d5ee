//! Connections between clouds: each step is written down before the next is begun.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};
use tarbet_store::{Commit, Record, Store, Table};
use tokio_util::sync::CancellationToken;

use super::Inner;
use super::lead::Lead;
use super::operation::Call;
use crate::cloud::{NewConnections, NewGateway, OldConnections};
use crate::controller::ConnectRequest;
use crate::error::Error;
use crate::model::{Deployment, SharedKey};
use crate::plan::bgp;
use crate::plan::connect::{End, Link, Side, Step};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct LinkRecord(pub(super) Link);

impl Record for LinkRecord {
    const KIND: &'static str = "link";
}

pub(super) struct Links {
    table: Table<String, LinkRecord>,
    lead: Lead,
}

impl Links {
    pub(super) fn new(store: &Store, lead: Lead) -> Result<Self, Error> {
        Ok(Self { table: Table::new(store, "nets-links")?, lead })
    }

    pub(super) async fn get(&self, name: &str) -> Result<Option<Link>, Error> {
        Ok(self.table.get(&name.to_owned()).await?.map(|record| record.value.0))
    }

    pub(super) async fn list(&self) -> Result<Vec<Link>, Error> {
        Ok(self.table.list().await?.records.into_iter().map(|(_, record)| record.value.0).collect())
    }

    async fn save(&self, link: &Link) -> Result<(), Error> {
        let write = self.table.put_op(&link.name(), &LinkRecord(link.clone()))?;
        self.lead.commit(Commit::new().with(write)).await
    }

    async fn forget(&self, name: &str) -> Result<(), Error> {
        self.lead.commit(Commit::new().with(self.table.delete_op(&name.to_owned()))).await
    }
}

impl Inner {
    /// The link a request is about, as it stands.
    pub(super) async fn link(&self, request: &ConnectRequest) -> Result<Link, Error> {
        let end = |cloud: &str, namespace: &str, spaces: &[String]| -> Result<End, Error> {
            let deployment = self.places.deployment(namespace, cloud)?.id;
            Ok(End {
                cloud: cloud.into(),
                namespace: namespace.into(),
                deployment,
                spaces: spaces.to_vec(),
                asked: false,
                gateway: None,
                connected: false,
                chooses: self.places.cloud(cloud)?.chooses_addresses(),
            })
        };
        let new = Link::new(
            end(&request.cloud_a, &request.namespace_a, &request.spaces_a)?,
            end(&request.cloud_b, &request.namespace_b, &request.spaces_b)?,
        )?;
        let Some(mut known) = self.links.get(&new.name()).await? else { return Ok(new) };
        known.turn_to(&new);
        Ok(known)
    }

    /// Connects two clouds, from wherever an earlier attempt stopped.
    pub(super) async fn connect(
        &self,
        request: &ConnectRequest,
        cancel: &CancellationToken,
    ) -> Result<(), Error> {
        let name = self.link(request).await?.name();
        let _turn = self.turns.turn(&format!("link {name}")).await;
        let mut link = self.link(request).await?;
        self.finish(&mut link, cancel).await
    }

    async fn finish(&self, link: &mut Link, cancel: &CancellationToken) -> Result<(), Error> {
        let name = link.name();
        loop {
            let step = link.next();
            if step == Step::Done {
                return Ok(());
            }
            if cancel.is_cancelled() {
                return Err(Error::Cancelled(format!("of the link {name}")));
            }
            tracing::info!(link = %name, ?step, "Connecting two clouds.");
            self.step(link, step).await?;
            self.links.save(link).await?;
        }
    }

    /// Gives a link another key. From the first call on the link counts as broken, so that whoever needs it, or
    /// this again, finishes what stopped half-way.
    pub(super) async fn rekey(&self, name: &str, cancel: &CancellationToken) -> Result<(), Error> {
        let _turn = self.turns.turn(&format!("link {name}")).await;
        let Some(mut link) = self.links.get(name).await? else { return Ok(()) };
        let mut networks = link.forget_key().into_iter().peekable();
        while let Some(network) = networks.next() {
            link.tell(network.clone());
            self.links.save(&link).await?;
            self.finish(&mut link, cancel).await?;
            if networks.peek().is_some() {
                link.earlier.push(network);
            }
        }
        Ok(())
    }

    /// Other keys for these links, or for all: in place where both clouds can, else by connecting them anew.
    pub(super) async fn plan_rekey(&self, wanted: Option<&str>) -> Result<Vec<Call>, Error> {
        let mut links = self.links.list().await?;
        if let Some(wanted) = wanted {
            links.retain(|link| link.name() == wanted);
            if links.is_empty() {
                let text = format!(
                    "no clouds are connected by `{wanted}`; `tarbet glide topology` lists those that are"
                );
                return Err(Error::invalid("link", text));
            }
        }
        let mut calls = Vec::new();
        for mut link in links {
            let name = link.name();
            let able = |end: &End| self.places.cloud(&end.cloud);
            let (a, b) = (able(&link.a)?.abilities().await?, able(&link.b)?.abilities().await?);
            if a.replaces_keys && b.replaces_keys {
                calls.push(Call::Rekey { link: name });
                continue;
            }
            calls.push(Call::Disconnect { link: name });
            calls.extend(link.forget_key().into_iter().map(|(spaces_a, spaces_b)| {
                Call::Connect(ConnectRequest {
                    cloud_a: link.a.cloud.clone(),
                    cloud_b: link.b.cloud.clone(),
                    namespace_a: link.a.namespace.clone(),
                    namespace_b: link.b.namespace.clone(),
                    spaces_a,
                    spaces_b,
                })
            }));
        }
        Ok(calls)
    }

    async fn step(&self, link: &mut Link, step: Step) -> Result<(), Error> {
        match step {
            Step::ChooseAddresses => {
                // Two links that choose at once must not choose the same.
                let _turn = self.turns.turn("tunnel addresses").await;
                let chosen = (self.sessions(link, Side::A).await?, self.sessions(link, Side::B).await?);
                if chosen != (None, None) {
                    link.tunnels =
                        bgp::meeting(chosen.0.as_deref(), chosen.1.as_deref()).ok_or_else(|| {
                            let said = format!("the addresses inside the tunnels do not meet: {chosen:?}");
                            Error::Cloud {
                                cloud: link.a.cloud.clone(),
                                what: "CreateVpnBgpSessions".into(),
                                said,
                            }
                        })?;
                    return Ok(());
                }
                let mut used = self.spaces.used_bgp(&self.places).await?;
                for other in self.links.list().await? {
                    used.extend(other.tunnels.iter().flat_map(|ends| [ends.a, ends.b]));
                }
                let tunnels = usize::from(link.pair.tunnels);
                link.tunnels = bgp::unused(tunnels, link.pair.azure, &used).ok_or_else(|| {
                    Error::Internal("every address for the inside of tunnels is used".into())
                })?;
                self.links.save(link).await?;
            }
            Step::AskSpaces(side) => {
                let (end, _) = link.ends(side);
                let cloud = self.places.cloud(&end.cloud)?;
                let space = end.spaces.first().and_then(|text| crate::plan::target::parse(text));
                let told = match space {
                    None => Vec::new(),
                    Some(space) => match cloud.network_spaces(&deployment(end), space).await {
                        Err(error) if error.is_unsupported() => Vec::new(),
                        outcome => outcome?,
                    },
                };
                link.learn(side, told.iter().map(ToString::to_string).collect());
            }
            Step::MakeGateway(side) => {
                let (end, other) = link.ends(side);
                let new = NewGateway {
                    deployment: deployment(end),
                    cloud: other.cloud.clone(),
                    bgp_addresses: crate::cloud::addresses_from("tunnels", &link.addresses(side))?,
                    space: end.spaces.first().and_then(|text| crate::plan::target::parse(text)),
                };
                let asked_again = end.connected;
                let cloud = end.cloud.clone();
                let gateway = self.places.cloud(&cloud)?.create_gateway(new).await?;
                if asked_again && gateway.addresses.is_empty() {
                    return Err(Error::Cloud {
                        cloud,
                        what: "CreateVpnGateway".into(),
                        said: "it is connected and does not tell its addresses".into(),
                    });
                }
                link.end_mut(side).gateway = Some(gateway);
            }
            Step::MakeKey => link.key = Some(SharedKey::from_random(rand::random())),
            Step::Connect(side) => {
                let new = connections(link, side)?;
                self.places.cloud(&link.ends(side).0.cloud)?.create_connections(new).await?;
                link.end_mut(side).connected = true;
            }
            Step::Done => {}
        }
        Ok(())
    }

    /// The addresses inside the tunnels that the cloud of an end chooses itself, if it does.
    async fn sessions(&self, link: &Link, side: Side) -> Result<Option<Vec<Ipv4Addr>>, Error> {
        let (end, other) = link.ends(side);
        if !end.chooses || !link.pair.bgp {
            return Ok(None);
        }
        let cloud = self.places.cloud(&end.cloud)?;
        cloud.create_bgp_sessions(&deployment(end), &other.cloud).await.map(Some)
    }

    /// Takes a link down, one end after the other. The record goes last.
    pub(super) async fn disconnect(&self, name: &str) -> Result<(), Error> {
        let _turn = self.turns.turn(&format!("link {name}")).await;
        let Some(mut link) = self.links.get(name).await? else { return Ok(()) };
        // An end that lost its tunnels may have other addresses with the next ones.
        for side in [Side::A, Side::B] {
            link.end_mut(side).gateway = None;
        }
        for side in [Side::A, Side::B] {
            // From here on the link counts as broken, so that a new request mends it.
            link.end_mut(side).connected = false;
            self.links.save(&link).await?;
            let (end, other) = link.ends(side);
            // Without BGP nothing speaks from these addresses, so they do not tell which tunnels are meant.
            let inside = if link.pair.bgp { link.addresses(side.across()) } else { Vec::new() };
            let old = OldConnections {
                deployment: deployment(end),
                cloud: other.cloud.clone(),
                bgp_addresses: crate::cloud::addresses_from("tunnels", &inside)?,
            };
            match self.places.cloud(&end.cloud)?.delete_connections(old).await {
                Err(error) if error.is_not_found() => {}
                outcome => outcome?,
            }
        }
        self.links.forget(name).await
    }
}

fn deployment(end: &End) -> Deployment {
    Deployment { id: end.deployment.clone(), namespace: end.namespace.clone() }
}

fn connections(link: &Link, side: Side) -> Result<NewConnections, Error> {
    let (end, other) = link.ends(side);
    let missing = || Error::Internal(format!("the link {} has no gateway or key yet", link.name()));
    let gateway = other.gateway.as_ref().ok_or_else(missing)?;
    Ok(NewConnections {
        deployment: deployment(end),
        cloud: other.cloud.clone(),
        asn: gateway.asn,
        gateways: gateway.addresses.clone(),
        bgp_addresses: crate::cloud::addresses_from("tunnels", &link.addresses(side.across()))?,
        key: link.key.clone().ok_or_else(missing)?,
        // The first generation's plugins are told them in any case.
        remote_spaces: if link.pair.bgp && !end.chooses { Vec::new() } else { other.spaces.clone() },
        bgp: link.pair.bgp,
        space: end.spaces.first().and_then(|text| crate::plan::target::parse(text)),
    })
}
