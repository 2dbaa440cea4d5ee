//! Tokens made to be believed by a careless verifier.

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::json;
use tarbet_identity::jwt::{
    Algorithm, BadPolicy, Claims, Jwks, JwtError, KeySet, Signer, Verifier, VerifierPolicy, VerifyingKey,
};
use tarbet_identity::{PrivateKey, PublicKey, SecretBytes};

use super::scene::effort;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn secret() -> SecretBytes {
    SecretBytes::new(vec![7; 32])
}

fn claims() -> Claims {
    Claims { subject: Some("ann".into()), audience: vec!["here".into()], ..Claims::expiring(at(2000)) }
}

const CLAIMS: &str = r#"{"aud":"here","exp":2000,"sub":"ann"}"#;

/// Signs any header and claims, however absurd, with an HMAC.
fn forge(header: &str, claims: &str, key: &[u8]) -> String {
    let signed = format!("{}.{}", encode(header), encode(claims));
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), signed.as_bytes());
    format!("{signed}.{}", encode(tag))
}

fn shared() -> Verifier {
    Verifier::new(VerifierPolicy::new("here", Algorithm::HMAC), VerifyingKey::shared(secret()).unwrap())
        .unwrap()
}

fn pinned(keys: &[PublicKey]) -> Verifier {
    let keys: KeySet = keys.iter().copied().collect();
    Verifier::new(VerifierPolicy::new("here", [Algorithm::EdDsa]), keys).unwrap()
}

fn spki_pem(key: &PrivateKey) -> String {
    rcgen::KeyPair::from_pem(key.to_pem().expose()).unwrap().public_key_pem()
}

#[test]
fn a_public_key_is_never_an_hmac_secret() {
    let key = PrivateKey::generate().unwrap();
    let verifier = pinned(&[key.public()]);
    let raw = URL_SAFE_NO_PAD.decode(&key.public().to_string()[8..]).unwrap();
    let id = key.public().id();
    for material in [spki_pem(&key).into_bytes(), raw, spki_pem(&key).trim().into()] {
        for alg in ["HS256", "HS384", "HS512"] {
            let header = json!({"alg": alg, "kid": id}).to_string();
            let token = forge(&header, CLAIMS, &material);
            assert_eq!(verifier.verify(&token, at(1000)), Err(JwtError::Algorithm), "{alg}");
        }
        // Nor with the accepted name and an HMAC for a signature.
        let header = json!({"alg": "EdDSA", "kid": id}).to_string();
        assert_eq!(verifier.verify(&forge(&header, CLAIMS, &material), at(1000)), Err(JwtError::Signature));
    }
    // Nor can the two be configured together.
    let mixed = VerifierPolicy::new("here", [Algorithm::Hs256, Algorithm::EdDsa]);
    let ed = VerifyingKey::ed25519(key.public());
    assert_eq!(Verifier::new(mixed.clone(), ed).unwrap_err(), BadPolicy::Keys);
    let hmac = VerifyingKey::shared(secret()).unwrap();
    assert_eq!(Verifier::new(mixed, hmac).unwrap_err(), BadPolicy::Keys);
}

#[test]
fn no_spelling_of_none_is_an_algorithm() {
    for alg in ["none", "None", "NONE", "nOnE", "", " ", "hs256", "HS256 ", "HS1", "RS256", "EdDSA", "dir"] {
        let header = json!({"alg": alg, "typ": "JWT"}).to_string();
        let body = format!("{}.{}", encode(&header), encode(CLAIMS));
        for token in [format!("{body}."), forge(&header, CLAIMS, &[7; 32])] {
            assert_eq!(shared().verify(&token, at(1000)), Err(JwtError::Algorithm), "{alg:?}");
        }
        assert!(shared().verify(&body, at(1000)).is_err());
    }
}

