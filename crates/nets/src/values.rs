//! Values that plugins keep with the controller, by namespace, cloud and key.

use serde::{Deserialize, Serialize};
use tarbet_store::{Record, Store, Table};
use tonic::{Request, Response, Status};

use crate::error::Error;
use crate::wire::tags::kv_store_server::{KvStore, KvStoreServer};
use crate::wire::tags::{DeleteRequest, DeleteResponse, GetRequest, GetResponse, SetRequest, SetResponse};

#[derive(Debug, Serialize, Deserialize)]
struct Value {
    value: String,
}

impl Record for Value {
    const KIND: &'static str = "value";
}

/// The values. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Values(Table<(String, (String, String)), Value>);

impl Values {
    /// The values in a store.
    pub fn new(store: &Store) -> Result<Self, Error> {
        Ok(Self(Table::new(store, "nets-values")?))
    }

    /// Writes a value.
    pub async fn set(&self, namespace: &str, cloud: &str, key: &str, value: &str) -> Result<(), Error> {
        self.0.put(&place(namespace, cloud, key)?, &Value { value: value.into() }).await?;
        Ok(())
    }

    /// A value; an error if there is none, as callers of this wire expect.
    pub async fn get(&self, namespace: &str, cloud: &str, key: &str) -> Result<String, Error> {
        let found = self.0.get(&place(namespace, cloud, key)?).await?;
        found.map(|record| record.value.value).ok_or_else(|| Error::Value {
            namespace: namespace.into(),
            cloud: cloud.into(),
            key: key.into(),
        })
    }

    /// Removes a value.
    pub async fn delete(&self, namespace: &str, cloud: &str, key: &str) -> Result<(), Error> {
        self.0.delete(&place(namespace, cloud, key)?).await?;
        Ok(())
    }

    /// The gRPC service.
    pub fn service(&self) -> KvStoreServer<impl KvStore + use<>> {
        KvStoreServer::new(Serving(self.clone()))
    }
}

fn place(namespace: &str, cloud: &str, key: &str) -> Result<(String, (String, String)), Error> {
    if key.is_empty() || key.len() + cloud.len() + namespace.len() > 900 {
        return Err(Error::invalid("key", "must have 1 to 900 bytes with cloud and namespace"));
    }
    Ok((namespace.into(), (cloud.into(), key.into())))
}

struct Serving(Values);

#[tonic::async_trait]
impl KvStore for Serving {
    async fn set(&self, request: Request<SetRequest>) -> Result<Response<SetResponse>, Status> {
        let SetRequest { key, value, cloud, namespace } = request.into_inner();
        self.0.set(&namespace, &cloud, &key, &value).await?;
        Ok(Response::new(SetResponse {}))
    }

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        let GetRequest { key, cloud, namespace } = request.into_inner();
        let value = self.0.get(&namespace, &cloud, &key).await?;
        Ok(Response::new(GetResponse { value }))
    }

    async fn delete(&self, request: Request<DeleteRequest>) -> Result<Response<DeleteResponse>, Status> {
        let DeleteRequest { key, cloud, namespace } = request.into_inner();
        self.0.delete(&namespace, &cloud, &key).await?;
        Ok(Response::new(DeleteResponse {}))
    }
}
