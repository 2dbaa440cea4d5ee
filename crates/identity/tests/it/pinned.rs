//! Two ends that know each other by key alone.

use std::sync::Arc;

use anyhow::Result;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tarbet_identity::tls::{
    Acceptor, ClientCerts, ClientTls, Connector, Credential, CredentialSource, HandshakeError, ServerTls,
};
use tarbet_identity::{PinSet, PrivateKey};

use super::scene::{Echo, Scene, echo, now};

fn own(key: &PrivateKey) -> Result<CredentialSource> {
    Ok(CredentialSource::Fixed(Credential::self_signed(key)?))
}

fn site(key: &PrivateKey, clients: &PinSet) -> Result<Acceptor> {
    Ok(ServerTls::new(own(key)?).clients(ClientCerts::Pinned(clients.clone())).build(now())?)
}

fn caller(key: &PrivateKey, site: &PrivateKey) -> Result<Connector> {
    Ok(ClientTls::pinned(site.public().pin()).credential(own(key)?).build(now())?)
}

#[tokio::test]
async fn each_end_takes_only_the_key_it_knows() -> Result<()> {
    let [paris, lyon, ann, eve] = std::array::from_fn(|_| PrivateKey::generate().unwrap());
    let known = PinSet::from(ann.public().pin());
    let mut server = Echo::start(site(&paris, &known)?).await?;

    let mut stream = server.dial(&caller(&ann, &paris)?).await?;
    assert_eq!(stream.peer().unwrap().pin, paris.public().pin());
    echo(&mut stream).await?;
    assert_eq!(server.seen().await??.unwrap().pin, ann.public().pin());

    let error = server.dial(&caller(&ann, &lyon)?).await.unwrap_err();
    assert!(matches!(error.downcast()?, HandshakeError::UnknownKey));
    assert!(server.seen().await?.is_err());

    drop(server.dial(&caller(&eve, &paris)?).await);
    assert!(matches!(server.seen().await?, Err(HandshakeError::UnknownKey)));
    let nameless = ClientTls::pinned(paris.public().pin()).build(now())?;
    drop(server.dial(&nameless).await);
    assert!(matches!(server.seen().await?, Err(HandshakeError::NoCertificate)));

    // Revoked: what stands goes on, what comes is refused, also with a connector that was in before.
    let again = caller(&ann, &paris)?;
    echo(&mut server.dial(&again).await?).await?;
    assert!(server.seen().await?.is_ok());
    known.remove(&ann.public().pin());
    drop(server.dial(&again).await);
    assert!(matches!(server.seen().await?, Err(HandshakeError::UnknownKey)));
    echo(&mut stream).await?;
    Ok(())
}

#[tokio::test]
async fn a_client_forgets_a_server_whose_pin_it_drops() -> Result<()> {
    let paris = PrivateKey::generate()?;
    let server = Echo::start(ServerTls::new(own(&paris)?).build(now())?).await?;
    let known = PinSet::from(paris.public().pin());
    let connector = ClientTls::pinned(known.clone()).build(now())?;
    let mut stream = server.dial(&connector).await?;
    echo(&mut stream).await?;
    known.set([]);
    let error = server.dial(&connector).await.unwrap_err();
    assert!(matches!(error.downcast()?, HandshakeError::UnknownKey));
    echo(&mut stream).await
}

#[tokio::test]
async fn a_new_certificate_of_the_same_key_is_the_same_peer() -> Result<()> {
    let [paris, ann] = std::array::from_fn(|_| PrivateKey::generate().unwrap());
    let known = PinSet::from(ann.public().pin());
    let connector = caller(&ann, &paris)?;
    let mut fingerprints = Vec::new();
    for _ in 0..2 {
        let again = PrivateKey::from_pem(&paris.to_pem())?;
        let server = Echo::start(site(&again, &known)?).await?;
        let mut stream = server.dial(&connector).await?;
        echo(&mut stream).await?;
        fingerprints.push(stream.peer().unwrap().pin);
    }
    assert_eq!(fingerprints, [paris.public().pin(); 2]);
    Ok(())
}

/// Shows the victim's certificate, which is no secret, and signs with another key.
#[derive(Debug)]
struct Impostor(Arc<CertifiedKey>);

impl ResolvesServerCert for Impostor {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

#[tokio::test]
async fn showing_the_pinned_key_without_holding_it_is_not_enough() -> Result<()> {
    let [paris, eve] = std::array::from_fn(|_| PrivateKey::generate().unwrap());
    let own = rcgen::KeyPair::from_pem(paris.to_pem().expose())?;
    let shown = rcgen::CertificateParams::new(vec!["localhost".to_owned()])?.self_signed(&own)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let held = rustls::pki_types::pem::PemObject::from_pem_slice(eve.to_pem().expose().as_bytes())?;
    let held = provider.key_provider.load_private_key(held)?;
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Impostor(Arc::new(CertifiedKey::new(vec![shown.into()], held)))));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(async move {
        let (stream, _) = listener.accept().await?;
        tokio_rustls::TlsAcceptor::from(Arc::new(config)).accept(stream).await.map(drop)
    });
    let connector = ClientTls::pinned(paris.public().pin()).build(now())?;
    let stream = tokio::net::TcpStream::connect(address).await?;
    let error = connector.connect("localhost", stream).await.unwrap_err();
    assert!(!matches!(error, HandshakeError::UnknownKey), "the key was shown: {error:?}");
    assert!(server.await?.is_err());
    Ok(())
}

#[tokio::test]
async fn end_to_end_inside_a_stream_that_others_carry() -> Result<()> {
    // The outer TLS ends at a gateway that copies bytes; the inner one ends at the site.
    let scene = Scene::new()?;
    let [paris, ann] = std::array::from_fn(|_| PrivateKey::generate().unwrap());
    let mut site = Echo::start(site(&paris, &PinSet::from(ann.public().pin()))?).await?;
    let gateway = ServerTls::new(scene.source(Scene::server_leaf())).build(now())?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let mut onward = site.tcp().await?;
    let carrier = tokio::spawn(async move {
        let (stream, _) = listener.accept().await?;
        let mut stream = gateway.accept(stream).await?;
        tokio::io::copy_bidirectional(&mut stream, &mut onward).await?;
        anyhow::Ok(())
    });
    let outer =
        scene.connector()?.connect("localhost", tokio::net::TcpStream::connect(address).await?).await?;
    let mut inner = caller(&ann, &paris)?.connect("paris", outer).await?;
    tokio::io::AsyncWriteExt::write_all(&mut inner, b"ping").await?;
    let mut answer = [0; 4];
    tokio::io::AsyncReadExt::read_exact(&mut inner, &mut answer).await?;
    assert_eq!(&answer, b"ping");
    assert_eq!(inner.peer().unwrap().pin, paris.public().pin());
    assert_eq!(inner.get_ref().peer().unwrap().subject(), None);
    assert_eq!(site.seen().await??.unwrap().pin, ann.public().pin());
    carrier.abort();
    Ok(())
}
