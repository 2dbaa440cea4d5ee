//! Chromium is the real thing: it runs a page, hears keys, and tells what went wrong.

use std::time::Duration;

use tarbet_testbed::{Chromium, Folder};

const SOON: Duration = Duration::from_mins(1);

#[tokio::test(flavor = "multi_thread")]
async fn chromium_runs_a_page_and_tells_its_complaints() {
    let browser = Chromium::start().await.unwrap();
    let html = "data:text/html,<title>t</title><button onclick=\"this.textContent='pressed'\">wait</button>";
    let page = browser.open(html, 400, 300).await.unwrap();
    assert_eq!(page.eval("innerWidth").await.unwrap(), 400);
    assert_eq!(page.complaints(), Vec::<String>::new());
    page.press("Tab").await.unwrap();
    page.press("Enter").await.unwrap();
    page.shows(SOON, "pressed").await.unwrap();

    let folder = Folder::new("pictures").unwrap();
    let file = folder.path().join("page.png");
    page.picture(&file).await.unwrap();
    assert!(std::fs::read(file).unwrap().starts_with(b"\x89PNG"));

    page.eval("console.error('it hurts')").await.unwrap();
    let complaints = page.complaints();
    assert!(complaints.iter().any(|complaint| complaint.contains("it hurts")), "{complaints:?}");
    assert!(page.eval("nothing.of.that.name").await.is_err());
}
