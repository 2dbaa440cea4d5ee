//! Certificates that change under live connections.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use jiff::SignedDuration;
use tarbet_identity::authority::{Authority, Leaf, Usage};
use tarbet_identity::tls::{
    CaSource, ClientCerts, ClientTls, Connector, HandshakeError, Refresh, ServerTls, TlsError,
};

use super::scene::{Echo, Scene, echo, effort, files, fingerprint, now, write_pair};

/// A folder as the kubelet mounts a secret: names point through `..data`, which is swapped.
struct Mount<'a>(&'a Path);

impl Mount<'_> {
    fn publish(&self, version: u32, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        let data = format!("..version_{version}");
        fs::create_dir(self.0.join(&data))?;
        fill(&self.0.join(&data))?;
        symlink(&data, self.0.join("..data_tmp"))?;
        fs::rename(self.0.join("..data_tmp"), self.0.join("..data"))?;
        for name in ["tls.crt", "tls.key", "ca.crt"] {
            if !self.0.join(name).is_symlink() {
                symlink(format!("..data/{name}"), self.0.join(name))?;
            }
        }
        Ok(())
    }
}

#[tokio::test]
async fn old_connections_go_on_and_new_ones_see_the_new_certificate() -> Result<()> {
    let scene = Scene::new()?;
    let folder = tempfile::tempdir()?;
    let mount = Mount(folder.path());
    mount.publish(0, |path| write_pair(path, &scene.issue(&Scene::server_leaf())?))?;
    let acceptor = ServerTls::new(files(folder.path())).build(now())?;
    let server = Echo::start(acceptor.clone()).await?;
    let connector = scene.connector()?;
    let mut open = Vec::new();
    for version in 1..=3 * effort() {
        let mut stream = server.dial(&connector).await?;
        assert_eq!(acceptor.identity().fingerprint, fingerprint(&stream));
        echo(&mut stream).await?;
        assert!(open.iter().all(|older| fingerprint(older) != fingerprint(&stream)));
        open.push(stream);
        mount.publish(version, |path| write_pair(path, &scene.issue(&Scene::server_leaf())?))?;
        assert!(matches!(acceptor.refresh(now()), Refresh::Replaced));
        assert!(matches!(acceptor.refresh(now()), Refresh::Unchanged));
        for stream in &mut open {
            echo(stream).await?;
        }
    }
    Ok(())
}

/// What is broken, how, and what must be said about it.
type Breakage<'a> = (&'a str, &'a dyn Fn() -> std::io::Result<()>, fn(&TlsError) -> bool);

