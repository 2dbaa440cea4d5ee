//! Two clouds on one machine, and plugins of others.

use tarbet_testbed::vendor_python;

use super::frame::Guide;

#[tokio::test(flavor = "multi_thread")]
async fn the_guide_to_networks_is_true() {
    // In AWS's place stands moto, which others wrote for that; the other clouds' plugins are started, not used.
    let moto = vendor_python("aws").await.unwrap();
    let python = moto.display();
    Guide::new("nets.md")
        // Whoever follows it here is root already.
        .program("sudo", "env".into())
        .env("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
        .env("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
        .env("TARBET__CLOUD__AWS__ENDPOINT", "http://127.0.0.1:5000")
        .before(format!("'{python}' -m moto.server -H 127.0.0.1 -p 5000 > moto.log 2>&1 &"))
        .apart()
        .follow()
        .await;
}
