//! Which frame may follow which: the five streams of the protocol as one small machine each.
//!
//! Every stream is a sequence of messages with one `oneof`; a state is the field that was seen last.
//! The tables below are the protocol's own. A stream that leaves its table is refused with
//! `INVALID_ARGUMENT`, on either side.

use tonic::Status;

/// The table of one stream.
#[derive(Debug)]
pub struct Order {
    /// The message's name, for people.
    pub name: &'static str,
    /// Field names by number; the first is the beginning.
    fields: &'static [&'static str],
    /// For each state, beginning first, the set of fields that may follow; bit 0 is the end.
    next: &'static [u8],
}

const END: u8 = 1;

macro_rules! set {
    ($($field:expr),*) => { 0 $(| 1 << $field)* };
}

/// Agent to gateway inside a tunnel.
pub static CONNECT_REQUEST: Order = Order {
    name: "ConnectRequest",
    fields: &["the beginning", "descriptor", "header", "message", "trailer", "error"],
    next: &[set!(1), set!(2, 5), set!(3, 4), set!(3, 4), END | set!(5), END],
};

/// Gateway to agent inside a tunnel.
pub static CONNECT_RESPONSE: Order = Order {
    name: "ConnectResponse",
    fields: &["the beginning", "request_info", "message", "close_send"],
    next: &[END | set!(1), END | set!(2, 3), END | set!(2, 3), END],
};

/// Gateway to routing side on the private API.
///
/// `tunnel_ready` may be followed by `error`: gateways exist that relay an agent's early error as it
/// came, and the status in it says more than a violation would. Our own gateway never does so.
pub static GATEWAY_RESPONSE: Order = Order {
    name: "GatewayKasResponse",
    fields: &["the beginning", "tunnel_ready", "header", "message", "trailer", "error", "no_tunnel"],
    next: &[END | set!(1, 6), set!(2, 5), set!(3, 4), set!(3, 4), END | set!(5), END, END | set!(1)],
};

/// An HTTP request as frames.
pub static HTTP_REQUEST: Order = Order {
    name: "HttpRequest",
    fields: &["the beginning", "header", "data", "trailer", "upgrade_data"],
    next: &[set!(1), set!(2, 3), set!(2, 3), END | set!(4), END | set!(4)],
};

/// An HTTP response as frames.
pub static HTTP_RESPONSE: Order =
    Order { name: "HttpResponse", fields: HTTP_REQUEST.fields, next: HTTP_REQUEST.next };

/// A frame out of its order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A field that may not come now.
    #[error("{stream}: {next} may not follow {last}")]
    Unexpected {
        /// The stream.
        stream: &'static str,
        /// What was seen last.
        last: &'static str,
        /// What came.
        next: &'static str,
    },
    /// The stream ended where it may not.
    #[error("{stream}: it may not end after {last}")]
    Ended {
        /// The stream.
        stream: &'static str,
        /// What was seen last.
        last: &'static str,
    },
    /// A message without any field of its `oneof`.
    #[error("{stream}: an empty message after {last}")]
    Empty {
        /// The stream.
        stream: &'static str,
        /// What was seen last.
        last: &'static str,
    },
    /// A message that cannot be read at all, or without a field it must have.
    #[error("{stream}: {what}")]
    Malformed {
        /// The stream.
        stream: &'static str,
        /// What is wrong with it.
        what: &'static str,
    },
}

impl From<Violation> for Status {
    fn from(violation: Violation) -> Self {
        Self::invalid_argument(violation.to_string())
    }
}

/// Where one stream is in its order.
#[derive(Debug, Clone)]
pub struct Track {
    order: &'static Order,
    at: u8,
}

impl Track {
    /// At the beginning.
    pub fn new(order: &'static Order) -> Self {
        Self { order, at: 0 }
    }

    /// A frame with this field number arrived, or is about to be sent. `None` is an empty message.
    pub fn step(&mut self, field: Option<u8>) -> Result<(), Violation> {
        let last = self.order.fields[usize::from(self.at)];
        let stream = self.order.name;
        let Some(field) = field.filter(|f| *f > 0 && usize::from(*f) < self.order.fields.len()) else {
            return Err(Violation::Empty { stream, last });
        };
        if self.order.next[usize::from(self.at)] & (1 << field) == 0 {
            return Err(Violation::Unexpected { stream, last, next: self.order.fields[usize::from(field)] });
        }
        self.at = field;
        Ok(())
    }

