//! TLS on the way to a gateway.

use std::io;

use futures::FutureExt;
use futures::future::BoxFuture;
use tarbet_identity::tls::Connector;

use crate::carrier::Secure;
use crate::duplex::ByteStream;

impl Secure for Connector {
    fn secure<'a>(&'a self, stream: ByteStream, host: &'a str) -> BoxFuture<'a, io::Result<ByteStream>> {
        async move {
            let secured = self.connect(host, stream).await.map_err(io::Error::other)?;
            Ok(ByteStream::new(secured))
        }
        .boxed()
    }
}
