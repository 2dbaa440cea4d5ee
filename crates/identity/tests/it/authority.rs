//! The built-in authority, on disk and in use.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use jiff::SignedDuration;
use tarbet_identity::authority::{Authority, AuthorityError, Leaf, Usage, renewal_due};
use tarbet_identity::tls::{AltName, CaSource, ClientTls, Credential, CredentialSource, ServerTls};
use tarbet_identity::{Subject, SubjectKind};

use super::scene::{Echo, Scene, echo, now};

#[test]
fn made_once_and_loaded_ever_after() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state/ca");
    let certificates: Vec<String> = std::thread::scope(|scope| {
        let open = || Authority::open(&path, now()).unwrap().certificate_pem().to_owned();
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(certificates.iter().all(|certificate| *certificate == certificates[0]));
    assert_eq!(fs::read_to_string(path.join("ca.crt"))?, certificates[0]);
    assert_eq!(fs::metadata(path.join("authority.pem"))?.permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(&path)?.permissions().mode() & 0o777, 0o700);
    assert_eq!(fs::read_dir(&path)?.count(), 2);
    Ok(())
}

#[test]
fn what_a_crash_leaves_behind_does_no_harm() -> Result<()> {
    let scene = Scene::new()?;
    let path = scene.folder.path().join("authority");
    fs::write(path.join(".authority.pem.0123456789abcdef.tmp"), "-----BEGIN PRIV")?;
    fs::remove_file(path.join("ca.crt"))?;
    let again = Authority::open(&path, now())?;
    assert_eq!(again.certificate_pem(), scene.authority.certificate_pem());
    assert_eq!(fs::read_to_string(path.join("ca.crt"))?, again.certificate_pem());
    Ok(())
}

#[test]
fn a_damaged_file_is_said_to_be_so_and_is_not_replaced() -> Result<()> {
    let scene = Scene::new()?;
    let path = scene.folder.path().join("authority");
    let file = path.join("authority.pem");
    let whole = fs::read_to_string(&file)?;
    let other = scene.issue(&Scene::server_leaf())?;
    let key_end = whole.find("-----BEGIN CERTIFICATE").unwrap();
    let strangers = format!("{}{}", other.key_pem.expose(), &whole[key_end..]);
    for text in ["garbage", &whole[..200], &whole[..key_end], &whole[key_end..], &strangers] {
        fs::write(&file, text)?;
        let error = Authority::open(&path, now()).unwrap_err();
        assert!(
            matches!(error, AuthorityError::Damaged { .. } | AuthorityError::NotAnAuthority { .. }),
            "{error}"
        );
        assert_eq!(fs::read_to_string(&file)?, text);
    }
    fs::write(&file, "")?;
    assert!(matches!(Authority::open(&path, now()).unwrap_err(), AuthorityError::Load(_)));
    Ok(())
}

#[tokio::test]
async fn a_renewed_authority_is_the_same_to_those_who_trust_it() -> Result<()> {
    let scene = Scene::new()?;
    let path = scene.folder.path().join("authority");
    let old = scene.authority.certificate_pem().to_owned();
    let six_years = SignedDuration::from_hours(6 * 365 * 24);
    assert_eq!(Authority::open(&path, now() + six_years)?.certificate_pem(), old);
    // A leaf of the old certificate, then the authority renewed (long before the leaf ends, for us).
    let server = ServerTls::new(scene.source(Scene::server_leaf())).build(now())?;
    let renewed = Authority::open(&path, now() + SignedDuration::from_hours(7 * 365 * 24))?;
    assert_ne!(renewed.certificate_pem(), old);
    // Who trusts the old certificate believes leaves of the renewed authority, and they have its name.
    let leaf = Arc::new(Authority::open(&path, now())?).issue(&Scene::server_leaf(), now())?;
    let credential = Credential::from_pem(leaf.certificate_pem.as_bytes(), &leaf.key_pem)?;
    let newer = ServerTls::new(CredentialSource::Fixed(credential)).build(now())?;
    let connector = ClientTls::only(CaSource::Pem(old)).build(now())?;
    for acceptor in [server, newer] {
        let server = Echo::start(acceptor).await?;
        echo(&mut server.dial(&connector).await?).await?;
    }
    Ok(())
}

#[test]
fn leaves_say_what_was_asked_and_end_in_time() -> Result<()> {
    let scene = Scene::new()?;
    let site = Subject::site("paris")?;
    let leaf = Leaf::new(Usage::Both).dns("gw.example").ip([10, 0, 0, 1]).subject(&site);
    let issued = scene.issue(&leaf.clone().valid_for(Duration::from_hours(1)))?;
    let credential = Credential::from_pem(issued.certificate_pem.as_bytes(), &issued.key_pem)?;
    let identity = credential.identity();
    let uri = AltName::Uri("spiffe://tarbet/site/paris".to_owned());
    assert_eq!(identity.names, [AltName::Dns("gw.example".into()), AltName::Ip([10, 0, 0, 1].into()), uri]);
    assert_eq!(identity.subject(), Some(site));
    assert_eq!(identity.common_name.as_deref(), Some("paris"));
    assert_eq!(identity.expires.as_second(), issued.not_after.as_second());
    let due = renewal_due(issued.not_before, issued.not_after);
    assert!(issued.not_before < due && due < issued.not_after);
    // Never beyond the authority itself.
    let forever = scene.issue(&leaf.clone().valid_for(Duration::from_hours(50 * 365 * 24)))?;
    assert!(forever.not_after < now() + SignedDuration::from_hours(10 * 366 * 24));
    // Two parties in one certificate are none.
    let both = leaf.subject(&Subject::new(SubjectKind::User, "ann")?);
    let both = scene.issue(&both)?;
    let both = Credential::from_pem(both.certificate_pem.as_bytes(), &both.key_pem)?;
    assert_eq!(both.identity().subject(), None);
    assert!(matches!(
        scene.authority.issue(&Leaf::new(Usage::Server).dns("é"), now()),
        Err(AuthorityError::Name(_))
    ));
    assert!(matches!(
        scene.authority.issue(&Scene::server_leaf(), jiff::Timestamp::MAX),
        Err(AuthorityError::Date)
    ));
    Ok(())
}
