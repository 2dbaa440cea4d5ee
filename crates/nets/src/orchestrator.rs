//! The orchestrator: takes requests, plans the calls, makes them, remembers each.
//!
//! Start from [`Orchestrator::open`]; [`Orchestrator::execute`] plans a [`Request`], writes the calls down
//! as an operation and makes them in order. An operation that was cut off by a crash is finished by
//! [`Orchestrator::resume`]: each call may be made twice with the effect of once.
//! It refuses before any cloud is called whatever can be refused then.

mod apply;
mod body;
mod drift;
mod follow;
mod grpc;
mod import;
mod lead;
mod leaving;
mod links;
mod lists;
mod mend;
mod needed;
mod observe;
mod operation;
mod owed;
mod partly;
mod paths;
mod places;
mod plan;
mod request;
mod rest;
mod rest_import;
mod rest_seed;
mod rules;
mod spaces;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ipnet::IpNet;
use tarbet_store::{Store, Table};
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::task::TaskTracker;
use tonic::service::Routes;

use crate::config::NetsConfig;
use crate::controller::{ConnectRequest, Controller};
use crate::error::Error;
use crate::metrics::NetsMetrics;
use crate::model::{Created, Flags, Mapping, ResourceTag};
use crate::plan::connect::Step;
use crate::tags::Tags;
use crate::turns::Turns;
use crate::values::Values;

pub(crate) use body::read_any as read_any_body;
pub use drift::{Compared, Difference, Mend};
pub use import::{Forgotten, Import, Imported};
pub use lists::{NewTarget, NewTargets};
pub use observe::Topology;
pub use operation::{Call, Operation, Plan, State};
pub use partly::Failure;
pub use places::Clouds;
pub use request::{Request, Target};

/// How soon a cloud that could not be told its flags is told again, and how slowly at last.
const FLAGS_AGAIN: Duration = Duration::from_millis(500);
const FLAGS_AGAIN_MAX: Duration = Duration::from_secs(30);

/// An operation that is written down and under way.
struct Begun {
    operation: Operation,
    ended: JoinHandle<Result<Operation, Error>>,
}

/// The orchestrator. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct Orchestrator(Arc<Inner>);

pub(crate) struct Inner {
    lead: lead::Lead,
    places: places::Places,
    tags: Tags,
    values: Values,
    spaces: spaces::Spaces,
    links: links::Links,
    operations: operation::Operations,
    rules: rules::Rules,
    made: Table<String, rules::MadeFrom>,
    turns: Turns,
    owed: owed::Owed,
    metrics: NetsMetrics,
    flags: std::collections::BTreeMap<String, Flags>,
    /// The first generation's clients choose a namespace once, for all that follows.
    seed_namespace: std::sync::RwLock<String>,
    /// Operations outlive the connection that asked for them.
    tasks: TaskTracker,
}

/// How a request is to be carried out.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Only if the calls are exactly those with this digest.
    pub expect: Option<String>,
}

/// What came of a request.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// The operation; nothing if there was nothing to do.
    pub operation: Option<Operation>,
    /// What was made.
    pub created: Option<Created>,
}

/// What came of a request that was not waited for to the end.
#[derive(Debug, Clone)]
pub enum Asked {
    /// It is over.
    Over(Outcome),
    /// It goes on as this operation.
    Running(Operation),
}

impl Orchestrator {
    /// An orchestrator over these clouds, remembering in this store.
    pub async fn open(
        config: &NetsConfig,
        store: &Store,
        tags: Tags,
        clouds: Clouds,
        metrics: NetsMetrics,
    ) -> Result<Self, Error> {
        let lead = lead::Lead::alone(store);
        Ok(Self(Arc::new(Inner {
            places: places::Places::new(config, clouds),
            tags,
            values: Values::new(store)?,
            spaces: spaces::Spaces::open(config, store, lead.clone()).await?,
            links: links::Links::new(store, lead.clone())?,
            operations: operation::Operations::new(store, lead.clone(), config.operations_kept)?,
            rules: rules::Rules::open(store).await?,
            made: Table::new(store, "nets-resources")?,
            turns: Turns::default(),
            owed: owed::Owed::default(),
            metrics,
            flags: config.feature_flags.clone(),
            seed_namespace: std::sync::RwLock::new("default".into()),
            tasks: TaskTracker::new(),
            lead,
        })))
    }

    /// Its tags.
    pub fn tags(&self) -> &Tags {
        &self.0.tags
    }

    /// Its values.
    pub fn values(&self) -> &Values {
        &self.0.values
    }

