//! What a token says.

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{JwtError, json};

/// The registered claims by name, all others in `extra`. The same for signing and for reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// `iss`: who made it.
    pub issuer: Option<String>,
    /// `sub`: whom it is about.
    pub subject: Option<String>,
    /// `aud`: who may take it.
    pub audience: Vec<String>,
    /// `exp`: the first moment at which it is refused. Not optional here: a token without end is a password.
    pub expires: Timestamp,
    /// `nbf`: the first moment at which it is accepted.
    pub not_before: Option<Timestamp>,
    /// `iat`: when it was made.
    pub issued_at: Option<Timestamp>,
    /// `jti`: its own name.
    pub id: Option<String>,
    /// Everything else.
    pub extra: Map<String, Value>,
}

impl Claims {
    /// Claims with nothing but an end.
    pub fn expiring(expires: Timestamp) -> Self {
        Self {
            issuer: None,
            subject: None,
            audience: Vec::new(),
            expires,
            not_before: None,
            issued_at: None,
            id: None,
            extra: Map::new(),
        }
    }

    /// One of the other claims as a type of the caller's.
    pub fn get<T: DeserializeOwned>(&self, name: &str) -> Result<T, JwtError> {
        let value = self.extra.get(name).ok_or_else(|| JwtError::Missing(name.to_owned()))?;
        T::deserialize(value).map_err(|_| JwtError::Claims("a claim is of another type"))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        match name {
            "iss" => self.issuer.is_some(),
            "sub" => self.subject.is_some(),
            "aud" => !self.audience.is_empty(),
            "exp" => true,
            "nbf" => self.not_before.is_some(),
            "iat" => self.issued_at.is_some(),
            "jti" => self.id.is_some(),
            _ => self.extra.contains_key(name),
        }
    }

    /// Reads the middle part of a token whose signature fits.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, JwtError> {
        let mut members =
            json::object(bytes).ok_or(JwtError::Claims("not a JSON object without duplicate members"))?;
        let audience = audience(members.remove("aud"))?;
        let issuer = text(members.remove("iss"), "`iss` is not text")?;
        let subject = text(members.remove("sub"), "`sub` is not text")?;
        let id = text(members.remove("jti"), "`jti` is not text")?;
        let expires = time(members.remove("exp"), "`exp` is not a time")?;
        let not_before = time(members.remove("nbf"), "`nbf` is not a time")?;
        let issued_at = time(members.remove("iat"), "`iat` is not a time")?;
        let expires = expires.ok_or_else(|| JwtError::Missing("exp".to_owned()))?;
        Ok(Self { issuer, subject, audience, expires, not_before, issued_at, id, extra: members })
    }

    /// The other way; whole seconds, and the audience always as a list, as kas writes it.
    pub(super) fn to_json(&self) -> Value {
        let mut members = self.extra.clone();
        let texts = [("iss", &self.issuer), ("sub", &self.subject), ("jti", &self.id)];
        for (name, value) in texts {
            if let Some(value) = value {
                members.insert(name.to_owned(), value.as_str().into());
            }
        }
        let times = [("exp", Some(self.expires)), ("nbf", self.not_before), ("iat", self.issued_at)];
        for (name, value) in times {
            if let Some(value) = value {
                members.insert(name.to_owned(), value.as_second().into());
            }
        }
        if !self.audience.is_empty() {
            members.insert("aud".to_owned(), self.audience.clone().into());
        }
        Value::Object(members)
    }
}

fn text(value: Option<Value>, problem: &'static str) -> Result<Option<String>, JwtError> {
    match value {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(JwtError::Claims(problem)),
    }
}

fn audience(value: Option<Value>) -> Result<Vec<String>, JwtError> {
    const PROBLEM: &str = "`aud` is neither text nor a list of texts";
    match value {
        None => Ok(Vec::new()),
        Some(Value::String(one)) => Ok(vec![one]),
        Some(Value::Array(several)) => several
            .into_iter()
            .map(|one| if let Value::String(one) = one { Ok(one) } else { Err(JwtError::Claims(PROBLEM)) })
            .collect(),
        Some(_) => Err(JwtError::Claims(PROBLEM)),
    }
}

/// Seconds since 1970, with or without a fraction; the fraction is dropped, which for `exp` is the
/// careful side and for `nbf` less than a second.
fn time(value: Option<Value>, problem: &'static str) -> Result<Option<Timestamp>, JwtError> {
    let Some(value) = value else { return Ok(None) };
    let seconds = match &value {
        Value::Number(number) => number.as_i64().or_else(|| whole_seconds(number.as_f64()?)),
        _ => None,
    };
    let time = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.map(Some).ok_or(JwtError::Claims(problem))
}

fn whole_seconds(seconds: f64) -> Option<i64> {
    // Beyond this, nothing is a date (and `as` would saturate).
    (seconds.abs() < 1e12).then_some(seconds.floor() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Claims, JwtError> {
        Claims::parse(json.as_bytes())
    }

    #[test]
    fn registered_claims_have_one_type_each() {
        let good =
            parse(r#"{"iss":"a","sub":"b","aud":"c","exp":10,"nbf":1.9,"iat":2,"jti":"d","x":[1]}"#).unwrap();
        assert_eq!(good.audience, ["c"]);
        assert_eq!(good.not_before.unwrap().as_second(), 1);
        assert_eq!(good.get::<Vec<u8>>("x").unwrap(), [1]);
        assert_eq!(good.get::<String>("y"), Err(JwtError::Missing("y".to_owned())));
        assert!(good.get::<String>("x").is_err());
        for bad in [
            r#"{"exp":10,"iss":1}"#,
            r#"{"exp":10,"sub":["a"]}"#,
            r#"{"exp":10,"aud":{"a":1}}"#,
            r#"{"exp":10,"aud":["a",1]}"#,
            r#"{"exp":10,"aud":null}"#,
            r#"{"exp":"10"}"#,
            r#"{"exp":null}"#,
            r#"{"exp":1e300}"#,
            r#"{"exp":99999999999999999999}"#,
            r#"{"exp":10,"nbf":-1e15}"#,
            r#"{"exp":10,"exp":11}"#,
        ] {
            assert!(matches!(parse(bad), Err(JwtError::Claims(_))), "{bad}");
        }
        assert_eq!(parse("{}"), Err(JwtError::Missing("exp".to_owned())));
    }

    #[test]
    fn what_is_written_is_read() {
        let claims =
            parse(r#"{"iss":"a","sub":"b","aud":["c","d"],"exp":10,"nbf":1,"iat":2,"jti":"d","x":{}}"#)
                .unwrap();
        assert_eq!(parse(&claims.to_json().to_string()), Ok(claims));
    }
}
