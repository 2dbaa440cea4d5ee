//! Word that the other end has begun with a request, before it answers it.

use std::fmt;
use std::sync::Arc;

/// Among the extensions of a request: called when the other end begins to read the request's body, or answers it
/// with anything but a refusal.
///
/// The other end may pass a request on and have to wait for somebody who takes it. Until it is taken, whoever
/// sent it can send it elsewhere, if enough of the body was kept back. Only an end that knows this kind of
/// request says when it reads.
#[derive(Clone)]
pub struct OnTaken(Arc<dyn Fn() + Send + Sync>);

impl OnTaken {
    /// Calls this, at most once for each time the request is sent.
    pub fn new(call: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(call))
    }

    pub(crate) fn tell(self) {
        (self.0)();
    }
}

impl fmt::Debug for OnTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnTaken")
    }
}