#[tokio::test]
async fn broken_files_keep_the_old_certificate() -> Result<()> {
    let scene = Scene::new()?;
    let folder = tempfile::tempdir()?;
    let [certificate, key] = ["tls.crt", "tls.key"].map(|name| folder.path().join(name));
    let good = scene.issue(&Scene::server_leaf())?;
    write_pair(folder.path(), &good)?;
    let acceptor = ServerTls::new(files(folder.path())).build(now())?;
    let server = Echo::start(acceptor.clone()).await?;
    let mut first = server.dial(&scene.connector()?).await?;
    let before = fingerprint(&first);

    let other = scene.issue(&Scene::server_leaf())?;
    let past = scene.authority.issue(&Scene::server_leaf(), now() - SignedDuration::from_hours(365 * 24))?;
    let breakages: [Breakage<'_>; 7] = [
        ("half written", &|| fs::write(&certificate, &good.certificate_pem[..100]), |e| {
            matches!(e, TlsError::Certificates { .. })
        }),
        ("empty", &|| fs::write(&certificate, ""), |e| matches!(e, TlsError::Certificates { .. })),
        ("a certificate for another key", &|| fs::write(&certificate, &other.certificate_pem), |e| {
            matches!(e, TlsError::Pair(_))
        }),
        (
            "no certificate inside",
            &|| fs::write(&certificate, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
            |e| matches!(e, TlsError::NotX509),
        ),
        ("gone", &|| fs::remove_file(&certificate), |e| matches!(e, TlsError::ReadFile { .. })),
        ("a certificate as key", &|| fs::write(&key, &good.certificate_pem), |e| {
            matches!(e, TlsError::Key { .. })
        }),
        (
            "expired",
            &|| {
                fs::write(&certificate, &past.certificate_pem)
                    .and_then(|()| fs::write(&key, past.key_pem.expose()))
            },
            |e| matches!(e, TlsError::Expired { .. }),
        ),
    ];
    for (what, break_it, expected) in breakages {
        break_it()?;
        let Refresh::Refused(error) = acceptor.refresh(now()) else { panic!("{what} was accepted") };
        assert!(expected(&error), "{what}: {error:?}");
        assert!(matches!(acceptor.refresh(now()), Refresh::Unchanged), "{what}: told once is enough");
        echo(&mut first).await?;
        assert_eq!(fingerprint(&server.dial(&scene.connector()?).await?), before, "{what}");
        write_pair(folder.path(), &good)?;
        assert!(matches!(acceptor.refresh(now()), Refresh::Unchanged), "{what}: mended");
    }
    write_pair(folder.path(), &other)?;
    assert!(matches!(acceptor.refresh(now()), Refresh::Replaced));
    assert_ne!(fingerprint(&server.dial(&scene.connector()?).await?), before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_handshake_sees_half_a_change() -> Result<()> {
    let scene = Scene::new()?;
    let folder = tempfile::tempdir()?;
    write_pair(folder.path(), &scene.issue(&Scene::server_leaf())?)?;
    let acceptor = ServerTls::new(files(folder.path())).build(now())?;
    let server = Arc::new(Echo::start(acceptor.clone()).await?);
    let stop = Arc::new(AtomicBool::new(false));
    let dialler = |connector: Connector| {
        let (server, stop) = (Arc::clone(&server), Arc::clone(&stop));
        tokio::spawn(async move {
            let mut held = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let mut stream = server.dial(&connector).await?;
                echo(&mut stream).await?;
                if held.len() < 20 {
                    held.push(stream);
                }
            }
            for stream in &mut held {
                echo(stream).await?;
            }
            anyhow::Ok(())
        })
    };
    let dialled = [dialler(scene.connector()?), dialler(scene.connector()?)];
    for _ in 0..20 * effort() {
        // Looked at between the two writes, as can happen; the pair does not fit then.
        let next = scene.issue(&Scene::server_leaf())?;
        fs::write(folder.path().join("tls.crt"), &next.certificate_pem)?;
        assert!(matches!(acceptor.refresh(now()), Refresh::Refused(TlsError::Pair(_))));
        fs::write(folder.path().join("tls.key"), next.key_pem.expose())?;
        assert!(matches!(acceptor.refresh(now()), Refresh::Replaced));
        tokio::task::yield_now().await;
    }
    stop.store(true, Ordering::Relaxed);
    for task in dialled {
        task.await??;
    }
    Ok(())
}

#[tokio::test]
async fn a_timer_does_it_unasked() -> Result<()> {
    let scene = Scene::new()?;
    let folder = tempfile::tempdir()?;
    write_pair(folder.path(), &scene.issue(&Scene::server_leaf())?)?;
    let acceptor = ServerTls::new(files(folder.path())).build(now())?;
    let server = Echo::start(acceptor.clone()).await?;
    let before = fingerprint(&server.dial(&scene.connector()?).await?);
    let timer = tokio::time::interval(Duration::from_millis(5));
    let follower = tokio::spawn(async move { acceptor.follow(timer, now).await });
    write_pair(folder.path(), &scene.issue(&Scene::server_leaf())?)?;
    let changed = async {
        while fingerprint(&server.dial(&scene.connector()?).await?) == before {}
        anyhow::Ok(())
    };
    tokio::time::timeout(Duration::from_mins(1), changed).await??;
    follower.abort();
    Ok(())
}

#[tokio::test]
async fn trusted_authorities_rotate_too() -> Result<()> {
    let (old, new) = (Scene::new()?, Scene::new()?);
    let bundle = old.folder.path().join("clients.crt");
    fs::write(&bundle, old.authority.certificate_pem())?;
    let clients = ClientCerts::Required(CaSource::File(bundle.clone()));
    let acceptor = ServerTls::new(old.source(Scene::server_leaf())).clients(clients).build(now())?;
    let mut server = Echo::start(acceptor.clone()).await?;
    let client = |scene: &Scene| {
        let leaf = Leaf::new(Usage::Client).dns("client");
        anyhow::Ok(ClientTls::only(old.ca()).credential(scene.source(leaf)).build(now())?)
    };
    let (of_old, of_new) = (client(&old)?, client(&new)?);
    let mut first = server.dial(&of_old).await?;
    assert!(server.seen().await?.is_ok());
    drop(server.dial(&of_new).await);
    assert!(matches!(server.seen().await?, Err(HandshakeError::UnknownIssuer)));

    fs::write(&bundle, new.authority.certificate_pem())?;
    assert!(matches!(acceptor.refresh(now()), Refresh::Replaced));
    echo(&mut first).await?;
    echo(&mut server.dial(&of_new).await?).await?;
    assert!(server.seen().await?.is_ok());
    // No session of before lets the old authority's client slip in.
    drop(server.dial(&of_old).await);
    assert!(matches!(server.seen().await?, Err(HandshakeError::UnknownIssuer)));
    Ok(())
}

#[tokio::test]
async fn a_clock_that_was_ahead_leaves_no_certificate_of_the_future() -> Result<()> {
    let scene = Scene::new()?;
    let acceptor = ServerTls::new(scene.source(Scene::server_leaf())).build(now())?;
    let server = Echo::start(acceptor.clone()).await?;
    let connector = scene.connector()?;
    let mut live = server.dial(&connector).await?;
    for ahead in [SignedDuration::from_hours(24 * 365), SignedDuration::from_hours(24 * 365 * 5)] {
        assert!(matches!(acceptor.refresh(now() + ahead), Refresh::Replaced));
        assert!(server.dial(&connector).await.is_err(), "peers with the right clock do not take it");
        assert!(matches!(acceptor.refresh(now()), Refresh::Replaced));
        assert!(matches!(acceptor.refresh(now() - SignedDuration::from_mins(1)), Refresh::Unchanged));
        echo(&mut server.dial(&connector).await?).await?;
        echo(&mut live).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_client_shows_its_new_certificate() -> Result<()> {
    let scene = Scene::new()?;
    let folder = tempfile::tempdir()?;
    let leaf = |name: &str| Leaf::new(Usage::Client).dns(name);
    write_pair(folder.path(), &scene.issue(&leaf("first"))?)?;
    let clients = ClientCerts::Required(scene.ca());
    let acceptor = ServerTls::new(scene.source(Scene::server_leaf())).clients(clients).build(now())?;
    let mut server = Echo::start(acceptor).await?;
    let connector = ClientTls::only(scene.ca()).credential(files(folder.path())).build(now())?;
    let mut names = Vec::new();
    for next in ["second", "third"] {
        drop(server.dial(&connector).await?);
        names.extend(server.seen().await??.unwrap().names);
        write_pair(folder.path(), &scene.issue(&leaf(next))?)?;
        assert!(matches!(connector.refresh(now()), Refresh::Replaced));
    }
    let expected = ["first", "second"].map(|name| tarbet_identity::tls::AltName::Dns(name.into()));
    assert_eq!(names, expected);
    Ok(())
}

#[tokio::test]
async fn the_built_in_authority_renews_before_the_end() -> Result<()> {
    let scene = Scene::new()?;
    let acceptor = ServerTls::new(scene.source(Scene::server_leaf())).build(now())?;
    let server = Echo::start(acceptor.clone()).await?;
    let first = fingerprint(&server.dial(&scene.connector()?).await?);
    let day = |days: i64| now() + SignedDuration::from_hours(24 * days);
    assert!(matches!(acceptor.refresh(day(59)), Refresh::Unchanged));
    assert_eq!(fingerprint(&server.dial(&scene.connector()?).await?), first);
    assert!(matches!(acceptor.refresh(day(61)), Refresh::Replaced));
    assert!(matches!(acceptor.refresh(day(62)), Refresh::Unchanged));
    // Issued for a clock of two months from now, so looked at through a file of its authority only.
    let fresh = Authority::open(scene.folder.path().join("authority"), now())?;
    assert_eq!(fresh.certificate_pem(), scene.authority.certificate_pem());
    Ok(())
}
