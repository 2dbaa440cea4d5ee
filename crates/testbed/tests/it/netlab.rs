//! A lab sees which packets pass, and leaves nothing.

use std::process::Command;
use std::time::Duration;

use tarbet_testbed::Netlab;

fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status().unwrap();
    assert!(status.success(), "ip {words}");
}

#[tokio::test]
async fn sockets_live_in_their_namespace_and_all_of_it_goes() {
    let lab = Netlab::start().await.unwrap();
    let (a, b) = (format!("{}-a", lab.prefix()), format!("{}-b", lab.prefix()));
    ip(&format!("netns add {a}"));
    ip(&format!("netns add {b}"));
    ip(&format!("-n {a} link add eth0 type veth peer name eth0 netns {b}"));
    for (netns, address) in [(&a, "10.9.0.1/24"), (&b, "10.9.0.2/24")] {
        lab.ip(netns, &["addr", "add", address, "dev", "eth0"]).unwrap();
        lab.ip(netns, &["link", "set", "eth0", "up"]).unwrap();
    }
    let address = "10.9.0.2:80".parse().unwrap();
    lab.answer(&b, address).unwrap();
    let patience = Duration::from_secs(5);
    assert!(lab.reaches(&a, address, patience).await.unwrap());
    assert!(!lab.reaches(&a, "10.9.0.2:81".parse().unwrap(), patience).await.unwrap());
    assert!(lab.ip("strangers", &["link"]).is_err());
    assert_eq!(lab.namespaces(), [a, b]);
    let prefix = lab.prefix().to_owned();
    drop(lab);
    let left = std::fs::read_dir("/run/netns").unwrap().flatten();
    assert!(!left.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)));
}
