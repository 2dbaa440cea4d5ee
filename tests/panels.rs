//! Pods, networks and the record in a real browser, in front of a whole `tarbet up`.

use std::time::Duration;

use serde_json::json;
use tarbet_testbed::Chromium;

use super::console::{click, kept, look, sound};
use super::up::Machine;

/// Long on a busy machine, never waited for when all is well.
const SOON: Duration = Duration::from_mins(1);

async fn machine(machine: &Machine, name: &str) {
    let file = machine.folder.write("machine.json", "{}").unwrap().display().to_string();
    machine.say(&["glide", "resource", "create", "local", name, &file]).await;
}

async fn permit(machine: &Machine, name: &str, direction: &str, port: u16, tag: &str) {
    let rule = json!([{ "name": format!("{direction}-{port}"), "direction": direction, "src_port": -1, "dst_port": port, "protocol": 6, "tags": [tag] }]);
    let file = machine.folder.write("rules.json", &rule.to_string()).unwrap().display().to_string();
    machine.say(&["glide", "rule", "add", "local", name, "--rulefile", &file]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_networks_and_the_record_are_shown_live_and_changed_only_with_the_right() {
    let whole = Machine::new().await;
    let mut up = whole.start();
    let browser = Chromium::start().await.unwrap();
    whole.ready().await;
    let console = whole.console();
    let page = browser.open(&format!("{console}/#/networks"), 1400, 900).await.unwrap();

    // Empty places say what to do next.
    page.shows(SOON, "tarbet glide resource create local web").await.unwrap();
    for (view, shows) in [
        ("pods", "No pod runs here"),
        ("jobs", "No cluster is served"),
        ("federation", "tarbet mesh"),
        ("audit", "chain whole"),
    ] {
        page.go(&format!("{console}/#/{view}")).await.unwrap();
        page.shows(SOON, shows).await.unwrap();
        sound(&page, view).await;
    }

    // What is made elsewhere appears by itself.
    page.go(&format!("{console}/#/networks")).await.unwrap();
    for name in ["web", "client", "database"] {
        machine(&whole, name).await;
    }
    page.until(SOON, "document.querySelectorAll('.nets a.box').length === 3").await.unwrap();
    permit(&whole, "web", "inbound", 443, "default.local.client").await;
    permit(&whole, "client", "outbound", 443, "default.local.web").await;
    permit(&whole, "database", "inbound", 5432, "default.local.web").await;
    permit(&whole, "web", "outbound", 5432, "default.local.database").await;
    page.until(SOON, "document.querySelectorAll('.nets .flow').length === 2").await.unwrap();
    look(&page, &console, "networks/default.local.web", "inbound-443", "whole-networks").await;

    // Can A reach B? The answer names the rules.
    page.until(SOON, "!!document.querySelector('form.can')").await.unwrap();
    let fill = |from: &str, to: &str| {
        format!(
            "(() => {{ const [from, to] = document.querySelectorAll('.can input'); \
             for (const [field, value] of [[from, '{from}'], [to, '{to}']]) {{ field.value = value; field.dispatchEvent(new Event('input', {{ bubbles: true }})) }} return true }})()"
        )
    };
    page.eval(&fill("default.local.client", "default.local.web")).await.unwrap();
    click(&page, "Ask").await;
    page.shows(SOON, "Yes, it may.").await.unwrap();
    page.shows(SOON, "by rule outbound-443").await.unwrap();
    page.picture(&kept("whole-can")).await.unwrap();
    page.eval(&fill("default.local.web", "default.local.client")).await.unwrap();
    click(&page, "Ask").await;
    page.shows(SOON, "No, it may not.").await.unwrap();

    // Deleting a rule needs a token, and one with the right; each attempt is on record.
    let path = "/api/nets/namespaces/default/clouds/local/resources/web/rules/inbound-443";
    let remove = |token: &str| {
        format!(
            "fetch('{path}', {{ method: 'DELETE', headers: {{ authorization: 'Bearer {token}' }} }}).then(answer => answer.status)"
        )
    };
    let bare = format!("fetch('{path}', {{ method: 'DELETE' }}).then(answer => answer.status)");
    assert_eq!(page.eval(&bare).await.unwrap(), 401);
    let stranger = whole.say(&["user", "add", "stranger"]).await;
    assert_eq!(page.eval(&remove(stranger.trim())).await.unwrap(), 403);
    // The browser says in its own console that it was refused.
    page.complaints();
    let admin = std::fs::read_to_string(whole.state().join("admin.token")).unwrap();
    click(&page, "Unlock").await;
    page.until(SOON, "document.activeElement?.type === 'password'").await.unwrap();
    page.write(admin.trim()).await.unwrap();
    page.press("Enter").await.unwrap();
    page.shows(SOON, "admin · lock").await.unwrap();
    page.until(SOON, "!!document.querySelector('.rules button')").await.unwrap();
    page.eval("document.querySelector('.rules button').click()").await.unwrap();
    page.shows(SOON, "Delete rule").await.unwrap();
    page.eval("document.querySelector('dialog button.danger').click()").await.unwrap();
    page.until(SOON, "document.querySelectorAll('.nets .flow').length === 1").await.unwrap();
    sound(&page, "networks after a change").await;

    // Pods with their logs, as they are written.
    whole
        .say(&[
            "pods",
            "run",
            "--detach",
            "--name",
            "ticker",
            "none",
            "--",
            "sh",
            "-c",
            "while true; do echo tick; sleep 1; done",
        ])
        .await;
    whole
        .say(&[
            "pods",
            "run",
            "--detach",
            "--name",
            "broken",
            "none",
            "--",
            "sh",
            "-c",
            "echo no >&2; exit 3",
        ])
        .await;
    page.go(&format!("{console}/#/pods")).await.unwrap();
    page.shows(SOON, "code 3").await.unwrap();
    page.eval("[...document.querySelectorAll('th a')].find(a => a.innerText === 'ticker').click()")
        .await
        .unwrap();
    page.until(SOON, "document.querySelector('.log')?.innerText.split('tick').length > 3").await.unwrap();
    let chosen = page.eval("location.hash.slice(2)").await.unwrap();
    look(&page, &console, chosen.as_str().unwrap(), "Log of ticker", "whole-pods").await;

    look(&page, &console, "audit", "nets DELETE", "whole-audit").await;
    page.shows(SOON, "TB-1").await.unwrap();
    look(&page, &console, "overview", "here", "whole-overview").await;
    look(&page, &console, "health", "plugin process", "whole-health").await;

    whole.say(&["down"]).await;
    up.stop().await.unwrap();
}
