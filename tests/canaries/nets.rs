//! The orchestrator of networks and cloud plugins: tokens of callers and credentials of clouds.

use anyhow::{Context, Result, ensure};
use reqwest::Method;
use serde_json::{Value, json};
use tarbet_testbed::product::{Agent, Product};
use tarbet_testbed::{Lease, verified};

use super::{Canaries, LOUD, abort, secret_file};

/// A cloud that hands out tokens and then fails, with the code that its path asks for.
async fn cloud(token: String) -> Result<String> {
    use axum::http::StatusCode;
    use axum::response::IntoResponse;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let answer = move |request: axum::extract::Request| {
        let token = token.clone();
        async move {
            let path = request.uri().path();
            if path.contains("token") {
                let body = json!({ "access_token": token, "token_type": "Bearer", "expires_in": 3600, "expiration": 4_000_000_000_u64 });
                return axum::Json(body).into_response();
            }
            let status =
                if path.contains("refuse") { StatusCode::FORBIDDEN } else { StatusCode::BAD_REQUEST };
            (status, "the cloud does not want to").into_response()
        }
    };
    tokio::spawn(async move { axum::serve(listener, axum::Router::new().fallback(answer)).await });
    Ok(url)
}

/// A cloud, its settings and its variables.
type Settings = (&'static str, Vec<String>, Vec<(&'static str, String)>);

/// The settings and variables of each cloud, all of which lead to the one above.
fn clouds(canaries: &Canaries, product: &Product, url: &str) -> Result<Vec<Settings>> {
    let file = |name: &str, text: &str| -> Result<String> {
        Ok(secret_file(product.folder(), name, text)?.display().to_string())
    };
    let ibm = file("ibm.key", &canaries.hatch("API key of IBM"))?;
    let gcp = file("gcp.token", &canaries.hatch("token of Google"))?;
    Ok(vec![
        (
            "aws",
            vec![format!("cloud.aws.endpoint={url}"), "cloud.aws.regions=[us-east-1]".into()],
            vec![
                ("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE".into()),
                ("AWS_SECRET_ACCESS_KEY", canaries.hatch("secret key of AWS")),
                ("AWS_SESSION_TOKEN", canaries.hatch("session of AWS")),
            ],
        ),
        (
            "azure",
            vec![format!("cloud.azure.endpoint={url}")],
            vec![
                ("AZURE_TENANT_ID", "tenant".into()),
                ("AZURE_CLIENT_ID", "client".into()),
                ("AZURE_CLIENT_SECRET", canaries.hatch("secret of Azure")),
                ("AZURE_AUTHORITY_HOST", url.to_owned()),
            ],
        ),
        ("gcp", vec![format!("cloud.gcp.endpoint={url}"), format!("cloud.gcp.tokenFile={gcp}")], vec![]),
        (
            "ibm",
            vec![
                format!("cloud.ibm.endpoint={url}"),
                format!("cloud.ibm.iamEndpoint={url}/token"),
                format!("cloud.ibm.tagsEndpoint={url}"),
                format!("cloud.ibm.transitEndpoint={url}"),
                format!("cloud.ibm.apiKeyFile={ibm}"),
            ],
            vec![],
        ),
    ])
}

