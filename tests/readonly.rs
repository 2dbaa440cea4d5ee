//! A disk that cannot be written, from the start or all at once: its path is named, and nothing on it is lost.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tarbet_testbed::product::Product;
use tarbet_testbed::{Folder, Lease, effort, verified};

use super::asking::{self, add_site, name};

/// So long that only what never happens misses it.
const PATIENCE: Duration = Duration::from_mins(1);

fn run(program: &str, args: &[&str]) {
    let ran = Command::new(program).args(args).output().unwrap();
    assert!(ran.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&ran.stderr));
}

/// A disk with a file system that can fail, as one does whose device has errors.
struct Disk {
    image: PathBuf,
    at: PathBuf,
}

impl Disk {
    fn new(folder: &Folder) -> Self {
        let disk = Self { image: folder.path().join("image"), at: folder.path().join("disk") };
        std::fs::create_dir(&disk.at).unwrap();
        std::fs::File::create(&disk.image).unwrap().set_len(32 * 1024 * 1024).unwrap();
        run("mkfs.ext4", &["-q", disk.image.to_str().unwrap()]);
        disk.mount();
        disk
    }

    fn mount(&self) {
        run("mount", &["-o", "loop", self.image.to_str().unwrap(), self.at.to_str().unwrap()]);
    }

    /// From now on it takes nothing more, whoever has files open.
    fn fail(&self) {
        run("mount", &["-o", "remount,abort", self.at.to_str().unwrap()]);
    }

    /// As after a repair. Nobody may have files open.
    fn repair(&self) {
        run("umount", &[self.at.to_str().unwrap()]);
        let checked = Command::new("e2fsck").args(["-y", self.image.to_str().unwrap()]).output().unwrap();
        assert!(checked.status.code().is_some_and(|code| code < 4), "{checked:?}");
        self.mount();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _left = Command::new("umount").arg("--lazy").arg(&self.at).output();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_whose_disk_fails_takes_nothing_and_loses_nothing() {
    let (product, folder) =
        (Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap(), Folder::new("failing").unwrap());
    let disk = Disk::new(&folder);
    let path = disk.at.join("store.redb");
    let store = format!("{{kind: redb, path: {}}}", path.display());
    let mut gateway = product.gateway("gateway", &store, &[]).await.unwrap();
    let token = add_site(&product, &gateway, "paris").await.unwrap();
    let mut agent = product.agent("paris", &token, &[&gateway], &[]).await.unwrap();
    let mut kept = vec!["paris".to_owned()];
    for round in 0..effort().min(10) {
        let paris = asking::client(&product, &gateway).site("paris".parse().unwrap());
        for n in 0..5 {
            let site = format!("site-{round}-{n}");
            add_site(&product, &gateway, &site).await.unwrap();
            kept.push(site);
        }
        name(&paris).await.unwrap();
        disk.fail();
        for n in 0..3 {
            let refusal = add_site(&product, &gateway, &format!("lost-{n}")).await;
            let refusal = format!("{:#}", refusal.expect_err("a disk that failed takes no sites"));
            assert!(refusal.contains("TB-"), "{refusal}");
        }
        name(&paris).await.expect("a site that is linked needs no disk");
        let log = gateway.process.log_tail();
        assert!(log.contains(path.to_str().unwrap()), "the path is named: {log}");
        assert!(!log.contains("panicked"), "{log}");
        gateway.process.stop().await.unwrap();
        disk.repair();
        gateway.process.restart().await.unwrap();
        gateway.ready().await.unwrap();
        let listed = product.run(&gateway, &["site", "list", "-o", "json"]).await.unwrap();
        let listed: Vec<Value> = serde_json::from_str(&listed).unwrap();
        let mut names: Vec<&str> = listed.iter().filter_map(|site| site["name"].as_str()).collect();
        names.sort_unstable();
        kept.sort_unstable();
        assert_eq!(names, kept, "what was acknowledged is there, and what was refused is not");
        agent.ready().await.unwrap();
    }
    gateway.process.stop().await.unwrap();
    verified("failures of the store's disk: what was acknowledged is kept", effort().min(10));
}

/// Runs a role that cannot begin, and gives what it says.
async fn refused(product: &Product, args: &[&str]) -> String {
    let ended = tokio::time::timeout(PATIENCE, product.command(args)).await;
    let (code, said) =
        ended.unwrap_or_else(|_| panic!("{args:?} goes on with a disk it cannot write")).unwrap();
    assert!(code.is_some_and(|code| code != 0), "{args:?} ended with {code:?}: {said}");
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_whose_disk_cannot_be_written_names_the_path_and_ends() {
    let product = Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap();
    let (folder, ports) = (Folder::new("readonly").unwrap(), Lease::block(6).unwrap());
    let disk = Disk::new(&folder);
    run("mount", &["-o", "remount,ro", disk.at.to_str().unwrap()]);
    let at = |name: &str| disk.at.join(name).display().to_string();
    let listen = |n: u16| format!("127.0.0.1:{}", ports.port(n));
    let set = |what: &str, value: &str| format!("{what}={value}");
    let listeners = [
        set("observability.listen", &listen(0)),
        set("gateway.agents.listen", &listen(1)),
        set("gateway.api.listen", &listen(2)),
        set("gateway.kubernetes.listen", &listen(3)),
        set("gateway.private.listen", &listen(4)),
        set("gateway.admin_token_file", &folder.path().join("admin.token").display().to_string()),
    ];
    let gateway = |more: &[&str]| -> Vec<String> {
        let sets = listeners.iter().flat_map(|set| ["--set", set.as_str()]);
        ["gateway"].into_iter().chain(sets).chain(more.iter().copied()).map(str::to_owned).collect()
    };
    let plugin = |role: &[&str], root: &str| -> Vec<String> {
        let place = listen(5);
        let more = ["--listen", &place, "--data-root", root, "--observability-listen", "127.0.0.1:0"];
        role.iter().copied().chain(more).map(str::to_owned).collect()
    };
    let token = folder.write("token", "tba_none").unwrap().display().to_string();
    let cases = [
        (at("store.redb"), gateway(&["--set", &set("store.path", &at("store.redb"))])),
        (
            at("audit.log"),
            gateway(&["--set", "store.kind=memory", "--set", &set("gateway.audit.file", &at("audit.log"))]),
        ),
        (
            at("site.log"),
            ["agent", "--name", "lab", "--gateway", "grpc://127.0.0.1:1", "--token-file", &token]
                .into_iter()
                .chain(["--observability-listen", "127.0.0.1:0", "--audit-file", &at("site.log")])
                .map(str::to_owned)
                .collect(),
        ),
        (at("pods"), plugin(&["plugin", "process"], &at("pods"))),
    ];
    for (path, args) in &cases {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let said = refused(&product, &args).await;
        assert!(
            said.contains(path) && said.contains("TB-") && !said.contains("panicked"),
            "{args:?}: {said}"
        );
        assert!(said.contains("Read-only") || said.contains("read-only"), "{args:?}: {said}");
        assert!(!Path::new(path).exists());
    }
    verified("roles that begin on a disk that cannot be written: each names the path", cases.len());
}
