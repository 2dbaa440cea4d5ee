//! A cloud whose lists never end: each page names the same next one.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use tarbet_nets::Error;
use tarbet_nets::cloud::Cloud;
use tarbet_nets::clouds::aws::{self, Aws, AwsConfig};
use tarbet_nets::clouds::azure::{self, Azure, AzureConfig};
use tarbet_nets::clouds::ibm::ApiKey;
use tarbet_nets::clouds::{Gcp, GcpConfig, Ibm, IbmConfig};
use tarbet_nets::controller::LateController;
use tarbet_nets::model::Deployment;
use tarbet_testbed::Folder;

use super::sim::{Reply, Seen, Sim, SimClock, Vendor};

/// Every list of every cloud, and a token for whoever asks.
struct Circle;

impl Vendor for Circle {
    fn check(&self, _: &Seen) -> Result<(), String> {
        Ok(())
    }

    fn error(&self, _: u16, message: &str) -> Value {
        json!(message)
    }

    fn answer(&mut self, seen: &Seen, _: &SimClock) -> Reply {
        if seen.text.contains("Action=Describe") {
            let page = "<Response><vpcSet/><nextToken>again</nextToken></Response>";
            return Reply::new(200, json!(page));
        }
        Reply::new(
            200,
            json!({
                "access_token": "t", "expires_in": 3600, "nextPageToken": "again", "nextLink": "/again",
                "next": { "href": "https://cloud.example/again?start=again" },
            }),
        )
    }
}

#[tokio::test]
async fn lists_that_go_round_in_a_circle_are_noticed() {
    let sim = Sim::start(Circle).await;
    let folder = Folder::new("circles").unwrap();
    let (controller, clock) = (Arc::new(LateController::default()), Arc::new(sim.clock.clone()));
    let from = |variables: &[(&'static str, &str)]| -> BTreeMap<&'static str, String> {
        variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect()
    };

    let config = AwsConfig {
        endpoint: Some(sim.url.clone()),
        regions: vec!["us-east-1".into()],
        ..AwsConfig::default()
    };
    let keys = from(&[("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"), ("AWS_SECRET_ACCESS_KEY", "key")]);
    let environment = aws::Environment::read(|name| keys.get(name).cloned());
    let aws = Aws::open("aws", &config, environment, controller.clone(), clock.clone()).unwrap();

    let config = AzureConfig { endpoint: sim.url.clone(), ..AzureConfig::default() };
    let principal = from(&[
        ("AZURE_TENANT_ID", "tenant"),
        ("AZURE_CLIENT_ID", "client"),
        ("AZURE_CLIENT_SECRET", "secret"),
        ("AZURE_AUTHORITY_HOST", &sim.url),
    ]);
    let environment = azure::Environment::read(|name| principal.get(name).cloned());
    let azure = Azure::open("azure", &config, environment, controller.clone(), clock.clone()).unwrap();

    let endpoint = format!("{}/compute/v1", sim.url);
    let token_file = Some(folder.write("token", "t").unwrap());
    let config = GcpConfig { endpoint, token_file, ..GcpConfig::default() };
    let gcp = Gcp::with_clock("gcp", &config, controller.clone(), clock.clone()).unwrap();

    let config = IbmConfig {
        endpoint: format!("{}/v1", sim.url),
        transit_endpoint: format!("{}/transit/v1", sim.url),
        tags_endpoint: format!("{}/tags/v3", sim.url),
        iam_endpoint: format!("{}/iam", sim.url),
        regions: vec!["us-south".into()],
        ..IbmConfig::default()
    };
    let key = ApiKey::find(&config, |_| Some("key".into())).unwrap();
    let ibm = Ibm::with_clock("ibm", &config, key, controller, clock).unwrap();

    let clouds: [(&dyn Cloud, &str, &str); 4] = [
        (&aws, "123456789012", "DescribeVpcs"),
        (&azure, "/subscriptions/s/resourceGroups/rg", "virtualNetworks"),
        (&gcp, "projects/p", "projects/p/aggregated/addresses"),
        (&ibm, "/resourcegroup/rg", "/v1/vpcs"),
    ];
    for (cloud, id, call) in clouds {
        let deployments = [Deployment { id: id.into(), namespace: "default".into() }];
        let asked = async {
            cloud.used_spaces(&deployments).await?;
            cloud.list_resources("default").await
        };
        match asked.await {
            Err(Error::Cloud { what, said, .. }) => {
                assert!(what.contains(call) && said.contains("twice"), "{id}: {what}: {said}");
            }
            other => panic!("{id}: {other:?}"),
        }
    }
    assert!(sim.seen().len() < 20, "{} requests", sim.seen().len());
}