/// What the cloud is asked for; the deployment of each in its own words.
fn deployment(cloud: &str) -> &'static str {
    match cloud {
        "aws" => "us-east-1",
        "azure" => "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/refuse",
        "gcp" => "projects/example",
        _ => "/ibm/00000000000000000000000000000000",
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_of_clouds_and_of_those_who_ask_for_networks_are_told_nowhere() -> Result<()> {
    let (canaries, product, ports) =
        (Canaries::default(), Product::new(env!("CARGO_BIN_EXE_tarbet"))?, Lease::block(8)?);
    let url = cloud(canaries.hatch("token that a cloud gave")).await?;
    let token = canaries.hatch("token of nets");
    let wrong = canaries.hatch("token that is wrong");
    let tokens = secret_file(product.folder(), "tokens", &format!("{token}\n"))?.display().to_string();
    let mine = secret_file(product.folder(), "mine", &token)?.display().to_string();
    let clouds = clouds(&canaries, &product, &url)?;
    let state = product.folder().path().join("state").display().to_string();

    let at = |n: u16| json!({ "host": "127.0.0.1", "port": ports.port(n) });
    let listed = clouds.iter().zip(4..).map(|((name, ..), n)| {
        json!({ "name": name, "host": "127.0.0.1", "port": ports.port(n), "trust": { "tokenFile": mine } })
    });
    let used = clouds.iter().map(|(name, ..)| json!({ "name": name, "deployment": deployment(name) }));
    let config = json!({
        "store": { "kind": "memory" },
        "nets": {
            "server": { "host": "127.0.0.1", "port": ports.port(0), "rpcPort": ports.port(1) },
            "tagService": at(2), "kvStore": at(3), "security": { "tokensFile": tokens },
            "cloudPlugins": listed.collect::<Vec<_>>(), "namespaces": { "default": used.collect::<Vec<_>>() },
        },
    });
    let config = product.folder().write("nets.yaml", &config.to_string())?.display().to_string();
    let environment = [("TARBET_STATE", state.as_str())];
    let mut roles: Vec<Agent> = vec![
        product.role("nets", &[&["nets", "--config", &config][..], &LOUD].concat(), &environment).await?,
    ];
    for ((name, settings, variables), n) in clouds.iter().zip(4..) {
        let (listen, orchestrator) =
            (format!("127.0.0.1:{}", ports.port(n)), format!("127.0.0.1:{}", ports.port(1)));
        let (accepts, brings) = (
            format!("cloud.security.tokensFile={tokens}"),
            format!("cloud.orchestratorTrust.tokenFile={mine}"),
        );
        let mut args = vec!["cloud", name, "--listen", &listen, "--orchestrator", &orchestrator];
        args.extend(LOUD);
        args.extend(["--set", "store.kind=memory", "--set", &accepts, "--set", &brings]);
        for setting in settings {
            args.extend(["--set", setting]);
        }
        let mut around = environment.to_vec();
        around.extend(variables.iter().map(|(name, value)| (*name, value.as_str())));
        roles.push(product.role(name, &args, &around).await.with_context(|| format!("the cloud {name}"))?);
    }

    let rest = format!("http://127.0.0.1:{}", ports.port(0));
    let http = reqwest::Client::new();
    let mut failed = 0;
    for shown in [&token, &wrong] {
        for (cloud, ..) in &clouds {
            let place = format!("{rest}/namespaces/default/clouds/{cloud}/resources/machine");
            let described = json!({ "description": json!({ "password": canaries.hatch("description of a machine") }).to_string() });
            let rule = json!([{ "name": "r", "direction": "inbound", "src_port": -1, "dst_port": 443, "protocol": 6, "targets": ["10.0.0.0/8"] }]);
            for (method, path, body) in [
                (Method::PUT, String::new(), described),
                (Method::GET, "/rules".into(), Value::Null),
                (Method::POST, "/applyRules".into(), rule),
                (Method::DELETE, String::new(), Value::Null),
            ] {
                let asked =
                    http.request(method.clone(), format!("{place}{path}")).bearer_auth(shown).json(&body);
                let answer = asked.send().await?;
                let (status, headers) = (answer.status(), format!("{:?}", answer.headers()));
                let text = answer.text().await?;
                canaries.search(&format!("{method} {place}{path}"), &format!("{headers} {text}"))?;
                failed += usize::from(!status.is_success());
            }
        }
        for path in ["namespaces", "tags", "operations", "drift", "topology", "namespaces/default/resources"]
        {
            let text = http.get(format!("{rest}/{path}")).bearer_auth(shown).send().await?.text().await?;
            canaries.search(path, &text)?;
        }
    }
    ensure!(failed >= 20, "only {failed} requests failed");
    for role in &mut roles {
        let page = reqwest::get(format!("http://127.0.0.1:{}/metrics", role.probes())).await?.text().await?;
        canaries.search("the metrics", &page)?;
        abort(&mut role.process).await?;
    }
    let logs = canaries.search_logs(product.folder().path())?;
    ensure!(logs == 5, "{logs} logs");
    verified("secrets of clouds and of nets' callers, none told anywhere", canaries.count());
    Ok(())
}
