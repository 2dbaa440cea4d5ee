//! Every certificate and every authority is replaced while people use it, and nobody notices.
//!
//! The way is the same for each: first both authorities are trusted, then the new certificate is shown,
//! then the old authority is trusted no more.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use tarbet_reach::dial::{ClientFiles, Trust};
use tarbet_testbed::{Authority, Subject};
use tokio::sync::RwLock;

use super::rotation::{ask, links_at};
use super::*;

/// How often a process took over what it read at a hangup.
async fn applied(page: &str) -> Result<u64> {
    let page = reqwest::get(format!("{page}/metrics")).await?.text().await?;
    let name = "tarbet_config_reloads_total{outcome=\"applied\"} ";
    page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).context("not counted")
}

pub(crate) async fn taken_over(process: &tarbet_testbed::Process, page: &str) -> Result<()> {
    let before = applied(page).await.unwrap_or(0);
    process.hangup()?;
    eventually(SOON, "the new files to be taken over", || async {
        ensure!(applied(page).await? > before, "not yet");
        Ok(())
    })
    .await
}

async fn read_again(gateways: &[Gateway; 2]) {
    for gateway in gateways {
        taken_over(&gateway.process, &gateway.observability()).await.unwrap();
    }
}

async fn trust_again(agents: &[Agent; 2]) {
    for agent in agents {
        let page = format!("http://127.0.0.1:{}", agent.probes());
        taken_over(&agent.process, &page).await.unwrap();
    }
}

/// Whether a listener shows a certificate of this authority.
async fn shows(url: &str, authority: &str) -> bool {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), authority).unwrap();
    let dial = Trust::new(Some(file.path()), None).unwrap().dial();
    dial(url.to_owned()).await.is_ok()
}

/// The listener has changed over.
async fn shows_only(url: &str, new: &str, old: &str) {
    eventually(SOON, url, || async { shows(url, new).await }).await.unwrap();
    assert!(!shows(url, old).await, "{url} still shows the old certificate");
}

/// A file of authorities to trust.
struct Trusted(PathBuf);

impl Trusted {
    fn new(folder: &Path, name: &str, authorities: &[&str]) -> Self {
        let trusted = Self(folder.join(name));
        trusted.only(authorities);
        trusted
    }

    fn only(&self, authorities: &[&str]) {
        std::fs::write(&self.0, authorities.concat()).unwrap();
    }
}

