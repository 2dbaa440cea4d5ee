//! Who gets in, who does not, and what is said about it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use rustls::pki_types::ServerName;
use tarbet_identity::Subject;
use tarbet_identity::authority::{Leaf, Usage};
use tarbet_identity::tls::{CaSource, ClientCerts, ClientTls, HandshakeError, ServerTls, TlsError};
use tokio::io::AsyncWriteExt as _;

use super::scene::{Echo, Scene, echo, now};

fn refusal<T: std::fmt::Debug>(result: Result<T>) -> HandshakeError {
    result.unwrap_err().downcast().unwrap()
}

#[tokio::test]
async fn clients_with_and_without_certificates() -> Result<()> {
    let (scene, stranger) = (Scene::new()?, Scene::new()?);
    let site = Subject::site("paris")?;
    let leaf = Leaf::new(Usage::Client).subject(&site);
    let known = ClientTls::only(scene.ca()).credential(scene.source(leaf.clone())).build(now())?;
    let unknown = ClientTls::only(scene.ca()).credential(stranger.source(leaf)).build(now())?;
    let as_server = ClientTls::only(scene.ca()).credential(scene.source(Scene::server_leaf())).build(now())?;
    let none = scene.connector()?;
    let server = |clients| ServerTls::new(scene.source(Scene::server_leaf())).clients(clients).build(now());

    let mut required = Echo::start(server(ClientCerts::Required(scene.ca()))?).await?;
    echo(&mut required.dial(&known).await?).await?;
    assert_eq!(required.seen().await??.and_then(|peer| peer.subject()), Some(site.clone()));
    drop(required.dial(&none).await);
    assert!(matches!(required.seen().await?, Err(HandshakeError::NoCertificate)));
    drop(required.dial(&unknown).await);
    assert!(matches!(required.seen().await?, Err(HandshakeError::UnknownIssuer)));
    drop(required.dial(&as_server).await);
    assert!(required.seen().await?.is_err(), "a server's certificate is not a client's");

    let mut optional = Echo::start(server(ClientCerts::Optional(scene.ca()))?).await?;
    echo(&mut optional.dial(&known).await?).await?;
    assert_eq!(optional.seen().await??.and_then(|peer| peer.subject()), Some(site));
    echo(&mut optional.dial(&none).await?).await?;
    assert_eq!(optional.seen().await??, None);
    drop(optional.dial(&unknown).await);
    assert!(matches!(optional.seen().await?, Err(HandshakeError::UnknownIssuer)));

    let mut not_asked = Echo::start(server(ClientCerts::NotAsked)?).await?;
    echo(&mut not_asked.dial(&known).await?).await?;
    assert_eq!(not_asked.seen().await??, None);
    Ok(())
}

#[tokio::test]
async fn servers_are_checked_by_name_and_authority() -> Result<()> {
    let (scene, stranger) = (Scene::new()?, Scene::new()?);
    let leaf = Leaf::new(Usage::Server).dns("gateway.example");
    let mut server = Echo::start(ServerTls::new(scene.source(leaf)).build(now())?).await?;
    assert!(matches!(refusal(server.dial(&scene.connector()?).await), HandshakeError::WrongName));
    assert!(matches!(server.seen().await?, Err(HandshakeError::Refused(_))));
    let named = || ClientTls::only(scene.ca()).server_name("gateway.example");
    echo(&mut server.dial(&named().build(now())?).await?).await?;
    let strange = ClientTls::only(stranger.ca()).server_name("gateway.example").build(now())?;
    assert!(matches!(refusal(server.dial(&strange).await), HandshakeError::UnknownIssuer));
    // The system's authorities do not know ours; adding it is enough, wherever it stands.
    let path = scene.folder.path().join("authority/ca.crt");
    let added =
        ClientTls::new().add_ca(stranger.ca()).add_ca(CaSource::File(path)).server_name("gateway.example");
    echo(&mut server.dial(&added.build(now())?).await?).await?;
    let careless = ClientTls::only(stranger.ca()).dangerously_skip_verification().build(now())?;
    echo(&mut server.dial(&careless).await?).await?;
    Ok(())
}

