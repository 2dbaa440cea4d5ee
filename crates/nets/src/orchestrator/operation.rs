//! Operations: what was asked, the calls it takes, and how far it got. All of it is in the store.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tarbet_store::{Commit, Operation as Write, Record, Store, Table};
use tarbet_telemetry::Problem;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::lead::Lead;
use super::lists::NewTargets;
use super::partly::Failure;
use crate::cloud::NewResource;
use crate::controller::ConnectRequest;
use crate::error::Error;
use crate::model::{Created, Rule, Subscriber};
use crate::plan::tags::Mapping;

/// One call of a plan. Each may be made twice with the effect of once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Call {
    /// Makes a resource.
    CreateResource {
        /// The cloud.
        cloud: String,
        /// What.
        new: NewResource,
    },
    /// Takes in a resource.
    AttachResource {
        /// The cloud.
        cloud: String,
        /// The namespace.
        namespace: String,
        /// Its URI.
        uri: String,
    },
    /// Gives the resource that was just made its tag.
    Register {
        /// The cloud.
        cloud: String,
        /// The namespace.
        namespace: String,
        /// A digest of the description, to know the same request again.
        description: String,
    },
    /// Removes a resource.
    DeleteResource {
        /// The cloud.
        cloud: String,
        /// The namespace.
        namespace: String,
        /// Its URI.
        uri: String,
    },
    /// Forgets a resource's rules and its tag.
    Unregister {
        /// Its tag.
        tag: String,
        /// How it subscribed.
        subscriber: String,
    },
    /// Connects two clouds, step by step.
    Connect(ConnectRequest),
    /// Takes a connection between two clouds down.
    Disconnect {
        /// The link's name.
        link: String,
    },
    /// Gives a connection between two clouds another key.
    Rekey {
        /// The link's name.
        link: String,
    },
    /// Notes that a permit list follows a tag.
    Subscribe {
        /// The tag.
        tag: String,
        /// Whose permit list.
        subscriber: String,
    },
    /// The permit list no longer follows the tag.
    Unsubscribe {
        /// The tag.
        tag: String,
        /// Whose permit list.
        subscriber: String,
    },
    /// Adds or replaces rules.
    AddRules {
        /// The cloud.
        cloud: String,
        /// The namespace.
        namespace: String,
        /// The resource.
        uri: String,
        /// Its address, where known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ip: Option<IpAddr>,
        /// The rules with targets.
        rules: Vec<Rule>,
    },
    /// Removes rules.
    DeleteRules {
        /// The cloud.
        cloud: String,
        /// The namespace.
        namespace: String,
        /// The resource.
        uri: String,
        /// Their names.
        names: Vec<String>,
    },
    /// Makes or changes a tag.
    SetTag {
        /// The tag.
        tag: Mapping,
    },
    /// Removes a tag.
    DeleteTag {
        /// The tag.
        tag: String,
    },
    /// Takes a member out of a tag.
    DeleteMember {
        /// The group.
        parent: String,
        /// The member.
        child: String,
    },
    /// Brings the permit lists of subscribers in line with the tags.
    Propagate {
        /// The tag that changed; who follows it by then is meant too.
        #[serde(default)]
        tag: String,
        /// Whose.
        subscribers: Vec<String>,
        /// What was seen to differ when it was planned.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        lists: Vec<NewTargets>,
    },
    /// Forgets who followed a tag that is deleted, once they were told.
    ForgetSubscribers {
        /// The tag.
        tag: String,
    },
    /// Lets a cloud mend what differs in it.
    MendCloud {
        /// The cloud.
        cloud: String,
        /// The namespace.
        namespace: String,
        /// What was seen to differ when it was planned.
        differences: Vec<String>,
    },
    /// Mends a permit list.
    MendList {
        /// Whose.
        subscriber: String,
        /// Rules that were seen to be missing or different.
        add: Vec<String>,
        /// Rules that were seen and should not be; with neither, the resource itself is to go.
        delete: Vec<String>,
    },
}

