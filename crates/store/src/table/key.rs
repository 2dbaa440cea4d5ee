//! Keys as bytes whose order is the order of what they stand for.

use uuid::Uuid;

/// These bytes are not a key of this shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key does not have the shape this table expects")]
pub struct KeyError;

/// Something that can be the key of a table.
pub trait TableKey: Sized {
    /// As bytes: different for different keys, and in the same order.
    fn encode(&self) -> Vec<u8>;
    /// Back again.
    fn decode(bytes: &[u8]) -> Result<Self, KeyError>;
}

impl TableKey for String {
    fn encode(&self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }

    fn decode(bytes: &[u8]) -> Result<Self, KeyError> {
        Self::from_utf8(bytes.to_vec()).map_err(|_| KeyError)
    }
}

impl TableKey for Vec<u8> {
    fn encode(&self) -> Vec<u8> {
        self.clone()
    }

    fn decode(bytes: &[u8]) -> Result<Self, KeyError> {
        Ok(bytes.to_vec())
    }
}

impl TableKey for u64 {
    fn encode(&self) -> Vec<u8> {
        self.to_be_bytes().to_vec()
    }

    fn decode(bytes: &[u8]) -> Result<Self, KeyError> {
        bytes.try_into().map(Self::from_be_bytes).map_err(|_| KeyError)
    }
}

impl TableKey for i64 {
    fn encode(&self) -> Vec<u8> {
        // With the sign bit turned, negative numbers come before positive ones.
        (self.cast_unsigned() ^ 1 << 63).to_be_bytes().to_vec()
    }

    fn decode(bytes: &[u8]) -> Result<Self, KeyError> {
        u64::decode(bytes).map(|turned| (turned ^ 1 << 63).cast_signed())
    }
}

impl TableKey for Uuid {
    fn encode(&self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }

    fn decode(bytes: &[u8]) -> Result<Self, KeyError> {
        Self::from_slice(bytes).map_err(|_| KeyError)
    }
}

/// A pair is ordered by its first part, then its second; three parts are `(A, (B, C))`.
impl<A: TableKey, B: TableKey> TableKey for (A, B) {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = first_part(&self.0);
        bytes.extend(self.1.encode());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, KeyError> {
        let mut first = Vec::new();
        let mut rest = bytes;
        loop {
            match rest {
                [0, 0xff, more @ ..] => {
                    first.push(0);
                    rest = more;
                }
                [0, 1, more @ ..] => return Ok((A::decode(&first)?, B::decode(more)?)),
                [] | [0, ..] => return Err(KeyError),
                [byte, more @ ..] => {
                    first.push(*byte);
                    rest = more;
                }
            }
        }
    }
}

/// The first part of a pair with its end mark: what all pairs with that first part begin with.
/// Zero bytes inside are followed by `ff`, the end is `00 01`, so that shorter still sorts first.
pub(super) fn first_part<A: TableKey>(first: &A) -> Vec<u8> {
    let mut bytes = Vec::new();
    for byte in first.encode() {
        bytes.push(byte);
        if byte == 0 {
            bytes.push(0xff);
        }
    }
    bytes.extend([0, 1]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fmt::Debug;

    fn check<K: TableKey + Ord + Debug>(a: &K, b: &K) -> Result<(), TestCaseError> {
        prop_assert_eq!(&K::decode(&a.encode()).unwrap(), a);
        prop_assert_eq!(a.encode().cmp(&b.encode()), a.cmp(b));
        Ok(())
    }

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop_oneof![Just(0_u8), Just(1), Just(0xff), any::<u8>()], 0..5)
    }

    proptest! {
        #[test]
        fn order_and_content_survive(
            texts in any::<(String, String)>(), unsigned in any::<(u64, u64)>(), signed in any::<(i64, i64)>(),
        ) {
            check(&texts.0, &texts.1)?;
            check(&unsigned.0, &unsigned.1)?;
            check(&signed.0, &signed.1)?;
        }

        #[test]
        fn pairs_and_triples_too(a in (bytes(), (bytes(), bytes())), b in (bytes(), (bytes(), bytes()))) {
            check(&a, &b)?;
            prop_assert_eq!(b.encode().starts_with(&first_part(&a.0)), a.0 == b.0);
        }

        #[test]
        fn strange_bytes_are_refused_not_misread(strange in bytes()) {
            if let Ok(pair) = <(Vec<u8>, Vec<u8>)>::decode(&strange) {
                prop_assert_eq!(pair.encode(), strange);
            }
        }
    }
}
