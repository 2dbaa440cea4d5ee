//! Records in their envelope: `{"v": 1, "kind": "site", "body": {…}}`.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Why a record cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Not JSON, not an envelope, or a body of another shape.
    #[error("the record is not what its kind promises")]
    Shape(
        #[source]
        #[from]
        serde_json::Error,
    ),
    /// Something else lives at this key.
    #[error("expected a record of kind `{expected}`, found `{found}`")]
    Kind {
        /// What the table holds.
        expected: &'static str,
        /// What was found.
        found: String,
    },
    /// Written by a newer program, or too old to be brought up to date.
    #[error("version {found} of `{kind}` is not understood; this program knows {known}")]
    Version {
        /// What it is.
        kind: &'static str,
        /// Its version.
        found: u32,
        /// The newest version this program knows.
        known: u32,
    },
}

/// Something that can be kept in a table.
pub trait Record: Serialize + DeserializeOwned {
    /// What it is, in one word. Never changes.
    const KIND: &'static str;
    /// Counts changes of shape that older programs would not understand.
    const VERSION: u32 = 1;

    /// Brings the body of an older version up to date. Nothing means it is too old.
    fn upgrade(_from: u32, _body: Value) -> Option<Value> {
        None
    }
}

#[derive(Serialize, Deserialize)]
struct Envelope<B> {
    v: u32,
    kind: String,
    body: B,
}

pub(super) fn encode<V: Record>(body: &V) -> Result<Vec<u8>, RecordError> {
    Ok(serde_json::to_vec(&Envelope { v: V::VERSION, kind: V::KIND.into(), body })?)
}

pub(super) fn decode<V: Record>(bytes: &[u8]) -> Result<V, RecordError> {
    let envelope: Envelope<Value> = serde_json::from_slice(bytes)?;
    if envelope.kind != V::KIND {
        return Err(RecordError::Kind { expected: V::KIND, found: envelope.kind });
    }
    let version = RecordError::Version { kind: V::KIND, found: envelope.v, known: V::VERSION };
    let body = match envelope.v.cmp(&V::VERSION) {
        std::cmp::Ordering::Equal => envelope.body,
        std::cmp::Ordering::Less => V::upgrade(envelope.v, envelope.body).ok_or(version)?,
        std::cmp::Ordering::Greater => return Err(version),
    };
    Ok(serde_json::from_value(body)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Site {
        name: String,
        labels: Vec<String>,
    }

    impl Record for Site {
        const KIND: &'static str = "site";
        const VERSION: u32 = 2;

        fn upgrade(from: u32, mut body: Value) -> Option<Value> {
            (from == 1).then(|| {
                body["labels"] = Value::Array(Vec::new());
                body
            })
        }
    }

    #[test]
    fn reads_what_it_wrote_and_what_an_older_program_wrote() {
        let site = Site { name: "lab".into(), labels: vec!["hpc".into()] };
        let bytes = encode(&site).unwrap();
        assert_eq!(bytes, br#"{"v":2,"kind":"site","body":{"name":"lab","labels":["hpc"]}}"#);
        assert_eq!(decode::<Site>(&bytes).unwrap(), site);
        let old = br#"{"v":1,"kind":"site","body":{"name":"lab"}}"#;
        assert_eq!(decode::<Site>(old).unwrap(), Site { name: "lab".into(), labels: vec![] });
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        let newer = decode::<Site>(br#"{"v":3,"kind":"site","body":{}}"#).unwrap_err();
        assert!(matches!(newer, RecordError::Version { found: 3, known: 2, .. }), "{newer}");
        let other = decode::<Site>(br#"{"v":1,"kind":"tag","body":{}}"#).unwrap_err();
        assert!(matches!(other, RecordError::Kind { .. }), "{other}");
        assert!(decode::<Site>(br#"{"v":0,"kind":"site","body":{}}"#).is_err());
        assert!(decode::<Site>(b"not json").is_err());
    }
}
