//! A certificate that ends while people use what it opened: what is open stays, whoever comes is told why not, and
//! another certificate helps.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use tarbet_identity::authority::{Authority, Leaf, Usage};
use tarbet_link::{Address, Dialer, Target};
use tarbet_testbed::product::Product;
use tarbet_testbed::{effort, eventually, verified};

use super::asking::{add_site, client, name};
use super::faults::certificates::taken_over;
use super::reload::{SOON, shout, shouting};

/// Puts a certificate in place that is good for so long. Says when it ends.
fn renew(authority: &Authority, folder: &Path, validity: Duration) -> Result<Timestamp> {
    let leaf = Leaf::new(Usage::Server).dns("localhost").ip([127, 0, 0, 1]).valid_for(validity);
    let issued = authority.issue(&leaf, Timestamp::now())?;
    std::fs::write(folder.join("listener.key"), issued.key_pem.expose())?;
    std::fs::write(folder.join("listener.crt"), &issued.certificate_pem)?;
    Ok(issued.not_after)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_ends_cuts_nobody_off_and_lets_nobody_in() -> Result<()> {
    const LONG: Duration = Duration::from_hours(1);
    let product = Product::new(env!("CARGO_BIN_EXE_tarbet"))?;
    let folder = product.folder().path();
    let authority = Authority::open(folder.join("authority"), Timestamp::now())?;
    renew(&authority, folder, LONG)?;
    let file = |name: &str| folder.join(name).display().to_string();
    let (certificate, key) = (file("listener.crt"), file("listener.key"));
    let tls = format!("{{authority_folder: null, cert_file: {certificate}, key_file: {key}}}");
    let settings = ["agents", "api"].map(|listener| format!("gateway.{listener}.tls={tls}"));
    let flags: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let gateway = product.gateway("expiring", "{kind: memory}", &flags).await?;
    let page = gateway.observability();
    let read_again = || taken_over(&gateway.process, &page);
    let backend = shouting().await?;
    let rules = format!("services: [info]\ntcp: [{{host: 127.0.0.1, ports: [{backend}]}}]\n");
    let policy = product.folder().write("policy.yaml", &rules)?;
    let token = add_site(&product, &gateway, "lab").await?;

    let rounds = effort().min(10);
    for _ in 0..rounds {
        // On a busy machine it takes a while to connect, and all of it must be connected before the end.
        let mut validity = Duration::from_secs(5);
        let (_agent, known, mut stream, end) = loop {
            let end = renew(&authority, folder, validity)?;
            // One that has ended is not taken over: then there is nothing to wait for.
            let connected = async {
                read_again().await?;
                let agent = product
                    .agent("lab", &token, &[&gateway], &["--policy", policy.to_str().unwrap()])
                    .await?;
                let known = client(&product, &gateway).site("lab".parse()?);
                let stream = known.open(Target::tcp(Address::new("127.0.0.1", backend)?)).await?;
                anyhow::Ok((agent, known, stream))
            };
            let until_then = Timestamp::now().duration_until(end).unsigned_abs();
            if let Ok(Ok((agent, known, stream))) = tokio::time::timeout(until_then, connected).await
                && Timestamp::now() < end
            {
                break (agent, known, stream, end);
            }
            ensure!(validity < SOON, "nothing connects in {validity:?}");
            validity *= 2;
        };
        // Its last second counts to its end.
        let over = || async { Timestamp::now().as_second() > end.as_second() };
        eventually(SOON, "the end of the certificate", over).await?;

        shout(&mut stream).await.context("a stream ends with the certificate")?;
        ensure!(name(&known).await? == "lab", "a connection that is known goes on");
        let refused = product.run(&gateway, &["site", "list"]).await.err().context("nobody is let in")?;
        let said = format!("{refused:#}");
        ensure!(said.contains("expired") && said.contains("where:") && said.contains("try:"), "{said}");
        let anew = client(&product, &gateway).site("lab".parse()?);
        ensure!(name(&anew).await.is_err(), "nobody is let in");
        // A file that was not renewed is not taken over, and that is told.
        // In all of its log: what earlier rounds brought about is there, too.
        let refusals = || {
            anyhow::Ok(std::fs::read_to_string(folder.join("expiring.log"))?.matches("expired at").count())
        };
        let before = refusals()?;
        gateway.process.hangup()?;
        let told = || async {
            ensure!(refusals()? > before, "not told again");
            Ok(())
        };
        eventually(SOON, "the refusal of the old file", told).await?;

        renew(&authority, folder, LONG)?;
        read_again().await?;
        ensure!(name(&anew).await? == "lab", "the new certificate opens");
        shout(&mut stream).await.context("a stream ends with another certificate")?;
        ensure!(name(&known).await? == "lab");
    }
    verified("certificates that end under open streams: none is cut off, nobody is let in", rounds);
    Ok(())
}
