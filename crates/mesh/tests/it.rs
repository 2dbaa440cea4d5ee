//! Mesh against real parts.

#[cfg(test)]
mod it {
    mod crds;
    mod discovery;
    mod federation;
    mod hostile;
    mod judged;
    mod selectors;
    mod three;
    mod world;
    mod xds;
}
