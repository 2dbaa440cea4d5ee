//! Pings interLink and keeps the Node object true.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node as KubeNode;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use tarbet_cluster::{Class, class, describe, merge};
use tarbet_telemetry::health::Part;
use tarbet_telemetry::problem;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::error::NodeError;
use super::interlink::{InterlinkError, Ping};
use super::keeper::{Node, Peer};
use super::object::{self, Link, OUR_TAINTS, PING_RESPONSE};
use super::offer::{OUR_RESOURCES, Offer};
use super::setkube::AccountError;
use crate::wire::Origin;

/// interLink's own rhythm.
const PING: Duration = Duration::from_secs(10);
/// While nobody answers.
const RETRY: Duration = Duration::from_secs(2);
/// Pings that must fail in a row before the node says so: one lost packet is no outage.
const FAILURES: u32 = 2;
/// A status that has not changed is written again after this time.
const REPEAT: Duration = Duration::from_mins(5);
/// How long interLink may be away before pods are held against eviction.
const HOLD: Duration = Duration::from_secs(20);

pub(super) struct Heart {
    node: Arc<Node>,
    /// Where the kubelet API listens.
    port: u16,
    health: Part,
    link: Link,
    failures: u32,
    down_since: Option<Instant>,
    held: bool,
    greeted: bool,
    /// When the account that was given has to be given anew.
    renew: Option<Timestamp>,
    written: Option<Instant>,
    cluster_failing: bool,
}

impl Heart {
    pub(super) fn new(node: Arc<Node>, port: u16, health: Part) -> Self {
        Self {
            node,
            port,
            health,
            link: Link::Untried,
            failures: 0,
            down_since: None,
            held: false,
            greeted: false,
            renew: None,
            written: None,
            cluster_failing: false,
        }
    }

