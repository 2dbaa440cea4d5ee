//! Callers whom an identity provider vouches for.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use tarbet_identity::jwt::{Claims, Signer};
use tarbet_identity::{PrivateKey, Secret, SecretBytes};
use tarbet_reach::audit::AuditLog;
use tarbet_reach::config::GatewayConfig;
use tarbet_reach::directory::Role;
use tarbet_reach::vouch::{Grant, OidcConfig};

use super::lab::{Echo, Lab, ask, code, open_door, request, until};

const ISSUER: &str = "https://id.example.org";

fn publish(file: &Path, keys: &[&PrivateKey]) {
    let keys: Vec<_> = keys
        .iter()
        .map(|key| {
            let text = key.public().to_string();
            let x = text.strip_prefix("ed25519:").unwrap();
            json!({"kty": "OKP", "crv": "Ed25519", "kid": key.public().id(), "x": x})
        })
        .collect();
    std::fs::write(file, json!({"keys": keys}).to_string()).unwrap();
}

fn claims(subject: &str, groups: &[&str]) -> Claims {
    let mut claims = Claims::expiring(Timestamp::now() + Duration::from_mins(5));
    claims.issuer = Some(ISSUER.into());
    claims.audience = vec!["tarbet".into()];
    claims.subject = Some(subject.into());
    claims.extra.insert("groups".into(), groups.into());
    claims
}

fn config(keys: &Path) -> GatewayConfig {
    let provider: OidcConfig = serde_json::from_value(json!({
        "issuer": ISSUER, "audience": "tarbet", "algorithms": ["EdDSA"], "jwks_file": keys,
    }))
    .unwrap();
    let grant = |group: &str, role| Grant {
        group: Some(group.into()),
        roles: BTreeMap::from([("lab".to_owned(), role)]),
        ..Grant::default()
    };
    let grants = vec![grant("dev", Role::User), grant("guest", Role::Viewer)];
    GatewayConfig { oidc: vec![OidcConfig { grants, ..provider }], ..GatewayConfig::default() }
}

#[tokio::test(start_paused = true)]
async fn tokens_of_a_provider_are_taken_as_far_as_the_grants_go() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys.json");
    let (old, new, foreign) =
        (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
    publish(&keys, &[&old]);
    let lab = Lab::new().await;
    let _one = lab.gateway("one", config(&keys), AuditLog::none());
    for name in ["lab", "den"] {
        let token = lab.add_site(name).await;
        let mut agent =
            lab.agent(&format!("host-{name}"), &token, &["one"], open_door(&Echo::named(name)), 1);
        agent.up(1).await;
    }
    let ask_as = async |token: Secret, site: &str| {
        let way = lab.client("one", &token).site(site.parse().unwrap());
        ask(&way, request("POST", "/", "hi")).await
    };
    let signed = |key: &PrivateKey, claims: &Claims| Signer::ed25519(key.clone()).sign(claims);
    let ann = claims("ann", &["dev"]);
    // The keys are read in the background.
    until("the keys to be read", async || ask_as(signed(&old, &ann), "lab").await.is_ok()).await;
    assert_eq!(ask_as(signed(&old, &ann), "lab").await.unwrap(), "lab:hi");
    // Not at another site, and a viewer may not ask at all.
    for (token, site) in [(signed(&old, &ann), "den"), (signed(&old, &claims("bob", &["guest"])), "lab")] {
        assert_eq!(code(&ask_as(token, site).await.unwrap_err()), "TB-1101");
    }
    // Nobody else's signature, no other audience, issuer or time, and no other algorithm.
    let mut elsewhere = claims("ann", &["dev"]);
    elsewhere.audience = vec!["another".into()];
    let mut pretended = claims("ann", &["dev"]);
    pretended.issuer = Some("https://evil.example.org".into());
    let late = Claims { expires: Timestamp::now() - Duration::from_mins(1), ..claims("ann", &["dev"]) };
    let confused = Signer::shared(SecretBytes::new(old.public().to_string().into_bytes())).sign(&ann);
    for token in [
        signed(&foreign, &ann),
        signed(&old, &elsewhere),
        signed(&old, &pretended),
        signed(&old, &late),
        confused,
        Secret::new("eyJhbGciOiJub25lIn0.e30.".to_owned()),
    ] {
        assert!(ask_as(token, "lab").await.is_err());
    }
    // The provider changes its key; the new one is found soon, and the old one is dead.
    publish(&keys, &[&new]);
    until("the new key to count", async || ask_as(signed(&new, &ann), "lab").await.is_ok()).await;
    // What was found good a moment ago is not checked again at once.
    until("the old key to be dead", async || ask_as(signed(&old, &ann), "lab").await.is_err()).await;
}
