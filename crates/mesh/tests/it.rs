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
    mod outage;
    mod points;
    mod selectors;
    mod three;
    mod weather;
    mod world;
    mod xds;
}
