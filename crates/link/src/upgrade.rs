//! The stream behind a response that says 101.

use std::fmt;
use std::sync::{Arc, Mutex};

use http::Response;

use crate::duplex::ByteStream;
use crate::lane::lock;

/// Among the extensions of a response with status 101: the byte stream that follows it.
#[derive(Clone)]
pub struct Upgraded(Arc<Mutex<Option<ByteStream>>>);

impl Upgraded {
    /// Hands a stream over with a response.
    pub fn put<B>(response: &mut Response<B>, stream: ByteStream) {
        response.extensions_mut().insert(Self(Arc::new(Mutex::new(Some(stream)))));
    }

    /// Takes the stream; it is there once.
    pub fn take<B>(response: &mut Response<B>) -> Option<ByteStream> {
        let slot = response.extensions_mut().remove::<Self>()?;
        lock(&slot.0).take()
    }
}

impl fmt::Debug for Upgraded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Upgraded")
    }
}
