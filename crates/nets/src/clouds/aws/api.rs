//! Calls of EC2's query API.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use url::Url;

use super::{Aws, xml};
use crate::clouds::pace::{Patience, Pauses};
use crate::clouds::pages::Pages;
use crate::clouds::rest::{Answer, Attempt, Call, endpoint};
use crate::clouds::taken;
use crate::error::Error;

const VERSION: &str = "2016-11-15";
/// How often something that passes is waited out.
const PATIENT: u32 = 8;

/// How often something is looked for whose making was not answered, before it is asked for again, and once more each
/// time: EC2 does not tell everywhere at once of what it made.
const LOOKS: u32 = 2;
/// There were too many calls, so this one was not carried out.
const THROTTLED: &[&str] = &["RequestLimitExceeded", "Throttling"];

/// How often something that is needed, and was made a moment ago, is waited for until it is known everywhere.
const NEWS: u32 = 5;

/// Whether something else that a call needs is not known yet, which EC2 says of what is not there, too.
fn is_too_new(action: &str, code: &str) -> bool {
    let needs =
        ["Create", "Attach", "Accept", "Associate", "Run"].iter().any(|verb| action.starts_with(verb));
    needs && code.ends_with(".NotFound")
}

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

/// What EC2 calls a failure.
fn code(body: &Value) -> &str {
    body["Errors"]["Error"]["Code"].as_str().unwrap_or_default()
}

/// A failure in words.
fn said(answer: &Answer, body: &Value) -> String {
    let message = body["Errors"]["Error"]["Message"].as_str().unwrap_or_default();
    format!("{}: {}: {message}", answer.status, code(body))
}

/// How long something has been waited for.
pub(super) struct Wait {
    done: u32,
    end: Duration,
}

impl Aws {
    fn form(&self, region: &str, action: &str, parameters: &Value) -> Result<Call, Error> {
        let usual = format!("https://ec2.{region}.amazonaws.com");
        let url: Url = endpoint("aws.endpoint", self.config.endpoint.as_deref().unwrap_or(&usual))?;
        let mut form =
            vec![("Action".to_owned(), action.to_owned()), ("Version".to_owned(), VERSION.to_owned())];
        flatten("", parameters, &mut form);
        Ok(Call::new(Method::POST, url).form(form))
    }

    /// Makes a call; nothing if it fails with one of these codes.
    pub(super) async fn try_call(
        &self,
        region: &str,
        action: &str,
        parameters: &Value,
        tolerated: &[&str],
    ) -> Result<Option<Value>, Error> {
        let call = self.form(region, action, parameters)?;
        let client = self.client(region)?;
        let mut wait = self.wait();
        loop {
            let answer = client.call(&call).await?;
            let body = xml::read(&answer.text).unwrap_or_default();
            if answer.status.is_success() {
                return Ok(Some(body));
            }
            let code = code(&body);
            // What was made or removed a moment ago is not known everywhere yet. Limits of calls are told with 503,
            // which was waited out below this, or as a mistake of the caller's, which only its code tells from others.
            let passing = THROTTLED.contains(&code) || code == "DependencyViolation";
            if tolerated.contains(&code) {
                return Ok(None);
            }
            if passing && wait.done < PATIENT || is_too_new(action, code) && wait.done < NEWS {
                self.pause(&mut wait, action).await?;
                continue;
            }
            return Err(client.failed(action, &said(&answer, &body)));
        }
    }

    /// Makes something that EC2 would make a second time if it were asked twice, as it takes no token for it. If it
    /// is not told what became of a call, what the call would have made is looked for before it is made again.
    /// These codes say that it is there. What is found, or made, is given back: of the answer the part of this name.
    pub(super) async fn make<F: Future<Output = Result<Option<Value>, Error>>>(
        &self,
        region: &str,
        (action, part): (&str, &str),
        parameters: &Value,
        there: &[&str],
        look: impl Fn() -> F,
    ) -> Result<Value, Error> {
        if let Some(found) = look().await? {
            return Ok(found);
        }
        let call = self.form(region, action, parameters)?;
        let client = self.client(region)?;
        let (mut pauses, mut patience, mut news) = (Pauses::new(&*self.clock), LOOKS, NEWS);
        loop {
            let (mut asked, failure, answer) = match client.attempt(&call).await? {
                Attempt::Unknown { asked, failure, answer } => (asked, failure, answer),
                Attempt::Answered(answer) => {
                    let mut body = xml::read(&answer.text).unwrap_or_default();
                    if answer.status.is_success() {
                        return Ok(if part.is_empty() { body } else { taken(&mut body, part) });
                    }
                    let failure = client.failed(action, &said(&answer, &body));
                    let code = code(&body);
                    if is_too_new(action, code) && news > 0 {
                        news -= 1;
                    } else if !there.contains(&code) && !THROTTLED.contains(&code) {
                        return Err(failure);
                    }
                    (None, failure, Some(answer))
                }
            };
            let body = answer.and_then(|answer| xml::read(&answer.text)).unwrap_or_default();
            if THROTTLED.contains(&code(&body)) || is_too_new(action, code(&body)) {
                if !pauses.pause(&self.name, action, asked).await {
                    return Err(failure);
                }
                continue;
            }
            for _ in 0..patience {
                if !pauses.pause(&self.name, action, asked.take()).await {
                    return Err(failure);
                }
                if let Some(found) = look().await? {
                    return Ok(found);
                }
            }
            patience += 1;
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

    /// An error of the cloud.
    pub(super) fn failed(&self, what: &str, said: &str) -> Error {
        Error::Cloud { cloud: self.name.clone(), what: what.into(), said: said.into() }
    }

    pub(super) fn wait(&self) -> Wait {
        Wait { done: 0, end: self.clock.now() + Patience::OPERATION.limit }
    }

    /// Waits a while; an error if that has gone on for too long.
    pub(super) async fn pause(&self, wait: &mut Wait, what: &str) -> Result<(), Error> {
        let pause = Patience::OPERATION.pause(wait.done, None, rand::random());
        wait.done += 1;
        if self.clock.now() + pause > wait.end {
            return Err(self.failed(what, "it takes too long"));
        }
        self.clock.wait(pause).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_new_thing_needs_is_waited_for() {
        assert!(is_too_new("CreateSubnet", "InvalidVpcID.NotFound"));
        assert!(is_too_new("AcceptVpcPeeringConnection", "InvalidVpcPeeringConnectionID.NotFound"));
        assert!(!is_too_new("DeleteVpc", "InvalidVpcID.NotFound"), "it is gone, as wanted");
        assert!(!is_too_new("DescribeVpcs", "InvalidVpcID.NotFound"));
        assert!(!is_too_new("CreateSubnet", "InvalidSubnet.Conflict"));
    }

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
