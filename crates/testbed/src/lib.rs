//! The real outside world for tests and the demo, on loopback only: Redis, Sentinel sets and
//! whole Kubernetes control planes.
//!
//! One call starts a part on leased ports and waits until it answers; dropping it takes it down
//! by its own process id. Whatever ends our process, its children and their files go with it.
//! It refuses to skip: a program that is missing is installed, or the error says how to.
//!
//! Start from [`Redis::start`] or [`shared_pair`], and wait for things with [`eventually`].

mod booted;
mod certs;
mod cgroup;
mod chromium;
mod control_plane;
mod disk;
mod dockerd;
mod edge;
mod effort;
mod envoy;
mod etcd;
mod eventually;
mod folder;
mod grpc_echo;
mod helm;
mod http;
mod image;
mod istio;
mod kubeconfig;
mod kubectl;
mod meshlab;
mod netlab;
mod pair;
mod ports;
mod process;
pub mod product;
mod redis;
mod relay;
mod sds;
mod sentinel;
mod slurm;
mod strange;
mod tekton;
mod terminal;
mod tools;
mod typed;
mod verified;

pub use booted::Booted;
pub use certs::{Authority, CertificateFiles, Issued, Subject};
pub use chromium::{Chromium, Page};
pub use control_plane::{ClientConfig, ControlPlane};
pub use disk::Disk;
pub use dockerd::Dockerd;
pub use edge::{Behind, Edge};
pub use effort::effort;
pub use envoy::Envoy;
pub use etcd::Etcd;
pub use eventually::{Outcome, eventually, wait_for};
pub use folder::{Folder, sweep};
pub use grpc_echo::{GrpcChat, GrpcEcho, GrpcEchoClient};
pub use helm::Helm;
pub use image::shell as shell_root;
pub use istio::{Istioctl, Istiod};
pub use kubectl::Kubectl;
pub use meshlab::MeshLab;
pub use netlab::Netlab;
pub use pair::{Pair, shared_pair};
pub use ports::Lease;
pub use process::{Process, ProcessId, Program};
pub use redis::{Persistence, Redis, RedisOptions, TlsMode};
pub use relay::Relay;
pub use sentinel::{SentinelOptions, Sentinels};
pub use slurm::{Slurm, SlurmOptions};
pub use strange::strange_bytes;
pub use tekton::Tekton;
pub use terminal::Terminal;
pub use tools::{faketime, valgrind, vendor_python};
pub use verified::verified;
