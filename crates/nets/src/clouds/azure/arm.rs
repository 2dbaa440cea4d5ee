//! Azure's Resource Manager: objects by id, and operations that take their time.

use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::Value;
use url::Url;

use crate::clouds::pace::Patience;
use crate::clouds::pages::Pages;
use crate::clouds::rest::{Answer, Call, Rest};
use crate::clouds::taken;
use crate::error::Error;

/// Something else is going on with the object, or with one it names: the same call succeeds later.
const BUSY: &[&str] = &[
    "AnotherOperationInProgress",
    "ReferencedResourceNotProvisioned",
    "RetryableError",
    "ConflictingConcurrentWriteNotAllowed",
    "OperationPreempted",
];

/// The version of the API that each provider is spoken to in.
fn version(id: &str) -> &'static str {
    let id = id.to_ascii_lowercase();
    if id.contains("/microsoft.compute/") {
        "2022-11-01"
    } else if id.contains("/microsoft.containerservice/") {
        "2024-01-01"
    } else {
        "2023-05-01"
    }
}

/// How long something has been waited for.
struct Turns {
    done: u32,
    end: Duration,
}

/// What can be known of an object that may be of others.
pub(super) enum Sight {
    There(Value),
    Gone,
    /// We may not see it: it is in a subscription or a tenant of others.
    Hidden,
}

/// The client of one Azure.
#[derive(Clone)]
pub(super) struct Arm {
    rest: Rest,
    base: Url,
}

impl Arm {
    pub(super) fn new(rest: Rest, base: Url) -> Self {
        Self { rest, base }
    }

    pub(super) fn failed(&self, what: &str, said: &str) -> Error {
        self.rest.failed(what, said)
    }

    fn url(&self, id: &str) -> Result<Url, Error> {
        let mut url = address(&self.base, id)?;
        url.query_pairs_mut().append_pair("api-version", version(id));
        Ok(url)
    }

    /// Addresses in answers are followed with our token, so they must be of the same Azure.
    fn follow(&self, address: &str) -> Result<Url, Error> {
        let url = self.base.join(address).ok().filter(|url| url.origin() == self.base.origin());
        url.ok_or_else(|| self.failed("a link", "it leads away from the management endpoint"))
    }

    /// An object as it is now; nothing if there is none.
    pub(super) async fn get(&self, id: &str) -> Result<Option<Value>, Error> {
        self.rest.get(self.url(id)?).await
    }

