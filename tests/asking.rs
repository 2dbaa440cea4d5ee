//! What an administrator does at a gateway: adds sites and asks their agents who they are.

use anyhow::Context;
use serde_json::Value;
use tarbet_identity::Secret;
use tarbet_link::{Body, Caller, LinkError, Target};
use tarbet_reach::client::{Client, RemoteSite};
use tarbet_testbed::product::{Gateway, Product};

/// Adds a site. Gives the token for its agent.
pub(crate) async fn add_site(product: &Product, gateway: &Gateway, site: &str) -> anyhow::Result<String> {
    let said = product.run(gateway, &["site", "add", site, "-o", "json"]).await?;
    let said: Value = serde_json::from_str(&said)?;
    Ok(said["token"]["token"].as_str().context("no token")?.to_owned())
}

/// The administrator, with a connection of their own.
pub(crate) fn client(product: &Product, gateway: &Gateway) -> Client {
    let token = Secret::from_file(product.admin_token()).unwrap();
    Client::new(&gateway.api(), token, Some(&product.authority())).unwrap()
}

/// Asks the agent of a site for its name.
pub(crate) async fn name(site: &RemoteSite) -> Result<String, LinkError> {
    let mut request = http::Request::get("/").body(Body::empty()).unwrap();
    request.extensions_mut().insert(Target::service("info").unwrap());
    let response = site.call(request).await?;
    let body = http_body_util::BodyExt::collect(response.into_body()).await;
    let body = body.map_err(|error| LinkError::Request(error.to_string().into()))?.to_bytes();
    let page: Value = serde_json::from_slice(&body).unwrap();
    Ok(page["name"].as_str().unwrap().to_owned())
}
