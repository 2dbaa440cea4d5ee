//! No bytes from outside make a parser panic.

use proptest::prelude::*;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tarbet_identity::authority::{Leaf, Usage};
use tarbet_identity::jwt::{Claims, Signer};
use tarbet_identity::{PrivateKey, Token, TokenKind, fuzz};

use super::scene::{Scene, effort, now};

const ENTRIES: [fn(&[u8]); 5] = [fuzz::jwt, fuzz::jwks, fuzz::token, fuzz::pem, fuzz::certificate];

/// One good input of each kind, to be damaged.
fn seeds() -> Vec<Vec<u8>> {
    let scene = Scene::new().unwrap();
    let leaf = Leaf::new(Usage::Both).dns("localhost").ip([127, 0, 0, 1]).ip([0u16; 8]);
    let issued = scene.issue(&leaf).unwrap();
    let pem = issued.certificate_pem.clone();
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    let key = PrivateKey::generate().unwrap();
    let jwks = format!(
        r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","kid":"a","x":"{}"}},{{"kty":"EC","crv":"P-256","kid":"b","x":"{1}","y":"{1}"}},{{"kty":"RSA","kid":"c","n":"{2}","e":"AQAB"}}]}}"#,
        &key.public().to_string()[8..],
        "x".repeat(43),
        "x".repeat(342),
    );
    vec![
        Signer::ed25519(key).sign(&Claims::expiring(now())).expose().into(),
        jwks.into_bytes(),
        Token::generate(TokenKind::Join).unwrap().text().expose().into(),
        format!("{pem}{}", issued.key_pem.expose()).into_bytes(),
        der.to_vec(),
    ]
}

#[test]
fn damaged_input() {
    let seeds = seeds();
    let config = ProptestConfig::with_cases(200 * effort());
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let edits = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 1..8);
    let strategy = (0..seeds.len(), edits);
    runner
        .run(&strategy, |(which, edits)| {
            let mut bytes = seeds[which].clone();
            for (index, byte, edit) in edits {
                let at = index.index(bytes.len());
                match edit {
                    0 => bytes[at] = byte,
                    1 => bytes.insert(at, byte),
                    _ => bytes.truncate(at.max(1)),
                }
            }
            for entry in ENTRIES {
                entry(&bytes);
            }
            Ok(())
        })
        .unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200 * effort()))]

    #[test]
    fn random_input(bytes in prop::collection::vec(any::<u8>(), 0..600), text in "[ -~]{0,80}", json in "[{}\\[\\]\",:0-9a-z.]{0,80}") {
        for input in [&bytes[..], text.as_bytes(), json.as_bytes()] {
            for entry in ENTRIES {
                entry(input);
            }
        }
    }
}
