// Every parser of bytes from outside, by name. Two programs include this file: the libFuzzer
// program beside it, and the stable test that replays the corpus.

pub(crate) type Target = (&'static str, fn(&[u8]));

pub(crate) const TARGETS: &[Target] = &[
    ("jwt", tarbet_identity::fuzz::jwt),
    ("jwks", tarbet_identity::fuzz::jwks),
    ("token", tarbet_identity::fuzz::token),
    ("pem", tarbet_identity::fuzz::pem),
    ("certificate", tarbet_identity::fuzz::certificate),
    ("link_handshake", link_handshake),
    ("link_sniff", link_sniff),
    ("link_urls", link_urls),
    ("link_upgrade", tarbet_link::fuzz::upgrade),
    ("link_messages", tarbet_link::fuzz::messages),
    ("link_answer", tarbet_link::fuzz::answer),
    ("kubeconfig", tarbet_cluster::fuzz::kubeconfig),
    ("kube_path", kube_path),
    ("policy", policy),
    ("kas_http2_stream", tarbet_reach::kas::fuzz::http2_stream),
    ("kas_header_block", tarbet_reach::kas::fuzz::header_block),
    ("kas_grpc_frames", tarbet_reach::kas::fuzz::grpc_frames),
    ("kas_gzip_message", tarbet_reach::kas::fuzz::gzip_message),
    ("kas_descriptor", tarbet_reach::kas::fuzz::descriptor),
    ("kas_credential", tarbet_reach::kas::fuzz::credential),
    ("kas_config", tarbet_reach::kas::fuzz::config),
    ("kas_redis_hash", tarbet_reach::kas::fuzz::redis_hash),
    ("internal_request", tarbet_jobs::fuzz::request),
    ("offers", tarbet_jobs::fuzz::offers),
    ("pod", tarbet_pods::fuzz::pod),
    ("interlink_bodies", tarbet_pods::fuzz::bodies),
    ("account", tarbet_pods::fuzz::account),
    ("docker", tarbet_pods::fuzz::docker),
    ("kubelet_upgrade", tarbet_pods::fuzz::upgrade),
    ("squeue", tarbet_pods::fuzz::squeue),
    ("exec_streams", tarbet_pods::fuzz::streams),
    ("nets_rules", tarbet_nets::fuzz::rules),
    ("nets_tags", tarbet_nets::fuzz::tags),
    ("nets_bodies", tarbet_nets::fuzz::bodies),
    ("nets_messages", tarbet_nets::fuzz::messages),
    ("nets_clouds", tarbet_nets::fuzz::clouds),
    ("nets_descriptions", tarbet_nets::fuzz::descriptions),
    ("ec2", tarbet_nets::fuzz::ec2),
    ("federated_service", tarbet_mesh::fuzz::offer),
    ("discovery", tarbet_mesh::fuzz::discovery),
    ("redis", tarbet_store::fuzz::redis),
    ("redis_url", tarbet_store::fuzz::redis_url),
    ("store_journal", tarbet_store::fuzz::journal),
    ("settings", settings),
];

fn link_handshake(data: &[u8]) {
    if let Ok(tarbet_link::handshake::Progress::Done(message)) = tarbet_link::handshake::decode(data) {
        // What was understood can be said again, and is understood the same.
        let again = tarbet_link::handshake::encode(&message).expect("a message that was read can be written");
        let back = tarbet_link::handshake::decode(&again).expect("a message that was written can be read");
        assert!(matches!(back, tarbet_link::handshake::Progress::Done(same) if same == message));
    }
}

fn link_sniff(data: &[u8]) {
    let _ = tarbet_link::sniff(data);
}

fn link_urls(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = text.parse::<tarbet_link::GatewayUrl>();
    let _ = text.parse::<tarbet_link::Target>();
    let _ = tarbet_link::ProxyUrl::parse(&text);
}

fn kube_path(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (method, path) = text.split_once(' ').unwrap_or(("GET", &text));
    let _ = tarbet_reach::agent::policy::KubeRequest::parse(method, path, None);
}

fn policy(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = serde_saphyr::from_str::<tarbet_reach::agent::policy::Policy>(&text);
}

fn settings(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = serde_saphyr::from_str::<tarbet_reach::config::GatewayConfig>(&text).map(|read| read.mistakes());
    let _ = serde_saphyr::from_str::<tarbet_reach::agent::AgentConfig>(&text);
    let _ = serde_saphyr::from_str::<tarbet_store::StoreConfig>(&text);
    let _ = serde_saphyr::from_str::<tarbet_nets::config::CloudConfig>(&text);
    let _ = serde_saphyr::from_str::<tarbet_jobs::Config>(&text).map(|read| read.mistakes());
    let _ = serde_saphyr::from_str::<tarbet_mesh::MeshConfig>(&text).map(|read| read.mistakes());
    let _ = serde_saphyr::from_str::<tarbet_nets::NetsConfig>(&text).map(|read| read.mistakes());
    let _ = serde_saphyr::from_str::<tarbet_pods::edge::EdgeConfig>(&text);
    let _ = serde_saphyr::from_str::<tarbet_pods::node::NodeConfig>(&text).map(|read| read.mistakes());
}
