//! TLS for every listener and every dial: 1.2 and up, one crypto library, certificates that may change
//! while connections live.
//!
//! [`ServerTls`] and [`ClientTls`] say what is wanted; building them gives an [`Acceptor`] and a
//! [`Connector`]. Those hold an immutable configuration and swap it for a new one when the files behind
//! it change ([`Acceptor::refresh`], [`Acceptor::follow`]): connections that stand go on with what they
//! began with, new ones see the new certificate, and files that make no sense change nothing.
//! Certificate, key and authorities are swapped together, so no handshake sees half a change.

mod client;
mod credential;
mod error;
mod live;
mod peer;
mod pinned;
mod server;
mod signature;
mod stream;
mod trust;
mod turns;
mod workload;

pub use client::{ClientTls, Connector};
pub use credential::{Credential, CredentialSource};
pub use error::{HandshakeError, TlsError};
pub use live::Refresh;
pub use peer::{AltName, PeerIdentity};
pub use server::{Acceptor, ClientCerts, ServerTls};
pub use stream::TlsStream;
pub use trust::CaSource;
pub use turns::Turns;

use std::sync::{Arc, LazyLock};

use rustls::crypto::CryptoProvider;

static PROVIDER: LazyLock<Arc<CryptoProvider>> =
    LazyLock::new(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()));

/// The one crypto library. Never the process default: what we build does not hang on who ran first.
fn provider() -> Arc<CryptoProvider> {
    Arc::clone(&PROVIDER)
}

/// Makes our crypto library the default of the process, for libraries that bring their own TLS.
/// Call it first thing in `main`; calling it again does no harm.
pub fn install_default_provider() {
    // Fails only when there is one already, and only one can be compiled in.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
}