/// A caller with a certificate, at both gateways.
fn person(people: &Authority, folder: &Path, gateways: &[Gateway; 2], trusted: &Trusted) -> [Client; 2] {
    let files = people.issue_files(&Subject::client("ada", None), folder, "ada").unwrap();
    gateways.each_ref().map(|gateway| {
        let own = ClientFiles { certificate: &files.certificate, key: &files.key };
        Client::certified(&gateway.api(), own, Some(&trusted.0)).unwrap()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn every_certificate_is_replaced_under_load_and_no_request_fails() {
    let world = World::new().await;
    let folder = world.product.folder().path();
    let certificates = folder.join("certificates");
    std::fs::create_dir(&certificates).unwrap();
    let [private_old, private_new, people_old, people_new] =
        ["private 1", "private 2", "people 1", "people 2"].map(|name| Authority::new(name).unwrap());
    let between = Subject::loopback("gateways");
    let files = private_old.issue_files(&between, &certificates, "private").unwrap();
    let private = Trusted::new(folder, "private-trust.pem", &[private_old.pem()]);
    let people = Trusted::new(folder, "people.pem", &[people_old.pem()]);
    let settings = [
        format!(
            "gateway.private.tls={{cert_file: {}, key_file: {}}}",
            files.certificate.display(),
            files.key.display()
        ),
        format!("gateway.private.ca_file={}", private.0.display()),
        format!("gateway.api.tls.client_ca_file={}", people.0.display()),
        "gateway.certificates.grants=[{roles: {'*': user}}]".to_owned(),
    ];
    let flags: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let mut gateways = [world.gateway("one", &flags).await, world.gateway("two", &flags).await];

    // One site at both gateways, and one that the first reaches through the second only.
    let built_in_old = std::fs::read_to_string(world.product.authority()).unwrap();
    let trusted = Trusted::new(folder, "trust.pem", &[&built_in_old]);
    let agent = async |name: &str, at: &[&Gateway]| {
        let token = world.add_site(name, &gateways[0]).await;
        let token = world.product.folder().write(&format!("{name}.token"), &token).unwrap();
        let (token, trusted) = (token.display().to_string(), trusted.0.display().to_string());
        let mut words = vec!["agent", "--name", name, "--token-file", &token, "--ca-file", &trusted];
        let urls: Vec<String> = at.iter().map(|gateway| gateway.agents()).collect();
        words.extend(urls.iter().flat_map(|url| ["--gateway", url]));
        world.product.role(name, &words, &[]).await.unwrap()
    };
    let agents = [agent("lab", &[&gateways[0], &gateways[1]]).await, agent("far", &[&gateways[1]]).await];
    let caller = |people: &Authority| person(people, folder, &gateways, &trusted);
    let ways = Arc::new(RwLock::new(caller(&people_old)));
    let tally = Arc::new(Tally::default());
    let sites = &["lab", "far"];
    let callers: Vec<_> = (0..4)
        .map(|offset| tokio::spawn(ask(Arc::clone(&ways), sites, Arc::clone(&tally), offset)))
        .collect();
    tally.unnoticed("the start").await;

    // Among gateways: the private listener, by files.
    private.only(&[private_old.pem(), private_new.pem()]);
    read_again(&gateways).await;
    private_new.issue_files(&between, &certificates, "private").unwrap();
    read_again(&gateways).await;
    private.only(&[private_new.pem()]);
    read_again(&gateways).await;
    for gateway in &gateways {
        let address = gateway.private().replace("http:", "grpcs:");
        shows_only(&address, private_new.pem(), private_old.pem()).await;
    }
    tally.unnoticed("another certificate among gateways").await;

    // Agents, people and kubectl: the built-in authority, and with it the certificate of each listener.
    let second = folder.join("authority-2");
    let built_in_new = tarbet_identity::authority::Authority::open(&second, Timestamp::now()).unwrap();
    let built_in_new = built_in_new.certificate_pem();
    trusted.only(&[&built_in_old, built_in_new]);
    trust_again(&agents).await;
    *ways.write().await = caller(&people_old);
    tally.unnoticed("trust in two authorities").await;
    for name in ["one.yaml", "two.yaml"] {
        let file = folder.join(name);
        let text = std::fs::read_to_string(&file).unwrap();
        let moved = text.replace(
            &format!("{}}}", folder.join("authority").display()),
            &format!("{}}}", second.display()),
        );
        assert_ne!(moved, text);
        std::fs::write(file, moved).unwrap();
    }
    read_again(&gateways).await;
    for gateway in &gateways {
        for address in [gateway.agents(), gateway.api(), gateway.kubernetes()] {
            shows_only(&address, built_in_new, &built_in_old).await;
        }
    }
    tally.unnoticed("another authority").await;
    trusted.only(&[built_in_new]);
    trust_again(&agents).await;
    *ways.write().await = caller(&people_old);
    tally.unnoticed("the end of the old authority").await;

    // People: their certificates, and whose certificates count.
    people.only(&[people_old.pem(), people_new.pem()]);
    read_again(&gateways).await;
    *ways.write().await = caller(&people_new);
    tally.unnoticed("another certificate for callers").await;
    people.only(&[people_new.pem()]);
    read_again(&gateways).await;
    tally.unnoticed("the end of the old certificate").await;
    let [retired, _] = caller(&people_old);
    assert!(name(&retired.site("lab".parse().unwrap())).await.is_err(), "the old certificate still counts");

    // Whatever is connected anew from here on meets only what is new.
    gateways[0].process.stop().await.unwrap();
    gateways[0].process.restart().await.unwrap();
    gateways[0].ready().await.unwrap();
    links_at(&gateways[0], 1).await;
    let [anew, _] = person(&people_new, folder, &gateways, &trusted);
    assert_eq!(name(&anew.site("far".parse().unwrap())).await.unwrap(), "far");
    tally.unnoticed("new connections everywhere").await;
    tally.over.store(true, SeqCst);
    for caller in callers {
        caller.await.unwrap();
    }
    tally.verified("requests while certificates and authorities are replaced, none lost");
}
