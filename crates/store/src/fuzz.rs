//! Every parser of outside bytes behind one call each, for fuzz targets: any input, no panic.

use crate::backend;
use crate::config::RedisUrl;

/// What a Redis answers, and what it publishes.
pub fn redis(data: &[u8]) {
    backend::read_any(data);
}

/// Where a Redis is.
pub fn redis_url(data: &[u8]) {
    drop(String::from_utf8_lossy(data).parse::<RedisUrl>());
}

/// The journal beside a store file, which a crash may have left in any state.
pub fn journal(data: &[u8]) {
    backend::read_any_journal(data);
}
