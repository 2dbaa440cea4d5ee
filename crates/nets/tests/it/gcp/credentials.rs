//! The three kinds of application default credentials, each against an identity service that looks closely.

use std::sync::Arc;

use aws_lc_rs::encoding::{AsDer as _, Pkcs8V1Der};
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{KeyPair as _, RsaKeyPair};
use base64::Engine as _;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde_json::{Value, json};
use tarbet_nets::cloud::Cloud as _;
use tarbet_nets::clouds::{Gcp, GcpConfig};
use tarbet_nets::controller::LateController;
use tarbet_testbed::Folder;

use super::super::sim::{Reply, Seen, Sim, SimClock, Vendor};
use super::vendor::Google;
use super::{deployment, uri};

/// Google's token endpoint and a machine's metadata server in one.
struct Identity {
    public: Vec<u8>,
    fetched: usize,
}

impl Vendor for Identity {
    fn check(&self, seen: &Seen) -> Result<(), String> {
        if seen.path.starts_with("/computeMetadata/") {
            let flavor = seen.headers.get("metadata-flavor").is_some_and(|value| value == "Google");
            return if flavor { Ok(()) } else { Err("Metadata-Flavor is missing".into()) };
        }
        let form: Vec<(String, String)> =
            url::form_urlencoded::parse(seen.text.as_bytes()).into_owned().collect();
        let field = |name: &str| form.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        match field("grant_type") {
            Some("refresh_token") => {
                let given = ["client_id", "client_secret", "refresh_token"].map(field);
                if given == [Some("id"), Some("hush-hush"), Some("once-more")] {
                    Ok(())
                } else {
                    Err(format!("{given:?}"))
                }
            }
            Some("urn:ietf:params:oauth:grant-type:jwt-bearer") => {
                let key = DecodingKey::from_rsa_der(&self.public);
                let mut rules = Validation::new(Algorithm::RS256);
                rules.set_issuer(&["plugin@p.iam.example"]);
                rules.set_audience(&[format!("http://{}/token", seen.headers["host"].to_str().unwrap())]);
                // The time of the test is its own.
                rules.validate_exp = false;
                let token = jsonwebtoken::decode::<Value>(field("assertion").unwrap(), &key, &rules);
                let token = token.map_err(|error| error.to_string())?;
                let (claims, kid) = (token.claims, token.header.kid);
                let life = claims["exp"].as_u64().zip(claims["iat"].as_u64()).map(|(exp, iat)| exp - iat);
                let sound = claims["scope"] == "https://www.googleapis.com/auth/cloud-platform"
                    && life == Some(3600)
                    && kid.as_deref() == Some("k1");
                if sound { Ok(()) } else { Err(claims.to_string()) }
            }
            other => Err(format!("{other:?} is no grant")),
        }
    }

    /// The first token is one the cloud does not know any more.
    fn answer(&mut self, _: &Seen, _: &SimClock) -> Reply {
        self.fetched += 1;
        let token = if self.fetched == 1 { "stale" } else { "sesame" };
        Reply::new(200, json!({ "access_token": token, "expires_in": 3599, "token_type": "Bearer" }))
    }

    fn error(&self, _: u16, message: &str) -> Value {
        json!({ "error": "invalid_grant", "error_description": message })
    }
}

#[tokio::test]
async fn keys_logins_and_machines_get_tokens_and_keep_them() {
    let rsa = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
    let der: Pkcs8V1Der<'_> = rsa.as_der().unwrap();
    let body = base64::engine::general_purpose::STANDARD.encode(der.as_ref());
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\n");
    let folder = Folder::new("gcp-credentials").unwrap();
    let google = Sim::start(Google::new()).await;
    for kind in ["service_account", "authorized_user", "metadata"] {
        let identity = Sim::start(Identity { public: rsa.public_key().as_ref().to_vec(), fetched: 0 }).await;
        let token_uri = format!("{}/token", identity.url);
        let (file, token_endpoint) = match kind {
            "service_account" => {
                let key = json!({
                    "type": kind, "client_email": "plugin@p.iam.example", "private_key": pem, "private_key_id": "k1",
                    "token_uri": token_uri, "project_id": "p",
                });
                (Some(folder.write("key.json", &key.to_string()).unwrap()), None)
            }
            "authorized_user" => {
                let login = json!({
                    "type": kind, "client_id": "id", "client_secret": "hush-hush", "refresh_token": "once-more",
                    "quota_project_id": "p",
                });
                (Some(folder.write("login.json", &login.to_string()).unwrap()), Some(token_uri))
            }
            _ => (None, None),
        };
        let config = GcpConfig {
            endpoint: format!("{}/compute/v1", google.url),
            metadata: identity.url.clone(),
            credentials_file: file,
            token_endpoint,
            ..GcpConfig::default()
        };
        let clock = Arc::new(google.clock.clone());
        let gcp = Gcp::with_clock("gcp", &config, Arc::new(LateController::default()), clock).unwrap();
        for _ in 0..3 {
            assert_eq!(gcp.used_asns(&[deployment("default")]).await.unwrap(), Vec::<u32>::new(), "{kind}");
        }
        assert_eq!(
            identity.with(|identity| identity.fetched),
            2,
            "{kind}: a refused token is replaced, a good one kept"
        );
        identity.assert_sound();
    }

    // What cannot be used is told without a secret.
    let broken =
        folder.write("broken.json", r#"{"type": "authorized_user", "client_secret": "hush-hush"}"#).unwrap();
    let config = GcpConfig {
        endpoint: format!("{}/compute/v1", google.url),
        credentials_file: Some(broken),
        ..GcpConfig::default()
    };
    let gcp = Gcp::new("gcp", &config, Arc::new(LateController::default())).unwrap();
    let error = gcp.permit_list("default", &uri("default", "vm-1")).await.unwrap_err();
    assert!(
        !format!("{error:?}").contains("hush-hush") && format!("{error:?}").contains("broken.json"),
        "{error:?}"
    );
}
