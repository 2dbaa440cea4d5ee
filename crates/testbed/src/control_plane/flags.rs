//! The flags of the three programs of a control plane.

use std::path::{Path, PathBuf};

use crate::CertificateFiles;

/// What users of the product meet in a cluster, without what needs a cloud or a real kubelet.
const CONTROLLERS: [&str; 27] = [
    "certificatesigningrequest-approving-controller",
    "certificatesigningrequest-signing-controller",
    "clusterrole-aggregation-controller",
    "cronjob-controller",
    "daemonset-controller",
    "deployment-controller",
    "disruption-controller",
    "endpoints-controller",
    "endpointslice-controller",
    "endpointslice-mirroring-controller",
    "ephemeral-volume-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "node-lifecycle-controller",
    "persistentvolume-binder-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
    "pod-garbage-collector-controller",
    "replicaset-controller",
    "resourcequota-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "statefulset-controller",
    "taint-eviction-controller",
    "ttl-after-finished-controller",
];

/// The files that the programs read.
#[derive(Debug)]
pub(super) struct Keys {
    pub(super) serving: CertificateFiles,
    /// How the apiserver proves itself to a node, for logs and exec.
    pub(super) kubelet_client: CertificateFiles,
    pub(super) authority_key: PathBuf,
    pub(super) accounts_private: PathBuf,
    pub(super) accounts_public: PathBuf,
    pub(super) tokens: PathBuf,
}

pub(super) fn apiserver(name: &str, etcd: &str, port: u16, keys: &Keys) -> Vec<String> {
    let issuer = "https://kubernetes.default.svc";
    vec![
        format!("--etcd-servers={etcd}"),
        // Planes that share an etcd see only what is under their own prefix.
        format!("--etcd-prefix=/{name}"),
        "--bind-address=127.0.0.1".to_owned(),
        "--advertise-address=127.0.0.1".to_owned(),
        // A loopback address is refused as an endpoint, so no endpoint is kept.
        "--endpoint-reconciler-type=none".to_owned(),
        format!("--secure-port={port}"),
        file("tls-cert-file", &keys.serving.certificate),
        file("tls-private-key-file", &keys.serving.key),
        file("client-ca-file", &keys.serving.authority),
        file("token-auth-file", &keys.tokens),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        format!("--service-account-issuer={issuer}"),
        format!("--api-audiences={issuer}"),
        file("service-account-key-file", &keys.accounts_public),
        file("service-account-signing-key-file", &keys.accounts_private),
        file("kubelet-certificate-authority", &keys.serving.authority),
        file("kubelet-client-certificate", &keys.kubelet_client.certificate),
        file("kubelet-client-key", &keys.kubelet_client.key),
        "--kubelet-preferred-address-types=InternalIP,Hostname".to_owned(),
        "--service-cluster-ip-range=10.99.0.0/16".to_owned(),
        "--allow-privileged=true".to_owned(),
        "--profiling=false".to_owned(),
    ]
}

pub(super) fn controllers(kubeconfig: &Path, port: u16, keys: &Keys) -> Vec<String> {
    vec![
        file("kubeconfig", kubeconfig),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        "--leader-elect=false".to_owned(),
        "--use-service-account-credentials=true".to_owned(),
        file("service-account-private-key-file", &keys.accounts_private),
        file("root-ca-file", &keys.serving.authority),
        file("cluster-signing-cert-file", &keys.serving.authority),
        file("cluster-signing-key-file", &keys.authority_key),
        format!("--controllers={}", CONTROLLERS.join(",")),
        "--profiling=false".to_owned(),
    ]
}

pub(super) fn scheduler(kubeconfig: &Path, port: u16) -> Vec<String> {
    vec![
        file("kubeconfig", kubeconfig),
        file("authentication-kubeconfig", kubeconfig),
        file("authorization-kubeconfig", kubeconfig),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        "--leader-elect=false".to_owned(),
        "--profiling=false".to_owned(),
    ]
}

fn file(flag: &str, path: &Path) -> String {
    format!("--{flag}={}", path.display())
}