#[test]
fn headers_do_not_choose_keys_or_rules() {
    let good = |header: &str| shared().verify(&forge(header, CLAIMS, &[7; 32]), at(1000));
    assert!(good(r#"{"alg":"HS256"}"#).is_ok());
    // Offers of keys are not looked at: the pinned one decides.
    assert!(
        good(r#"{"alg":"HS256","jku":"http://127.0.0.1:1/","jwk":{"kty":"oct","k":"AA"},"x5u":"x"}"#).is_ok()
    );
    for header in [
        r#"{"alg":"HS256","alg":"none"}"#,
        r#"{"alg":"none","alg":"HS256"}"#,
        r#"{"alg":"HS256","crit":["exp"]}"#,
        r#"{"alg":"HS256","crit":[]}"#,
        r#"{"alg":["HS256"]}"#,
        r#"{"alg":null}"#,
        r#"{"typ":"JWT"}"#,
        r#"{"alg":"HS256","kid":7}"#,
        r#"["HS256"]"#,
        "",
        "{",
        "\u{feff}{\"alg\":\"HS256\"}",
    ] {
        assert!(matches!(good(header), Err(JwtError::Header(_))), "{header}");
    }
}

#[test]
fn a_key_must_be_named_where_there_are_several() {
    let [a, b, c] = std::array::from_fn(|_| PrivateKey::generate().unwrap());
    let verifier = pinned(&[a.public(), b.public()]);
    for key in [&a, &b] {
        assert!(verifier.verify(Signer::ed25519(key.clone()).sign(&claims()).expose(), at(1000)).is_ok());
    }
    let stranger = Signer::ed25519(c.clone()).sign(&claims());
    assert_eq!(verifier.verify(stranger.expose(), at(1000)), Err(JwtError::UnknownKey));
    // Another's name on one's own signature, and no name at all.
    let swap_header = |token: &str, header: serde_json::Value| {
        let (_, rest) = token.split_once('.').unwrap();
        format!("{}.{rest}", encode(header.to_string()))
    };
    let borrowed =
        swap_header(stranger.expose(), json!({"alg": "EdDSA", "typ": "JWT", "kid": a.public().id()}));
    assert_eq!(verifier.verify(&borrowed, at(1000)), Err(JwtError::Signature));
    let nameless = swap_header(stranger.expose(), json!({"alg": "EdDSA"}));
    assert_eq!(verifier.verify(&nameless, at(1000)), Err(JwtError::NoKeyId));
    let empty = Verifier::new(VerifierPolicy::new("here", [Algorithm::EdDsa]), Jwks::default()).unwrap();
    assert_eq!(empty.verify(stranger.expose(), at(1000)), Err(JwtError::UnknownKey));
}

#[test]
fn duplicated_and_odd_claims_are_refused_though_signed() {
    let with = |claims: &str| shared().verify(&forge(r#"{"alg":"HS256"}"#, claims, &[7; 32]), at(1000));
    assert!(with(CLAIMS).is_ok());
    for claims in [
        r#"{"aud":"here","exp":2000,"exp":1}"#,
        r#"{"aud":"here","aud":"there","exp":2000}"#,
        r#"{"aud":"here","exp":2000,"x":{"y":1,"y":2}}"#,
        r#"{"aud":"here","exp":"2000"}"#,
        r#"{"aud":"here","exp":1e400}"#,
        r#"{"aud":["here",7],"exp":2000}"#,
        "[]",
        "",
    ] {
        assert!(matches!(with(claims), Err(JwtError::Claims(_))), "{claims}");
    }
    assert_eq!(with(r#"{"aud":"here"}"#), Err(JwtError::Missing("exp".into())));
    assert_eq!(with(r#"{"exp":2000}"#), Err(JwtError::Audience));
    assert_eq!(with(r#"{"aud":"there","exp":2000}"#), Err(JwtError::Audience));
    assert_eq!(with(r#"{"aud":"here","exp":994}"#), Err(JwtError::Expired(at(994))));
    assert_eq!(with(r#"{"aud":"here","exp":2000,"nbf":1006}"#), Err(JwtError::NotYet(at(1006))));
}

#[test]
fn size_and_shape() {
    let verifier = shared();
    let huge = forge(
        r#"{"alg":"HS256"}"#,
        &format!(r#"{{"aud":"here","exp":2000,"x":"{}"}}"#, "a".repeat(1 << 20)),
        &[7; 32],
    );
    assert_eq!(verifier.verify(&huge, at(1000)), Err(JwtError::TooLarge));
    let deep = format!(r#"{{"aud":"here","exp":2000,"x":{}{}}}"#, "[".repeat(3000), "]".repeat(3000));
    let deep = forge(r#"{"alg":"HS256"}"#, &deep, &[7; 32]);
    assert!(matches!(verifier.verify(&deep, at(1000)), Err(JwtError::Claims(_))));
    let good = forge(r#"{"alg":"HS256"}"#, CLAIMS, &[7; 32]);
    assert!(verifier.verify(&good, at(1000)).is_ok());
    for odd in [
        "",
        ".",
        "..",
        "...",
        "a.b",
        &format!("{good}."),
        &format!(".{good}"),
        &format!("{good}="),
        &format!(" {good}"),
        &format!("{good}\n"),
    ] {
        assert!(verifier.verify(odd, at(1000)).is_err(), "{odd:?}");
    }
    // An empty signature, a cut one, and one with something stuck to it.
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let tag = URL_SAFE_NO_PAD.decode(signature).unwrap();
    for tag in [&tag[..0], &tag[..16], &[&tag[..], &[0]].concat()] {
        let token = format!("{signed}.{}", encode(tag));
        assert_eq!(verifier.verify(&token, at(1000)), Err(JwtError::Signature));
    }
}

#[test]
fn short_secrets_are_refused() {
    for length in [0, 1, 31] {
        assert!(VerifyingKey::shared(SecretBytes::new(vec![1; length])).is_err());
    }
}

fn changed(token: &str, at_byte: prop::sample::Index, to: u8) -> Option<String> {
    let mut bytes = token.as_bytes().to_vec();
    let index = at_byte.index(bytes.len());
    let differs = bytes[index] != to;
    bytes[index] = to;
    differs.then(|| String::from_utf8_lossy(&bytes).into_owned())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64 * effort()))]

    #[test]
    fn any_changed_byte_is_refused(at_byte: prop::sample::Index, to in prop_oneof![any::<u8>(), prop::sample::select(b"AQgw-_.09".to_vec())]) {
        let key = PrivateKey::generate().unwrap();
        let cases = [
            (Signer::shared(secret()), shared()),
            (Signer::ed25519(key.clone()), pinned(&[key.public()])),
        ];
        for (signer, verifier) in cases {
            let token = signer.sign(&claims());
            prop_assert!(verifier.verify(token.expose(), at(1000)).is_ok());
            if let Some(changed) = changed(token.expose(), at_byte, to) {
                prop_assert!(verifier.verify(&changed, at(1000)).is_err());
            }
        }
    }

    #[test]
    fn other_keys_sign_other_tokens(wrong in prop::collection::vec(any::<u8>(), 32..64)) {
        prop_assume!(wrong != [7; 32]);
        let token = Signer::shared(SecretBytes::new(wrong)).sign(&claims());
        prop_assert_eq!(shared().verify(token.expose(), at(1000)), Err(JwtError::Signature));
    }
}
