//! Callers of the kubelet API who try to get at a pod of others: by token and by certificate, by every
//! method, and by every way to write a name that we know. What is forbidden looks like what is absent.

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::json;
use tarbet_identity::tls::{CaSource, ClientTls, Connector, CredentialSource, TlsStream};
use tarbet_testbed::{Authority, Subject, verified};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::{Bed, shell};
use crate::it::pods::{PATIENCE, effort};

/// What the victim says, and nobody else.
const CANARY: &str = "canary-of-the-victim";
/// What a command would leave behind in the victim.
const TRACE: &str = "/tmp/somebody-was-here";
const METHODS: [&str; 8] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "BREW"];
const UPGRADES: [&str; 3] = [
    "",
    "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
     sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-protocol: v5.channel.k8s.io\r\n",
    "connection: upgrade\r\nupgrade: SPDY/3.1\r\nx-stream-protocol-version: v4.channel.k8s.io\r\n",
];

/// Calls about one pod. `{n}` is its namespace, `{p}` its name, `{u}` its UID.
const CALLS: [&str; 12] = [
    "/containerLogs/{n}/{p}/main",
    "/containerLogs/{n}/{p}/main?follow=true",
    "/exec/{n}/{p}/main?command=touch&command=TRACE&output=1&error=1",
    "/exec/{n}/{p}/{u}/main?command=touch&command=TRACE&output=1",
    "/attach/{n}/{p}/main?output=1",
    "/attach/{n}/{p}/{u}/main?input=1&output=1",
    "/portForward/{n}/{p}?port=80",
    "/portForward/{n}/{p}/{u}",
    "/run/{n}/{p}/main?cmd=touch+TRACE",
    "/containerLogs/{n}/{u}/main",
    "/exec/{n}/{u}/main?command=touch&command=TRACE&output=1",
    "/run/{n}/{u}/{u}/main?cmd=touch+TRACE",
];

/// Ways to dress a path up. `{c}` is the call, without its first slash.
const DRESSES: [&str; 16] = [
    "/{c}",
    "//{c}",
    "/./{c}",
    "/metrics/../{c}",
    "/metrics/..%2f{c}",
    "/metrics/%2e%2e/{c}",
    "/metrics%2f..%2f{c}",
    "/metrics/resource/../../{c}",
    "/stats/../{c}",
    "/stats/summary/..;/..;/{c}",
    "/healthz/../{c}",
    "/healthz/%2e%2e/{c}",
    "/healthz%00/{c}",
    "/logs/..%252f{c}",
    "/x/../{c}",
    "https://kubelet/{c}",
];

/// Names by which a caller who may do everything means the pod of another namespace. `{m}` is a namespace that
/// has no such pod.
const NAMES: [(&str, &str); 18] = [
    ("{m}", "{p}"),
    ("{m}", "{u}"),
    ("{n}", "{u}"),
    ("{u}", "{p}"),
    ("{p}", "{n}"),
    ("{m}", "..%2f{n}%2f{p}"),
    ("{m}%2f..%2f{n}", "{p}"),
    ("{m}%2F%2E%2E%2F{n}", "{p}"),
    ("..%2f{n}", "{p}"),
    ("%2e%2e%2f{n}", "{p}"),
    ("%252e%252e%252f{n}", "{p}"),
    ("{n}%00", "{p}"),
    ("{n}", "{p}%00"),
    ("{n}", "{p}."),
    ("{n}", "{p}%20"),
    ("{n}%2f{p}", "{p}"),
    ("*", "{p}"),
    ("{n}", "%2a"),
];

/// Who is meant: the victim, or a pod that is not there.
struct Meant {
    namespace: String,
    name: String,
    uid: String,
}

impl Meant {
    fn fill(&self, text: &str, other: &str) -> String {
        let text = text.replace("{n}", &self.namespace).replace("{p}", &self.name).replace("{u}", &self.uid);
        text.replace("{m}", other).replace("TRACE", &TRACE.replace('/', "%2f"))
    }

    /// A text without these names: what differs then is more than the question.
    fn blur(&self, text: &str) -> String {
        text.replace(&self.uid, "UID").replace(&self.name, "POD").replace(&self.namespace, "NAMESPACE")
    }
}

/// Somebody with something to show.
struct Caller<'a> {
    bed: &'a Bed,
    name: &'static str,
    tls: Connector,
    token: Option<String>,
    stream: Option<BufReader<TlsStream<TcpStream>>>,
}

impl<'a> Caller<'a> {
    fn new(bed: &'a Bed, name: &'static str, shown: Option<(&Authority, Option<&str>)>) -> Result<Self> {
        let mut tls = ClientTls::only(CaSource::Pem(bed.plane.authority().pem().to_owned()));
        if let Some((authority, group)) = shown {
            let files = authority.issue_files(&Subject::client(name, group), bed.root.path(), name)?;
            let files = CredentialSource::Files { certificate: files.certificate, key: files.key };
            tls = tls.credential(files);
        }
        let tls = tls.alpn(["http/1.1"]).build(Timestamp::now())?;
        Ok(Self { bed, name, tls, token: None, stream: None })
    }

