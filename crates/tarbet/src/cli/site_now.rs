//! What a gateway says of one site now, asked before something is promised that cannot work.

use reqwest::Method;
use tarbet_reach::gateway::SiteView;
use tarbet_reach::names::SiteName;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::reach;

use super::endpoint::Server;

/// The site, if there is one of this name for whoever asks.
pub async fn of(server: &Server, site: &SiteName) -> Result<SiteView, Problem> {
    let sites: Vec<SiteView> = server.ask(Method::GET, "/v1/sites", None).await?;
    sites.into_iter().find(|found| found.name == *site).ok_or_else(|| {
        // The gateway's own words: absent and forbidden look alike.
        Problem::new(&reach::SITE_UNKNOWN, format!("There is no site `{site}` for you."))
            .at(format!("gateway at {}", server.url))
    })
}

/// Refuses a service that none of the site's agents offers. Of one that is not connected nothing is known.
pub fn must_offer(site: &SiteView, service: &str, how: &str) -> Result<(), Problem> {
    let offered: Vec<&str> =
        site.links.iter().flat_map(|link| link.services.iter().map(String::as_str)).collect();
    // A kas agent names the same thing by its gRPC service.
    let is_it = |name: &&str| *name == service || (service == KUBERNETES && name.contains("kubernetes_api"));
    if !site.connected || offered.iter().any(is_it) {
        return Ok(());
    }
    Err(Problem::new(
        &reach::SERVICE_NOT_OFFERED,
        format!("The agent of `{}` does not offer `{service}`.", site.name),
    )
    .because(format!("it offers {}", if offered.is_empty() { "nothing".into() } else { offered.join(", ") }))
    .advising(how))
}

/// The service behind kubectl.
pub const KUBERNETES: &str = "kubernetes";

#[cfg(test)]
mod tests {
    use super::*;

    fn site(connected: bool, services: &[&str]) -> SiteView {
        let link = serde_json::json!({
            "id": "1", "gateway": "one", "agent": "a", "services": services, "since": "2026-01-01T00:00:00Z",
        });
        serde_json::from_value(serde_json::json!({
            "name": "lab", "id": 1, "created": "2026-01-01T00:00:00Z", "connected": connected,
            "links": if connected { vec![link] } else { vec![] },
        }))
        .unwrap()
    }

    #[test]
    fn only_what_a_connected_agent_surely_lacks_is_refused() {
        for (connected, services, taken) in [
            (true, &["info", "kubernetes"][..], true),
            (true, &["gitlab.agent.kubernetes_api.rpc.KubernetesApi"], true),
            (true, &["info", "tcp"], false),
            (true, &[], false),
            (false, &[], true),
        ] {
            let found = must_offer(&site(connected, services), KUBERNETES, "how");
            assert_eq!(found.is_ok(), taken, "{connected} {services:?}");
            assert!(found.err().is_none_or(|problem| problem.code == reach::SERVICE_NOT_OFFERED.id));
        }
    }
}
