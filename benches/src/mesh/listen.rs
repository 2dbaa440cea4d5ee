//! Those who hear: a subscriber of a controller's discovery, a watcher of objects, peers that offer.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::{Stream, StreamExt, TryStreamExt};
use kube::Api;
use kube::api::{WatchEvent, WatchParams};
use kube::core::DynamicObject;
use tarbet_link::{Address, NetDialer, Target};
use tarbet_mesh::fds::{Discovery, Heard, Limits, Snapshot, Subscription, Way, serve, subscribe};
use tarbet_mesh::model::{Offer, OfferedPort};
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Changes of objects of one kind, as a watcher is told them.
pub(super) struct Changes(Pin<Box<dyn Stream<Item = kube::Result<WatchEvent<DynamicObject>>> + Send>>);

impl Changes {
    pub(super) async fn start(api: Api<DynamicObject>) -> Result<Self> {
        let now = api.list_metadata(&kube::api::ListParams::default().limit(1)).await?;
        let version = now.metadata.resource_version.context("no version")?;
        Ok(Self(api.watch(&WatchParams::default().timeout(290), &version).await?.boxed()))
    }

    /// Waits until the object of this name has this port.
    pub(super) async fn until(&mut self, name: &str, port: usize) -> Result<()> {
        while let Some(event) = self.0.try_next().await? {
            if let WatchEvent::Added(object) | WatchEvent::Modified(object) = event
                && object.metadata.name.as_deref() == Some(name)
                && object.data["spec"]["ports"][0]["number"] == port
            {
                return Ok(());
            }
        }
        anyhow::bail!("the watch ended before {name} had port {port}")
    }
}

/// A subscriber of the controller's discovery.
pub(super) struct Ear {
    heard: watch::Receiver<usize>,
    task: JoinHandle<()>,
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Ear {
    /// Listens as another peer, and has heard something.
    pub(super) async fn listen(port: u16, number: usize) -> Result<Self> {
        let (sender, heard) = watch::channel(usize::MAX);
        let subscription = Subscription {
            local: format!("ear-{number}"),
            mesh: "east".to_owned(),
            way: Way {
                dialer: Arc::new(NetDialer { timeout: Duration::from_secs(10) }),
                target: Target::tcp(Address::new("127.0.0.1", port)?),
                authority: "east:15080".to_owned(),
            },
            limits: Limits::default(),
            known: None,
            restart: Arc::new(Notify::new()),
        };
        let hear = move |heard: Heard| {
            if let Heard::State(taken) = heard
                && let Some(offers) = taken.offers
            {
                sender.send_replace(offers.len());
            }
        };
        let ear = Self { heard, task: tokio::spawn(subscribe(subscription, hear)) };
        ear.count(0).await?;
        Ok(ear)
    }

    /// Waits until it knows of this many services.
    pub(super) async fn count(&self, count: usize) -> Result<()> {
        self.heard.clone().wait_for(|heard| *heard == count).await?;
        Ok(())
    }
}

/// Peers that offer the same names with endpoints of their own, each by its id and port.
pub(super) async fn offering(
    peers: usize,
    services: usize,
    endpoints: usize,
    stop: &CancellationToken,
) -> Result<Vec<(String, u16)>> {
    let mut known = Vec::new();
    for peer in 0..peers {
        let name = format!("peer-{peer}");
        let offers: Vec<Arc<Offer>> =
            (0..services).map(|service| offer(service, peer, endpoints).into()).collect();
        let snapshot = Snapshot::after(None, &name, &offers, 1000).map(|snapshot| Arc::new(snapshot.into()));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        known.push((name, listener.local_addr()?.port()));
        let (sender, stop) = (watch::Sender::new(snapshot), stop.clone());
        tokio::spawn(async move {
            let served = serve(listener, Discovery::new(sender.subscribe(), stop.clone()), stop).await;
            drop((served, sender));
        });
    }
    Ok(known)
}

/// A service as a peer offers it.
pub(super) fn offer(service: usize, peer: usize, endpoints: usize) -> Offer {
    let address = |number: usize| {
        let index = service * endpoints + number;
        format!("10.{}.{}.{}", peer + 1, index / 250, index % 250 + 1)
    };
    let port = OfferedPort { name: "http".into(), number: 80, protocol: "HTTP".into(), target_port: 8080 };
    Offer {
        hostname: format!("s{service}.shop.svc.cluster.local"),
        ports: vec![port],
        labels: [("app".to_owned(), format!("s{service}")), ("team".to_owned(), "shop".to_owned())].into(),
        name: format!("s{service}"),
        namespace: "shop".to_owned(),
        endpoints: (0..endpoints).map(address).collect(),
        ..Offer::default()
    }
}
