//! Lists of several clusters together: page by page, each within its own time, and whoever is away is told
//! beside what the others have.

use std::cmp::Reverse;
use std::time::Duration;

use futures::future::join_all;
use serde_json::Value;
use tarbet_cluster::{Class, Client, class, describe};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::cluster;

use super::Cluster;

/// Objects a page, as kubectl asks for them.
const PAGE: usize = 500;
/// Pages that are read of one cluster, because they are read again while somebody watches.
const PAGES: usize = 4;
/// Requests that are sent to the page: the newest.
const SHOWN: usize = 200;
/// Below what the console gives a whole panel, so that one cluster that hangs does not hide the others.
const PATIENCE: Duration = Duration::from_secs(4);

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Listed {
    /// What was read.
    pub(super) items: Vec<Value>,
    /// How many there are, also those that were not read.
    pub(super) total: u64,
    /// Why clusters are missing.
    pub(super) away: Vec<Problem>,
}

/// What all of them have at this path. It fails only if nobody answers.
pub(super) async fn list(clusters: &[Cluster], path: &str) -> Result<Listed, Problem> {
    together(join_all(clusters.iter().map(|cluster| list_one(cluster, path))).await)
}

fn together(answers: Vec<Result<Listed, Problem>>) -> Result<Listed, Problem> {
    let asked = answers.len();
    let mut all = Listed::default();
    for answer in answers {
        match answer {
            Ok(one) => {
                all.items.extend(one.items);
                all.total += one.total;
            }
            Err(problem) => all.away.push(problem),
        }
    }
    if all.away.len() == asked && asked > 0 { Err(all.away.swap_remove(0)) } else { Ok(all) }
}

/// The newest, newest first; of the same second in the order of their names.
pub(super) fn newest(items: &[Value]) -> Vec<&Value> {
    let mut items: Vec<&Value> = items.iter().collect();
    let text = |item: &Value, field: &str| item["metadata"][field].as_str().unwrap_or_default().to_owned();
    items.sort_by_cached_key(|item| {
        (Reverse(text(item, "creationTimestamp")), text(item, "namespace"), text(item, "name"))
    });
    items.truncate(SHOWN);
    items
}

async fn list_one(cluster: &Cluster, path: &str) -> Result<Listed, Problem> {
    let failed = |cause: String| {
        Problem::new(&cluster::CLUSTER_UNREACHABLE, "The cluster does not answer.")
            .at(format!("console → Kubernetes API of {}", cluster.called()))
            .because(cause)
    };
    let reading = async {
        match cluster.client().await? {
            Some(client) => pages(client, path).await.map_err(failed),
            None => Ok(Listed::default()),
        }
    };
    let late = |_| failed(format!("it took longer than {} seconds", PATIENCE.as_secs()));
    tokio::time::timeout(PATIENCE, reading).await.map_err(late)?
}

/// A kind that the cluster does not know has no objects.
async fn pages(client: &Client, path: &str) -> Result<Listed, String> {
    let mut all = Listed::default();
    let mut next = String::new();
    for _ in 0..PAGES {
        let request = http::Request::get(page_of(path, &next)).body(Vec::new());
        let request = request.map_err(|error| error.to_string())?;
        let mut page: Value = match client.request(request).await {
            Ok(page) => page,
            Err(error) if class(&error) == Class::Missing => return Ok(Listed::default()),
            Err(error) => return Err(describe(&error)),
        };
        if let Value::Array(items) = page["items"].take() {
            all.items.extend(items);
        }
        let rest = page["metadata"]["remainingItemCount"].as_u64().unwrap_or_default();
        all.total = u64::try_from(all.items.len()).unwrap_or(u64::MAX).saturating_add(rest);
        page["metadata"]["continue"].as_str().unwrap_or_default().clone_into(&mut next);
        if next.is_empty() {
            break;
        }
    }
    Ok(all)
}

/// A page of a list. What continues it is the server's own text in the alphabet of base64.
fn page_of(path: &str, next: &str) -> String {
    let mark = if path.contains('?') { '&' } else { '?' };
    let next = next.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
    let next = if next.is_empty() { next } else { format!("&continue={next}") };
    format!("{path}{mark}limit={PAGE}{next}")
}

#[cfg(test)]
mod tests {
    use axum::extract::Query;
    use axum::routing::get;
    use axum::{Json, Router};
    use serde_json::json;
    use std::collections::HashMap;
    use tower::ServiceExt;

    use super::*;

    /// A cluster with so many objects, in the order of their names and not of their age.
    fn crowd(count: usize) -> Cluster {
        let pages = async move |Query(asked): Query<HashMap<String, String>>| {
            let from: usize =
                asked.get("continue").map_or(0, |text| text.trim_end_matches('=').parse().unwrap());
            let to = count.min(from + asked["limit"].parse::<usize>().unwrap());
            let item = |i: usize| {
                json!({ "metadata": { "name": format!("r{i}"),
                "creationTimestamp": format!("2026-01-01T{:02}:{:02}:00Z", i * 7 % 24, i % 60) } })
            };
            let rest = count - to;
            let metadata = if rest > 0 {
                json!({ "continue": format!("{to}=="), "remainingItemCount": rest })
            } else {
                json!({})
            };
            Json(json!({ "metadata": metadata, "items": (from..to).map(item).collect::<Vec<_>>() }))
        };
        let router = Router::new().route("/things", get(pages));
        Cluster::served(tarbet_cluster::connect_by(move |request| {
            let router = router.clone();
            async move {
                let request = request.map(axum::body::Body::new);
                Ok(router.oneshot(request).await.unwrap_or_else(|never| match never {}))
            }
        }))
    }

    /// One whose address is known and where nobody is.
    fn gone() -> Cluster {
        let client = tarbet_cluster::connect_by(|_| async {
            Err::<axum::response::Response, _>(std::io::Error::other("nobody is there").into())
        });
        Cluster::served(client)
    }

    #[tokio::test]
    async fn a_list_is_read_page_by_page_and_what_is_cut_is_counted() {
        let few = list(&[crowd(1201)], "/things").await.unwrap();
        assert_eq!((few.items.len(), few.total), (1201, 1201));
        let many = list(&[crowd(9000)], "/things").await.unwrap();
        assert_eq!((many.items.len(), many.total), (PAGE * PAGES, 9000));
        let shown = newest(&many.items);
        assert_eq!(shown.len(), SHOWN);
        let when = |item: &&Value| item["metadata"]["creationTimestamp"].as_str().unwrap().to_owned();
        let times: Vec<_> = shown.iter().map(when).collect();
        assert!(times.is_sorted_by(|a, b| a >= b) && times[0].contains("T23:"), "{times:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_cluster_that_is_away_or_hangs_takes_nothing_from_the_others() {
        let silent = tarbet_cluster::connect_by(|_| async {
            std::future::pending::<Result<axum::response::Response, _>>().await
        });
        let absent = Cluster::at("/nowhere/kubeconfig".into());
        let clusters = [gone(), crowd(3), Cluster::served(silent), absent];
        let listed = list(&clusters, "/things").await.unwrap();
        assert_eq!((listed.items.len(), listed.total), (3, 3));
        let causes: Vec<_> = listed.away.iter().map(|problem| problem.cause.clone()).collect();
        assert!(causes[0].contains("nobody is there") && causes[1].contains("longer than"), "{causes:?}");
        assert!(list(&clusters[..1], "/things").await.is_err(), "nobody answered");
        assert!(list(&[crowd(3)], "/other").await.unwrap().items.is_empty(), "a kind that is not known");
    }
}