    /// An object that we may have no right to see.
    pub(super) async fn look(&self, id: &str) -> Result<Sight, Error> {
        let call = Call::new(Method::GET, self.url(id)?);
        let answer = self.rest.call(&call).await?;
        let code = answer.body.pointer("/error/code").and_then(Value::as_str);
        match answer.status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Ok(Sight::Hidden),
            StatusCode::NOT_FOUND if code == Some("SubscriptionNotFound") => Ok(Sight::Hidden),
            StatusCode::NOT_FOUND => Ok(Sight::Gone),
            status if status.is_success() => Ok(Sight::There(answer.body)),
            _ => Err(self.rest.refusal(&call, &answer)),
        }
    }

    /// An object once nothing is going on with it.
    pub(super) async fn settled(&self, id: &str) -> Result<Option<Value>, Error> {
        let call = Call::new(Method::GET, self.url(id)?);
        let mut turns = self.turns();
        loop {
            let answer = self.rest.call(&call).await?;
            match answer.status {
                StatusCode::NOT_FOUND => return Ok(None),
                status if !status.is_success() => return Err(self.rest.refusal(&call, &answer)),
                _ if is_moving(&answer.body) => self.pause(&mut turns, &call, Some(&answer)).await?,
                _ => return Ok(Some(answer.body)),
            }
        }
    }

    fn turns(&self) -> Turns {
        Turns { done: 0, end: self.rest.clock().now() + Patience::OPERATION.limit }
    }

    /// Waits as long as an answer asks for; an error if that has gone on for too long.
    async fn pause(&self, turns: &mut Turns, call: &Call, answer: Option<&Answer>) -> Result<(), Error> {
        let clock = self.rest.clock();
        let asked = answer.and_then(|answer| answer.pause(clock));
        // Azure asks for ten seconds whatever takes how long; work of an hour is asked about less often.
        let own = Patience::OPERATION.pause(turns.done, None, rand::random());
        let pause = asked.map_or(own, |asked| asked.max(own));
        turns.done += 1;
        if clock.now() + pause > turns.end {
            let minutes = Patience::OPERATION.limit.as_secs() / 60;
            let what = format!("{} {}", call.method, call.url.path());
            return Err(self.failed(&what, &format!("the operation did not end within {minutes} minutes")));
        }
        clock.wait(pause).await;
        Ok(())
    }

    /// All objects of a kind.
    pub(super) async fn list(&self, id: &str) -> Result<Vec<Value>, Error> {
        let mut url = self.url(id)?;
        let mut found = Vec::new();
        let mut pages = Pages::of(self.rest.cloud(), id);
        loop {
            let call = Call::new(Method::GET, url);
            let mut answer = self.rest.call(&call).await?;
            // A resource group that is gone holds nothing, nor has anybody something of a kind that was never used.
            let code = answer.body.pointer("/error/code").and_then(Value::as_str);
            if answer.status == StatusCode::NOT_FOUND || code == Some("MissingSubscriptionRegistration") {
                return Ok(found);
            }
            if !answer.status.is_success() {
                return Err(self.rest.refusal(&call, &answer));
            }
            if let Value::Array(items) = taken(&mut answer.body, "value") {
                found.extend(items);
            }
            match answer.body["nextLink"].as_str().filter(|link| !link.is_empty()) {
                Some(next) => {
                    pages.turn(next)?;
                    url = self.follow(next)?;
                }
                None => return Ok(found),
            }
        }
    }

    /// Makes or replaces an object, and returns it when that is done.
    pub(super) async fn put(&self, id: &str, body: &Value) -> Result<Value, Error> {
        let call = Call::new(Method::PUT, self.url(id)?).json(body.clone());
        self.changed(id, &call).await
    }

    /// Writes one half of a peering as it is, and has it learn the other network's spaces anew.
    pub(super) async fn sync(&self, id: &str, body: &Value) -> Result<Value, Error> {
        let mut url = self.url(id)?;
        url.query_pairs_mut().append_pair("syncRemoteAddressSpace", "true");
        self.changed(id, &Call::new(Method::PUT, url).json(body.clone())).await
    }

    /// Changes the tags of an object.
    pub(super) async fn patch(&self, id: &str, body: &Value) -> Result<Value, Error> {
        let call = Call::new(Method::PATCH, self.url(id)?).json(body.clone());
        self.changed(id, &call).await
    }

    async fn changed(&self, id: &str, call: &Call) -> Result<Value, Error> {
        let answer = self.begin(call).await?;
        if !answer.status.is_success() {
            return Err(self.rest.refusal(call, &answer));
        }
        if self.wait(call, &answer).await? || is_moving(&answer.body) || answer.body.is_null() {
            let found = self.settled(id).await?;
            let found = found.ok_or_else(|| self.failed(id, "it was made, and is not there"))?;
            return match state(&found) {
                Some("Failed" | "Canceled") => Err(self.failed(id, "its provisioning failed")),
                _ => Ok(found),
            };
        }
        Ok(answer.body)
    }

    /// Removes an object; one that is gone is no error.
    pub(super) async fn delete(&self, id: &str) -> Result<(), Error> {
        let call = Call::new(Method::DELETE, self.url(id)?);
        let answer = self.begin(&call).await?;
        match answer.status {
            StatusCode::NOT_FOUND => Ok(()),
            status if status.is_success() => self.wait(&call, &answer).await.map(drop),
            _ => Err(self.rest.refusal(&call, &answer)),
        }
    }

    /// Makes a call that may have to wait for others.
    async fn begin(&self, call: &Call) -> Result<Answer, Error> {
        let mut turns = self.turns();
        loop {
            let answer = self.rest.call(call).await?;
            let code = answer.body.pointer("/error/code").and_then(Value::as_str).unwrap_or_default();
            let refused = matches!(answer.status, StatusCode::CONFLICT | StatusCode::BAD_REQUEST);
            if !(refused && BUSY.contains(&code)) {
                return Ok(answer);
            }
            self.pause(&mut turns, call, Some(&answer)).await?;
        }
    }

    /// Waits for the operation that an answer began; false if it began none.
    async fn wait(&self, call: &Call, begun: &Answer) -> Result<bool, Error> {
        let operation = begun.header("azure-asyncoperation");
        let location = begun.header("location").filter(|_| begun.status == StatusCode::ACCEPTED);
        let Some(address) = operation.or(location) else { return Ok(false) };
        let asking = Call::new(Method::GET, self.follow(address)?);
        let mut turns = self.turns();
        self.pause(&mut turns, call, Some(begun)).await?;
        loop {
            let answer = self.rest.call(&asking).await?;
            let status = answer.body["status"].as_str().unwrap_or_default();
            match answer.status {
                // Azure forgets operations in time; the object itself tells the rest.
                StatusCode::NOT_FOUND => return Ok(true),
                StatusCode::ACCEPTED => {}
                code if !code.is_success() => return Err(self.rest.refusal(&asking, &answer)),
                _ if operation.is_none() || status == "Succeeded" => return Ok(true),
                _ if matches!(status, "Failed" | "Canceled") => {
                    let said = answer.body.pointer("/error/message").and_then(Value::as_str);
                    let said =
                        format!("the operation ended as {status}: {}", said.unwrap_or("no reason given"));
                    return Err(self.failed(&format!("{} {}", call.method, call.url.path()), &said));
                }
                _ => {}
            }
            self.pause(&mut turns, call, Some(&answer)).await?;
        }
    }

    /// Makes an object so, unless it is: a second asking changes nothing, and one that was cut off
    /// waits for what is still going on.
    pub(super) async fn ensure(&self, id: &str, wanted: &Value) -> Result<Value, Error> {
        match self.settled(id).await? {
            Some(found) if holds(&found, wanted) && state(&found) != Some("Failed") => Ok(found),
            _ => self.put(id, wanted).await,
        }
    }
}