    /// What a request would do.
    pub async fn plan(&self, request: &Request) -> Result<Plan, Error> {
        let calls = self.0.plan(request).await?;
        let unneeded = self.0.told_freed_by(&calls).await;
        let ways = self.0.inside(&calls).await;
        let prices = self.0.prices(&calls, &ways, &unneeded).await?;
        Ok(Plan {
            digest: operation::digest(&calls),
            calls: self.0.describe(&calls, &ways).await?,
            unneeded,
            prices,
        })
    }

    /// Does what a request asks and waits for it. It goes on even if the caller leaves.
    pub async fn execute(&self, request: Request, options: Options) -> Result<Outcome, Error> {
        let Some(begun) = self.begin(&request, &options).await? else {
            let created = self.existing(&request);
            return Ok(Outcome { operation: None, created });
        };
        let operation = begun.ended.await.map_err(panicked)??;
        let created = operation.created.clone().or_else(|| self.existing(&request));
        Ok(Outcome { created, operation: Some(operation) })
    }

    /// Does what a request asks and waits for so long at most.
    pub async fn execute_within(
        &self,
        request: Request,
        options: Options,
        wait: Duration,
    ) -> Result<Asked, Error> {
        let Some(begun) = self.begin(&request, &options).await? else {
            return Ok(Asked::Over(Outcome { operation: None, created: self.existing(&request) }));
        };
        match tokio::time::timeout(wait, begun.ended).await {
            Err(_) => Ok(Asked::Running(begun.operation)),
            Ok(ended) => {
                let operation = ended.map_err(panicked)??;
                let created = operation.created.clone().or_else(|| self.existing(&request));
                Ok(Asked::Over(Outcome { created, operation: Some(operation) }))
            }
        }
    }

    /// Begins what a request asks, without waiting.
    pub async fn start(&self, request: Request, options: Options) -> Result<Option<Operation>, Error> {
        Ok(self.begin(&request, &options).await?.map(|begun| begun.operation))
    }

    async fn begin(&self, request: &Request, options: &Options) -> Result<Option<Begun>, Error> {
        self.0.lead.check()?;
        let calls = self.0.plan(request).await?;
        let now = operation::digest(&calls);
        if let Some(wanted) = options.expect.as_ref().filter(|wanted| **wanted != now) {
            return Err(Error::PlanChanged { wanted: wanted.clone(), now });
        }
        if calls.is_empty() {
            return Ok(None);
        }
        self.0.metrics.operations.inc();
        let unneeded = self.0.told_freed_by(&calls).await;
        let (inner, title) = (Arc::clone(&self.0), request.title());
        let (tell, told) = oneshot::channel();
        // What is written down must be run, also if the caller leaves while it is being written.
        let ended = self.0.tasks.spawn(async move {
            let operation = inner.operations.begin(title, calls, unneeded).await?;
            let _ = tell.send(operation.clone());
            inner.carry_out(operation).await
        });
        match told.await {
            Ok(operation) => Ok(Some(Begun { operation, ended })),
            Err(_) => match ended.await.map_err(panicked)? {
                Err(error) => Err(error),
                Ok(_) => Err(Error::Internal("an operation ran without a word".into())),
            },
        }
    }

    fn spawn(&self, operation: Operation) -> JoinHandle<Result<Operation, Error>> {
        self.0.tasks.spawn(Arc::clone(&self.0).carry_out(operation))
    }

    /// What a request that has nothing to do would have made.
    fn existing(&self, request: &Request) -> Option<Created> {
        let tag = match request {
            Request::Create { namespace, cloud, name, .. } => {
                self.0.tags.get(&format!("{namespace}.{cloud}.{name}"))?
            }
            Request::Attach { namespace, cloud, uri } => {
                self.0.tags.leaf_of(&format!("{namespace}.{cloud}."), uri)?
            }
            _ => return None,
        };
        let name = ResourceTag::parse(&tag.name)?.name;
        Some(Created { name, uri: tag.uri?, ip: tag.ip.unwrap_or_default() })
    }

    /// Goes on with every operation that was running when the last process ended, and says how many. Tags may
    /// have changed since then, so all permit lists are compared with them.
    pub async fn resume(&self) -> Result<usize, Error> {
        self.0.owed.begin_anew();
        let all = self.0.operations.list().await?;
        let cut_off: Vec<Operation> =
            // Those that were asked for since this process leads are under way.
            all.into_iter()
                .filter(|it| it.state == State::Running && !self.0.operations.runs(it.id))
                .collect();
        let count = cut_off.len();
        // Each waits for its own turn at the resources it touches.
        for operation in cut_off.into_iter().rev() {
            tracing::info!(operation = %operation.id, title = %operation.title, done = operation.done, "Going on with an operation.");
            drop(self.spawn(operation));
        }
        Ok(count)
    }

