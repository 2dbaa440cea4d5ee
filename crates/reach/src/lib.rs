//! Reach: agents in private places dial out, replicated gateways route any request to them.

pub mod kas;
