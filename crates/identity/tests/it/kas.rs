//! The tokens that kas and GitLab exchange, as their wire has them.

use anyhow::Result;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jiff::Timestamp;
use serde_json::{Value, json};
use tarbet_identity::SecretBytes;
use tarbet_identity::jwt::kas::{IssuerCheck, KasSigner, external_api, private_api};
use tarbet_identity::jwt::{BadSecret, Claims, JwtError, SharedSecrets, Signer};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn secret(byte: u8) -> SecretBytes {
    SecretBytes::new(vec![byte; 32])
}

fn parts(token: &str) -> (Value, Value) {
    let mut parts = token.split('.').map(|part| {
        let bytes = URL_SAFE_NO_PAD.decode(part).unwrap();
        serde_json::from_slice(&bytes).unwrap_or(Value::Null)
    });
    (parts.next().unwrap(), parts.next().unwrap())
}

#[test]
fn what_we_send_is_what_the_original_sends() {
    let (header, claims) = parts(KasSigner::private_api(secret(1)).token(at(1000)).expose());
    assert_eq!(header, json!({"alg": "HS256", "typ": "JWT"}));
    assert_eq!(
        claims,
        json!({"iss": "gitlab-kas", "aud": ["gitlab-kas"], "iat": 1000, "nbf": 995, "exp": 1005})
    );
    let (_, claims) = parts(KasSigner::gitlab(secret(1)).token(at(1000)).expose());
    assert_eq!(claims, json!({"iss": "gitlab-kas", "aud": ["gitlab"], "iat": 1000, "nbf": 995, "exp": 1030}));
}

#[test]
fn private_tokens_pass_between_replicas_and_nowhere_else() -> Result<()> {
    let token = KasSigner::private_api(secret(1)).token(at(1000));
    let verifier = private_api(secret(1))?;
    for now in [990, 1000, 1009] {
        assert!(verifier.verify(token.expose(), at(now)).is_ok(), "{now}");
    }
    assert_eq!(verifier.verify(token.expose(), at(1010)), Err(JwtError::Expired(at(1005))));
    assert_eq!(verifier.verify(token.expose(), at(989)), Err(JwtError::NotYet(at(995))));
    assert_eq!(private_api(secret(2))?.verify(token.expose(), at(1000)), Err(JwtError::Signature));
    assert_eq!(
        external_api(secret(2), IssuerCheck::Any)?.verify(token.expose(), at(1000)),
        Err(JwtError::Signature)
    );
    let for_gitlab = KasSigner::gitlab(secret(1)).token(at(1000));
    assert_eq!(verifier.verify(for_gitlab.expose(), at(1000)), Err(JwtError::Audience));
    Ok(())
}

#[test]
fn the_issuer_is_checked_where_configured() -> Result<()> {
    let from = |issuer: Option<&str>| {
        let audience = vec!["gitlab-kas".to_owned()];
        let claims = Claims { issuer: issuer.map(str::to_owned), audience, ..Claims::expiring(at(1060)) };
        Signer::shared(secret(1)).sign(&claims)
    };
    let strict = external_api(secret(1), IssuerCheck::Gitlab)?;
    let lax = external_api(secret(1), IssuerCheck::Any)?;
    for (issuer, accepted) in [(Some("gitlab"), true), (Some("gitlab-kas"), false), (None, false)] {
        let token = from(issuer);
        assert_eq!(strict.verify(token.expose(), at(1000)).is_ok(), accepted, "{issuer:?}");
        assert!(lax.verify(token.expose(), at(1000)).is_ok());
    }
    // Even with one secret for both, a call meant for one listener is not good for the other.
    let private = private_api(secret(1))?;
    assert_eq!(private.verify(from(Some("gitlab")).expose(), at(1000)), Err(JwtError::Issuer));
    let token = KasSigner::private_api(secret(1)).token(at(1000));
    assert_eq!(strict.verify(token.expose(), at(1000)), Err(JwtError::Issuer));
    Ok(())
}

#[test]
fn secrets_come_from_base64_files() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("secret");
    std::fs::write(&path, format!("{}\n", STANDARD.encode([5; 32])))?;
    assert!(SharedSecrets::from_file(&path)?.matches([5; 32]));
    // One follows the other: the first signs, both count, and clones hear of a replacement.
    std::fs::write(&path, format!("{}\n\n{}\n", STANDARD.encode([6; 32]), STANDARD.encode([5; 40])))?;
    let both = SharedSecrets::from_file(&path)?;
    let (verifier, signer) = (private_api(both.clone())?, KasSigner::private_api(both.clone()));
    assert!(both.matches([6; 32]) && both.matches([5; 40]) && !both.matches([5; 32]));
    let counts = |signer: &KasSigner| verifier.verify(signer.token(at(1000)).expose(), at(1000)).is_ok();
    let (sixth, fifth) =
        (KasSigner::private_api(secret(6)), KasSigner::private_api(SecretBytes::new(vec![5; 40])));
    assert!(counts(&sixth) && counts(&fifth));
    assert_eq!(signer.token(at(1000)).expose(), sixth.token(at(1000)).expose());
    assert!(!both.become_like(&SharedSecrets::from_file(&path)?), "nothing has changed");
    assert!(both.become_like(&secret(7).into()) && !counts(&sixth) && !counts(&fifth) && counts(&signer));
    std::fs::write(&path, format!("{}\nx\n", STANDARD.encode([6; 32])))?;
    assert!(matches!(SharedSecrets::from_file(&path), Err(BadSecret::NotBase64)));
    std::fs::write(&path, STANDARD.encode([5; 31]))?;
    assert!(matches!(SharedSecrets::from_file(&path), Err(BadSecret::TooShort)));
    std::fs::write(&path, "canary, not base64 at all")?;
    let error = SharedSecrets::from_file(&path).unwrap_err();
    assert!(matches!(error, BadSecret::NotBase64) && !format!("{error:?} {error}").contains("canary"));
    assert!(matches!(SharedSecrets::from_file(folder.path().join("none")), Err(BadSecret::Load(_))));
    Ok(())
}
