//! The REST API of networks that others made: looking, recording, forgetting.
//!
//! `POST /imports/CLOUD` takes `?plan=true` (only tell) and `?expect=DIGEST` (record exactly that); it is no operation,
//! so `?async=true` is refused. `DELETE` takes
//! `?network=NAME`, any number of times, and `?plan=true`; without a name it forgets all of the cloud.

use axum::extract::{Path, Query, RawQuery, State};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;

use super::rest::Answer;
use super::{Options, Orchestrator};
use crate::error::Error;

pub(super) fn router() -> Router<Orchestrator> {
    Router::new().route("/imports", get(all)).route("/imports/{cloud}", post(import).delete(forget))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct How {
    plan: bool,
    expect: Option<String>,
    #[serde(rename = "async")]
    later: bool,
}

async fn all(State(orchestrator): State<Orchestrator>) -> Answer {
    Ok(Json(orchestrator.imports().await?).into_response())
}

async fn import(
    State(orchestrator): State<Orchestrator>,
    Path(cloud): Path<String>,
    Query(How { plan, expect, later }): Query<How>,
) -> Answer {
    if later {
        return Err(Error::invalid("async", "is not offered here: what is found is recorded at once").into());
    }
    let told = if plan {
        orchestrator.plan_import(&cloud).await?
    } else {
        orchestrator.import(&cloud, &Options { expect }).await?
    };
    Ok(Json(told).into_response())
}

async fn forget(
    State(orchestrator): State<Orchestrator>,
    Path(cloud): Path<String>,
    RawQuery(query): RawQuery,
) -> Answer {
    let (names, plan) = to_forget(query.as_deref().unwrap_or_default())?;
    Ok(Json(orchestrator.forget_imported(&cloud, &names, plan).await?).into_response())
}

/// Which networks to forget, and whether that is only planned. A word that is not known is refused: without a name
/// all of the cloud would be forgotten.
fn to_forget(query: &str) -> Result<(Vec<String>, bool), Error> {
    let (mut names, mut plan) = (Vec::new(), false);
    for (key, value) in url::form_urlencoded::parse(query.as_bytes()) {
        match &*key {
            "network" => names.push(value.into_owned()),
            "plan" => {
                plan = value.parse().map_err(|_| Error::invalid("plan", "must be true or false"))?;
            }
            "expect" => return Err(Error::invalid("expect", "forgetting has no digest; name the networks")),
            other => return Err(Error::invalid(other, "is not known here: use network and plan")),
        }
    }
    Ok((names, plan))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_forgets_nothing() {
        assert_eq!(to_forget("").unwrap(), (Vec::new(), false));
        let named = to_forget("network=a&plan=true&network=b%20c").unwrap();
        assert_eq!(named, (vec!["a".to_owned(), "b c".to_owned()], true));
        for bad in ["name=a", "plan=yes", "expect=d", "network=a&Network=b"] {
            assert!(to_forget(bad).is_err(), "{bad}");
        }
    }
}
