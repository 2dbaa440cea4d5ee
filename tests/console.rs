//! The console in a real browser, in front of a real `tarbet up`.

mod actions;
mod alone;
mod clusters;
mod elsewhere;
mod hostile;
mod keyboard;
mod live;
mod narrow;
mod views;

use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use serde_json::{Value, json};
use tarbet_testbed::{Folder, Lease, Page, Process, Program};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Long on a busy machine, never waited for when all is well.
const SOON: Duration = Duration::from_mins(1);

/// `tarbet up` with ports and a state folder of its own.
struct Up {
    _process: Process,
    ports: Lease,
    folder: Folder,
}

impl Up {
    async fn start() -> Self {
        Self::start_with("", &[]).await
    }

    /// With further settings, and further arguments.
    async fn start_with(settings: &str, args: &[&str]) -> Self {
        let (folder, ports) = (Folder::new("console").unwrap(), Lease::block(6).unwrap());
        let listen = |port: u16| format!("{{listen: '127.0.0.1:{}'}}", ports.port(port));
        let config = format!(
            "console: {}\nobservability: {}\nshutdown: {{deadline: 10s}}\ngateway:\n  recheck: 1s\n  \
             agents: {}\n  api: {}\n  kubernetes: {}\n  private: {}\n{settings}",
            listen(0),
            listen(1),
            listen(2),
            listen(3),
            listen(4),
            listen(5),
        );
        let config = folder.write("up.yaml", &config).unwrap();
        let program = Program::new(env!("CARGO_BIN_EXE_tarbet"))
            .args(["up", "--without", "agent,nets,pods", "--config"])
            .arg(config)
            .args(args)
            .env("TARBET_STATE", folder.path().join("state"))
            .grace(Duration::from_secs(15));
        let mut process = Process::start(&folder, "up", program).unwrap();
        let ready = format!("http://127.0.0.1:{}/readyz", ports.port(1));
        let probe = || async { reqwest::get(&ready).await.and_then(reqwest::Response::error_for_status) };
        process.ready(SOON, probe).await.unwrap();
        Self { _process: process, ports, folder }
    }

    fn console(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.port(0))
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    fn admin(&self) -> String {
        std::fs::read_to_string(self.state().join("admin.token")).unwrap().trim().to_owned()
    }

    /// A command as a person on this machine types it.
    async fn tarbet(&self, args: &[&str]) -> String {
        let Output { status, stdout, stderr } = tokio::process::Command::new(env!("CARGO_BIN_EXE_tarbet"))
            .args(args)
            .env("TARBET_STATE", self.state())
            .kill_on_drop(true)
            .output()
            .await
            .unwrap();
        assert!(status.success(), "tarbet {args:?}: {}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).unwrap()
    }

    async fn add_site(&self, name: &str) -> String {
        let said: Value =
            serde_json::from_str(&self.tarbet(&["site", "add", name, "-o", "json"]).await).unwrap();
        said["token"]["token"].as_str().unwrap().to_owned()
    }

    /// An agent of the site that permits one port.
    fn agent(&self, name: &str, token: &str, port: u16) -> Process {
        let token = self.folder.write(&format!("{name}.token"), token).unwrap();
        let policy = format!("tcp:\n  - {{host: 127.0.0.1, ports: [{port}]}}\n");
        let policy = self.folder.write(&format!("{name}.policy"), &policy).unwrap();
        let program = Program::new(env!("CARGO_BIN_EXE_tarbet"))
            .args(["agent", "--name", name, "--observability-listen", "127.0.0.1:0"])
            .args(["--gateway", &format!("grpcs://127.0.0.1:{}", self.ports.port(2)), "--ca-file"])
            .arg(self.state().join("authority/ca.crt"))
            .arg("--token-file")
            .arg(token)
            .arg("--policy")
            .arg(policy);
        Process::start(&self.folder, name, program.grace(Duration::from_secs(15))).unwrap()
    }

    /// A connection to a port at a site, through the gateway.
    async fn reach(&self, site: &str, port: u16) -> Result<(), String> {
        let token = tarbet_identity::Secret::from_file(self.state().join("admin.token")).unwrap();
        let api = format!("https://127.0.0.1:{}", self.ports.port(3));
        let authority = self.state().join("authority/ca.crt");
        let client = tarbet_reach::client::Client::new(&api, token, Some(&authority)).unwrap();
        let address = tarbet_link::Address::new("127.0.0.1", port).unwrap();
        let site = client.site(site.parse().unwrap());
        let opened = tarbet_link::Dialer::open(&site, tarbet_link::Target::tcp(address)).await;
        let mut stream = opened.map_err(|error| error.to_string())?;
        stream.write_all(b"hello").await.map_err(|error| error.to_string())?;
        stream.read_exact(&mut [0; 5]).await.map(drop).map_err(|error| error.to_string())
    }
}

/// Something at a site that answers with what it is told.
async fn echo() -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                // Whoever leaves early is not our trouble.
                let _ = tokio::io::copy(&mut read, &mut write).await;
            });
        }
    });
    port
}

/// Where pictures of each view are kept, for people to look at.
pub(super) fn kept(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("console").join(format!("{name}.png"))
}

/// Everything a page must be, whatever it shows.
pub(super) async fn sound(page: &Page, what: &str) {
    assert_eq!(page.complaints(), Vec::<String>::new(), "{what}");
    let wide = page
        .eval("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        .await
        .unwrap();
    assert_eq!(wide, 0, "{what} is wider than its window");
    let faint = page.eval(include_str!("console/contrast.js")).await.unwrap();
    assert_eq!(faint, json!([]), "{what} has text with too little contrast");
    let over = page.eval(include_str!("console/overlap.js")).await.unwrap();
    assert_eq!(over, json!([]), "{what} has text written over text");
}

/// Looks at a view in both themes, on a desk, on a phone and at twice the size, and keeps a picture of each.
pub(super) async fn look(page: &Page, console: &str, view: &str, shows: &str, name: &str) {
    for (theme, width, height) in
        [("light", 1400, 900), ("dark", 1400, 900), ("light", 390, 844), ("dark", 700, 450)]
    {
        page.resize(width, height).await.unwrap();
        page.prefer("prefers-color-scheme", theme).await.unwrap();
        page.go(&format!("{console}/#/{view}")).await.unwrap();
        page.shows(SOON, shows).await.unwrap();
        sound(page, &format!("{view}, {theme}, {width} wide")).await;
        page.picture(&kept(&format!("{name}-{theme}-{width}"))).await.unwrap();
    }
    page.resize(1400, 900).await.unwrap();
}

pub(super) async fn click(page: &Page, label: &str) {
    let script = format!(
        "(() => {{ const found = [...document.querySelectorAll('button, a, summary')].filter(e => e.innerText?.trim() === {}); \
         found.at(-1)?.click(); return found.length > 0 }})()",
        json!(label)
    );
    page.until(SOON, &script).await.unwrap();
}

/// Opens the page's lock with a token.
pub(super) async fn unlock(page: &Page, token: &str) {
    click(page, "Unlock").await;
    page.until(SOON, "document.activeElement?.type === 'password'").await.unwrap();
    page.write(token).await.unwrap();
    page.press("Enter").await.unwrap();
}
