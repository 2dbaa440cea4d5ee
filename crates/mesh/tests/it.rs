//! Mesh against real parts.

#[path = "it/crds.rs"]
mod crds;
#[path = "it/world.rs"]
mod world;