    /// The stream ended.
    pub fn end(&self) -> Result<(), Violation> {
        if self.order.next[usize::from(self.at)] & END == 0 {
            return Err(Violation::Ended {
                stream: self.order.name,
                last: self.order.fields[usize::from(self.at)],
            });
        }
        Ok(())
    }

    /// A violation of form rather than of order.
    pub fn malformed(&self, what: &'static str) -> Violation {
        Violation::Malformed { stream: self.order.name, what }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: [&Order; 5] =
        [&CONNECT_REQUEST, &CONNECT_RESPONSE, &GATEWAY_RESPONSE, &HTTP_REQUEST, &HTTP_RESPONSE];

    fn accepts(order: &'static Order, fields: &[u8]) -> bool {
        let mut track = Track::new(order);
        fields.iter().all(|field| track.step(Some(*field)).is_ok()) && track.end().is_ok()
    }

    #[test]
    fn whole_streams_of_each_kind() {
        for ok in [&[1, 5][..], &[1, 2, 4], &[1, 2, 3, 3, 4], &[1, 2, 4, 5]] {
            assert!(accepts(&CONNECT_REQUEST, ok), "{ok:?}");
        }
        for bad in [&[][..], &[1], &[2], &[1, 3], &[1, 4], &[1, 2], &[1, 2, 5], &[1, 2, 3], &[1, 5, 5]] {
            assert!(!accepts(&CONNECT_REQUEST, bad), "{bad:?}");
        }
        for ok in [&[][..], &[1], &[1, 3], &[1, 2, 2], &[1, 2, 3]] {
            assert!(accepts(&CONNECT_RESPONSE, ok), "{ok:?}");
        }
        for bad in [&[2][..], &[3], &[1, 1], &[1, 3, 2], &[1, 3, 3]] {
            assert!(!accepts(&CONNECT_RESPONSE, bad), "{bad:?}");
        }
        for ok in [&[][..], &[6], &[6, 1, 2, 4], &[1, 2, 3, 3, 4, 5], &[1, 2, 4], &[1, 5]] {
            assert!(accepts(&GATEWAY_RESPONSE, ok), "{ok:?}");
        }
        for bad in [&[2][..], &[1], &[6, 6], &[1, 6], &[1, 2, 5], &[1, 2, 4, 4]] {
            assert!(!accepts(&GATEWAY_RESPONSE, bad), "{bad:?}");
        }
        for ok in [&[1, 3][..], &[1, 2, 2, 3], &[1, 3, 4, 4]] {
            assert!(accepts(&HTTP_REQUEST, ok) && accepts(&HTTP_RESPONSE, ok), "{ok:?}");
        }
        for bad in [&[][..], &[1], &[1, 2], &[1, 4], &[1, 2, 4], &[1, 3, 2], &[1, 3, 3], &[1, 3, 4, 3]] {
            assert!(!accepts(&HTTP_REQUEST, bad), "{bad:?}");
        }
    }

    #[test]
    fn a_violation_is_an_invalid_argument_that_names_both_frames() {
        let mut track = Track::new(&CONNECT_REQUEST);
        track.step(Some(1)).unwrap();
        let status = Status::from(track.step(Some(3)).unwrap_err());
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        assert_eq!(status.message(), "ConnectRequest: message may not follow descriptor");
        assert!(matches!(track.step(None), Err(Violation::Empty { .. })));
        assert!(matches!(track.end(), Err(Violation::Ended { .. })));
    }

    #[test]
    fn tables_are_square() {
        for order in ALL {
            assert_eq!(order.fields.len(), order.next.len(), "{}", order.name);
            for set in order.next {
                assert!(u32::from(*set) < 1 << order.fields.len(), "{}", order.name);
            }
        }
    }

    proptest! {
        /// A refused frame changes nothing: the stream goes on as if it had not been offered.
        #[test]
        fn refusal_leaves_the_state(which in 0..ALL.len(), fields in proptest::collection::vec(0u8..9, 0..30)) {
            let mut track = Track::new(ALL[which]);
            let mut taken = Vec::new();
            for field in fields {
                let before = track.at;
                if track.step(Some(field)).is_ok() {
                    taken.push(field);
                } else {
                    prop_assert_eq!(track.at, before);
                }
            }
            let mut again = Track::new(ALL[which]);
            for field in taken {
                prop_assert!(again.step(Some(field)).is_ok());
            }
            prop_assert_eq!(again.end(), track.end());
        }
    }
}
