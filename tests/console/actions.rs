//! What changes something needs a token with the right.

use tarbet_testbed::{Chromium, eventually};

use super::{SOON, Up, click, kept};

#[tokio::test(flavor = "multi_thread")]
async fn actions_need_a_token_with_the_right() {
    let (up, browser) = (Up::start().await, Chromium::start().await.unwrap());
    up.add_site("lab").await;
    let stranger = up.tarbet(&["user", "add", "stranger"]).await;
    let page = browser.open(&format!("{}/#/sites/lab", up.console()), 1200, 800).await.unwrap();
    page.shows(SOON, "You are only looking").await.unwrap();
    assert_eq!(page.complaints(), Vec::<String>::new());

    // Without a token the request itself is refused, whatever the page offers.
    let bare = "fetch('/api/gateway/sites/lab', { method: 'DELETE' }).then(answer => answer.status)";
    assert_eq!(page.eval(bare).await.unwrap(), 401);

    let unlock = async |token: &str| {
        click(&page, "Unlock with a token").await;
        page.until(SOON, "document.activeElement?.type === 'password'").await.unwrap();
        page.write(token).await.unwrap();
        page.press("Enter").await.unwrap();
    };
    unlock("tbu_not-a-token").await;
    page.until(SOON, "!!document.querySelector('dialog .problem')").await.unwrap();
    page.picture(&kept("refused")).await.unwrap();
    page.press("Escape").await.unwrap();
    page.until(SOON, "!document.querySelector('dialog')").await.unwrap();

    // A token without the right: let in, and refused by the gateway.
    unlock(stranger.trim()).await;
    page.shows(SOON, "stranger · lock").await.unwrap();
    click(&page, "Remove the site").await;
    click(&page, "Remove").await;
    page.until(SOON, "!!document.querySelector('main .problem')").await.unwrap();
    assert!(up.tarbet(&["site", "list"]).await.contains("lab"));
    click(&page, "stranger · lock").await;

    // The administrator may.
    unlock(&up.admin()).await;
    page.shows(SOON, "admin · lock").await.unwrap();
    page.shows(SOON, "valid").await.unwrap();
    page.picture(&kept("unlocked")).await.unwrap();
    click(&page, "Revoke").await;
    page.shows(SOON, "Revoke this token?").await.unwrap();
    page.picture(&kept("revoke")).await.unwrap();
    page.eval("document.querySelector('dialog button.danger').click()").await.unwrap();
    page.shows(SOON, "revoked").await.unwrap();
    click(&page, "Remove the site").await;
    page.eval("document.querySelector('dialog button.danger').click()").await.unwrap();
    eventually(SOON, "the site to be gone", || async {
        !up.tarbet(&["site", "list", "-o", "json"]).await.contains("lab")
    })
    .await
    .unwrap();
    page.shows(SOON, "No site yet").await.unwrap();

    // The token was in memory only.
    let left = page
        .eval("JSON.stringify([document.cookie, localStorage.length, sessionStorage.length])")
        .await
        .unwrap();
    assert_eq!(left, r#"["",0,0]"#);
    page.eval("location.reload()").await.unwrap();
    page.until(SOON, "[...document.querySelectorAll('button')].some(e => e.innerText === 'Unlock')")
        .await
        .unwrap();
}