impl Call {
    /// Whether making it again costs nothing worth a note in between: it touches our own records only.
    pub(super) fn is_own_record(&self) -> bool {
        matches!(
            self,
            Self::Subscribe { .. }
                | Self::Unsubscribe { .. }
                | Self::SetTag { .. }
                | Self::DeleteTag { .. }
                | Self::DeleteMember { .. }
                | Self::ForgetSubscribers { .. }
        )
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names =
            |rules: &[Rule]| rules.iter().map(|rule| rule.name.as_str()).collect::<Vec<_>>().join(", ");
        match self {
            Self::CreateResource { cloud, new } => {
                write!(
                    f,
                    "{cloud}: CreateResource {} in {} for {}",
                    new.name, new.deployment.id, new.deployment.namespace
                )
            }
            Self::AttachResource { cloud, uri, .. } => write!(f, "{cloud}: AttachResource {uri}"),
            Self::Register { cloud, namespace, .. } => {
                write!(f, "tags: SetTag {namespace}.{cloud}.(its name)")
            }
            Self::DeleteResource { cloud, uri, .. } => write!(f, "{cloud}: DeleteResource {uri}"),
            Self::Connect(request) => write!(
                f,
                "ConnectClouds {}/{} with {}/{}",
                request.cloud_a, request.namespace_a, request.cloud_b, request.namespace_b
            ),
            Self::Disconnect { link } => write!(f, "DisconnectClouds {link}"),
            Self::Rekey { link } => write!(f, "ReplaceVpnKey {link}"),
            Self::Subscribe { tag, subscriber } => write!(f, "tags: Subscribe {subscriber} to {tag}"),
            Self::Unsubscribe { tag, subscriber } => write!(f, "tags: Unsubscribe {subscriber} from {tag}"),
            Self::AddRules { cloud, uri, rules, .. } => {
                write!(f, "{cloud}: AddPermitListRules {} to {uri}", names(rules))
            }
            Self::DeleteRules { cloud, uri, names, .. } => {
                write!(f, "{cloud}: DeletePermitListRules {} from {uri}", names.join(", "))
            }
            Self::SetTag { tag } => write!(f, "tags: SetTag {}", tag.name),
            Self::DeleteTag { tag } | Self::Unregister { tag, .. } => write!(f, "tags: DeleteTag {tag}"),
            Self::DeleteMember { parent, child } => write!(f, "tags: DeleteTagMember {child} of {parent}"),
            Self::Propagate { lists, .. } if (1..=3).contains(&lists.len()) => {
                let lists: Vec<String> = lists.iter().map(ToString::to_string).collect();
                f.write_str(&lists.join("; "))
            }
            Self::Propagate { subscribers, lists, .. } => {
                let count = if lists.is_empty() { subscribers.len() } else { lists.len() };
                write!(f, "AddPermitListRules with what their tags stand for to {count} resources")
            }
            Self::ForgetSubscribers { tag } => write!(f, "tags: Unsubscribe all from {tag}"),
            Self::MendCloud { cloud, namespace, differences } => {
                write!(f, "{cloud}: Drift with repair in {namespace} ({})", differences.join("; "))
            }
            Self::MendList { subscriber, add, delete } => {
                let (cloud, uri) = match Subscriber::parse(subscriber) {
                    Some(subscriber) => (subscriber.cloud, subscriber.uri),
                    None => (String::new(), subscriber.clone()),
                };
                let (add, delete) = (add.join(", "), delete.join(", "));
                match (add.as_str(), delete.as_str()) {
                    ("", "") => write!(f, "{cloud}: DeleteResource {uri}"),
                    (add, "") => write!(f, "{cloud}: AddPermitListRules {add} to {uri}"),
                    ("", delete) => write!(f, "{cloud}: DeletePermitListRules {delete} from {uri}"),
                    (add, delete) => write!(
                        f,
                        "{cloud}: AddPermitListRules {add} to {uri} and DeletePermitListRules {delete} from it"
                    ),
                }
            }
        }
    }
}

/// What would be done, and how to insist on exactly that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The calls, for people.
    pub calls: Vec<String>,
    /// Stands for the exact calls.
    pub digest: String,
    /// Connections between clouds that no rule needs any more after these calls; `prune` removes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unneeded: Vec<String>,
    /// What is paid for because of them, and what no longer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prices: Vec<String>,
}

/// The digest of calls, or of what would be written down.
pub(super) fn digest<T: Serialize>(calls: &[T]) -> String {
    let mut hash = Sha256::new();
    // Hashing cannot fail, and calls are plain data.
    let _ = serde_json::to_writer(&mut hash, calls);
    hex::encode(&hash.finalize()[..8])
}

pub(super) fn digest_of(text: &str) -> String {
    hex::encode(&Sha256::digest(text.as_bytes())[..16])
}

/// How an operation stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", content = "problem", rename_all = "lowercase")]
pub enum State {
    /// It is on its way, or was when the orchestrator stopped.
    Running,
    /// All calls were made.
    Done,
    /// A call failed; asking again goes on from there.
    Failed(Problem),
    /// Somebody cancelled it between two calls.
    Cancelled,
}

/// One operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Operation {
    /// Its id; later ones sort later.
    pub id: Uuid,
    /// What it is for.
    pub title: String,
    /// Its calls.
    pub calls: Vec<Call>,
    /// How many of them were made.
    pub done: usize,
    /// How it stands.
    #[serde(flatten)]
    pub state: State,
    /// What it made, if it makes something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<Created>,
    /// Which of several resources were not given their rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
    /// Why the first call that was left to be done later was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<Problem>,
    /// Connections between clouds that no rule needs any more after it; `prune` removes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unneeded: Vec<String>,
    /// When it began.
    pub begun: Timestamp,
    /// When it last moved.
    pub moved: Timestamp,
}

