//! Pods against the recorded words of the originals and the real things that run them.

mod it {
    mod api;
    mod crash;
    mod docker;
    mod node;
    mod node_tekton;
    mod paths;
    mod pods;
    mod samples;
    mod script;
    mod slurm;
}
