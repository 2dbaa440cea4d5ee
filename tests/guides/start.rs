//! The first minutes: one machine, no cluster.

use std::os::unix::fs::symlink;

use super::frame::{Guide, blocks, contains, root};

#[tokio::test(flavor = "multi_thread")]
async fn the_first_ten_minutes_go_as_written() {
    let folder = Guide::new("start.md").apart().follow().await;
    assert!(!folder.path().join(".local/state/tarbet").exists());
}

/// The first page: everything starts, is seen and leaves nothing; and a refusal says what it says there.
#[tokio::test(flavor = "multi_thread")]
async fn the_readme_goes_as_written() {
    let page = std::fs::read_to_string(root().join("README.md")).unwrap();
    let mine = blocks(&page).into_iter().filter(|(kind, _)| *kind == "sh run: the_readme_goes_as_written");
    let [refused, tried] = mine.map(|(_, lines)| lines).collect::<Vec<_>>().try_into().unwrap();
    let tried: Vec<&str> =
        tried.iter().filter_map(|line| line.split('#').next()).map(str::trim_end).collect();
    let [up, status, down] = tried[..] else { panic!("{tried:?}") };
    let forward = refused[0].strip_prefix("$ ").unwrap();
    let place = forward.split("--listen ").nth(1).unwrap();
    // The site of the picture; it may reach something, but not that.
    let script = format!(
        "{up} &\nuntil {status}\ndo sleep 0.2; done\n\
         tarbet site add hpc > hpc.txt\n(umask 077; tarbet site token hpc > hpc.token)\n\
         echo 'tcp: [{{host: 127.0.0.1, ports: [7480]}}]' > policy.yaml\n\
         tarbet agent --gateway grpcs://127.0.0.1:8150 --ca-file .local/state/tarbet/authority/ca.crt \
           --token-file hpc.token --policy policy.yaml --observability-listen 127.0.0.1:7500 &\n\
         until curl --fail --silent --output /dev/null http://127.0.0.1:7500/readyz; do sleep 0.2; done\n\
         {forward} > forward.log 2>&1 &\n\
         until curl --silent http://{place}/ || true; grep --quiet 'try:' forward.log; do sleep 0.2; done\n\
         echo '@@ refused'\ncat forward.log\necho '@@ over'\n{down}\n"
    );
    let guide = Guide::new("README.md").apart();
    std::fs::create_dir_all(guide.path().join("target/release")).unwrap();
    symlink(env!("CARGO_BIN_EXE_tarbet"), guide.path().join("target/release/tarbet")).unwrap();
    let said = guide.run(&script).await;
    let (_, told) = said.split_once("@@ refused\n").unwrap();
    let (told, _) = told.split_once("@@ over\n").unwrap();
    for line in &refused[1..] {
        assert!(contains(told, line), "`{forward}` does not say\n{line}\nbut\n{told}");
    }
    assert!(!guide.path().join(".local/state/tarbet").exists(), "{said}");
}
