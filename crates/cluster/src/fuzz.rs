//! Every parser of outside bytes behind one call each, for fuzz targets: any input, no panic.

use crate::client;

/// A kubeconfig, and the way to the cluster it names.
pub fn kubeconfig(data: &[u8]) {
    client::read_any(&String::from_utf8_lossy(data));
}
