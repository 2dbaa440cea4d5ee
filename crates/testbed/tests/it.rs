//! The parts of the test bed, each proven to be the real thing.

#[cfg(test)]
mod it {
    mod chromium;
    mod dockerd;
    mod ending;
    mod envoy;
    mod istio;
    mod kube;
    mod meshlab;
    mod netlab;
    mod ports;
    mod redis;
    mod sentinel;
    mod slurm;
    mod tekton;
    mod tour;
}
