//! Points beside each effect on the world, at which a test lets the process die.

use std::fmt;
use std::sync::Arc;

type Listener = dyn Fn(&str) + Send + Sync;

/// Who is told of the points that are passed: in what is shipped nobody.
#[derive(Clone, Default)]
pub struct Reached(Option<Arc<Listener>>);

impl Reached {
    /// Tells each point to `listener`.
    pub fn telling(listener: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(listener)))
    }

    /// This point is passed.
    pub fn at(&self, point: &str) {
        if let Some(listener) = &self.0 {
            listener(point);
        }
    }
}

impl fmt::Debug for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reached").field(&self.0.is_some()).finish()
    }
}
