//! Mesh against real parts.

#[cfg(test)]
mod it {
    mod crds;
    mod defects;
    mod differential;
    mod discovery;
    mod federation;
    mod hostile;
    mod judged;
    mod multicluster;
    mod selectors;
    mod three;
    mod world;
    mod xds;
}
