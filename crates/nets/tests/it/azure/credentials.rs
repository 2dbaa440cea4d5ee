//! Who we are to Azure, as its users keep it.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use tarbet_nets::cloud::Cloud as _;
use tarbet_nets::clouds::azure::{Azure, AzureConfig, Environment, Identity};
use tarbet_nets::controller::LateController;
use tarbet_telemetry::Coded as _;

use super::super::sim::Sim;
use super::vendor::{AzureSim, TOKEN};
use super::{deployment, principal};

fn open(sim: &Sim<AzureSim>, identity: Identity, az: &str, environment: Environment) -> Azure {
    let config = AzureConfig { endpoint: sim.url.clone(), identity, az: az.into(), ..AzureConfig::default() };
    Azure::open(
        "azure",
        &config,
        environment,
        Arc::new(LateController::default()),
        Arc::new(sim.clock.clone()),
    )
    .unwrap()
}

fn variables(pairs: &[(&str, String)]) -> Environment {
    let pairs: BTreeMap<&str, String> = pairs.iter().cloned().collect();
    Environment::read(|name| pairs.get(name).cloned())
}

#[tokio::test]
async fn every_identity_is_taken_and_kept_while_it_is_good() {
    let sim = Sim::start(AzureSim::default()).await;
    let folder = tempfile::tempdir().unwrap();
    let places = [deployment("default")];
    let ask = async |azure: &Azure| azure.used_spaces(&places).await;

    let azure = open(&sim, Identity::Auto, "az", principal(&sim, "s3cret-of-ours"));
    ask(&azure).await.unwrap();
    ask(&azure).await.unwrap();
    assert_eq!(sim.with(|azure| azure.tokens.clone()), ["secret"], "a token is kept");
    sim.clock.pass(std::time::Duration::from_hours(1));
    ask(&azure).await.unwrap();
    assert_eq!(sim.with(|azure| azure.tokens.clone()), ["secret", "secret"], "and fetched anew at its end");

    let file = folder.path().join("assertion");
    std::fs::write(&file, "assertion\n").unwrap();
    let workload = variables(&[
        ("AZURE_TENANT_ID", "tenant".into()),
        ("AZURE_CLIENT_ID", "client".into()),
        ("AZURE_FEDERATED_TOKEN_FILE", file.display().to_string()),
        ("AZURE_AUTHORITY_HOST", sim.url.clone()),
    ]);
    ask(&open(&sim, Identity::Auto, "az", workload)).await.unwrap();
    let managed = variables(&[
        ("IDENTITY_ENDPOINT", format!("{}/msi/token", sim.url)),
        ("IDENTITY_HEADER", "handshake".into()),
    ]);
    ask(&open(&sim, Identity::Auto, "az", managed)).await.unwrap();
    assert_eq!(sim.with(|azure| azure.tokens.clone()), ["secret", "secret", "assertion", "managed"]);

    // Azure's own command line, as far as we use it.
    let az = folder.path().join("az");
    let script = format!(
        "#!/bin/sh\n[ \"$*\" = 'account get-access-token --output json --resource {}/' ] || exit 3\necho '{{\"accessToken\": \"{TOKEN}\", \"expires_on\": 1800009999}}'\n",
        sim.url
    );
    std::fs::write(&az, script).unwrap();
    std::fs::set_permissions(&az, std::fs::Permissions::from_mode(0o755)).unwrap();
    ask(&open(&sim, Identity::Auto, az.to_str().unwrap(), Environment::default())).await.unwrap();

    let wrong = ask(&open(&sim, Identity::Auto, "az", principal(&sim, "wrong-secret"))).await.unwrap_err();
    let told = format!("{:?} {}", wrong.problem(), wrong);
    assert!(told.contains("401") && !told.contains("wrong-secret"), "{told}");
    let none = ask(&open(&sim, Identity::Cli, "/nowhere/az", Environment::default())).await.unwrap_err();
    assert!(format!("{:?}", none.problem()).contains("az login"), "{none:?}");
}
