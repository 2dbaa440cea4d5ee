//! A real browser without a window, driven over its DevTools protocol.
//!
//! [`Chromium::start`], then [`Chromium::open`]: a [`Page`] evaluates, presses keys, takes
//! pictures, and remembers everything the browser complained about.

use std::{
    collections::HashMap,
    fs,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};
use base64::{Engine, prelude::BASE64_STANDARD};
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::{
    net::TcpStream,
    sync::{mpsc, oneshot},
    task::AbortHandle,
    time::timeout,
};
use tokio_tungstenite::{WebSocketStream, client_async, tungstenite::Message};

use crate::{Folder, Process, Program, eventually, tools};

/// How long the browser may take to start on a busy machine.
const READY: Duration = Duration::from_mins(1);
/// How long one command of the protocol may take.
const COMMAND: Duration = Duration::from_secs(30);

const FLAGS: [&str; 11] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
    "about:blank",
];

/// A browser with a profile of its own; it goes when dropped.
#[derive(Debug)]
pub struct Chromium {
    // In the order they must go.
    _process: Process,
    port: u16,
    path: String,
    _folder: Folder,
}

impl Chromium {
    /// Starts one, once it can be driven.
    pub async fn start() -> Result<Self> {
        let folder = Folder::new("chromium")?;
        let profile = folder.path().join("profile");
        let program = Program::new(tools::chromium().await?)
            .arg(format!("--user-data-dir={}", profile.display()))
            .args(FLAGS)
            .env("HOME", folder.path());
        let mut process = Process::start(&folder, "chromium", program)?;
        let door = profile.join("DevToolsActivePort");
        process.ready(READY, || async { read_door(&door) }).await?;
        let (port, path) = read_door(&door)?;
        Ok(Self { _process: process, port, path, _folder: folder })
    }

    /// Opens a page of this size, and returns once it has loaded.
    pub async fn open(&self, url: &str, width: u32, height: u32) -> Result<Page> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await.context("reach the browser")?;
        let address = format!("ws://127.0.0.1:{}{}", self.port, self.path);
        let (socket, _) = client_async(address, stream).await.context("speak to the browser")?;
        let mut page = Page::over(socket);
        let target = page.call("Target.createTarget", json!({ "url": "about:blank" })).await?;
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = page.call("Target.attachToTarget", attach).await?;
        page.session = Some(session["sessionId"].as_str().context("a session has an id")?.to_owned());
        for domain in ["Runtime", "Log", "Network", "Page"] {
            page.call(&format!("{domain}.enable"), json!({})).await?;
        }
        page.resize(width, height).await?;
        page.go(url).await?;
        Ok(page)
    }
}

/// Where the browser says it listens: a port and a path.
fn read_door(file: &Path) -> Result<(u16, String)> {
    let text = fs::read_to_string(file).context("the browser has not said where it listens")?;
    let mut lines = text.lines();
    let port = lines.next().context("no port")?.parse().context("read the port")?;
    Ok((port, lines.next().context("no path")?.to_owned()))
}

type Waiting = HashMap<u64, oneshot::Sender<Result<Value, String>>>;

#[derive(Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    complaints: Mutex<Vec<String>>,
}

/// One page of the browser.
pub struct Page {
    say: mpsc::Sender<String>,
    shared: Arc<Shared>,
    next: AtomicU64,
    session: Option<String>,
    pump: AbortHandle,
}

impl Drop for Page {
    fn drop(&mut self) {
        self.pump.abort();
    }
}

impl Page {
    fn over(socket: WebSocketStream<TcpStream>) -> Self {
        let (mut sink, mut stream) = socket.split();
        let (say, mut said) = mpsc::channel::<String>(16);
        let shared = Arc::new(Shared::default());
        let hearing = Arc::clone(&shared);
        let pump = tokio::spawn(async move {
            loop {
                tokio::select! {
                    text = said.recv() => {
                        let Some(text) = text else { break };
                        if sink.send(Message::text(text)).await.is_err() { break }
                    }
                    message = stream.next() => {
                        let Some(Ok(message)) = message else { break };
                        if let Message::Text(text) = message { hearing.hear(&text) }
                    }
                }
            }
            // Nobody will answer those who still wait.
            lock(&hearing.waiting).clear();
        });
        Self { say, shared, next: AtomicU64::new(1), session: None, pump: pump.abort_handle() }
    }

