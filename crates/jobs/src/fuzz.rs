//! Every parser of outside bytes behind one call each, for fuzz targets: any input, no panic.

use std::sync::Arc;

use kube::api::DynamicObject;

use crate::crd::InternalServicesConfigSpec;
use crate::plan::{self, PipelineSight, RunSight, Sight};
use crate::request::Request;

/// A request as a public cluster shows it, and the step it would lead to.
pub fn request(data: &[u8]) {
    let Ok(object) = serde_json::from_slice::<DynamicObject>(data) else { return };
    let request = Request::keep(&Arc::from("remote"), object);
    let config = InternalServicesConfigSpec::default();
    plan::plan(&Sight {
        request: &request,
        run: RunSight::Absent,
        config: Some(&config),
        pipeline: PipelineSight::Declares(&[]),
        turn: None,
        known: plan::Known::default(),
    });
}

/// What a private cluster's administrator offers.
pub fn offers(data: &[u8]) {
    drop(serde_json::from_slice::<InternalServicesConfigSpec>(data));
}
