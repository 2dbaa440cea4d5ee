//! JSON objects in which no member occurs twice, at any depth.
//!
//! Of two members with one name some parsers take the first and some the last; whoever sits between
//! two such parsers can show each its own token.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Reads one object and nothing after it. `None` for anything else.
pub(crate) fn object(bytes: &[u8]) -> Option<Map<String, Value>> {
    match serde_json::from_slice::<Strict>(bytes) {
        Ok(Strict(Value::Object(members))) => Some(members),
        _ => None,
    }
}

struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Self)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON without duplicate members")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Strict(value)) = items.next_element()? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some((name, Strict(value))) = entries.next_entry::<String, Strict>()? {
            if members.insert(name, value).is_some() {
                return Err(de::Error::custom("duplicate member"));
            }
        }
        Ok(Value::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_are_refused_at_any_depth() {
        for text in [
            r#"{"a":1,"a":1}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"{"x":{"a":1,"b":2,"a":3}}"#,
            r#"{"x":[1,{"a":null,"a":null}]}"#,
        ] {
            assert!(object(text.as_bytes()).is_none(), "{text}");
        }
    }

    #[test]
    fn only_one_whole_object() {
        for text in ["", "[]", "1", "null", "{} {}", "{}x", "{\"a\":1e999}", "{\"a\":}", "\u{feff}{}"] {
            assert!(object(text.as_bytes()).is_none(), "{text}");
        }
        let deep = format!("{}1{}", "{\"a\":".repeat(4000), "}".repeat(4000));
        assert!(object(deep.as_bytes()).is_none());
        let text = r#" {"a":[1,-2,2.5,"x",true,null,{"b":{}}]} "#;
        assert_eq!(
            Value::Object(object(text.as_bytes()).unwrap()),
            serde_json::from_str::<Value>(text).unwrap()
        );
    }
}
