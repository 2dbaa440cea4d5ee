//! Where there is little room, names of an ordinary length are shown whole.

use serde_json::json;
use tarbet_console::{Console, Panel};
use tarbet_testbed::Chromium;
use tokio_util::sync::CancellationToken;

use super::hostile::{PANELS, panels};
use super::{SOON, kept, sound};

const NAME: &str = "default.local.client";

#[tokio::test(flavor = "multi_thread")]
async fn ordinary_names_are_whole_on_a_phone_and_at_twice_the_size() {
    let console = Console::new(
        PANELS.map(|name| Panel::live(name, move || async move { Ok(panels(NAME)[name].clone()) })),
    );
    let (listener, stop) =
        (tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap(), CancellationToken::new());
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(console.serve(listener, stop.clone()));
    let browser = Chromium::start().await.unwrap();
    let page = browser.open(&url, 390, 844).await.unwrap();
    for (width, height) in [(390, 844), (700, 450)] {
        page.resize(width, height).await.unwrap();
        for view in ["overview", "sites", "requests", "networks", "pods", "jobs", "federation", "audit"] {
            page.go(&format!("{url}/#/{view}")).await.unwrap();
            page.shows(SOON, NAME).await.unwrap();
            let what = format!("{view}, {width} wide");
            sound(&page, &what).await;
            let cut = page.eval(include_str!("cut.js")).await.unwrap();
            assert_eq!(cut, json!([]), "{what} cuts names off");
            page.picture(&kept(&format!("narrow-{view}-{width}"))).await.unwrap();
        }
    }
    stop.cancel();
}
