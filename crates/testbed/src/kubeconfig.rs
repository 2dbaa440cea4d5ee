//! The text of a kubeconfig file, with everything inside it so that it can be handed on.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

/// How a kubeconfig proves who its holder is.
pub(crate) enum Credential<'a> {
    /// A client certificate and its key, as PEM.
    Certificate { certificate: &'a str, key: &'a str },
    /// A certificate that may act as others, and the one it acts as.
    Impersonation { certificate: &'a str, key: &'a str, user: &'a str, groups: &'a [&'a str] },
    /// A bearer token.
    Token(&'a str),
}

/// A kubeconfig with one cluster, one user and one context, all called `name`.
///
/// It is JSON, which every reader of kubeconfigs takes, since YAML includes it.
pub(crate) fn render(name: &str, server: &str, authority: &str, credential: &Credential<'_>) -> String {
    let user = match credential {
        Credential::Certificate { certificate, key } => by_certificate(certificate, key),
        Credential::Impersonation { certificate, key, user, groups } => {
            let mut fields = by_certificate(certificate, key);
            fields["as"] = json!(user);
            fields["as-groups"] = json!(groups);
            fields
        }
        Credential::Token(token) => json!({ "token": token }),
    };
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": name, "cluster": {
            "server": server,
            "certificate-authority-data": STANDARD.encode(authority),
        } }],
        "users": [{ "name": name, "user": user }],
        "contexts": [{ "name": name, "context": { "cluster": name, "user": name } }],
        "current-context": name,
    });
    format!("{config:#}\n")
}

fn by_certificate(certificate: &str, key: &str) -> Value {
    json!({ "client-certificate-data": STANDARD.encode(certificate), "client-key-data": STANDARD.encode(key) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(credential: &Credential<'_>) -> Value {
        let text = render("here", "https://127.0.0.1:1", "CA", credential);
        serde_json::from_str::<Value>(&text).unwrap()["users"][0]["user"].clone()
    }

    #[test]
    fn each_credential_has_its_fields() {
        assert_eq!(user(&Credential::Token("t")), json!({ "token": "t" }));
        let certificate = user(&Credential::Certificate { certificate: "c", key: "k" });
        assert_eq!(certificate, json!({ "client-certificate-data": "Yw==", "client-key-data": "aw==" }));
        let groups = ["one", "two"];
        let other =
            user(&Credential::Impersonation { certificate: "c", key: "k", user: "ann", groups: &groups });
        assert_eq!(other["as"], "ann");
        assert_eq!(other["as-groups"], json!(["one", "two"]));
    }
}
