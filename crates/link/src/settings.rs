//! The numbers of a link, and why they are what they are.

use std::time::Duration;

use crate::handshake::Purpose;
use crate::keepalive::Keepalive;

const MIB: u32 = 1024 * 1024;
/// Twice what our own ends ever send: to receive more ends the connection.
const MAX_HEADER_LIST: u32 = 2 * crate::wire::MAX_HEADERS as u32;

/// How one end of a link behaves. Both ends may differ; each limits what it receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Bytes one stream may have under way or unread. It bounds the rate of one stream to this
    /// much a round trip, and what one stalled reader costs.
    pub stream_window: u32,
    /// The same for all streams together. Far larger than the stream window, so that a few
    /// stalled readers leave room for everybody else.
    pub connection_window: u32,
    /// The largest frame. Larger ones cost less a byte and delay others more.
    pub max_frame: u32,
    /// Streams open at once.
    pub max_streams: u32,
    /// Unread bytes on the whole link from which the longest-stalled streams are reset. Below the
    /// connection window, so that it acts before the link stands still.
    pub unread_budget: usize,
    /// How long a stream must have been left unread before it may be reset.
    pub stall_grace: Duration,
    /// How a dead peer is noticed.
    pub keepalive: Keepalive,
    /// How long the handshake may take.
    pub handshake_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            stream_window: MIB,
            connection_window: 96 * MIB,
            max_frame: 64 * 1024,
            max_streams: 20_000,
            unread_budget: 48 * MIB as usize,
            stall_grace: Duration::from_secs(2),
            keepalive: Keepalive::default(),
            handshake_timeout: Duration::from_secs(10),
        }
    }
}

impl Settings {
    /// For a few large transfers: at 40 ms a window of 48 MiB carries 800 MB/s.
    pub fn bulk() -> Self {
        Self {
            stream_window: 48 * MIB,
            connection_window: 256 * MIB,
            max_frame: 256 * 1024,
            unread_budget: 192 * MIB as usize,
            ..Self::default()
        }
    }

    /// The usual settings for a link of this purpose.
    pub fn for_purpose(purpose: Purpose) -> Self {
        match purpose {
            Purpose::General => Self::default(),
            Purpose::Bulk => Self::bulk(),
        }
    }

    pub(crate) fn client(&self) -> h2::client::Builder {
        let mut builder = h2::client::Builder::new();
        builder
            .enable_push(false)
            .initial_window_size(self.stream_window)
            .initial_connection_window_size(self.connection_window)
            .max_frame_size(self.max_frame)
            .max_header_list_size(MAX_HEADER_LIST)
            .initial_max_send_streams(self.max_streams as usize)
            .max_concurrent_reset_streams(self.max_streams as usize)
            .max_pending_accept_reset_streams(self.max_streams as usize)
            // Counted over the whole life of the connection, so any number would end it one day.
            .max_local_error_reset_streams(None)
            .data_frame_budget(self.frame_budget());
        builder
    }

    pub(crate) fn server(&self) -> h2::server::Builder {
        let mut builder = h2::server::Builder::new();
        builder
            .enable_connect_protocol()
            .initial_window_size(self.stream_window)
            .initial_connection_window_size(self.connection_window)
            .max_frame_size(self.max_frame)
            .max_header_list_size(MAX_HEADER_LIST)
            .max_concurrent_streams(self.max_streams)
            .max_concurrent_reset_streams(self.max_streams as usize)
            .max_pending_accept_reset_streams(self.max_streams as usize)
            .max_local_error_reset_streams(None)
            .data_frame_budget(self.frame_budget());
        builder
    }

    // Many tiny unread frames would end the whole connection at the default of half the window;
    // unread frames are compacted every quarter of a second, which gives them back.
    fn frame_budget(&self) -> usize {
        self.connection_window as usize * 2
    }
}
