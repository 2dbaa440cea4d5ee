//! Networks that others made, recorded here and never changed: their spaces are given to nobody.

use std::sync::Arc;

use serde::Serialize;
use tarbet_store::Commit;
use tokio::sync::OwnedMutexGuard;

use super::{Inner, Options, Orchestrator, operation, panicked};
use crate::error::Error;
use crate::model::ForeignNetwork;
use crate::plan::import::{Change, Comparison, Found, Unclear, compare, named, overlaps};

/// The turn of whoever changes what is recorded, of any cloud: what is read for all of them afterwards is no older.
const IMPORTS: &str = "imports";

/// An imported network in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Imported {
    /// Its cloud.
    pub cloud: String,
    /// It is never changed.
    pub access: &'static str,
    /// What is recorded of it.
    #[serde(flatten)]
    pub network: ForeignNetwork,
}

/// What an import finds, and what it records of that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Import {
    /// The cloud that was looked at.
    pub cloud: String,
    /// Of what is to be recorded; nothing if there is nothing to record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Whether it is recorded now.
    pub recorded: bool,
    /// The networks of others there.
    pub networks: Vec<Found>,
    /// Those that were recorded and are gone.
    pub gone: Vec<ForeignNetwork>,
    /// Spaces of others that meet ours, in words.
    pub overlaps: Vec<String>,
}

/// What is no longer recorded, or would not be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Forgotten {
    /// Its cloud.
    pub cloud: String,
    /// Whether that is so now.
    pub done: bool,
    /// The networks.
    pub forgotten: Vec<ForeignNetwork>,
}

impl Orchestrator {
    /// Everything that was imported.
    pub async fn imports(&self) -> Result<Vec<Imported>, Error> {
        let recorded = self.0.spaces.imported.list().await?.records;
        let mut all: Vec<Imported> = recorded
            .into_iter()
            .map(|((cloud, _), record)| Imported { cloud, access: "read-only", network: record.value })
            .collect();
        all.sort_by(|a, b| {
            (&a.cloud, &a.network.region, &a.network.name).cmp(&(
                &b.cloud,
                &b.network.region,
                &b.network.name,
            ))
        });
        Ok(all)
    }

    /// What an import of a cloud would record. Nothing is changed anywhere.
    pub async fn plan_import(&self, cloud: &str) -> Result<Import, Error> {
        let comparison = self.0.look_for_others(cloud).await?;
        self.0.spaces.outdated();
        let ours = self.0.spaces.map(&self.0.places).await?;
        let found = comparison.networks.iter().map(|found| &found.network);
        let overlaps = overlaps(cloud, found, &ours).iter().map(ToString::to_string).collect();
        let digest = digest(&comparison);
        let Comparison { networks, gone } = comparison;
        Ok(Import { cloud: cloud.into(), digest, recorded: false, networks, gone, overlaps })
    }

    /// Looks at the networks of others in a cloud, and records them. Nothing is changed in the cloud.
    pub async fn import(&self, cloud: &str, options: &Options) -> Result<Import, Error> {
        self.0.lead.check()?;
        let turn = self.0.turns.turn(IMPORTS).await;
        let mut told = self.plan_import(cloud).await?;
        let now = told.digest.clone().unwrap_or_default();
        if let Some(wanted) = options.expect.as_ref().filter(|wanted| **wanted != now) {
            return Err(Error::PlanChanged { wanted: wanted.clone(), now });
        }
        let table = &self.0.spaces.imported;
        let key = |network: &ForeignNetwork| (cloud.to_owned(), network.id.clone());
        let mut commit = Commit::new();
        for found in told.networks.iter().filter(|found| found.change != Change::Same) {
            commit = commit.with(table.put_op(&key(&found.network), &found.network)?);
        }
        for gone in &told.gone {
            commit = commit.with(table.delete_op(&key(gone)));
        }
        self.record(told.digest.is_some().then_some(commit), turn).await?;
        told.recorded = true;
        Ok(told)
    }

    /// Takes networks out of the record, by name or id; all of the cloud if none is named. With `plan` it only says
    /// which. The cloud is not asked, and need not be there any more.
    pub async fn forget_imported(
        &self,
        cloud: &str,
        names: &[String],
        plan: bool,
    ) -> Result<Forgotten, Error> {
        let turn = if plan { None } else { Some(self.0.turns.turn(IMPORTS).await) };
        let recorded = self.0.recorded_of(cloud).await?;
        let mut forgotten: Vec<ForeignNetwork> = Vec::new();
        for name in names {
            let network = named(&recorded, name).map_err(|why| unclear(cloud, name, why))?;
            if !forgotten.contains(network) {
                forgotten.push(network.clone());
            }
        }
        if names.is_empty() {
            if recorded.is_empty() {
                self.0.places.cloud(cloud)?;
            }
            forgotten = recorded;
        }
        let Some(turn) = turn else {
            return Ok(Forgotten { cloud: cloud.into(), done: false, forgotten });
        };
        let mut commit = Commit::new();
        for network in &forgotten {
            let key = (cloud.to_owned(), network.id.clone());
            commit = commit.with(self.0.spaces.imported.delete_op(&key));
        }
        self.record((!forgotten.is_empty()).then_some(commit), turn).await?;
        Ok(Forgotten { cloud: cloud.into(), done: true, forgotten })
    }

    /// Writes down what there is to write, and has it heeded from then on: both, also if the caller leaves in
    /// between. Also if nothing is new: whoever recorded it before may not have come to the second.
    async fn record(&self, commit: Option<Commit>, turn: OwnedMutexGuard<()>) -> Result<(), Error> {
        let inner = Arc::clone(&self.0);
        let recorded = self.0.tasks.spawn(async move {
            let _turn = turn;
            if let Some(commit) = commit {
                inner.lead.commit(commit).await?;
            }
            inner.spaces.reload_imported().await
        });
        recorded.await.map_err(panicked)?
    }
}

impl Inner {
    async fn recorded_of(&self, cloud: &str) -> Result<Vec<ForeignNetwork>, Error> {
        let recorded = self.spaces.imported.list_under(&cloud.to_owned()).await?.records;
        Ok(recorded.into_iter().map(|(_, record)| record.value).collect())
    }

    /// What the cloud has now, against what is recorded of it.
    async fn look_for_others(&self, cloud: &str) -> Result<Comparison, Error> {
        let plugin = self.places.cloud(cloud)?;
        let deployments = self.places.deployments(cloud);
        if deployments.is_empty() {
            return Err(Error::Place(format!("no namespace has a deployment in {cloud}")));
        }
        let found = plugin.foreign_networks(&deployments).await.map_err(|error| {
            if error.is_unsupported() {
                Error::Unsupported(format!("the plugin of {cloud} cannot tell which networks others made"))
            } else {
                error
            }
        })?;
        Ok(compare(self.recorded_of(cloud).await?, found))
    }
}

/// The digest of what is to be written down, if anything is.
fn digest(comparison: &Comparison) -> Option<String> {
    let news: Vec<&ForeignNetwork> = comparison.news().map(|found| &found.network).collect();
    let gone: Vec<&ForeignNetwork> = comparison.gone.iter().collect();
    (!comparison.is_settled()).then(|| operation::digest(&[news, gone]))
}

fn unclear(cloud: &str, name: &str, why: Unclear) -> Error {
    match why {
        Unclear::Unknown => Error::Import { cloud: cloud.into(), network: name.into() },
        Unclear::Several(ids) => {
            let message = format!("`{name}` is the name of several; say which: {}", ids.join(", "));
            Error::invalid("network", message)
        }
    }
}
