//! Every view with real data, in both themes and at every width.

use tarbet_testbed::Chromium;

use super::{SOON, Up, echo, kept, look, sound};

#[tokio::test(flavor = "multi_thread")]
async fn every_view_shows_real_data_in_both_themes_and_at_every_width() {
    let (up, browser) = (Up::start().await, Chromium::start().await.unwrap());
    let page = browser.open(&up.console(), 1400, 900).await.unwrap();
    page.shows(SOON, "tarbet site add lab").await.unwrap();
    sound(&page, "the console without sites").await;
    page.picture(&kept("empty")).await.unwrap();

    let port = echo().await;
    let mut agents = Vec::new();
    for site in ["glasgow-hpc", "oslo-lab", "kyoto-beamline"] {
        let token = up.add_site(site).await;
        agents.push(up.agent(site, &token, port));
    }
    up.add_site("lima-edge").await;
    page.until(SOON, "document.querySelectorAll('.map .site.on').length === 3").await.unwrap();
    for site in ["glasgow-hpc", "oslo-lab", "glasgow-hpc"] {
        up.reach(site, port).await.unwrap();
    }
    let refused = up.reach("kyoto-beamline", port ^ 1).await.unwrap_err();
    assert!(refused.contains("TB-1201"), "{refused}");
    page.until(SOON, "document.querySelectorAll('#newest ~ .list li').length >= 4").await.unwrap();

    for (view, text) in [
        ("overview", "lima-edge"),
        ("sites", "kyoto-beamline"),
        ("sites/glasgow-hpc", "Links"),
        ("sites/oslo-lab", "Tokens and removal"),
        ("sites/lima-edge", "tarbet agent --gateway grpcs://127.0.0.1"),
        ("requests", "admin"),
        ("health", "gateway"),
        ("codes/TB-1102", "no agent of the site was connected"),
    ] {
        look(&page, &up.console(), view, text, &view.replace('/', "-")).await;
    }

    // What the gateway measures on a link.
    page.go(&format!("{}/#/sites/glasgow-hpc", up.console())).await.unwrap();
    for name in ["Round trip", "Last packet", "Carried"] {
        let told = format!(
            "[...document.querySelectorAll('td[data-name=\"{name}\"]')].every(cell => /\\d|just now/.test(cell.innerText))"
        );
        page.until(SOON, &told).await.unwrap();
    }
    sound(&page, "a site whose links are measured").await;

    // What was refused, and nothing else.
    page.go(&format!("{}/#/audit", up.console())).await.unwrap();
    page.until(SOON, "document.querySelectorAll('td[data-name=\"Outcome\"]').length > 4").await.unwrap();
    page.eval("document.querySelector('.filters input[type=\"checkbox\"]').click()").await.unwrap();
    let refused = "[...document.querySelectorAll('td[data-name=\"Outcome\"]')].map(cell => cell.innerText.slice(2)).join() === 'TB-1201'";
    page.until(SOON, refused).await.unwrap();

    // The story of a request, and the code it failed with.
    page.go(&format!("{}/#/requests", up.console())).await.unwrap();
    page.until(SOON, "document.querySelectorAll('td.wants a').length >= 4").await.unwrap();
    page.eval("document.querySelector('td.wants a').click()").await.unwrap();
    page.shows(SOON, "came in at local").await.unwrap();
    page.shows(SOON, "TB-1201").await.unwrap();
    page.picture(&kept("request")).await.unwrap();
    sound(&page, "the story of a request").await;
}
