//! Pods against the recorded words of the originals and the real things that run them.

mod it {
    mod docker;
    mod paths;
    mod pods;
    mod samples;
    mod script;
    mod slurm;
}
