//! What a cloud plugin may ask of the orchestrator, near or far.

mod remote;

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::model::Mapping;
use crate::plan::target::Owner;

pub use remote::RemoteController;

/// Two clouds to be connected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectRequest {
    /// One cloud.
    pub cloud_a: String,
    /// The other.
    pub cloud_b: String,
    /// The namespace in the one.
    pub namespace_a: String,
    /// The namespace in the other.
    pub namespace_b: String,
    /// The spaces in the one that are to be reached.
    pub spaces_a: Vec<String>,
    /// The spaces in the other.
    pub spaces_b: Vec<String>,
}

impl ConnectRequest {
    /// To connect a network of one's own with that of another cloud.
    pub fn between(own: &Owner, other: &Owner) -> Self {
        Self {
            cloud_a: own.cloud.clone(),
            cloud_b: other.cloud.clone(),
            namespace_a: own.namespace.clone(),
            namespace_b: other.namespace.clone(),
            spaces_a: vec![own.space.to_string()],
            spaces_b: vec![other.space.to_string()],
        }
    }
}

/// The orchestrator, seen from a plugin.
#[async_trait]
pub trait Controller: Send + Sync + 'static {
    /// Spaces that nobody uses, one for each size; 0 is the usual size. They are set aside for a while.
    async fn find_spaces(&self, sizes: &[i32]) -> Result<Vec<IpNet>, Error>;
    /// All spaces in use, whose they are.
    async fn used_spaces(&self) -> Result<Vec<Mapping>, Error>;
    /// An autonomous system number that nobody uses.
    async fn find_asn(&self) -> Result<u32, Error>;
    /// Connects two clouds; returns when they are.
    async fn connect(&self, request: ConnectRequest) -> Result<(), Error>;
    /// Keeps a value.
    async fn set_value(&self, namespace: &str, cloud: &str, key: &str, value: &str) -> Result<(), Error>;
    /// Gives it back.
    async fn get_value(&self, namespace: &str, cloud: &str, key: &str) -> Result<String, Error>;
    /// Forgets it.
    async fn delete_value(&self, namespace: &str, cloud: &str, key: &str) -> Result<(), Error>;
}

/// A controller that is made after the plugins which use it: they are parts of one process.
#[derive(Clone, Default)]
pub struct LateController(Arc<OnceLock<Arc<dyn Controller>>>);

impl LateController {
    /// Says who it is. Only the first call counts.
    pub fn set(&self, controller: Arc<dyn Controller>) {
        let _ = self.0.set(controller);
    }

    fn get(&self) -> Result<&Arc<dyn Controller>, Error> {
        self.0
            .get()
            .ok_or_else(|| Error::Internal("a plugin was used before its orchestrator was there".into()))
    }
}

#[async_trait]
impl Controller for LateController {
    async fn find_spaces(&self, sizes: &[i32]) -> Result<Vec<IpNet>, Error> {
        self.get()?.find_spaces(sizes).await
    }

    async fn used_spaces(&self) -> Result<Vec<Mapping>, Error> {
        self.get()?.used_spaces().await
    }

    async fn find_asn(&self) -> Result<u32, Error> {
        self.get()?.find_asn().await
    }

    async fn connect(&self, request: ConnectRequest) -> Result<(), Error> {
        self.get()?.connect(request).await
    }

    async fn set_value(&self, namespace: &str, cloud: &str, key: &str, value: &str) -> Result<(), Error> {
        self.get()?.set_value(namespace, cloud, key, value).await
    }

    async fn get_value(&self, namespace: &str, cloud: &str, key: &str) -> Result<String, Error> {
        self.get()?.get_value(namespace, cloud, key).await
    }

    async fn delete_value(&self, namespace: &str, cloud: &str, key: &str) -> Result<(), Error> {
        self.get()?.delete_value(namespace, cloud, key).await
    }
}
