//! What a node can be told: interLink's keys and variables, by their own names.

mod file;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

pub use file::{Environment, load};

/// A virtual node. Keys are those of interLink's own file; those of the other parts may stand in
/// the same file and are passed over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeConfig {
    /// The node's name in the cluster.
    pub node_name: String,
    /// Where interLink is: `http://host`, `https://host` or `unix:///path`.
    #[serde(rename = "InterlinkURL")]
    pub interlink_url: String,
    /// Its port, where the URL has none.
    #[serde(deserialize_with = "text_or_number")]
    pub interlink_port: String,
    /// The file with the token sent to interLink; read anew for each call.
    #[serde(rename = "VKTokenFile")]
    pub vk_token_file: Option<PathBuf>,
    /// A JSON file with the resources of nodes by name.
    #[serde(rename = "VKConfigPath")]
    pub vk_config_path: Option<PathBuf>,
    /// TLS towards interLink.
    #[serde(rename = "TLS")]
    pub tls: Tls,
    /// More on connections to interLink.
    #[serde(rename = "HTTP")]
    pub http: Http,
    /// The service account whose kubeconfig endpoints of 2023 are given, to read the cluster with. A new
    /// token is sent before the old one ends.
    pub service_account: String,
    /// Its namespace.
    pub namespace: String,
    /// A ready kubeconfig of that account.
    pub custom_kubeconf: Option<PathBuf>,
    /// The address of the cluster's API as pods and endpoints of 2023 see it. If empty the latter are told
    /// the node's own way there, or the address that the API server itself gives.
    pub kubernetes_api_addr: String,
    /// Its port.
    #[serde(deserialize_with = "text_or_number")]
    pub kubernetes_api_port: String,
    /// Its authority, as PEM, in place of the cluster's own `kube-root-ca.crt`.
    pub kubernetes_api_ca_crt: String,
    /// Sends no projected volumes.
    pub disable_projected_volumes: bool,
    /// Where job scripts are built.
    #[serde(rename = "JobScriptBuilderURL")]
    pub job_script_builder_url: String,
    /// The address that the cluster reaches this node by. If empty it is where the kubelet API listens, or
    /// this machine's address on the way to the cluster's API.
    #[serde(rename = "PodIP")]
    pub pod_ip: String,
    /// The addresses by which the cluster reaches pods of this node.
    #[serde(rename = "PodCIDR")]
    pub pod_cidr: PodCidr,
    /// What the node offers.
    pub resources: Resources,
    /// Labels of the node, each `key=value`.
    pub node_labels: Vec<String>,
    /// Taints of the node beside its own.
    pub node_taints: Vec<NodeTaint>,
    /// Where the kubelet API listens.
    #[schemars(with = "String")]
    pub kubelet_listen: SocketAddr,
    /// The certificate of the kubelet API.
    pub kubelet_cert_file: Option<PathBuf>,
    /// Its key.
    pub kubelet_key_file: Option<PathBuf>,
    /// The authorities of clients; the cluster's own if absent.
    #[serde(rename = "KubeletClientCAFile")]
    pub kubelet_client_ca_file: Option<PathBuf>,
    /// Who signs the kubelet's certificate where no files are given.
    #[serde(rename = "KubeletCSRSignerName")]
    pub kubelet_csr_signer_name: String,
    /// Signs it itself instead.
    #[serde(rename = "DisableCSR")]
    pub disable_csr: bool,
    /// Removes pods from the cluster once they have finished.
    pub remove_finished_pods: bool,
    /// Lets the cluster evict pods while interLink is away. Otherwise they are held: what runs
    /// behind a broken connection still runs.
    pub evict_when_unreachable: bool,
    /// How often ConfigMaps and Secrets of running pods are read again; a minute, as kubelets do it.
    pub refresh_seconds: u64,
    /// More detail in the log.
    pub verbose_logging: bool,
    /// Errors only in the log.
    pub errors_only_logging: bool,
    /// Keys of interLink's other parts.
    #[serde(flatten, skip_serializing)]
    #[schemars(skip)]
    pub others: BTreeMap<String, serde_json::Value>,
}

/// TLS towards interLink.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "PascalCase")]
pub struct Tls {
    /// Whether these files are used.
    pub enabled: bool,
    /// The client's certificate.
    pub cert_file: Option<PathBuf>,
    /// Its key.
    pub key_file: Option<PathBuf>,
    /// Whose certificates of the server count.
    #[serde(rename = "CACertFile")]
    pub ca_cert_file: Option<PathBuf>,
}

/// More on connections to interLink.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "PascalCase")]
pub struct Http {
    /// Takes any certificate of the server.
    pub insecure: bool,
    /// A further authority, as PEM.
    pub ca_cert: String,
}

/// The addresses by which the cluster reaches pods.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "PascalCase")]
pub struct PodCidr {
    /// The network in which they are, such as `10.20.0.0/16`. What a plugin tells of a pod's address becomes
    /// the pod's if it is in there, or if interLink is on this machine.
    pub subnet: String,
}

/// What the node offers; quantities in Kubernetes' notation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "PascalCase")]
pub struct Resources {
    /// Cores.
    #[serde(rename = "CPU", alias = "cpu", deserialize_with = "text_or_number")]
    pub cpu: String,
    /// Memory.
    #[serde(alias = "memory", deserialize_with = "text_or_number")]
    pub memory: String,
    /// Pods.
    #[serde(alias = "pods", deserialize_with = "text_or_number")]
    pub pods: String,
    /// GPUs and FPGAs.
    pub accelerators: Vec<Accelerator>,
}

