//! The id that follows one request through every hop.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The header that carries it where `traceparent` is not understood.
pub const HEADER: &str = "tarbet-request-id";

/// A request's id: 128 bits, sortable by time, equal to the trace id of its W3C `traceparent`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RequestId(u128);

/// The text is not 32 hexadecimal digits, or all of them are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a request id is 32 hexadecimal digits, not all zero")]
pub struct NotARequestId;

impl RequestId {
    /// A new id.
    pub fn fresh() -> Self {
        Self(Uuid::now_v7().as_u128())
    }

    /// The trace id of a W3C `traceparent` value, if it is well formed.
    pub fn from_traceparent(value: &str) -> Option<Self> {
        let mut fields = value.trim().split('-');
        let (version, trace, parent, flags) =
            (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let hex = |text: &str, len| {
            text.len() == len && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        };
        let sound = hex(version, 2) && version != "ff" && hex(trace, 32) && hex(parent, 16) && hex(flags, 2);
        // Version 00 has exactly four fields; later versions may add more.
        let complete = version != "00" || fields.next().is_none();
        if sound && complete && parent.bytes().any(|b| b != b'0') { trace.parse().ok() } else { None }
    }

    /// Its 128 bits.
    pub(crate) fn number(self) -> u128 {
        self.0
    }

    /// A `traceparent` for the next hop, with a new parent id.
    pub fn traceparent(self) -> String {
        let parent = Uuid::new_v4().as_u128() as u64 | 1;
        format!("00-{self}-{parent:016x}-01")
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for RequestId {
    type Err = NotARequestId;

    fn from_str(text: &str) -> Result<Self, NotARequestId> {
        let digits = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
        match u128::from_str_radix(text, 16) {
            Ok(id) if digits && id != 0 => Ok(Self(id)),
            _ => Err(NotARequestId),
        }
    }
}

impl TryFrom<String> for RequestId {
    type Error = NotARequestId;

    fn try_from(text: String) -> Result<Self, NotARequestId> {
        text.parse()
    }
}

impl From<RequestId> for String {
    fn from(id: RequestId) -> Self {
        id.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_traceparent_keeps_the_id() {
        let id = RequestId::fresh();
        assert_eq!(RequestId::from_traceparent(&id.traceparent()), Some(id));
        assert_eq!(id.to_string().parse(), Ok(id));
    }

    #[test]
    fn malformed_traceparents_are_not_believed() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        for bad in [
            String::new(),
            format!("00-{id}-00f067aa0ba902b7"),
            format!("ff-{id}-00f067aa0ba902b7-01"),
            format!("00-{id}-0000000000000000-01"),
            format!("00-{id}-00f067aa0ba902b7-01-extra"),
            format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            format!("00-{}-00f067aa0ba902b7-01", id.to_uppercase()),
        ] {
            assert_eq!(RequestId::from_traceparent(&bad), None, "{bad}");
        }
        assert!(RequestId::from_traceparent(&format!("01-{id}-00f067aa0ba902b7-01-later")).is_some());
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in ".*") {
            let _ = RequestId::from_traceparent(&text);
            let _ = text.parse::<RequestId>();
        }
    }
}
