//! The console in a real browser, in front of a real `tarbet up`.

use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use serde_json::{Value, json};
use tarbet_testbed::{Chromium, Folder, Lease, Page, Process, Program, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Long on a busy machine, never waited for when all is well.
const SOON: Duration = Duration::from_secs(30);

/// `tarbet up` with ports and a state folder of its own.
struct Up {
    _process: Process,
    ports: Lease,
    folder: Folder,
}

impl Up {
    async fn start() -> Self {
        let (folder, ports) = (Folder::new("console").unwrap(), Lease::block(6).unwrap());
        let listen = |port: u16| format!("{{listen: '127.0.0.1:{}'}}", ports.port(port));
        let config = format!(
            "console: {}\nobservability: {}\nshutdown: {{deadline: 10s}}\ngateway:\n  recheck: 1s\n  \
             agents: {}\n  api: {}\n  kubernetes: {}\n  private: {}\n",
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
}

pub(super) async fn click(page: &Page, label: &str) {
    let script = format!(
        "(() => {{ const found = [...document.querySelectorAll('button, a, summary')].filter(e => e.innerText?.trim() === {}); \
         found.at(-1)?.click(); return found.length > 0 }})()",
        json!(label)
    );
    page.until(SOON, &script).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_view_shows_real_data_in_both_themes_and_at_every_width() {
    let (up, browser) = (Up::start().await, Chromium::start().await.unwrap());
    let page = browser.open(&up.console(), 1400, 900).await.unwrap();
    page.shows(SOON, "tarbet site add lab").await.unwrap();
    sound(&page, "the console without sites").await;
    page.picture(&kept("empty")).await.unwrap();

    let port = echo().await;
    let mut agents = Vec::new();
    for site in ["glasgow-hpc", "oslo-lab", "kyoto-beamline"] {
        let token = up.add_site(site).await;
        agents.push(up.agent(site, &token, port));
    }
    up.add_site("lima-edge").await;
    page.until(SOON, "document.querySelectorAll('.map .site.on').length === 3").await.unwrap();
    for site in ["glasgow-hpc", "oslo-lab", "glasgow-hpc"] {
        up.reach(site, port).await.unwrap();
    }
    let refused = up.reach("kyoto-beamline", port ^ 1).await.unwrap_err();
    assert!(refused.contains("TB-1201"), "{refused}");
    page.until(SOON, "document.querySelectorAll('#newest ~ .list li').length >= 4").await.unwrap();

    for (view, text) in [
        ("overview", "lima-edge"),
        ("sites", "kyoto-beamline"),
        ("sites/glasgow-hpc", "Tokens and removal"),
        ("sites/lima-edge", "tarbet agent --gateway grpcs://127.0.0.1"),
        ("requests", "admin"),
        ("health", "gateway"),
        ("codes/TB-1102", "no agent of the site was connected"),
    ] {
        for (theme, width, height) in
            [("light", 1400, 900), ("dark", 1400, 900), ("light", 390, 844), ("dark", 700, 450)]
        {
            page.resize(width, height).await.unwrap();
            page.prefer("prefers-color-scheme", theme).await.unwrap();
            page.go(&format!("{}/#/{view}", up.console())).await.unwrap();
            page.shows(SOON, text).await.unwrap();
            sound(&page, &format!("{view}, {theme}, {width} wide")).await;
            page.picture(&kept(&format!("{}-{theme}-{width}", view.replace('/', "-")))).await.unwrap();
        }
    }

    // The story of a request, and the code it failed with.
    page.resize(1400, 900).await.unwrap();
    page.go(&format!("{}/#/requests", up.console())).await.unwrap();
    page.until(SOON, "document.querySelectorAll('td.wants a').length >= 4").await.unwrap();
    page.eval("document.querySelector('td.wants a').click()").await.unwrap();
    page.shows(SOON, "came in at local").await.unwrap();
    page.shows(SOON, "TB-1201").await.unwrap();
    page.picture(&kept("request")).await.unwrap();
    sound(&page, "the story of a request").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_elsewhere_appears_without_asking_again() {
    let (up, browser) = (Up::start().await, Chromium::start().await.unwrap());
    let page = browser.open(&format!("{}/#/sites", up.console()), 1200, 800).await.unwrap();
    page.shows(SOON, "No site yet").await.unwrap();
    let token = up.add_site("lab").await;
    page.shows(SOON, "not connected").await.unwrap();
    let mut agent = up.agent("lab", &token, 1);
    page.shows(SOON, "link").await.unwrap();
    page.until(SOON, "!document.body.innerText.includes('not connected')").await.unwrap();
    agent.stop().await.unwrap();
    page.shows(SOON, "not connected").await.unwrap();
    up.tarbet(&["site", "remove", "lab"]).await;
    page.shows(SOON, "No site yet").await.unwrap();

    // A crowd is drawn as dots and listed by pages.
    let effort: usize = std::env::var("EFFORT").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let crowd = (130 * effort).min(1000);
    let api = format!("{}/api/gateway/sites", up.console());
    let (http, admin) = (reqwest::Client::new(), up.admin());
    for i in 0..crowd {
        let added = http.post(&api).bearer_auth(&admin).json(&json!({ "name": format!("site-{i}") }));
        assert_eq!(added.send().await.unwrap().status(), 201);
    }
    page.shows(SOON, &format!("Show more of {crowd}")).await.unwrap();
    page.go(&format!("{}/#/overview", up.console())).await.unwrap();
    page.until(SOON, &format!("document.querySelectorAll('.dots circle').length === {crowd}")).await.unwrap();
    page.picture(&kept("crowd")).await.unwrap();
    assert_eq!(page.complaints(), Vec::<String>::new());
}

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

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_reached_by_keyboard_and_the_focus_is_seen() {
    let (up, browser) = (Up::start().await, Chromium::start().await.unwrap());
    up.add_site("lab").await;
    let page = browser.open(&up.console(), 1200, 800).await.unwrap();
    page.until(SOON, "!!document.querySelector('.map .site.off')").await.unwrap();
    let mut visited = Vec::new();
    for _ in 0..30 {
        page.press("Tab").await.unwrap();
        let (name, seen) = match page.eval(include_str!("console/focus.js")).await.unwrap() {
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
