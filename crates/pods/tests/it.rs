//! Pods against the recorded words of the originals and the real things that run them.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod it {
    mod account;
    mod api;
    mod batch;
    mod care;
    mod contract;
    mod crash;
    mod daemons;
    mod disk;
    mod docker;
    mod docker_calls;
    mod foreign;
    mod node;
    mod node_tekton;
    mod originals;
    mod part;
    mod paths;
    mod pods;
    mod points;
    mod resolved;
    mod samples;
    mod script;
    mod slurm;
    mod terminal;
    mod uncertain;
}