/// Where an object is. An id is made of what people and answers say, and none may lead to another place than it
/// names: what a URL would resolve or cut off is refused. Letters of any language are in names of resource groups.
fn address(base: &Url, id: &str) -> Result<Url, Error> {
    let special = |c: char| c.is_control() || matches!(c, '?' | '#' | '%' | '\\');
    let path = id.trim_start_matches('/');
    if path.contains(special) || path.split('/').any(|part| matches!(part, "." | "..")) {
        return Err(Error::invalid("uri", format!("`{}` is no plain path", id.escape_debug())));
    }
    let mut url = base.clone();
    url.path_segments_mut()
        .map_err(|()| Error::Internal(format!("{base} holds no paths")))?
        .pop_if_empty()
        .extend(path.split('/'));
    Ok(url)
}

fn state(object: &Value) -> Option<&str> {
    object["properties"]["provisioningState"].as_str()
}

fn is_moving(object: &Value) -> bool {
    state(object).is_some_and(|state| !matches!(state, "Succeeded" | "Failed" | "Canceled"))
}

/// Whether an object says all that is wanted of it; what Azure adds is its own affair.
pub(super) fn holds(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => {
            // Keys are never given back.
            let told = wanted.iter().filter(|(field, _)| *field != "sharedKey");
            told.into_iter().all(|(field, value)| found.get(field).is_some_and(|found| holds(found, value)))
        }
        (Value::Array(found), Value::Array(wanted)) => {
            found.len() == wanted.len()
                && found.iter().zip(wanted).all(|(found, wanted)| holds(found, wanted))
        }
        // Ids have no case.
        (Value::String(found), Value::String(wanted)) if wanted.starts_with('/') => {
            found.eq_ignore_ascii_case(wanted)
        }
        _ => found == wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_id_leads_where_it_says() {
        let base = Url::parse("https://azure.example/v1/").unwrap();
        let at = |id: &str| address(&base, id).map(String::from);
        let plain = "/subscriptions/s/resourceGroups/a.b(c)_d/providers/x/y/z";
        assert_eq!(at(plain).unwrap(), format!("https://azure.example/v1{plain}"));
        assert_eq!(at("/a/gr\u{f6}\u{df}e x").unwrap(), "https://azure.example/v1/a/gr%C3%B6%C3%9Fe%20x");
        assert_eq!(at("https://b.example/c").unwrap(), "https://azure.example/v1/https://b.example/c");
        for bad in ["/a/../b", "/a/./b", "/a/%2e%2e/b", "/a\\..\\b", "/a?b", "/a#b", "/a/.\t./b", ".."] {
            assert!(at(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_object_may_say_more_than_is_wanted() {
        let found =
            json!({ "id": "/A/b", "etag": "1", "properties": { "list": [{ "id": "/X", "more": 1 }] } });
        assert!(holds(&found, &json!({ "id": "/a/B", "properties": { "list": [{ "id": "/x" }] } })));
        assert!(holds(&found, &json!({ "properties": { "list": [{ "id": "/x" }] }, "sharedKey": "k" })));
        assert!(!holds(&found, &json!({ "properties": { "list": [] } })));
        assert!(!holds(&found, &json!({ "tags": {} })));
        assert!(is_moving(&json!({ "properties": { "provisioningState": "Updating" } })));
        assert!(!is_moving(&json!({ "properties": {} })));
    }
}
