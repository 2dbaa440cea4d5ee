//! Whose the other side is, which decides what may be asked of it and what its silence means.

use http::HeaderMap;

use super::extension::is_ours;

/// Whose the peer of a node or of an API server is, by its answer to a ping.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Origin {
    /// Ours, all the way to what runs the pods. One that was not heard yet counts as ours too: nothing is
    /// concluded from what it does not say.
    #[default]
    Ours,
    /// interLink's of today's generation, or ours with something of others behind it.
    Other,
    /// Of 2023: it knows only the calls of that time.
    Seed,
}

impl Origin {
    /// By the headers of an answer to today's ping; servers that are not ours pass none of ours on.
    pub fn of(headers: &HeaderMap) -> Self {
        if is_ours(headers) { Self::Ours } else { Self::Other }
    }

    /// Whether everything on the way is ours.
    pub fn is_ours(self) -> bool {
        self == Self::Ours
    }
}
