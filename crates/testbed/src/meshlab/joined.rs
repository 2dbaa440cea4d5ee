//! The service in east too: under the same name, with an account and a trust domain of its own.

use anyhow::Result;
use serde_json::json;

use super::{MeshLab, answer, capture, ip, pod, service, slice, wire, workload};
use crate::meshlab::proxy::Proxy;
use crate::{ControlPlane, Kubectl};

impl MeshLab {
    /// Starts a pod of `shop/pay` in east beside the caller, with the account `till`. It answers as
    /// `pay of east`.
    pub async fn serve_pay_here(&mut self, east: &ControlPlane) -> Result<()> {
        let (caller, home) = (self.netns("caller"), self.netns("home"));
        ip(&format!("netns add {home}"))?;
        self.lab.ip(&home, &["link", "set", "lo", "up"])?;
        wire(&self.lab, ("eth2", &caller, "10.77.7.1/24"), ("eth0", &home, "10.77.7.2/24"))?;
        capture(&home, "prerouting", "tcp dport 8080 redirect to :15006")?;
        self.cables.push(answer(self.lab.listen(&home, "10.77.7.2:8080".parse()?)?, "east")?);
        let kubectl = east.kubectl();
        kubectl.apply(&service("shop", "pay", "http", json!({ "app": "pay" }), 80, 8080)).await?;
        pod(&kubectl, "shop", "home", "till", "10.77.7.2", json!({ "app": "pay" })).await?;
        kubectl.apply(&slice("shop", "pay", "http", "home", "10.77.7.2", 8080)).await?;
        let mut serving = workload("sidecar", "home", "shop", "east", "10.77.7.2");
        serving.account = "till";
        serving.labels["app"] = json!("pay");
        self.home = Some(Proxy::start(&home, &self.east, &self.authority, &serving).await?);
        Ok(())
    }

    /// Takes the pod of `shop/pay` in east away; its Service stays.
    pub async fn stop_pay_here(&mut self, east: &ControlPlane) -> Result<()> {
        remove(&east.kubectl(), &["endpointslice/pay-lab", "pod/home"]).await?;
        self.home = None;
        Ok(())
    }

    /// Takes all of `shop/pay` in east away.
    pub async fn no_pay_here(&mut self, east: &ControlPlane) -> Result<()> {
        leave(&east.kubectl()).await?;
        self.home = None;
        Ok(())
    }
}

/// Takes away what an earlier lab may have left in east.
pub(super) async fn leave(kubectl: &Kubectl) -> Result<()> {
    remove(kubectl, &["service/pay", "endpointslice/pay-lab", "pod/home", "serviceaccount/till"]).await
}

async fn remove(kubectl: &Kubectl, objects: &[&str]) -> Result<()> {
    let how = ["-n", "shop", "--ignore-not-found", "--force", "--grace-period=0"];
    kubectl.run(&[&["delete"], objects, &how[..]].concat()).await?;
    Ok(())
}
