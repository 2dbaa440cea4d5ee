//! Nothing that holds a secret shows it, however it is printed.

use std::error::Error;
use std::fmt::{Debug, Display};

use anyhow::Result;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jiff::Timestamp;
use tarbet_identity::authority::Authority;
use tarbet_identity::caller::CallerIssuer;
use tarbet_identity::jwt::kas::{IssuerCheck, KasSigner, external_api};
use tarbet_identity::jwt::{SharedSecrets, Signer, VerifyingKey};
use tarbet_identity::tls::{ClientTls, Credential, CredentialSource, Refresh, ServerTls};
use tarbet_identity::{PrivateKey, Secret, SecretBytes, Subject, Token, TokenKind, TokenRecord};

use super::scene::{Scene, files, now, write_pair};

/// Text that must not be found in anything printed, in any of the spellings printing might use.
struct Canary(Vec<String>);

impl Canary {
    fn of(secret: &[u8]) -> Self {
        let mut forms = vec![
            hex::encode(secret),
            hex::encode_upper(secret),
            STANDARD.encode(secret),
            URL_SAFE_NO_PAD.encode(secret),
            format!("{secret:?}").trim_matches(['[', ']']).to_owned(),
        ];
        forms.extend(std::str::from_utf8(secret).map(str::to_owned));
        // A long run is as bad as the whole.
        forms.extend(
            forms
                .clone()
                .into_iter()
                .filter(|form| form.is_ascii() && form.len() > 48)
                .map(|form| form[12..44].to_owned()),
        );
        Self(forms)
    }

    fn check(&self, what: &str, printed: &str) {
        for form in &self.0 {
            assert!(!printed.contains(form.as_str()), "{what} shows a secret: {printed}");
        }
    }

    fn debug(&self, what: &str, holder: &dyn Debug) {
        self.check(what, &format!("{holder:?} {holder:#?}"));
    }

    fn display(&self, what: &str, holder: &dyn Display) {
        self.check(what, &format!("{holder} {holder:#}"));
    }

    fn error(&self, what: &str, error: &dyn Error) {
        let mut next = Some(error);
        while let Some(error) = next {
            self.debug(what, &error);
            self.display(what, &error);
            next = error.source();
        }
    }
}

#[test]
fn the_canary_sings() {
    let canary = Canary::of(b"a secret of some length, to be sure of it");
    let caught =
        std::panic::catch_unwind(|| canary.debug("itself", &"a secret of some length, to be sure of it"));
    assert!(caught.is_err());
}

#[test]
fn secrets_and_what_signs_with_them() {
    let bytes = [0xc4u8, 0x9a, 0x11, 0x72].repeat(8);
    let canary = Canary::of(&bytes);
    let secret = SecretBytes::new(bytes.clone());
    canary.debug("bytes", &secret);
    canary.display("bytes", &secret);
    canary.debug("signer", &Signer::shared(secret.clone()));
    canary.debug("kas signer", &KasSigner::gitlab(secret.clone()));
    canary.debug("key", &VerifyingKey::shared(secret.clone()).unwrap());
    canary.debug("verifier", &external_api(secret, IssuerCheck::Any).unwrap());
    let text = Secret::from("correct horse battery staple");
    let canary = Canary::of(text.expose().as_bytes());
    canary.debug("text", &text);
    canary.display("text", &text);
    canary.debug("optional text", &Some(&text));
}

#[test]
fn private_keys() -> Result<()> {
    let key = PrivateKey::generate()?;
    let pem = key.to_pem();
    let body: String = pem.expose().lines().filter(|line| !line.starts_with('-')).collect();
    // The last 32 bytes of the encoding are the key itself.
    let der = STANDARD.decode(&body)?;
    for canary in [Canary::of(&der[der.len() - 32..]), Canary::of(body.as_bytes())] {
        canary.debug("key", &key);
        canary.debug("signer", &Signer::ed25519(key.clone()));
        canary.debug("issuer", &CallerIssuer::new(key.clone()));
        let credential = Credential::self_signed(&key)?;
        canary.debug("credential", &credential);
        let source = CredentialSource::Fixed(credential);
        canary.debug("acceptor", &ServerTls::new(source.clone()).build(now())?);
        canary.debug("connector", &ClientTls::pinned(key.public().pin()).credential(source).build(now())?);
        // Broken in every place, it is not quoted by the complaint.
        for cut in 0..pem.expose().len() {
            let broken = format!("{}{}", &pem.expose()[..cut], &pem.expose()[cut + 1..]);
            if let Err(error) = PrivateKey::from_pem(&Secret::from(broken)) {
                canary.error("broken key", &error);
            }
        }
    }
    Ok(())
}

