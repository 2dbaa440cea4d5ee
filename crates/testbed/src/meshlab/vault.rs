//! A service of west that does not speak HTTP to proxies.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Result;
use serde_json::json;

use super::{ANYWHERE, MeshLab, answer, capture};
use crate::ControlPlane;

impl MeshLab {
    /// The name of that service.
    pub const VAULT: &'static str = "vault.shop.svc.cluster.local";

    /// Makes the Service `shop/vault` in west, of the pod of `pay` and exported. Port 5432 is plain
    /// TCP to proxies and answers as `pay` does; behind port 8443 is the TLS server at `server` on this
    /// machine's loopback. Port `entrance` there leads to port 8443 as the caller sees it.
    pub async fn serve_vault(&mut self, west: &ControlPlane, server: u16, entrance: u16) -> Result<()> {
        let pay = self.netns("pay");
        self.cables.push(answer(self.lab.listen(&pay, "10.77.2.2:9000".parse()?)?, "west")?);
        self.cable("pay", "10.77.2.2:9443".parse()?, server)?;
        capture(&pay, "prerouting", "tcp dport { 9000, 9443 } redirect to :15006")?;
        let kubectl = west.kubectl();
        kubectl
            .apply(&json!({ "apiVersion": "v1", "kind": "Service",
                "metadata": { "name": "vault", "namespace": "shop", "labels": { "export": "true" } },
                "spec": { "selector": { "app": "pay" }, "ports": [
                    { "name": "tcp", "port": 5432, "targetPort": 9000 },
                    { "name": "tls", "port": 8443, "targetPort": 9443 },
                ] } }))
            .await?;
        kubectl
            .apply(&json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": { "name": "vault-lab", "namespace": "shop",
                    "labels": { "kubernetes.io/service-name": "vault", "endpointslice.kubernetes.io/managed-by": "lab" } },
                "endpoints": [{ "addresses": ["10.77.2.2"], "conditions": { "ready": true },
                    "targetRef": { "kind": "Pod", "name": "pay", "namespace": "shop" } }],
                "ports": [{ "name": "tcp", "port": 9000 }, { "name": "tls", "port": 9443 }] }))
            .await?;
        let entrance: SocketAddr = (Ipv4Addr::LOCALHOST, entrance).into();
        self.cable_out(entrance, "caller", (ANYWHERE, 8443).into()).await
    }

    /// Takes that service away.
    pub async fn no_vault(&self, west: &ControlPlane) -> Result<()> {
        let objects = ["service/vault", "endpointslice/vault-lab"];
        let how = ["-n", "shop", "--ignore-not-found"];
        west.kubectl().run(&[&["delete"], &objects[..], &how[..]].concat()).await?;
        Ok(())
    }
}