#[tokio::test]
async fn application_protocols_are_agreed_on() -> Result<()> {
    let scene = Scene::new()?;
    let acceptor = ServerTls::new(scene.source(Scene::server_leaf())).alpn(["h2", "http/1.1"]).build(now())?;
    let server = Echo::start(acceptor).await?;
    let client = |protocols: &[&str]| ClientTls::only(scene.ca()).alpn(protocols).build(now());
    assert_eq!(server.dial(&client(&["http/1.1", "h2"])?).await?.alpn(), Some(&b"h2"[..]));
    assert_eq!(server.dial(&client(&["http/1.1"])?).await?.alpn(), Some(&b"http/1.1"[..]));
    assert_eq!(server.dial(&client(&[])?).await?.alpn(), None);
    assert!(matches!(refusal(server.dial(&client(&["spdy"])?).await), HandshakeError::Refused(_)));
    Ok(())
}

#[tokio::test]
async fn tls_1_2_is_the_oldest_spoken() -> Result<()> {
    let scene = Scene::new()?;
    let server = Echo::start(ServerTls::new(scene.source(Scene::server_leaf())).build(now())?).await?;
    let mut roots = rustls::RootCertStore::empty();
    let pem = scene.authority.certificate_pem().as_bytes();
    roots.add(
        <rustls::pki_types::CertificateDer<'_> as rustls::pki_types::pem::PemObject>::from_pem_slice(pem)?,
    )?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS12])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = connector.connect(ServerName::try_from("localhost")?, server.tcp().await?).await?;
    assert_eq!(stream.get_ref().1.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_2));
    Ok(())
}

#[tokio::test]
async fn other_protocols_silence_and_hanging_up_have_their_own_words() -> Result<()> {
    let scene = Scene::new()?;
    let mut server = Echo::start(ServerTls::new(scene.source(Scene::server_leaf())).build(now())?).await?;
    let mut plain = server.tcp().await?;
    plain.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await?;
    assert!(matches!(server.seen().await?, Err(HandshakeError::NotTls)));
    drop(server.tcp().await?);
    assert!(matches!(server.seen().await?, Err(HandshakeError::Closed)));
    let connector = scene.connector()?;
    let (near, far) = tokio::io::duplex(1024);
    drop(far);
    assert!(matches!(connector.connect("localhost", near).await, Err(HandshakeError::Closed)));
    let (near, _far) = tokio::io::duplex(1024);
    assert!(matches!(connector.connect("not a name", near).await, Err(HandshakeError::BadName(_))));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_not_waited_for_for_ever() -> Result<()> {
    let scene = Scene::new()?;
    let settings = ServerTls::new(scene.source(Scene::server_leaf()));
    let acceptor = settings.handshake_timeout(Duration::from_hours(1)).build(now())?;
    let (near, _far) = tokio::io::duplex(1024);
    assert!(matches!(acceptor.accept(near).await, Err(HandshakeError::TimedOut)));
    let (near, _far) = tokio::io::duplex(1024);
    assert!(matches!(scene.connector()?.connect("localhost", near).await, Err(HandshakeError::TimedOut)));
    Ok(())
}

#[test]
fn unusable_settings_are_errors_before_the_first_connection() -> Result<()> {
    let scene = Scene::new()?;
    let pem = |text: &str| CaSource::Pem(text.to_owned());
    let missing = CaSource::File(scene.folder.path().join("none"));
    assert!(matches!(ClientTls::only(missing.clone()).build(now()), Err(TlsError::ReadFile { .. })));
    assert!(matches!(ClientTls::new().add_ca(missing).build(now()), Err(TlsError::ReadFile { .. })));
    assert!(matches!(ClientTls::only(pem("x")).build(now()), Err(TlsError::Certificates { .. })));
    let junk = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert!(matches!(ClientTls::only(pem(junk)).build(now()), Err(TlsError::Authority { .. })));
    let odd_name = ClientTls::only(scene.ca()).server_name("no name");
    assert!(matches!(odd_name.build(now()), Err(TlsError::ServerName)));
    Ok(())
}