    fn with(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Status and body; a status of 0 if the other end hung up without one.
    async fn ask(&mut self, method: &str, path: &str, more: &str) -> Result<(u16, String)> {
        let shown = self.token.as_ref().map(|token| format!("authorization: Bearer {token}\r\n"));
        let shown = shown.unwrap_or_default();
        let text =
            format!("{method} {path} HTTP/1.1\r\nhost: kubelet\r\n{shown}{more}content-length: 0\r\n\r\n");
        let asked = async {
            // A connection that was hung up meanwhile is found out when it is used.
            if let Some(stream) = self.stream.take()
                && let Ok(said) = self.once(stream, &text, method).await
                && said.0 != 0
            {
                return Ok(said);
            }
            let stream = TcpStream::connect(self.bed.kubelet).await?;
            let Ok(stream) = self.tls.connect("127.0.0.1", stream).await else {
                return Ok((0, String::new()));
            };
            Ok(self.once(BufReader::new(stream), &text, method).await.unwrap_or_default())
        };
        tokio::time::timeout(PATIENCE, asked).await.with_context(|| format!("{method} {path} has no end"))?
    }

    async fn once(
        &mut self,
        mut stream: BufReader<TlsStream<TcpStream>>,
        text: &str,
        method: &str,
    ) -> Result<(u16, String)> {
        stream.get_mut().write_all(text.as_bytes()).await?;
        stream.get_mut().flush().await?;
        let (mut status, mut length, mut last) = (0, None, false);
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await? == 0 {
                return Ok((status, String::new()));
            }
            let line = line.trim_end().to_ascii_lowercase();
            if status == 0 {
                status = line.split(' ').nth(1).and_then(|word| word.parse().ok()).context("no status")?;
                continue;
            }
            let Some((name, value)) = line.split_once(": ") else { break };
            match name {
                "content-length" => length = value.parse::<usize>().ok(),
                "connection" => last = value == "close",
                _ => {}
            }
        }
        let mut body = Vec::new();
        match length {
            _ if method == "HEAD" || status == 101 => {}
            Some(length) => {
                body.resize(length, 0);
                stream.read_exact(&mut body).await?;
            }
            None => {
                // Of something that goes on the beginning is enough.
                body.resize(16 * 1024, 0);
                let count = stream.read(&mut body).await?;
                body.truncate(count);
                last = true;
            }
        }
        self.stream = (!last && status != 101).then_some(stream);
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    /// Waits until the victim's log is read: rights take a moment to count.
    async fn reads(&mut self, path: &str) -> Result<()> {
        let late = tokio::time::Instant::now() + PATIENCE;
        loop {
            let (status, body) = self.ask("GET", path, "connection: close\r\n").await?;
            if status == 200 && body.contains(CANARY) {
                return Ok(());
            }
            ensure!(tokio::time::Instant::now() < late, "{}: {status} {body}", self.name);
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
    }

    /// Asks for the victim and for what is not there, and compares.
    async fn compare(
        &mut self,
        method: &str,
        path: &str,
        more: &str,
        all: &[Meant; 2],
        other: &str,
    ) -> Result<()> {
        let mut told = Vec::new();
        for meant in all {
            let path = meant.fill(path, other);
            let (status, body) = self.ask(method, &path, more).await?;
            ensure!(!body.contains(CANARY), "{}: {method} {path} tells the log", self.name);
            ensure!(
                status == 0 || status >= 400,
                "{}: {method} {path} is answered {status}: {body}",
                self.name
            );
            told.push((status, all.iter().fold(body, |body, meant| meant.blur(&body))));
        }
        ensure!(
            told[0] == told[1],
            "{}: {method} {path}\nthere:  {:?}\nabsent: {:?}",
            self.name,
            told[0],
            told[1]
        );
        Ok(())
    }
}

/// A service account that may do this to nodes, and its token.
async fn account(bed: &Bed, namespace: &str, name: &str, rights: &[(&str, &str)]) -> Result<String> {
    let kubectl = bed.kubectl();
    kubectl.run(&["--namespace", namespace, "create", "serviceaccount", name]).await?;
    for (n, (verb, resource)) in rights.iter().enumerate() {
        let role = format!("{namespace}-{name}-{n}");
        let (verb, resource) = (format!("--verb={verb}"), format!("--resource={resource}"));
        kubectl.run(&["create", "clusterrole", &role, &verb, &resource]).await?;
        let (of, to) = (format!("--clusterrole={role}"), format!("--serviceaccount={namespace}:{name}"));
        kubectl.run(&["create", "clusterrolebinding", &role, &of, &to]).await?;
    }
    bed.plane.service_account_token(namespace, name).await
}

#[tokio::test]
async fn nobody_gets_at_a_pod_of_others_through_the_kubelet_api() -> Result<()> {
    let bed = Bed::new().await?;
    let mine = bed.plane.unique_namespace("mine").await?;
    bed.pod("victim", json!({"containers": [shell("main", &format!("echo {CANARY}; sleep 1000"))]})).await?;
    let pod = bed.phase("victim", "Running").await?;
    let uid = pod["metadata"]["uid"].as_str().context("no UID")?.to_owned();
    let absent =
        uid.chars().map(|c| c.to_digit(16).map_or(c, |d| char::from_digit((d + 1) % 16, 16).unwrap_or(c)));
    let all = [
        Meant { namespace: bed.namespace.clone(), name: "victim".into(), uid: uid.clone() },
        Meant { namespace: "nobodys".into(), name: "vanished".into(), uid: absent.collect() },
    ];

    let own = bed.plane.authority();
    let stranger = Authority::new("somebody else's")?;
    let counts = [("get", "nodes/metrics"), ("get", "nodes/stats"), ("get", "nodes/log")];
    let pods = [("get,list,create,delete", "pods"), ("get", "nodes")];
    let mut callers = vec![
        Caller::new(&bed, "nothing-shown", None)?,
        Caller::new(&bed, "no-rights", None)?.with(account(&bed, &mine, "none", &[]).await?),
        Caller::new(&bed, "may-count", None)?.with(account(&bed, &mine, "counts", &counts).await?),
        Caller::new(&bed, "may-pods", None)?.with(account(&bed, &mine, "pods", &pods).await?),
        Caller::new(&bed, "nonsense", None)?.with("eyJhbGciOiJub25lIn0.e30."),
        Caller::new(&bed, "empty", None)?.with(""),
        Caller::new(&bed, "no-group", Some((own, None)))?,
        Caller::new(&bed, "system:node:another", Some((own, Some("system:nodes"))))?,
        Caller::new(&bed, "nearly-master", Some((own, Some("system:masters-not"))))?,
        // A certificate that counts for nothing, even with a name that would.
        Caller::new(&bed, "self-made", Some((&stranger, Some("system:masters"))))?,
    ];
    let reads = account(&bed, &mine, "reads", &[("get", "nodes/proxy")]).await?;
    let mut reader = Caller::new(&bed, "may-read", None)?.with(reads);
    let mut master = Caller::new(&bed, "everything", Some((own, Some("system:masters"))))?;
    let log = all[0].fill(CALLS[0], &mine);
    for owner in [&mut reader, &mut master] {
        // The ways are open for whom they are.
        owner.reads(&log).await?;
    }

    let mut dice = StdRng::seed_from_u64(0x6b75);
    let tries = effort(1_500);
    for _ in 0..tries {
        let (method, more) =
            (*METHODS.choose(&mut dice).context("none")?, *UPGRADES.choose(&mut dice).context("none")?);
        let call = *CALLS.choose(&mut dice).context("none")?;
        match dice.random_range(0..10) {
            // Who has no right to it, however the path is dressed up.
            0..6 => {
                let dress = DRESSES.choose(&mut dice).context("none")?;
                let path = dress.replace("{c}", call.trim_start_matches('/'));
                let at = dice.random_range(0..callers.len());
                callers[at].compare(method, &path, more, &all, &mine).await?;
            }
            // Who may read, and tries to act.
            6..8 => {
                let acts = CALLS.iter().filter(|call| !call.starts_with("/containerLogs"));
                let call = *acts.collect::<Vec<_>>().choose(&mut dice).context("none")?;
                reader.compare(method, call, more, &all, &mine).await?;
            }
            // Who may do everything, and names the pod by what is not its name.
            _ => {
                let (namespace, name) = *NAMES.choose(&mut dice).context("none")?;
                let path = call.replacen("{n}/{p}", &format!("{namespace}/{name}"), 1);
                let path = path.replacen("{n}/{u}", &format!("{namespace}/{name}"), 1);
                master.compare(method, &path, more, &all, &mine).await?;
            }
        }
    }

    // Nothing was done, and the victim is as it was.
    let after = bed.get("victim").await?;
    ensure!(after["status"]["phase"] == "Running" && after["metadata"]["uid"] == uid.as_str(), "{after}");
    let left = bed
        .run(&["exec", "victim", "--", "sh", "-c", &format!("test -e {TRACE} && echo there; true")])
        .await?;
    ensure!(left.is_empty(), "a command ran: {left}");
    for owner in [&mut reader, &mut master] {
        owner.reads(&log).await?;
    }
    let promise =
        "calls of the kubelet API for a pod of others: none reached it, absent and forbidden look alike";
    verified(promise, usize::try_from(tries)?);
    Ok(())
}