    /// Tells every cloud what is switched on, until each has heard it: plugins may come up later.
    pub async fn send_flags(&self) {
        futures::future::join_all(self.0.places.clouds().keys().map(|name| self.send_flags_to(name))).await;
    }

    async fn send_flags_to(&self, name: &str) {
        let mut pause = FLAGS_AGAIN;
        while let Err(error) = self.0.greet(name).await {
            tracing::warn!(cloud = %name, %error, "A cloud did not take its flags or tell what it can do; it is asked again.");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(FLAGS_AGAIN_MAX);
        }
    }

    /// Operations that are remembered, latest first.
    pub async fn operations(&self) -> Result<Vec<Operation>, Error> {
        self.0.operations.list().await
    }

    /// One operation.
    pub async fn operation(&self, id: &str) -> Result<Operation, Error> {
        self.0.operations.get(id).await
    }

    /// Stops an operation before its next call, or a connection before its next step.
    pub async fn cancel(&self, id: &str) -> Result<Operation, Error> {
        let operation = self.0.operations.get(id).await?;
        if operation.state == State::Running && self.0.operations.cancel(operation.id) {
            return Ok(operation);
        }
        // It may have ended between the two words.
        let operation = self.0.operations.get(id).await?;
        if operation.state == State::Running { Ok(operation) } else { Err(Error::Ended(id.into())) }
    }

    /// What is left of the call that an operation is at, where that has steps.
    pub async fn steps_left(&self, operation: &Operation) -> Result<Vec<String>, Error> {
        match operation.calls.get(operation.done) {
            Some(Call::Connect(request)) if operation.state == State::Running => {
                self.0.steps_left(request).await
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Waits for running operations, when the process ends.
    pub async fn finish(&self) {
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }

    /// The gRPC services for plugins, of both generations.
    pub fn routes(&self) -> Routes {
        grpc::routes(self.clone())
    }

    /// The REST API, of both generations.
    pub fn router(&self) -> axum::Router {
        paths::in_either_spelling(rest::router(self.clone()))
    }
}

impl Inner {
    /// Tells a cloud what is switched on, and learns how many permit lists it is glad to change at once.
    async fn greet(&self, name: &str) -> Result<(), Error> {
        let cloud = self.places.cloud(name)?;
        let flags = self.flags.get(name).copied().unwrap_or_default();
        match cloud.set_flags(flags).await {
            Err(error) if error.is_unsupported() => {}
            told => told?,
        }
        cloud.abilities().await.map(drop)
    }

    /// The same before a resource is made or taken in. A plugin that was started again knows no flags, and nobody
    /// hears of it; one that does not take them will say itself what it does not offer.
    async fn greet_again(&self, name: &str) {
        if let Err(error) = self.greet(name).await {
            tracing::warn!(cloud = %name, %error, "A cloud did not take its flags again or tell what it can do.");
        }
    }

    async fn made_from(&self, tag: &str) -> Result<Option<String>, Error> {
        Ok(self.made.get(&tag.to_owned()).await?.map(|record| record.value.description))
    }
}

#[async_trait]
impl Controller for Orchestrator {
    async fn find_spaces(&self, sizes: &[i32]) -> Result<Vec<IpNet>, Error> {
        self.0.spaces.find(&self.0.places, sizes).await
    }

    async fn used_spaces(&self) -> Result<Vec<Mapping>, Error> {
        self.0.spaces.used(&self.0.places).await
    }

    async fn find_asn(&self) -> Result<u32, Error> {
        self.0.spaces.find_asn(&self.0.places).await
    }

    /// A plugin asks while it adds rules. It is an operation for people to see and to cancel.
    async fn connect(&self, request: ConnectRequest) -> Result<(), Error> {
        self.0.lead.check()?;
        if self.0.link(&request).await?.next() == Step::Done {
            return Ok(());
        }
        self.execute(Request::Connect(request), Options::default()).await.map(drop)
    }

    async fn set_value(&self, namespace: &str, cloud: &str, key: &str, value: &str) -> Result<(), Error> {
        self.0.values.set(namespace, cloud, key, value).await
    }

    async fn get_value(&self, namespace: &str, cloud: &str, key: &str) -> Result<String, Error> {
        self.0.values.get(namespace, cloud, key).await
    }

    async fn delete_value(&self, namespace: &str, cloud: &str, key: &str) -> Result<(), Error> {
        self.0.values.delete(namespace, cloud, key).await
    }
}

fn panicked(_: JoinError) -> Error {
    Error::Internal("an operation panicked".into())
}
