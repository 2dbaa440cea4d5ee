//! What an object says, kept small.
//!
//! A plan for a large federation holds tens of thousands of objects, most of which are already as
//! they must be. Each is kept as its text, a sixth of the parsed form, beside a digest by which it is
//! compared with the cluster without being looked at again.

use std::sync::Arc;

use serde_json::Value;
use sha2::{Digest, Sha256};

/// A digest of a value, the same for the same content in whatever order its fields come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Print([u8; 16]);

impl Print {
    /// The digest of a value.
    pub fn of(value: &Value) -> Self {
        let mut hash = Sha256::new();
        feed(value, &mut hash);
        let mut short = [0; 16];
        short.copy_from_slice(&hash.finalize()[..16]);
        Self(short)
    }
}

fn feed(value: &Value, hash: &mut Sha256) {
    match value {
        Value::Object(map) => {
            let mut fields: Vec<(&String, &Value)> = map.iter().collect();
            fields.sort_unstable_by_key(|(key, _)| *key);
            hash.update(b"{");
            for (key, value) in fields {
                hash.update((key.len() as u64).to_le_bytes());
                hash.update(key);
                feed(value, hash);
            }
            hash.update(b"}");
        }
        Value::Array(list) => {
            hash.update(b"[");
            for item in list {
                feed(item, hash);
            }
            hash.update(b"]");
        }
        // Most of it is text, which need not be written out to be told from everything else.
        Value::String(text) => {
            hash.update(b"\"");
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
        other => {
            let text = other.to_string();
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
    }
}

/// What an object says.
#[derive(Debug, Clone)]
pub struct Spec {
    text: Arc<str>,
    print: Print,
}

impl From<Value> for Spec {
    fn from(value: Value) -> Self {
        Self { text: value.to_string().into(), print: Print::of(&value) }
    }
}

impl Spec {
    /// All of it.
    pub fn value(&self) -> Value {
        // It was written from a value.
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    /// Its digest.
    pub fn print(&self) -> Print {
        self.print
    }
}

impl PartialEq for Spec {
    fn eq(&self, other: &Self) -> bool {
        self.print == other.print
    }
}

impl PartialEq<Value> for Spec {
    fn eq(&self, other: &Value) -> bool {
        self.print == Print::of(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_print_sees_every_difference_and_no_order() {
        let one: Value = serde_json::from_str(r#"{"a":1,"b":{"c":[1,"2"],"d":null}}"#).unwrap();
        let other: Value = serde_json::from_str(r#"{"b":{"d":null,"c":[1,"2"]},"a":1}"#).unwrap();
        assert_eq!(Print::of(&one), Print::of(&other));
        assert_eq!(Spec::from(one.clone()).value(), one);
        for different in [
            json!({ "a": 1, "b": { "c": ["2", 1], "d": null } }),
            json!({ "a": 1, "b": { "c": [1, 2], "d": null } }),
            json!({ "a": 1, "b": { "c": [1, "2"] } }),
            json!({ "a": 1, "b": { "c": [[1, "2"]], "d": null } }),
        ] {
            assert_ne!(Print::of(&one), Print::of(&different), "{different}");
            assert_ne!(Spec::from(one.clone()), Spec::from(different));
        }
    }
}
