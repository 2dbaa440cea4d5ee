//! Reading bodies of either generation: one object, or a list of them.

use serde::de::DeserializeOwned;

/// A body that is not what the path expects.
#[derive(Debug, thiserror::Error)]
#[error("the body is not {expected}: {reason}")]
pub struct BadBody {
    expected: &'static str,
    reason: String,
}

/// What a body held, and in which form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Items<T> {
    /// The objects.
    pub items: Vec<T>,
    /// Whether they came as a list, as peers before 0.5 send them.
    pub list: bool,
}

/// Reads an object or a list of objects; an empty body and `null` hold nothing.
pub fn read_items<T: DeserializeOwned>(body: &[u8], expected: &'static str) -> Result<Items<T>, BadBody> {
    match body.iter().find(|byte| !byte.is_ascii_whitespace()) {
        None => Ok(Items { items: Vec::new(), list: true }),
        Some(b'[' | b'n') => {
            let items: Option<Vec<T>> = read(body, expected)?;
            Ok(Items { items: items.unwrap_or_default(), list: true })
        }
        Some(_) => Ok(Items { items: vec![read(body, expected)?], list: false }),
    }
}

/// Reads one object.
pub fn read<T: DeserializeOwned>(body: &[u8], expected: &'static str) -> Result<T, BadBody> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut json)
        .map_err(|error| BadBody { expected, reason: without_values(&error.to_string()) })?;
    json.end().map_err(|error| BadBody { expected, reason: without_values(&error.to_string()) })?;
    Ok(value)
}

/// What a parser says, without what it found: that may be a pod's secret, and the sentence is logged.
fn without_values(said: &str) -> String {
    match (said.find('"'), said.rfind('"')) {
        (Some(begin), Some(end)) if begin < end => format!("{}\"…{}", &said[..begin], &said[end..]),
        _ => said.to_owned(),
    }
}

impl<T> Items<T> {
    /// The one object, for paths where a list makes no sense.
    pub fn only(self, expected: &'static str) -> Result<T, BadBody> {
        let count = self.items.len();
        let mut items = self.items.into_iter();
        match (items.next(), items.next()) {
            (Some(item), None) => Ok(item),
            _ => Err(BadBody { expected, reason: format!("it holds {count} objects instead of one") }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_body_is_not_quoted() {
        let said = read::<Vec<u8>>(br#"["secret \" and more"]"#, "numbers").unwrap_err().to_string();
        assert!(!said.contains("secret") && !said.contains("more") && said.contains("expected u8"), "{said}");
        let said = read::<Vec<u8>>(b"[1,", "numbers").unwrap_err().to_string();
        assert!(said.contains("EOF"), "{said}");
    }
}
