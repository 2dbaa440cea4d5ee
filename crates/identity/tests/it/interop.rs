//! The same tokens, read and written by an independent library.

use aws_lc_rs::encoding::{AsDer as _, Pkcs8V1Der};
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, RsaKeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use jsonwebtoken::{DecodingKey, EncodingKey, Header, Validation};
use serde_json::{Value, json};
use tarbet_identity::jwt::{
    Algorithm, Claims, Jwks, JwtError, Signer, Verifier, VerifierPolicy, VerifyingKey,
};
use tarbet_identity::{KeyError, PrivateKey, SecretBytes};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn payload() -> Value {
    json!({"iss": "them", "sub": "ann", "aud": "here", "exp": 2000, "iat": 900, "groups": ["a", "b"]})
}

fn theirs(algorithm: jsonwebtoken::Algorithm, kid: Option<&str>, key: &EncodingKey) -> String {
    let header = Header { kid: kid.map(str::to_owned), ..Header::new(algorithm) };
    jsonwebtoken::encode(&header, &payload(), key).unwrap()
}

fn expect(verifier: &Verifier, token: &str) {
    let claims = verifier.verify(token, at(1000)).unwrap();
    assert_eq!(claims.issuer.as_deref(), Some("them"));
    assert_eq!(claims.get::<Vec<String>>("groups").unwrap(), ["a", "b"]);
    let (head, tail) = token.rsplit_once('.').unwrap();
    let mut bytes = URL_SAFE_NO_PAD.decode(tail).unwrap();
    bytes[5] ^= 1;
    let forged = format!("{head}.{}", URL_SAFE_NO_PAD.encode(bytes));
    assert_eq!(verifier.verify(&forged, at(1000)), Err(JwtError::Signature));
}

#[test]
fn we_read_theirs_with_shared_secrets() {
    let secret = [9u8; 64];
    let verifier = Verifier::new(
        VerifierPolicy::new("here", Algorithm::HMAC),
        VerifyingKey::shared(SecretBytes::new(secret.to_vec())).unwrap(),
    )
    .unwrap();
    for algorithm in
        [jsonwebtoken::Algorithm::HS256, jsonwebtoken::Algorithm::HS384, jsonwebtoken::Algorithm::HS512]
    {
        expect(&verifier, &theirs(algorithm, None, &EncodingKey::from_secret(&secret)));
    }
}

#[test]
fn we_read_theirs_with_published_keys() -> Result<(), KeyError> {
    let ed = PrivateKey::generate()?;
    let ec = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
    let rsa = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
    let point = ec.public_key().as_ref();
    let (x, y) = point[1..].split_at(32);
    let (_, spki) =
        <x509_parser::public_key::RSAPublicKey<'_> as x509_parser::prelude::FromDer<'_, _>>::from_der(
            rsa.public_key().as_ref(),
        )
        .unwrap();
    let modulus: &[u8] = spki.modulus.strip_prefix(&[0]).unwrap_or(spki.modulus);
    let ed_x = ed.public().to_string().replace("ed25519:", "");
    let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let jwks = json!({"keys": [
        {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "rsa", "n": encode(modulus), "e": encode(spki.exponent)},
        {"kty": "EC", "crv": "P-256", "kid": "ec", "x": encode(x), "y": encode(y)},
        {"kty": "OKP", "crv": "Ed25519", "kid": "ed", "x": ed_x},
    ]});
    let jwks = Jwks::parse(jwks.to_string().as_bytes()).unwrap();
    assert_eq!(jwks.ids().collect::<Vec<_>>(), ["ec", "ed", "rsa"]);
    let policy =
        VerifierPolicy { issuer: Some("them".into()), ..VerifierPolicy::new("here", Algorithm::PUBLIC_KEY) };
    let verifier = Verifier::new(policy, jwks.clone()).unwrap();

    let ec_der = ec.to_pkcs8v1().unwrap();
    let rsa_der: Pkcs8V1Der<'_> = rsa.as_der().unwrap();
    let tokens = [
        (jsonwebtoken::Algorithm::ES256, "ec", EncodingKey::from_ec_der(ec_der.as_ref())),
        (jsonwebtoken::Algorithm::RS256, "rsa", rsa_key(rsa_der.as_ref())),
        (
            jsonwebtoken::Algorithm::EdDSA,
            "ed",
            EncodingKey::from_ed_pem(ed.to_pem().expose().as_bytes()).unwrap(),
        ),
    ];
    for (algorithm, kid, key) in &tokens {
        expect(&verifier, &theirs(*algorithm, Some(kid), key));
        assert_eq!(verifier.verify(&theirs(*algorithm, None, key), at(1000)), Err(JwtError::NoKeyId));
        assert_eq!(verifier.verify(&theirs(*algorithm, Some("x"), key), at(1000)), Err(JwtError::UnknownKey));
    }
    // The right signature under the name of a key of another kind.
    let crossed = theirs(jsonwebtoken::Algorithm::ES256, Some("rsa"), &tokens[0].2);
    assert_eq!(verifier.verify(&crossed, at(1000)), Err(JwtError::Algorithm));
    // Keys of kinds that a narrower verifier has no use for do not disturb it.
    let narrow = Verifier::new(VerifierPolicy::new("here", [Algorithm::Rs256]), jwks).unwrap();
    expect(&narrow, &theirs(jsonwebtoken::Algorithm::RS256, Some("rsa"), &tokens[1].2));
    let es256 = theirs(jsonwebtoken::Algorithm::ES256, Some("ec"), &tokens[0].2);
    assert_eq!(narrow.verify(&es256, at(1000)), Err(JwtError::Algorithm));
    // A known key with an algorithm that was not asked for.
    let rs512 = theirs(jsonwebtoken::Algorithm::RS512, Some("rsa"), &tokens[1].2);
    assert_eq!(verifier.verify(&rs512, at(1000)), Err(JwtError::Algorithm));
    Ok(())
}

fn rsa_key(pkcs8: &[u8]) -> EncodingKey {
    let body = base64::engine::general_purpose::STANDARD.encode(pkcs8);
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\n");
    EncodingKey::from_rsa_pem(pem.as_bytes()).unwrap()
}

#[test]
fn they_read_ours() -> Result<(), KeyError> {
    let far = Timestamp::now() + jiff::SignedDuration::from_hours(1);
    let claims = Claims {
        issuer: Some("us".into()),
        subject: Some("ann".into()),
        audience: vec!["there".into()],
        ..Claims::expiring(far)
    };
    let check = |algorithm, key: &DecodingKey, token: &str| {
        let mut validation = Validation::new(algorithm);
        validation.set_audience(&["there"]);
        validation.set_issuer(&["us"]);
        let read = jsonwebtoken::decode::<Value>(token, key, &validation).unwrap();
        assert_eq!(read.claims["sub"], "ann");
        assert_eq!(read.claims["exp"], far.as_second());
        read.header.kid
    };
    let secret = [3u8; 32];
    let token = Signer::shared(SecretBytes::new(secret.to_vec())).sign(&claims);
    assert_eq!(
        check(jsonwebtoken::Algorithm::HS256, &DecodingKey::from_secret(&secret), token.expose()),
        None
    );
    let key = PrivateKey::generate()?;
    let token = Signer::ed25519(key.clone()).sign(&claims);
    let x = key.public().to_string().replace("ed25519:", "");
    let public = DecodingKey::from_ed_components(&x).unwrap();
    assert_eq!(check(jsonwebtoken::Algorithm::EdDSA, &public, token.expose()), Some(key.public().id()));
    Ok(())
}
