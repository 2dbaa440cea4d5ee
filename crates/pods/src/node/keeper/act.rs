//! The steps of a pod, each of which may be repeated.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::Resource;
use kube::api::{DeleteParams, Preconditions};
use tarbet_cluster::{Class, Outcome, Severity, class, describe};
use tokio::time::Instant;

use super::inquire::Inquiry;
use super::{After, LOST, Node, Peer, grace};
use crate::node::book::Entry;
use crate::node::gather::{GatherError, Gathered};
use crate::node::interlink::InterlinkError;
use crate::node::machine::KILLED;
use crate::node::metrics::count;
use crate::node::packed::PackedStatus;
use crate::node::plan::{self, Remote, Step};
use crate::node::resolve::Ways;

/// How soon a pod is tried again that waits for an object of the cluster.
const MISSING: Duration = Duration::from_secs(2);
/// How soon a pod is looked at that waits for its turn to be sent, if nobody calls it: the one that was called before
/// it may have gone.
const NO_TURN: Duration = Duration::from_secs(10);
/// How soon contents are read again that could not be read.
const LATER: SignedDuration = SignedDuration::from_secs(30);

impl Node {
    pub(super) async fn act(&self, step: Step, entry: &Entry) -> After {
        match step {
            Step::Rest(wake) => self.rest(entry, wake),
            Step::Ask => self.ask(entry).await,
            Step::Submit => self.submit(entry).await,
            Step::Update => self.update(entry).await,
            Step::Refresh => self.refresh(entry).await,
            Step::Expire => self.expire(entry).await,
            Step::Remove => {
                if !self.removed(entry, grace(&entry.pod), &self.peer()).await {
                    return After::Over(Outcome::Failed);
                }
                self.book.change(entry.uid(), |record| record.memory.remote = Remote::Gone);
                After::More
            }
            Step::Forget => self.let_go(entry).await,
            Step::Discard => self.discard(entry, None).await,
        }
    }

    fn rest(&self, entry: &Entry, wake: Option<Duration>) -> After {
        let known = &entry.record;
        let present = known.memory.remote == Remote::Present && !known.memory.ended;
        let mut wake = wake;
        if let Some(since) = known.unheard.filter(|_| present) {
            let silent = since.elapsed();
            if silent >= LOST {
                tracing::warn!(uid = entry.uid(), "The other side does not know a pod any more.");
                let message = "interLink answers but does not know this pod any more";
                self.book.change(entry.uid(), |record| record.end("PodLost", message, KILLED));
            } else {
                let left = LOST.saturating_sub(silent);
                wake = Some(wake.map_or(left, |wake| wake.min(left)));
            }
        }
        let unsent = matches!(known.memory.remote, Remote::Unknown | Remote::Absent) && !known.memory.ended;
        if unsent && !self.peer().up && known.waiting.is_none() {
            let text = "interLink does not answer; the pod is sent as soon as it does";
            self.wait_for(entry.uid(), "InterlinkUnavailable", text);
        }
        After::Rest(wake.map_or(Outcome::Done, Outcome::Again))
    }

    fn wait_for(&self, uid: &str, reason: &str, message: impl Into<String>) {
        let waiting = (reason.to_owned(), message.into());
        self.book.change(uid, |record| record.waiting = Some(waiting));
    }

    /// Asks for a pod that may have been sent before.
    async fn ask(&self, entry: &Entry) -> After {
        let confirmed = plan::confirmed(&entry.pod);
        let told = match self.inquire(entry, self.peer().ping.origin).await {
            Ok(Inquiry::Known(told)) => Some(told),
            Ok(Inquiry::Unsure(wait)) if !confirmed => return After::Rest(Outcome::Again(wait)),
            Ok(Inquiry::Absent | Inquiry::Unsure(_)) => None,
            Err(error) => {
                let (namespace, pod) = entry.key();
                tracing::debug!(%namespace, %pod, error = %error, "Cannot ask for a pod yet.");
                return After::Rest(Outcome::Failed);
            }
        };
        let now = Instant::now();
        let known = told.is_some();
        self.book.change(entry.uid(), |record| {
            record.memory.remote = if known || confirmed { Remote::Present } else { Remote::Absent };
            record.jid = told.as_ref().map(|told| told.jid.clone()).unwrap_or_default();
            if known {
                record.told = told.as_ref().map(PackedStatus::new);
                record.unheard = None;
            } else if confirmed {
                // It was there once: it is never made a second time.
                record.unheard = Some(now);
            }
        });
        if known {
            let (namespace, pod) = entry.key();
            tracing::info!(%namespace, %pod, uid = entry.uid(), "Took up a pod that is known to interLink.");
        }
        After::More
    }

