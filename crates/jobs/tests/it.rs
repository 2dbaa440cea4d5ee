//! The controller against two real control planes, and against real Tekton.

#![expect(unreachable_pub, reason = "`pub` marks what a module offers its siblings")]

#[cfg(test)]
mod it {
    mod adoption;
    mod child;
    mod crowd;
    mod deletion;
    mod fairness;
    mod faults;
    mod inputs;
    mod leaders;
    mod leaving;
    mod lifecycle;
    mod odd;
    mod pipelines;
    mod rig;
    mod rights;
    mod rotation;
    mod samples;
    mod servers;
    mod weather;
}
