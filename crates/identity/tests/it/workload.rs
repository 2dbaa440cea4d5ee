//! Servers of a mesh are known by an identity: whoever lacks it is refused, whatever else is right.

use std::time::Duration;

use anyhow::Result;
use tarbet_identity::authority::{Leaf, Usage};
use tarbet_identity::tls::{AltName, ClientTls, HandshakeError, ServerTls};

use super::scene::{Echo, Scene, echo, now};

const PAY: &str = "spiffe://mesh.west/ns/shop/sa/pay";

fn leaf(name: &str) -> Leaf {
    Leaf::new(Usage::Server).name(AltName::Uri(name.to_owned()))
}

/// What a client that expects `PAY` makes of a server with this certificate.
async fn verdict(trusted: &Scene, issuer: &Scene, leaf: Leaf) -> Result<Option<HandshakeError>> {
    let server = Echo::start(ServerTls::new(issuer.source(leaf)).build(now())?).await?;
    let client = ClientTls::workload(trusted.ca(), vec![PAY.to_owned()]).build(now())?;
    match server.dial(&client).await {
        Ok(mut stream) => {
            echo(&mut stream).await?;
            Ok(None)
        }
        Err(error) => Ok(Some(error.downcast()?)),
    }
}

#[tokio::test]
async fn only_the_expected_identity_of_a_trusted_authority_is_believed() -> Result<()> {
    let (scene, stranger) = (Scene::new()?, Scene::new()?);
    assert!(verdict(&scene, &scene, leaf(PAY)).await?.is_none(), "whatever name was dialled");
    let both = leaf("spiffe://mesh.west/ns/shop/sa/other").name(AltName::Uri(PAY.to_owned()));
    assert!(verdict(&scene, &scene, both).await?.is_none(), "one of several identities");

    for other in [
        "spiffe://mesh.west/ns/shop/sa/pays",
        "spiffe://mesh.west/ns/shop/sa/pa",
        "spiffe://mesh.east/ns/shop/sa/pay",
        "https://mesh.west/ns/shop/sa/pay",
    ] {
        let said = verdict(&scene, &scene, leaf(other)).await?;
        assert!(matches!(said, Some(HandshakeError::WrongName)), "{other}: {said:?}");
    }
    // The name that was dialled is right and counts for nothing.
    let said = verdict(&scene, &scene, Scene::server_leaf()).await?;
    assert!(matches!(said, Some(HandshakeError::WrongName)), "{said:?}");
    let said = verdict(&scene, &stranger, leaf(PAY)).await?;
    assert!(matches!(said, Some(HandshakeError::UnknownIssuer)), "{said:?}");
    let said = verdict(&scene, &scene, Leaf::new(Usage::Client).name(AltName::Uri(PAY.to_owned()))).await?;
    assert!(said.is_some(), "a client's certificate is not a server's");
    Ok(())
}

#[tokio::test]
async fn an_identity_whose_time_is_over_is_refused() -> Result<()> {
    let scene = Scene::new()?;
    let long_ago = now() - Duration::from_hours(48);
    let old = scene.authority.issue(&leaf(PAY).valid_for(Duration::from_hours(1)), long_ago)?;
    let folder = tempfile::tempdir()?;
    super::scene::write_pair(folder.path(), &old)?;
    // A server that was started while it was valid goes on showing it.
    let acceptor = ServerTls::new(super::scene::files(folder.path())).build(long_ago)?;
    let server = Echo::start(acceptor).await?;
    let client = ClientTls::workload(scene.ca(), vec![PAY.to_owned()]).build(now())?;
    let refused: HandshakeError = server.dial(&client).await.unwrap_err().downcast()?;
    assert!(matches!(refused, HandshakeError::NotValidNow), "{refused:?}");
    Ok(())
}
