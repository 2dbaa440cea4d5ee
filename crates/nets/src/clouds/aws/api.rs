//! Calls of EC2's query API.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use url::Url;

use super::{Aws, xml};
use crate::clouds::pace::Patience;
use crate::clouds::pages::Pages;
use crate::clouds::rest::{Call, endpoint};
use crate::clouds::taken;
use crate::error::Error;

const VERSION: &str = "2016-11-15";
/// How often something that passes is waited out.
const PATIENT: u32 = 8;

/// JSON as EC2's parameters: `{"Filter": [{"Name": "x"}]}` is `Filter.1.Name=x`.
pub(super) fn flatten(prefix: &str, value: &Value, found: &mut Vec<(String, String)>) {
    let join = |part: &str| if prefix.is_empty() { part.to_owned() } else { format!("{prefix}.{part}") };
    match value {
        Value::Null => {}
        Value::Object(fields) => fields.iter().for_each(|(name, value)| flatten(&join(name), value, found)),
        Value::Array(items) => {
            items
                .iter()
                .enumerate()
                .for_each(|(index, item)| flatten(&join(&(index + 1).to_string()), item, found));
        }
        Value::String(text) => found.push((prefix.to_owned(), text.clone())),
        other => found.push((prefix.to_owned(), other.to_string())),
    }
}

/// A filter of a question.
pub(super) fn filter(name: &str, values: &[&str]) -> Value {
    json!({ "Name": name, "Value": values })
}

/// The tags that everything carries.
pub(super) fn tags(kind: &str, namespace: &str, name: &str) -> Value {
    json!([{
        "ResourceType": kind,
        "Tag": [{ "Key": "Name", "Value": name }, { "Key": "Namespace", "Value": namespace }],
    }])
}

/// A tag of an object.
pub(super) fn tag<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    let tags = object["tagSet"].as_array()?;
    tags.iter().find(|tag| tag["key"].as_str() == Some(key))?["value"].as_str()
}

/// How long something has been waited for.
pub(super) struct Wait {
    done: u32,
    end: Duration,
}

impl Aws {
    /// Makes a call; nothing if it fails with one of these codes.
    pub(super) async fn try_call(
        &self,
        region: &str,
        action: &str,
        parameters: &Value,
        tolerated: &[&str],
    ) -> Result<Option<Value>, Error> {
        let usual = format!("https://ec2.{region}.amazonaws.com");
        let url: Url = endpoint("aws.endpoint", self.config.endpoint.as_deref().unwrap_or(&usual))?;
        let mut form =
            vec![("Action".to_owned(), action.to_owned()), ("Version".to_owned(), VERSION.to_owned())];
        flatten("", parameters, &mut form);
        let client = self.client(region)?;
        let mut wait = self.wait();
        loop {
            let answer = client.call(&Call::new(Method::POST, url.clone()).form(form.clone())).await?;
            let body = xml::read(&answer.text).unwrap_or_default();
            if answer.status.is_success() {
                return Ok(Some(body));
            }
            let error = &body["Errors"]["Error"];
            let code = error["Code"].as_str().unwrap_or_default();
            // What was made a moment ago is not known everywhere yet. Limits of calls are told with 503, which was
            // waited out below this, or as a mistake of the caller's, which only its code tells from others.
            if matches!(code, "RequestLimitExceeded" | "Throttling" | "DependencyViolation")
                && wait.done < PATIENT
            {
                self.pause(&mut wait, action).await?;
                continue;
            }
            if tolerated.contains(&code) {
                return Ok(None);
            }
            let said =
                format!("{}: {code}: {}", answer.status, error["Message"].as_str().unwrap_or_default());
            return Err(client.failed(action, &said));
        }
    }

    /// Makes a call that must succeed.
    pub(super) async fn call(&self, region: &str, action: &str, parameters: &Value) -> Result<Value, Error> {
        Ok(self.try_call(region, action, parameters, &[]).await?.unwrap_or_default())
    }

    /// All objects that a question finds.
    pub(super) async fn find(
        &self,
        region: &str,
        action: &str,
        set: &str,
        filters: &[Value],
    ) -> Result<Vec<Value>, Error> {
        let mut found = Vec::new();
        let mut pages = Pages::of(&self.name, action);
        let mut next = Value::Null;
        loop {
            let mut answer =
                self.call(region, action, &json!({ "Filter": filters, "NextToken": next })).await?;
            if let Value::Array(items) = taken(&mut answer, set) {
                found.extend(items);
            }
            next = taken(&mut answer, "nextToken");
            match next.as_str().filter(|mark| !mark.is_empty()) {
                Some(mark) => pages.turn(mark)?,
                None => return Ok(found),
            }
        }
    }

    pub(super) fn wait(&self) -> Wait {
        Wait { done: 0, end: self.clock.now() + Patience::OPERATION.limit }
    }

    /// Waits a while; an error if that has gone on for too long.
    pub(super) async fn pause(&self, wait: &mut Wait, what: &str) -> Result<(), Error> {
        let pause = Patience::OPERATION.pause(wait.done, None, rand::random());
        wait.done += 1;
        if self.clock.now() + pause > wait.end {
            return Err(Error::Cloud {
                cloud: self.name.clone(),
                what: what.into(),
                said: "it takes too long".into(),
            });
        }
        self.clock.wait(pause).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_numbered_from_one() {
        let mut found = Vec::new();
        flatten(
            "",
            &json!({ "Filter": [{ "Name": "a", "Value": ["x", "y"] }], "N": null, "B": true }),
            &mut found,
        );
        let found: Vec<String> = found.into_iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(found, ["B=true", "Filter.1.Name=a", "Filter.1.Value.1=x", "Filter.1.Value.2=y"]);
    }
}
