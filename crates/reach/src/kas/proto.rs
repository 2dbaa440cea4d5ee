//! The messages on the wire, generated from `proto/`. One set serves both package prefixes.

#[allow(clippy::all, clippy::pedantic, missing_docs, unreachable_pub, reason = "generated code")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/kas_proto.rs"));
}

pub use generated::gitlab::agent::agent_configuration::rpc as agent_configuration;
pub use generated::gitlab::agent::agent_registrar::rpc as agent_registrar;
pub use generated::gitlab::agent::agent_tracker;
pub use generated::gitlab::agent::agentcfg;
pub use generated::gitlab::agent::entity;
pub use generated::gitlab::agent::gitlab;
pub use generated::gitlab::agent::gitlab_access::rpc as gitlab_access;
pub use generated::gitlab::agent::grpctool;
pub use generated::gitlab::agent::kas;
pub use generated::gitlab::agent::kubernetes_api::rpc as kubernetes_api;
pub use generated::gitlab::agent::prototool;
pub use generated::gitlab::agent::redistool;
pub use generated::gitlab::agent::reverse_tunnel::info;
pub use generated::gitlab::agent::reverse_tunnel::rpc as reverse_tunnel;
pub use generated::google::rpc;
pub use generated::plural::agent::agent_tracker as plural_agent_tracker;
pub use generated::plural::agent::kubernetes_api::rpc as plural_kubernetes_api;
