//! Pure decisions: nothing here reads a clock, a network or a random source.

pub mod asn;
pub mod bgp;
pub mod connect;
pub mod expect;
pub mod flows;
pub mod import;
pub mod price;
pub mod rule;
pub mod space;
pub mod tags;
pub mod target;
pub mod verdict;
