//! Names that are code: whatever a site, a pod, a tag or a service is called, the page only shows it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use serde_json::{Value, json};
use tarbet_console::{Console, Panel};
use tarbet_testbed::{Chromium, Page, verified};
use tokio_util::sync::CancellationToken;

use super::SOON;

/// What would run, become an element, lead elsewhere or meet a part of the language if it were not just shown.
const NAMES: [&str; 12] = [
    "<script>window.ran = 1</script>",
    "\"><img src=nothing onerror=\"window.ran = 1\">",
    "' onmouseover='window.ran = 1' onfocus='window.ran = 1' autofocus x='",
    "</title></style></script><svg onload=window.ran=1>",
    "javascript:window.ran=1",
    "data:text/html,<script>window.opener.ran=1</script>",
    "<iframe srcdoc=\"<script>parent.ran = 1</script>\"></iframe>",
    "${window.ran = 1}{{constructor.constructor('window.ran = 1')()}}",
    "url(javascript:window.ran=1);background:red}*{display:none",
    "\u{202e}\u{2066}gnp.tset\u{200f}\u{0}\u{7}",
    "../../#/codes/TB-1102?a=b&c=%2e%2e%2f",
    "__proto__",
];

/// Every panel, with one text wherever there is a text that others choose.
pub(super) fn panels(text: &str) -> Value {
    let time = "2026-01-01T00:00:00Z";
    let map = |value: Value| Value::Object([(text.to_owned(), value)].into_iter().collect());
    let conditions = json!([{ "type": text, "status": "False", "reason": text, "message": text }]);
    let link = json!({ "id": text, "gateway": text, "agent": text, "services": [text], "since": time });
    let site = json!({ "name": text, "id": 1, "created": time, "connected": true, "links": [link] });
    let problem = json!({ "code": text, "message": text, "hop": text, "cause": text, "try": text });
    let away =
        json!({ "name": format!("{text}2"), "id": 2, "created": time, "connected": false, "links": [] });
    let step = json!({ "afterUs": 1, "what": text });
    let container = json!({ "name": text, "state": "failed", "detail": text, "image": text });
    let job = json!({
        "name": text, "namespace": text, "created": time, "wants": text, "status": text, "reason": text,
        "message": text, "run": text, "results": map(json!(text)), "started": time, "ended": time,
    });
    let resource = json!({ "name": text, "namespace": text, "cloud": text, "ip": text, "rules": 1 });
    json!({
        "gateway": {
            "name": text, "version": text, "agents": text, "tokenFile": text, "caFile": text, "metrics": text,
            "panels": ["nets", "pods", "audit", "nodes", "jobs", "federation"], "parts": map(json!(text)),
        },
        "codes": [{
            "code": text, "title": text, "whose": "caller", "retry": true, "http": 400, "hop": text,
            "cause": text, "try": text, "page": text,
        }],
        "sites": [site, away],
        "links": [{
            "id": text, "site": text, "roundTripUs": 5, "heard": time, "streamsOpen": 1, "bytesIn": 1, "bytesOut": 1,
        }],
        "requests": [{
            "id": text, "gateway": text, "began": time, "principal": text, "site": text, "wants": text,
            "steps": [step],
        }],
        "traffic": map(json!(1)),
        "health": { "ready": false, "parts": map(json!({ "state": "failing", "reason": text })) },
        "nets": {
            "clouds": [text], "resources": [resource], "open": 1, "tags": 1,
            "links": [{ "name": text, "from": text, "to": text, "complete": false, "tunnels": 1 }],
            "flows": [{ "from": text, "to": text, "what": [text] }],
        },
        "pods": {
            "runtime": text,
            "pods": [{ "uid": text, "namespace": text, "name": text, "job": text, "containers": [container] }],
        },
        "nodes": {
            "nodes": [{ "name": text, "ready": false, "reason": text, "capacity": map(json!(text)) }],
            "away": [problem],
        },
        "jobs": { "requests": [job], "total": 2, "away": [problem] },
        "federation": {
            "away": [problem],
            "federations": [{
                "name": text, "namespace": text, "mesh": text, "conditions": conditions,
                "remotes": [{ "id": text, "connected": false, "since": time, "offered": 1, "imported": 1, "error": text }],
                "configured": [{ "id": text }],
            }],
            "rules": [{
                "namespace": text, "exported": 1, "conditions": conditions,
                "export": {
                    "serviceList": [text],
                    "serviceSelectors": [{ "matchLabels": map(json!(text)) }],
                    "namespaceSelectors": [{ "matchLabels": map(json!(text)) }],
                },
            }],
            "imported": [{
                "name": text, "namespace": text, "hostname": text, "meshes": [text], "ready": false, "why": text,
                "conflict": text,
            }],
        },
        "audit": {
            "file": text, "chain": { "whole": false, "why": text },
            "entries": [{
                "seq": 1, "time": time, "site": text, "principal": text, "wants": text, "outcome": text, "code": text,
            }],
        },
    })
}