    /// Beats until `stop`; fails only when there is no service account for a side that needs one, or that
    /// side refuses it.
    pub(super) async fn beat(mut self, stop: CancellationToken) -> Result<(), NodeError> {
        loop {
            self.ping().await?;
            self.register().await;
            self.hold().await;
            let pause = if matches!(self.link, Link::Up(_)) { PING } else { RETRY };
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn ping(&mut self) -> Result<(), NodeError> {
        match self.node.interlink.ping().await {
            Ok(ping) => {
                let due = !self.greeted || self.renew.is_some_and(|renew| Timestamp::now() >= renew);
                if due && !self.greet(ping.origin).await? {
                    return Ok(());
                }
                self.up(ping);
            }
            Err(error) => self.down(Link::Down(error.to_string())),
        }
        Ok(())
    }

    /// Gives the other side its kubeconfig, where one is set; a peer that knows no such call is newer. False:
    /// it cannot work yet.
    async fn greet(&mut self, origin: Origin) -> Result<bool, NodeError> {
        let account = match self.node.account().await {
            Ok(account) => account,
            Err(error) => return self.without_account(error, origin),
        };
        let mut renew = None;
        match account {
            None if origin == Origin::Seed => tracing::warn!(
                "interLink is of 2023 and reads ConfigMaps and Secrets itself, but is given no account; set ServiceAccount."
            ),
            None => {}
            Some(account) => match self.node.interlink.set_kubeconfig(account.kubeconfig).await {
                Ok(taken) => {
                    renew = account.renew.filter(|_| taken);
                    tracing::info!(taken, "Offered the service account to interLink.");
                }
                Err(error) if error.retry() => {
                    self.down(Link::Down(error.to_string()));
                    return Ok(false);
                }
                // Only those of 2023 cannot do without; newer ones may let nobody give them any.
                Err(InterlinkError::Answer { status, .. })
                    if origin != Origin::Seed && matches!(status.as_u16(), 401 | 403) =>
                {
                    tracing::warn!(
                        status = status.as_u16(),
                        "interLink lets this node give it no service account; it is newer and needs none."
                    );
                }
                Err(error) => return Err(NodeError::ServiceAccount(error)),
            },
        }
        // Not before: one that could not be sent is due again.
        (self.greeted, self.renew) = (true, renew);
        Ok(true)
    }

    /// There is no account to give. Nobody is kept waiting who holds one that still works, or needs none.
    fn without_account(&mut self, error: AccountError, origin: Origin) -> Result<bool, NodeError> {
        let reason = problem::chain(&error);
        match (error.retry(), origin == Origin::Seed) {
            (true, _) if self.greeted => {
                tracing::warn!(reason, "The account of interLink cannot be renewed yet.");
                Ok(true)
            }
            (true, true) => {
                self.down(Link::NoAccount(reason));
                Ok(false)
            }
            (false, true) => Err(error.into()),
            (retry, false) => {
                tracing::warn!(reason, "There is no account for interLink; it is newer and needs none.");
                (self.greeted, self.renew) = (!retry, None);
                Ok(true)
            }
        }
    }

    fn up(&mut self, ping: Ping) {
        (self.failures, self.down_since, self.held) = (0, None, false);
        self.node.metrics.up.set(1);
        self.health.ready();
        let was = std::mem::replace(&mut self.link, Link::Up(ping.body.clone()));
        let before = self.node.peer.send_replace(Peer { up: true, ping: ping.clone() });
        if !matches!(was, Link::Up(_))
            || before.ping.extensions != ping.extensions
            || before.ping.origin != ping.origin
        {
            let endpoint = self.node.interlink.endpoint().base();
            tracing::info!(endpoint, origin = ?ping.origin, "interLink answers.");
            self.wake_all();
        }
    }

    fn down(&mut self, link: Link) {
        self.failures += 1;
        let first = self.failures < FAILURES && matches!(self.link, Link::Up(_));
        if first {
            return;
        }
        self.down_since.get_or_insert_with(Instant::now);
        self.node.metrics.up.set(0);
        let reason = link.trouble();
        self.health.failing(reason.clone());
        if matches!(self.link, Link::Up(_)) {
            tracing::warn!(reason, "interLink cannot be used; pods stay as they are.");
        }
        self.link = link;
        // Whoever comes back may be another one, and has lost what it was given.
        self.greeted = false;
        self.node.peer.send_if_modified(|peer| std::mem::take(&mut peer.up));
        self.wake_all();
    }

    fn wake_all(&self) {
        for key in self.node.book.keys() {
            self.node.queue.add(key);
        }
    }

    /// Makes the Node object say what is true.
    async fn register(&mut self) {
        match self.write().await {
            Ok(()) => {
                if std::mem::take(&mut self.cluster_failing) {
                    tracing::info!("The cluster answers again.");
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut self.cluster_failing, true) {
                    tracing::warn!(cause = describe(&error), "The Node object could not be written.");
                }
            }
        }
    }

    async fn write(&mut self) -> kube::Result<()> {
        let (config, name) = (&self.node.config, self.node.config.node_name.as_str());
        let nodes: Api<KubeNode> = Api::all(self.node.client.clone());
        let now = if let Some(node) = nodes.get_opt(name).await? {
            node
        } else {
            // From text, as the answers of the cluster are read: from a JSON value a Node would be read by code of
            // its own, which makes the program larger.
            let node =
                serde_json::from_str(&object::node(config).to_string()).map_err(kube::Error::SerdeError)?;
            tracing::info!(node = name, "Registering the node.");
            self.written = None;
            let made = nodes.create(&PostParams::default(), &node).await?;
            self.node.reached.at("node made");
            made
        };
        let peer = self.node.peer();
        let reply = peer.ping.reply.as_ref().filter(|_| peer.up);
        let offer = Offer::new(config, reply, &now);
        self.describe_node(&nodes, &now, reply, &offer).await?;
        let old = now.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
        let status = object::status(config, self.port, &offer, &old, &self.link, Timestamp::now());
        let fresh = object::conditions(&old, &self.link, Timestamp::now());
        let current = self.written.is_some_and(|written| written.elapsed() < REPEAT)
            && object::same(&fresh, &old)
            && offer.is_there(&now);
        if current {
            return Ok(());
        }
        let patch = json!({"status": status});
        nodes.patch_status(name, &PatchParams::default(), &Patch::Strategic(patch)).await?;
        self.node.reached.at("node told");
        self.written = Some(Instant::now());
        Ok(())
    }

    /// Labels, taints and the answer to the last ping.
    async fn describe_node(
        &self,
        nodes: &Api<KubeNode>,
        now: &KubeNode,
        reply: Option<&crate::wire::PingReply>,
        offer: &Offer,
    ) -> kube::Result<()> {
        let config = &self.node.config;
        let none = std::collections::BTreeMap::new();
        let notes = now.metadata.annotations.as_ref().unwrap_or(&none);
        let wanted = object::taints(config, reply);
        let ours_before: BTreeSet<String> = notes
            .get(OUR_TAINTS)
            .map(|keys| keys.split(',').map(str::to_owned).collect())
            .unwrap_or_default();
        let before = now.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
        let taints = object::merge_taints(&before, &ours_before, &wanted);
        let ours: Vec<&str> = wanted.iter().map(|taint| taint.key.as_str()).collect();
        let ours = ours.join(",");
        let said = match &self.link {
            Link::Up(body) => body.clone(),
            _ => String::new(),
        };
        let labels = object::labels(config);
        let labelled = now.metadata.labels.as_ref().unwrap_or(&none);
        let same_labels = labels.iter().all(|(key, value)| labelled.get(key) == Some(value));
        let kinds = offer.kinds();
        let written = [(PING_RESPONSE, &said), (OUR_TAINTS, &ours), (OUR_RESOURCES, &kinds)];
        let same_notes = written.iter().all(|(key, value)| notes.get(*key) == Some(*value));
        let key = |taint: &k8s_openapi::api::core::v1::Taint| {
            (taint.key.clone(), taint.value.clone().unwrap_or_default(), taint.effect.clone())
        };
        let same_taints = taints.iter().map(key).collect::<BTreeSet<_>>()
            == before.iter().map(key).collect::<BTreeSet<_>>();
        if same_labels && same_notes && same_taints {
            return Ok(());
        }
        let mut patch = json!({"metadata": {
            "labels": labels,
            "annotations": {PING_RESPONSE: said, OUR_TAINTS: ours, OUR_RESOURCES: kinds},
        }});
        if !same_taints {
            // Others change taints too: only over what was read.
            patch["metadata"]["resourceVersion"] = json!(now.metadata.resource_version);
            patch["spec"] = json!({"taints": taints});
        }
        let answer = merge(nodes, &config.node_name, &patch).await;
        self.node.reached.at("node described");
        match answer {
            Err(error) if class(&error) == Class::Conflict => Ok(()),
            other => other.map(drop),
        }
    }

    /// Holds pods against eviction while interLink is away: the cluster would delete what still runs.
    async fn hold(&mut self) {
        let away = self.down_since.is_some_and(|since| since.elapsed() >= HOLD);
        if !away || self.held || self.node.config.evict_when_unreachable {
            return;
        }
        let mut all = true;
        for entry in self.node.book.all() {
            let Some(tolerations) = object::held(&entry.pod) else { continue };
            let (namespace, name) = entry.key();
            let pods: Api<k8s_openapi::api::core::v1::Pod> =
                Api::namespaced(self.node.client.clone(), &namespace);
            let patch = json!({"metadata": {"uid": entry.uid()}, "spec": {"tolerations": tolerations}});
            match merge(&pods, &name, &patch).await {
                Ok(_) => tracing::info!(%namespace, pod = %name, "Holding a pod against eviction."),
                Err(error) if matches!(class(&error), Class::Missing | Class::Conflict) => {}
                Err(error) => {
                    tracing::warn!(%namespace, pod = %name, cause = describe(&error), "A pod could not be held against eviction.");
                    all &= class(&error) == Class::Refused;
                }
            }
        }
        self.held = all;
    }
}