#[test]
fn certificates_on_disk() -> Result<()> {
    let scene = Scene::new()?;
    let issued = scene.issue(&Scene::server_leaf())?;
    let body: String = issued.key_pem.expose().lines().filter(|line| !line.starts_with('-')).collect();
    let canary = Canary::of(body.as_bytes());
    let folder = tempfile::tempdir()?;
    write_pair(folder.path(), &issued)?;
    let acceptor = ServerTls::new(files(folder.path())).build(now())?;
    canary.debug("issued", &issued);
    canary.debug("acceptor", &acceptor);
    canary.debug("authority", &scene.authority);
    // The two files swapped: the key stands where a certificate is looked for.
    std::fs::write(folder.path().join("tls.crt"), issued.key_pem.expose())?;
    let Refresh::Refused(error) = acceptor.refresh(now()) else { panic!("accepted") };
    canary.error("refresh", &error);
    // A key on one line, and an authority whose file is cut off inside its key.
    std::fs::write(folder.path().join("tls.key"), format!("-----BEGIN PRIVATE KEY {body}"))?;
    let Refresh::Refused(error) = acceptor.refresh(now()) else { panic!("accepted") };
    canary.error("refresh", &error);
    let path = scene.folder.path().join("authority/authority.pem");
    let whole = std::fs::read_to_string(&path)?;
    let line = whole.lines().nth(1).unwrap();
    std::fs::write(&path, &whole[..whole.find(line).unwrap() + line.len()])?;
    let error = Authority::open(scene.folder.path().join("authority"), now()).unwrap_err();
    Canary::of(line.as_bytes()).error("authority", &error);
    Ok(())
}

#[test]
fn tokens() -> Result<()> {
    let token = Token::generate(TokenKind::Join)?;
    let canary = Canary::of(&token.text().expose().as_bytes()[4..]);
    canary.debug("token", &token);
    let record = TokenRecord::new(&token, "paris", now()).limited(1);
    canary.debug("record", &record);
    canary.check("stored record", &serde_json::to_string(&record)?);
    for wrong in
        [&token.text().expose()[..59], &token.text().expose().to_uppercase(), &token.text().expose()[4..]]
    {
        canary.error("misspelt", &Token::parse(wrong).unwrap_err());
    }
    let refusal = record.redeem(TokenKind::User, token.text().expose(), now()).unwrap_err();
    canary.error("refusal", &refusal);
    // Signed tokens are bearer secrets, too.
    let issuer = CallerIssuer::new(PrivateKey::generate()?);
    let site = Subject::site("paris")?;
    let signed = issuer.issue("ann", &site, None, now(), std::time::Duration::from_mins(1))?;
    Canary::of(signed.expose().as_bytes()).debug("signed", &signed);
    let verifier = external_api(SecretBytes::new(vec![1; 32]), IssuerCheck::Any)?;
    let error = verifier.verify(signed.expose(), Timestamp::now()).unwrap_err();
    Canary::of(signed.expose().as_bytes()).error("verify", &error);
    Ok(())
}

#[test]
fn files_with_the_wrong_thing_inside() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("secret");
    let content = b"correct horse battery staple, which is not base64!";
    std::fs::write(&path, content)?;
    let canary = Canary::of(content);
    canary.error("shared secret", &SharedSecrets::from_file(&path).unwrap_err());
    canary.error("private key", &PrivateKey::open(&path).unwrap_err());
    Ok(())
}
