//! Which clouds there are, and where each namespace is in them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cloud::Cloud;
use crate::config::{DeploymentConfig, NetsConfig};
use crate::error::Error;
use crate::model::Deployment;

/// Clouds by name.
pub type Clouds = BTreeMap<String, Arc<dyn Cloud>>;

pub(super) struct Places {
    clouds: Clouds,
    namespaces: BTreeMap<String, Vec<DeploymentConfig>>,
}

impl Places {
    pub(super) fn new(config: &NetsConfig, clouds: Clouds) -> Self {
        Self { clouds, namespaces: config.namespaces.clone() }
    }

    pub(super) fn clouds(&self) -> &Clouds {
        &self.clouds
    }

    pub(super) fn namespaces(&self) -> &BTreeMap<String, Vec<DeploymentConfig>> {
        &self.namespaces
    }

    pub(super) fn cloud(&self, name: &str) -> Result<&Arc<dyn Cloud>, Error> {
        self.clouds.get(name).ok_or_else(|| Error::Place(format!("there is no cloud `{name}`")))
    }

    pub(super) fn deployment(&self, namespace: &str, cloud: &str) -> Result<Deployment, Error> {
        self.cloud(cloud)?;
        let deployments = self
            .namespaces
            .get(namespace)
            .ok_or_else(|| Error::Place(format!("there is no namespace `{namespace}`")))?;
        let found = deployments.iter().find(|deployment| deployment.name == cloud);
        let found = found
            .ok_or_else(|| Error::Place(format!("the namespace {namespace} has no deployment in {cloud}")))?;
        Ok(Deployment { id: found.deployment.clone(), namespace: namespace.into() })
    }

    /// All deployments in a cloud.
    pub(super) fn deployments(&self, cloud: &str) -> Vec<Deployment> {
        let all = self.namespaces.iter().flat_map(|(namespace, deployments)| {
            deployments.iter().filter(|deployment| deployment.name == cloud).map(|deployment| Deployment {
                id: deployment.deployment.clone(),
                namespace: namespace.clone(),
            })
        });
        all.collect()
    }
}