    async fn gathered(&self, entry: &Entry, peer: &Peer) -> Result<Gathered, GatherError> {
        let config = &self.config;
        let api = (!config.kubernetes_api_addr.is_empty() && !config.kubernetes_api_port.is_empty())
            .then_some((config.kubernetes_api_addr.as_str(), config.kubernetes_api_port.as_str()));
        let authority =
            (!config.kubernetes_api_ca_crt.is_empty()).then_some(config.kubernetes_api_ca_crt.as_str());
        let ways = Ways {
            no_projected: config.disable_projected_volumes,
            origin: peer.ping.origin,
            host_ip: &config.pod_ip,
            api,
            authority,
            job_script_url: &config.job_script_builder_url,
        };
        let updates = peer.ping.extensions.update;
        let gathered = self.gather.collect(&entry.pod, ways, !updates, Timestamp::now()).await?;
        self.reached.at("contents read");
        Ok(gathered)
    }

    pub(super) async fn tell_event(&self, entry: &Entry, reason: &str, note: &str) {
        let about = entry.pod.object_ref(&());
        self.events.tell(&about, Severity::Warning, "Run", reason, note).await;
        self.reached.at("event told");
    }

    async fn submit(&self, entry: &Entry) -> After {
        let Some(_turn) = self.sending.take(&entry.key()) else {
            return After::Over(Outcome::Again(NO_TURN));
        };
        let peer = self.peer();
        let uid = entry.uid();
        let gathered = match self.gathered(entry, &peer).await {
            Ok(gathered) => gathered,
            Err(GatherError::Away(reason)) => {
                tracing::debug!(uid, reason, "The contents of a pod cannot be read yet.");
                return After::Over(Outcome::Failed);
            }
            Err(error) => {
                let variable = matches!(&error, GatherError::Missing(missing) if missing.variable);
                let reason = if variable { "CreateContainerConfigError" } else { "ContainerCreating" };
                let text = error.to_string();
                if entry.record.waiting.as_ref().map(|(_, text)| text) != Some(&text) {
                    let event = if variable { "Failed" } else { "FailedMount" };
                    self.tell_event(entry, event, &text).await;
                }
                self.wait_for(uid, reason, text);
                return After::Rest(Outcome::Again(MISSING));
            }
        };
        self.book.change(uid, |record| record.waiting = None);
        // The intent is in the cluster before anything is made: after a crash it is asked for first.
        let now = Timestamp::now().to_string();
        if !self.write(uid, &[(plan::SUBMITTED, now)]).await {
            return After::Over(Outcome::Failed);
        }
        let Some(entry) = self.book.get(uid).filter(|entry| plan::sent(&entry.pod)) else {
            return After::Over(Outcome::Done);
        };
        self.reached.at("intent noted");
        let containers = &gathered.retrieved.containers;
        let answer = self.interlink.create(&gathered.create, containers, &peer.ping).await;
        count(&self.metrics.creates, answer.is_ok());
        self.reached.at("pod sent");
        let remote = Remote::after_create(answer.as_ref().map(drop));
        self.book.change(uid, |record| record.memory.remote = remote);
        let (namespace, name) = entry.key();
        match answer {
            Ok(reply) => {
                let ours = reply.pod_uid == uid && !reply.pod_jid.is_empty();
                let jid = if ours { reply.pod_jid } else { uid.to_owned() };
                tracing::info!(%namespace, pod = %name, uid, job = %jid, "Sent a pod.");
                self.book.change(uid, |record| {
                    record.memory.told = Some(plan::fingerprint(&gathered.create.pod));
                    record.memory.refresh = gathered.refresh;
                    record.contents = Some(gathered.fingerprint);
                    record.jid = jid;
                });
                self.poll.notify_one();
                After::More
            }
            Err(error) if error.retry() => {
                tracing::warn!(%namespace, pod = %name, uid, error = %error, "A pod could not be sent yet.");
                self.wait_for(uid, "InterlinkUnavailable", error.words());
                After::Rest(Outcome::Failed)
            }
            Err(error) => {
                tracing::warn!(%namespace, pod = %name, uid, error = %error, "A pod was refused.");
                let message = match &error {
                    InterlinkError::Answer { status, .. } => {
                        format!("error creating pod (HTTP {}): {}", status.as_u16(), error.words())
                    }
                    other => format!("error creating pod: {other}"),
                };
                self.tell_event(&entry, "ProviderFailed", &message).await;
                self.book.change(uid, |record| record.end("ProviderFailed", message, 1));
                After::Rest(Outcome::Done)
            }
        }
    }