/// A kind of accelerator.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "PascalCase")]
pub struct Accelerator {
    /// Such as `nvidia.com/gpu`.
    pub resource_type: String,
    /// Its model, for a label.
    pub model: String,
    /// How many.
    #[serde(deserialize_with = "text_or_number")]
    pub available: String,
}

/// A taint of the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeTaint {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

impl Default for Resources {
    fn default() -> Self {
        let text = str::to_owned;
        Self { cpu: text("100"), memory: text("3000G"), pods: text("10000"), accelerators: Vec::new() }
    }
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            node_name: "tarbet".into(),
            interlink_url: "http://127.0.0.1".into(),
            interlink_port: "3000".into(),
            vk_token_file: None,
            vk_config_path: None,
            tls: Tls::default(),
            http: Http::default(),
            service_account: String::new(),
            namespace: "default".into(),
            custom_kubeconf: None,
            kubernetes_api_addr: String::new(),
            kubernetes_api_port: String::new(),
            kubernetes_api_ca_crt: String::new(),
            disable_projected_volumes: false,
            job_script_builder_url: String::new(),
            pod_ip: String::new(),
            pod_cidr: PodCidr::default(),
            resources: Resources::default(),
            node_labels: Vec::new(),
            node_taints: Vec::new(),
            kubelet_listen: SocketAddr::from(([0, 0, 0, 0], 10250)),
            kubelet_cert_file: None,
            kubelet_key_file: None,
            kubelet_client_ca_file: None,
            kubelet_csr_signer_name: "kubernetes.io/kubelet-serving".into(),
            disable_csr: false,
            remove_finished_pods: false,
            evict_when_unreachable: false,
            refresh_seconds: 60,
            verbose_logging: false,
            errors_only_logging: false,
            others: BTreeMap::new(),
        }
    }
}

/// Extended resources that a node may offer.
pub(super) const ACCELERATORS: &[&str] =
    &["nvidia.com/gpu", "amd.com/gpu", "intel.com/gpu", "xilinx.com/fpga", "intel.com/fpga"];

impl NodeConfig {
    /// What is wrong with it, each with its key; nothing if all is well.
    pub fn mistakes(&self) -> Vec<(String, String)> {
        use crate::plan::quantity::Quantity;
        let mut wrong = Vec::new();
        let mut say = |key: &str, what: String| wrong.push((key.to_owned(), what));
        if !crate::plan::path::is_object_name(&self.node_name) {
            say("NodeName", format!("`{}` cannot be the name of a node", self.node_name));
        }
        if let Err(reason) = super::interlink::Endpoint::new(&self.interlink_url, &self.interlink_port) {
            say("InterlinkURL", reason);
        }
        let resources = &self.resources;
        for (key, text) in [("CPU", &resources.cpu), ("Memory", &resources.memory), ("Pods", &resources.pods)]
        {
            if Quantity::parse(text).is_none() {
                say(
                    &format!("Resources.{key}"),
                    format!("`{text}` is not a quantity, such as 16, 500m or 64Gi"),
                );
            }
        }
        for label in &self.node_labels {
            if label.split_once('=').is_none_or(|(key, _)| key.is_empty()) {
                say("NodeLabels", format!("`{label}` is not of the form key=value"));
            }
        }
        if self.kubelet_cert_file.is_some() != self.kubelet_key_file.is_some() {
            say("KubeletCertFile", "goes with KubeletKeyFile".into());
        }
        if !self.pod_ip.is_empty() && self.pod_ip.parse::<std::net::IpAddr>().is_err() {
            say("PodIP", format!("`{}` is not an address", self.pod_ip));
        }
        if !self.pod_cidr.subnet.is_empty() && self.pod_cidr.subnet.parse::<ipnet::IpNet>().is_err() {
            say("PodCIDR.Subnet", format!("`{}` is not a network", self.pod_cidr.subnet));
        }
        for key in self.others.keys() {
            if crate::keys::fate(key) == crate::keys::Fate::Unknown {
                say(key, "is not a key of any part of interLink".into());
            }
        }
        wrong
    }

    /// Whether the cluster reaches pods by this address.
    pub fn reaches(&self, address: &str) -> bool {
        let network = self.pod_cidr.subnet.parse::<ipnet::IpNet>();
        network.is_ok_and(|network| {
            address.parse().is_ok_and(|address: std::net::IpAddr| network.contains(&address))
        })
    }

    /// The accelerators that a node may offer, summed by kind, without those of number zero.
    pub fn accelerators(&self) -> BTreeMap<String, i64> {
        use crate::plan::quantity::Quantity;
        let mut sums = BTreeMap::new();
        for kind in &self.resources.accelerators {
            let count = Quantity::parse(&kind.available).map_or(0, Quantity::units);
            if ACCELERATORS.contains(&kind.resource_type.as_str()) && count > 0 {
                *sums.entry(kind.resource_type.clone()).or_default() += count;
            }
        }
        sums
    }
}

/// Ports and amounts are written with and without quotes.
fn text_or_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(match Option::<serde_json::Value>::deserialize(deserializer)? {
        None | Some(serde_json::Value::Null) => String::new(),
        Some(serde_json::Value::String(text)) => text,
        Some(other) => other.to_string(),
    })
}
