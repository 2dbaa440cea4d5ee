//! Without a mouse.

use serde_json::Value;
use tarbet_testbed::Chromium;

use super::{SOON, Up, kept};

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_reached_by_keyboard_and_the_focus_is_seen() {
    let (up, browser) = (Up::start().await, Chromium::start().await.unwrap());
    up.add_site("lab").await;
    let page = browser.open(&up.console(), 1200, 800).await.unwrap();
    page.until(SOON, "!!document.querySelector('.map .site.off')").await.unwrap();
    let mut visited = Vec::new();
    for _ in 0..30 {
        page.press("Tab").await.unwrap();
        let (name, seen) = match page.eval(include_str!("focus.js")).await.unwrap() {
            Value::Null => continue,
            focus => (focus["name"].as_str().unwrap().to_owned(), focus["seen"] == true),
        };
        assert!(seen, "the focus on `{name}` cannot be seen");
        visited.push(name);
    }
    for wanted in ["Skip to the content", "Unlock", "Sites", "Error codes", "Site lab, not connected"] {
        assert!(visited.iter().any(|name| name.contains(wanted)), "{wanted} is not reached: {visited:?}");
    }
    page.picture(&kept("focus")).await.unwrap();

    // Enter on a view's name opens it, and the focus goes along.
    page.eval("document.querySelector('nav a[href=\"#/health\"]').focus()").await.unwrap();
    page.press("Enter").await.unwrap();
    page.shows(SOON, "ready for work").await.unwrap();
    page.until(SOON, "document.activeElement?.id === 'main'").await.unwrap();

    // A dialog is left with Escape and gives the focus back.
    page.eval("[...document.querySelectorAll('button')].find(e => e.innerText === 'Unlock').focus()")
        .await
        .unwrap();
    page.press("Enter").await.unwrap();
    page.until(SOON, "document.activeElement?.type === 'password'").await.unwrap();
    page.press("Escape").await.unwrap();
    page.until(SOON, "document.activeElement?.innerText === 'Unlock'").await.unwrap();
    assert_eq!(page.complaints(), Vec::<String>::new());
}