    /// Tells a changed pod.
    async fn update(&self, entry: &Entry) -> After {
        match self.gathered(entry, &self.peer()).await {
            Ok(gathered) => self.send_update(entry, gathered).await,
            Err(error) => {
                tracing::warn!(uid = entry.uid(), error = %error, "A changed pod cannot be told yet.");
                After::Rest(Outcome::Failed)
            }
        }
    }

    /// Reads contents again.
    async fn refresh(&self, entry: &Entry) -> After {
        match self.gathered(entry, &self.peer()).await {
            Ok(gathered) if entry.record.contents != Some(gathered.fingerprint) => {
                self.send_update(entry, gathered).await
            }
            Ok(gathered) => {
                self.book.change(entry.uid(), |record| record.memory.refresh = gathered.refresh);
                After::More
            }
            Err(error) => {
                // Running pods keep what they have.
                tracing::debug!(uid = entry.uid(), error = %error, "Contents of a pod cannot be read again.");
                let later = Timestamp::now().checked_add(LATER).ok();
                self.book.change(entry.uid(), |record| record.memory.refresh = later);
                After::More
            }
        }
    }

    async fn send_update(&self, entry: &Entry, gathered: Gathered) -> After {
        let answer = self.interlink.update(&gathered.retrieved).await;
        count(&self.metrics.updates, answer.is_ok());
        self.reached.at("change told");
        if let Err(error) = &answer {
            tracing::warn!(uid = entry.uid(), error = %error, "A changed pod was not taken over.");
            if error.retry() {
                return After::Rest(Outcome::Failed);
            }
        }
        self.book.change(entry.uid(), |record| {
            record.memory.told = Some(plan::fingerprint(&gathered.retrieved.pod));
            record.memory.refresh = gathered.refresh;
            record.contents = Some(gathered.fingerprint);
        });
        After::More
    }

    async fn expire(&self, entry: &Entry) -> After {
        let sent = plan::sent(&entry.pod);
        let there = match entry.record.memory.remote {
            Remote::Present => true,
            Remote::Unknown => sent,
            Remote::Absent | Remote::Gone => false,
        };
        if there && !self.removed(entry, grace(&entry.pod), &self.peer()).await {
            return After::Over(Outcome::Failed);
        }
        self.book.change(entry.uid(), |record| {
            record.memory.remote = Remote::Gone;
            record.end(
                "DeadlineExceeded",
                "Pod was active on the node longer than the specified deadline",
                KILLED,
            );
        });
        After::Rest(Outcome::Done)
    }

    /// Writes the end of a deleted pod and lets the cluster forget it.
    async fn let_go(&self, entry: &Entry) -> After {
        self.book.change(entry.uid(), |record| record.end("", "", KILLED));
        if !self.write(entry.uid(), &[]).await {
            return After::Over(Outcome::Failed);
        }
        let after = self.discard(entry, Some(0)).await;
        if let After::Over(Outcome::Done) = after {
            let (namespace, pod) = entry.key();
            tracing::info!(%namespace, %pod, uid = entry.uid(), "A pod has ended and is gone.");
            self.forget(entry.uid());
        }
        after
    }

    async fn discard(&self, entry: &Entry, grace: Option<u32>) -> After {
        let key = entry.key();
        let mut params = DeleteParams::default()
            .preconditions(Preconditions { uid: entry.pod.metadata.uid.clone(), resource_version: None });
        params.grace_period_seconds = grace;
        let answer = self.pods(&key).delete(&key.1, &params).await;
        self.reached.at("pod let go");
        match answer {
            Ok(_) => After::Over(Outcome::Done),
            Err(error) if matches!(class(&error), Class::Missing | Class::Conflict) => {
                After::Over(Outcome::Done)
            }
            Err(error) => {
                tracing::warn!(namespace = %key.0, pod = %key.1, cause = describe(&error), "A pod could not be deleted.");
                After::Over(Outcome::Failed)
            }
        }
    }
}
