//! The local cloud: the kernel's own network namespaces as networks and machines.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tarbet_store::Store;

use crate::cloud::MemoryCloud;
use crate::controller::Controller;
use crate::error::Error;

/// Settings of a local cloud.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct LocalConfig {}

pub(crate) struct Local;

impl Local {
    pub(crate) async fn open(
        name: &str,
        _: &LocalConfig,
        _: &Store,
        controller: Arc<dyn Controller>,
    ) -> Result<MemoryCloud, Error> {
        Ok(MemoryCloud::new(name, controller))
    }
}
