//! The messages and services of both generations, generated from `proto/`.

/// The first generation: controller and cloud plugins.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
pub mod invisinets {
    include!(concat!(env!("OUT_DIR"), "/today/invisinetspb.rs"));
}

/// Today's generation: controller and cloud plugins.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
pub mod paraglider {
    include!(concat!(env!("OUT_DIR"), "/today/paragliderpb.rs"));
}

/// Today's generation: tags and values.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
pub mod tags {
    include!(concat!(env!("OUT_DIR"), "/today/tagservicepb.rs"));
}

/// The first generation's tags.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
pub mod seed_tags {
    include!(concat!(env!("OUT_DIR"), "/seed/tagservicepb.rs"));
}

/// What goes beyond both.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
pub mod upkeep {
    include!(concat!(env!("OUT_DIR"), "/today/tarbet.nets.v1.rs"));
}
