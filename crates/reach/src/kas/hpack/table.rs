//! The two tables of HPACK: the fixed one, and the one a connection fills.

use std::collections::VecDeque;

use bytes::Bytes;

/// What HTTP/2 allows unless told otherwise, and we never tell.
const LARGEST: usize = 4096;

#[derive(Debug)]
pub(super) struct Table {
    entries: VecDeque<(Bytes, Bytes)>,
    size: usize,
    limit: usize,
}

impl Default for Table {
    fn default() -> Self {
        Self { entries: VecDeque::new(), size: 0, limit: LARGEST }
    }
}

impl Table {
    /// By index, counted from one over both tables.
    pub(super) fn get(&self, index: usize) -> Option<(Bytes, Bytes)> {
        let index = index.checked_sub(1)?;
        if let Some((name, value)) = FIXED.get(index) {
            return Some((Bytes::from_static(name.as_bytes()), Bytes::from_static(value.as_bytes())));
        }
        self.entries.get(index - FIXED.len()).cloned()
    }

    pub(super) fn insert(&mut self, name: Bytes, value: Bytes) {
        self.size += name.len() + value.len() + 32;
        self.entries.push_front((name, value));
        self.shrink();
    }

    /// `false` if that is more than allowed.
    pub(super) fn resize(&mut self, limit: usize) -> bool {
        if limit > LARGEST {
            return false;
        }
        self.limit = limit;
        self.shrink();
        true
    }

    fn shrink(&mut self) {
        while self.size > self.limit
            && let Some((name, value)) = self.entries.pop_back()
        {
            self.size -= name.len() + value.len() + 32;
        }
    }
}

/// RFC 7541, appendix A.
static FIXED: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];
