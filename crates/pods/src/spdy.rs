//! SPDY/3.1, as far as Kubernetes speaks it: exec, attach and port-forward between the API server
//! and a node.
//!
//! [`frame`] reads and writes frames without touching a socket, [`header`] is the compressed block
//! of names and values, [`session`] drives one connection. Kubernetes' own SPDY knows no flow
//! control: nobody sends `WINDOW_UPDATE`, so none is waited for, and a stream that is not read
//! holds up its connection.

pub mod frame;
pub mod header;
mod session;

pub use session::session;