impl Record for Operation {
    const KIND: &'static str = "operation";
}

/// How far a running operation got. Small, because it is written after every call.
#[derive(Debug, Serialize, Deserialize)]
struct Progress {
    done: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    created: Option<Created>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    failures: Vec<Failure>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    behind: Option<Problem>,
    moved: Timestamp,
}

impl Record for Progress {
    const KIND: &'static str = "progress";
}

impl Progress {
    fn told_of(self, operation: &mut Operation) {
        // A record that was written whole later knows better.
        if operation.state == State::Running && self.done >= operation.done {
            (operation.done, operation.created, operation.moved) = (self.done, self.created, self.moved);
            (operation.failures, operation.behind) = (self.failures, self.behind);
        }
    }
}

/// All operations.
pub(super) struct Operations {
    table: Table<Uuid, Operation>,
    progress: Table<Uuid, Progress>,
    lead: Lead,
    running: Mutex<HashMap<Uuid, CancellationToken>>,
    kept: Duration,
}

impl Operations {
    pub(super) fn new(store: &Store, lead: Lead, kept: Duration) -> Result<Self, Error> {
        Ok(Self {
            table: Table::new(store, "nets-operations")?,
            progress: Table::new(store, "nets-progress")?,
            lead,
            running: Mutex::default(),
            kept,
        })
    }

    /// Writes an operation down before anything is done.
    pub(super) async fn begin(
        &self,
        title: String,
        calls: Vec<Call>,
        unneeded: Vec<String>,
    ) -> Result<Operation, Error> {
        let now = Timestamp::now();
        let operation = Operation {
            id: Uuid::now_v7(),
            title,
            calls,
            done: 0,
            state: State::Running,
            created: None,
            failures: Vec::new(),
            behind: None,
            unneeded,
            begun: now,
            moved: now,
        };
        let write = self.table.put_op(&operation.id, &operation)?;
        // Known before it runs, so that nothing that is written down cannot be cancelled.
        let _ = self.started(operation.id);
        if let Err(error) = self.lead.commit(Commit::new().with(write)).await {
            self.ended(operation.id);
            return Err(error);
        }
        Ok(operation)
    }

    /// Writes down how far it got, together with what came of its last call.
    /// One that ended is kept for a while only.
    pub(super) async fn save(&self, operation: &mut Operation, writes: Vec<Write>) -> Result<(), Error> {
        operation.moved = Timestamp::now();
        let Operation { id, done, ref created, ref failures, ref behind, moved, .. } = *operation;
        let mut commit = Commit::new();
        if operation.state == State::Running {
            let (created, failures, behind) = (created.clone(), failures.clone(), behind.clone());
            let progress = Progress { done, created, failures, behind, moved };
            commit = commit.with(self.progress.put_op(&id, &progress)?);
        } else {
            commit = commit.with(self.table.put_for_op(&id, operation, self.kept)?);
            commit = commit.with(self.progress.delete_op(&id));
        }
        self.lead.commit(writes.into_iter().fold(commit, Commit::with)).await
    }

    pub(super) async fn get(&self, id: &str) -> Result<Operation, Error> {
        let unknown = || Error::Operation(id.into());
        let uuid = Uuid::parse_str(id).map_err(|_| unknown())?;
        let mut operation = self.table.get(&uuid).await?.ok_or_else(unknown)?.value;
        if let Some(progress) = self.progress.get(&uuid).await? {
            progress.value.told_of(&mut operation);
        }
        Ok(operation)
    }

    /// All that are remembered, latest first.
    pub(super) async fn list(&self) -> Result<Vec<Operation>, Error> {
        let mut all: Vec<Operation> =
            self.table.list().await?.records.into_iter().map(|(_, record)| record.value).collect();
        let mut progress: HashMap<Uuid, Progress> =
            self.progress.list().await?.records.into_iter().map(|(id, record)| (id, record.value)).collect();
        for operation in &mut all {
            if let Some(progress) = progress.remove(&operation.id) {
                progress.told_of(operation);
            }
        }
        all.reverse();
        Ok(all)
    }

    /// The token that cancels a running operation.
    pub(super) fn started(&self, id: Uuid) -> CancellationToken {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.entry(id).or_default().clone()
    }

    pub(super) fn ended(&self, id: Uuid) {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    /// Whether this process is at it.
    pub(super) fn runs(&self, id: Uuid) -> bool {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&id)
    }

    /// Asks a running operation to stop before its next call. False if it does not run here.
    pub(super) fn cancel(&self, id: Uuid) -> bool {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.get(&id).map(CancellationToken::cancel).is_some()
    }
}