    /// One command of the protocol.
    pub async fn call(&self, method: &str, params: Value) -> Result<Value> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut command = json!({ "id": id, "method": method, "params": params });
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        let (answer, answered) = oneshot::channel();
        lock(&self.shared.waiting).insert(id, answer);
        self.say.send(command.to_string()).await.context("the browser is gone")?;
        let answer = timeout(COMMAND, answered).await;
        let answer = answer.with_context(|| format!("the browser did not answer {method} in {COMMAND:?}"))?;
        answer.context("the browser is gone")?.map_err(|error| anyhow!("{method}: {error}"))
    }

    /// The value of an expression, awaited if it is a promise.
    pub async fn eval(&self, script: &str) -> Result<Value> {
        let params =
            json!({ "expression": script, "awaitPromise": true, "returnByValue": true, "userGesture": true });
        let answer = self.call("Runtime.evaluate", params).await?;
        if let Some(thrown) = answer.get("exceptionDetails") {
            bail!("the page threw at `{script}`: {}", thrown["exception"]["description"]);
        }
        Ok(answer["result"]["value"].clone())
    }

    /// Waits until an expression is true.
    pub async fn until(&self, deadline: Duration, script: &str) -> Result<()> {
        eventually(deadline, script, || async {
            match self.eval(script).await {
                Ok(value) if value == true => Ok(()),
                Ok(value) => Err(anyhow!("it is {value}")),
                Err(error) => Err(error),
            }
        })
        .await
    }

    /// Waits until the page shows this text.
    pub async fn shows(&self, deadline: Duration, text: &str) -> Result<()> {
        self.until(deadline, &format!("document.body.innerText.includes({})", json!(text))).await
    }

    /// Goes to another address, and returns once the document is complete.
    pub async fn go(&self, url: &str) -> Result<()> {
        let answer = self.call("Page.navigate", json!({ "url": url })).await?;
        if let Some(error) = answer["errorText"].as_str() {
            bail!("{url} cannot be opened: {error}");
        }
        self.until(COMMAND, "document.readyState === 'complete'").await
    }

    /// The size of the window, in points.
    pub async fn resize(&self, width: u32, height: u32) -> Result<()> {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size).await.map(drop)
    }

    /// What the system prefers: a media feature such as `prefers-color-scheme` and its value.
    pub async fn prefer(&self, feature: &str, value: &str) -> Result<()> {
        let media = json!({ "features": [{ "name": feature, "value": value }] });
        self.call("Emulation.setEmulatedMedia", media).await.map(drop)
    }

    /// Presses a key by its name, such as `Tab`, `Enter` or `Escape`.
    pub async fn press(&self, key: &str) -> Result<()> {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "Escape" => 27,
            _ => bail!("the key {key} is not known here"),
        };
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let text = if kind == "keyDown" { text } else { "" };
            let event =
                json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text });
            self.call("Input.dispatchKeyEvent", event).await?;
        }
        Ok(())
    }

    /// Types into whatever has the focus.
    pub async fn write(&self, text: &str) -> Result<()> {
        self.call("Input.insertText", json!({ "text": text })).await.map(drop)
    }

    /// Keeps a picture of the window as a PNG file.
    pub async fn picture(&self, file: &Path) -> Result<()> {
        let answer = self.call("Page.captureScreenshot", json!({ "format": "png" })).await?;
        let data = answer["data"].as_str().context("a screenshot has data")?;
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(file, BASE64_STANDARD.decode(data)?).with_context(|| format!("keep {}", file.display()))
    }

    /// What the browser complained about since the last time this was asked: exceptions, errors
    /// in its console, refusals by policy, requests that failed.
    pub fn complaints(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.shared.complaints))
    }
}

impl Shared {
    fn hear(&self, text: &str) {
        let Ok(message) = serde_json::from_str::<Value>(text) else { return };
        if let Some(id) = message["id"].as_u64() {
            let Some(waiting) = lock(&self.waiting).remove(&id) else { return };
            let answer = match message.get("error") {
                Some(error) => Err(error["message"].to_string()),
                None => Ok(message["result"].clone()),
            };
            // Whoever asked may have stopped waiting.
            let _ = waiting.send(answer);
        } else if let Some(complaint) = complaint(&message) {
            lock(&self.complaints).push(complaint);
        }
    }
}

fn complaint(message: &Value) -> Option<String> {
    let params = &message["params"];
    match message["method"].as_str()? {
        "Runtime.exceptionThrown" => Some(format!("exception: {}", params["exceptionDetails"])),
        "Runtime.consoleAPICalled"
            if ["error", "warning", "assert"].iter().any(|kind| params["type"] == *kind) =>
        {
            Some(format!("console: {}", params["args"]))
        }
        "Log.entryAdded" if params["entry"]["level"] == "error" => {
            Some(format!("log: {} {}", params["entry"]["text"], params["entry"]["url"]))
        }
        "Network.loadingFailed" if params["canceled"] != true => {
            Some(format!("request: {}", params["errorText"]))
        }
        _ => None,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
