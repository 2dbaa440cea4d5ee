//! Mesh against real parts.

#[cfg(test)]
mod it {
    mod crds;
    mod discovery;
    mod federation;
    mod judged;
    mod selectors;
    mod world;
    mod xds;
}