pub(super) const PANELS: [&str; 13] = [
    "gateway",
    "codes",
    "sites",
    "links",
    "requests",
    "traffic",
    "health",
    "nets",
    "pods",
    "nodes",
    "jobs",
    "federation",
    "audit",
];

/// The console with the panels of the name whose turn it is.
async fn served(turn: &Arc<AtomicUsize>, stop: &CancellationToken) -> String {
    let console = Console::new(PANELS.map(|name| {
        let turn = Arc::clone(turn);
        Panel::live(name, move || {
            let text = NAMES[turn.load(SeqCst)];
            async move { Ok(panels(text)[name].clone()) }
        })
    }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(console.serve(listener, stop.clone()));
    url
}

/// What of the page is not its own: code that ran, elements, attributes and ways that a name brought along.
async fn foreign(page: &Page) -> Value {
    page.eval(include_str!("foreign.js")).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_are_code_are_shown_and_nothing_else() {
    let (turn, stop) = (Arc::<AtomicUsize>::default(), CancellationToken::new());
    let (url, browser) = (served(&turn, &stop).await, Chromium::start().await.unwrap());
    let page = browser.open(&url, 1400, 900).await.unwrap();
    let mut tried = 0;
    for (n, name) in NAMES.iter().enumerate() {
        turn.store(n, SeqCst);
        page.go(&format!("{url}/#/sites")).await.unwrap();
        page.eval("location.reload()").await.unwrap();
        let shown = format!("document.querySelector('main')?.textContent.includes({})", json!(name));
        page.until(SOON, &shown).await.unwrap();
        let mut seen = 0;
        let open = "encodeURIComponent";
        for view in [
            "overview",
            "sites",
            "sites/",
            "requests",
            "requests/",
            "health",
            "networks",
            "networks/",
            "pods",
            "pods/",
            "jobs",
            "federation",
            "audit",
            "codes/",
        ] {
            // As the page itself leads there, and with the name as it is.
            for way in [format!("{open}({})", json!(name)), json!(name).to_string()] {
                let last = if view.ends_with('/') { way } else { "''".to_owned() };
                page.eval(&format!("location.hash = '#/{view}' + {last}")).await.unwrap();
                page.eval("new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(() => drawn(1))))")
                    .await
                    .unwrap();
                assert_eq!(foreign(&page).await, json!([]), "{view} with {name:?}");
                seen += usize::from(page.eval(&shown).await.unwrap() == json!(true));
                tried += 1;
            }
        }
        assert!(seen >= 10, "{name:?} is shown in {seen} views");
    }
    // There are no logs and no rules behind these names.
    let complaints = page.complaints().into_iter().filter(|text| !text.contains("status of 404"));
    assert_eq!(complaints.collect::<Vec<_>>(), Vec::<String>::new());
    stop.cancel();
    verified("views of the console with names that are code: nothing runs", tried);
}
