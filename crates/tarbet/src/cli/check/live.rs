//! What runs here now, asked once. Gathered, not judged.

use std::time::Duration;

use reqwest::Method;
use serde_json::Value;
use tarbet_reach::gateway::SiteView;
use tarbet_telemetry::problem::chain;

use super::facts::Facts;
use crate::cli::endpoint::{ServerArgs, local_http};

const PATIENCE: Duration = Duration::from_secs(5);

/// Answers of running parts; an error is why there is none.
#[derive(Debug, Clone, Default)]
pub struct Live {
    pub ready: Option<Result<Value, String>>,
    pub console: Option<Result<Value, String>>,
    pub sites: Option<Result<Vec<(String, bool)>, String>>,
    pub refused: Option<u64>,
    pub waiting: Option<u64>,
    pub version: Option<String>,
    pub pods: Option<Result<String, String>>,
    pub nets: Option<Result<Value, String>>,
    pub drift: Option<Result<usize, String>>,
    pub audit: Option<Result<u64, String>>,
    pub audit_head: Option<bool>,
}

pub async fn gather(facts: &Facts) -> Live {
    let Some(endpoint) = &facts.endpoint else { return Live::default() };
    let http = local_http(Some(endpoint), PATIENCE);
    let mut live = Live::default();
    if let Some(url) = &endpoint.observability {
        live.ready = Some(json(&http, &format!("{url}/readyz")).await);
        if let Ok(page) = text(&http, &format!("{url}/metrics")).await {
            live.refused = number(&page, "tarbet_links_refused_total");
            live.waiting = number(&page, "tarbet_requests_waiting");
            live.version = page
                .lines()
                .find(|line| line.starts_with("tarbet_build_info"))
                .and_then(|line| line.split("version=\"").nth(1)?.split('"').next().map(str::to_owned));
        }
    }
    if let Some(url) = &endpoint.console {
        live.console = Some(json(&http, &format!("{url}/api/health")).await);
    }
    live.sites = Some(sites().await);
    if let Some(url) = &endpoint.interlink {
        let said = json(&http, &format!("{url}/pinglink")).await;
        live.pods = Some(said.map(|said| said["status"].as_str().unwrap_or("ok").to_owned()));
    }
    if let Some(url) = &endpoint.nets {
        live.nets = Some(json(&http, &format!("{url}/topology")).await);
        let drift = json(&http, &format!("{url}/drift")).await;
        live.drift = Some(drift.map(|list| differences(&list)));
    }
    if let Some(file) = &endpoint.audit_file {
        let log = std::fs::File::open(file).map_err(|error| error.to_string());
        live.audit = Some(log.and_then(|log| {
            let verified = tarbet_reach::audit::verify(std::io::BufReader::new(log), None);
            verified.map(|verified| verified.records).map_err(|broken| broken.to_string())
        }));
        live.audit_head = Some(tarbet_reach::audit::read_head(file).is_ok());
    }
    live
}

async fn sites() -> Result<Vec<(String, bool)>, String> {
    let asked = async {
        let server = ServerArgs::local().connect()?;
        server.ask::<Vec<SiteView>>(Method::GET, "/v1/sites", None).await
    };
    let sites = asked.await.map_err(|problem| problem.message.clone())?;
    Ok(sites.into_iter().map(|site| (site.name.to_string(), site.connected)).collect())
}

async fn text(http: &reqwest::Client, url: &str) -> Result<String, String> {
    let words = |error: reqwest::Error| chain(&error.without_url());
    http.get(url).send().await.map_err(words)?.text().await.map_err(words)
}

async fn json(http: &reqwest::Client, url: &str) -> Result<Value, String> {
    serde_json::from_str(&text(http, url).await?).map_err(|error| error.to_string())
}

/// How many lines tell of something that is wrong: some only tell.
fn differences(list: &Value) -> usize {
    list.as_array().into_iter().flatten().filter(|line| line["mend"] != "nothing").count()
}

fn number(page: &str, name: &str) -> Option<u64> {
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    value.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_only_told_is_no_difference() {
        let line = |mend: &str| serde_json::json!({ "cloud": "east", "what": "it", "mend": mend });
        let list = |mend: &[&str]| mend.iter().map(|mend| line(mend)).collect::<Value>();
        assert_eq!(differences(&list(&["nothing"])), 0);
        assert_eq!(differences(&list(&["repair", "nothing", "hand"])), 2);
    }

    #[test]
    fn a_number_is_taken_only_from_its_own_line() {
        let page =
            "tarbet_links_refused_total 3\ntarbet_links_refused_total_x 9\ntarbet_requests_waiting 0.0\n";
        assert_eq!(number(page, "tarbet_links_refused_total"), Some(3));
        assert_eq!(number(page, "tarbet_requests_waiting"), Some(0));
        assert_eq!(number(page, "tarbet_links"), None);
    }
}
