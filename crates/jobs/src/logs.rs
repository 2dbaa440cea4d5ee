//! What the steps of a run said: the end of it for the requester, the whole kept for the administrators.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::{AsyncBufRead, AsyncReadExt, StreamExt, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{DeleteParams, ListParams, LogParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use crate::config::LogConfig;
use crate::crd::StepLog;
use crate::machine::clip;
use crate::names::{ANNOTATION_OWNER, LABEL_LOG, log_name};
use crate::redact::Redactor;
use crate::request::Key;

/// How long the end of a request may be delayed for the sake of its logs.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long somebody waits who asks for a log.
const ASKED: Duration = Duration::from_mins(10);
/// Lines of one step that are asked for.
const LINES: u16 = 10_000;
/// Logs read at once.
const AT_ONCE: usize = 4;
/// Stands where a log was too long.
const LEFT_OUT: &str = "[the beginning is left out]\n";
/// Stands where a log broke off, or did not come to its end in time.
const UNREAD: &str = "[the rest could not be read]\n";

/// The log of one step, without secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) task: String,
    pub(crate) step: String,
    pub(crate) text: String,
    /// Whether it said more before.
    pub(crate) cut: bool,
}

/// Where the log of a step is.
struct Step {
    pod: String,
    task: String,
    container: String,
}

/// What a stream said, before secrets are taken out.
#[derive(Debug, Default, PartialEq, Eq)]
struct Said {
    text: String,
    /// Whether it said more before.
    cut: bool,
    /// Whether it would have said more.
    broken: bool,
}

/// Reads and keeps logs of runs in one namespace.
pub(crate) struct Logs {
    client: Client,
    namespace: String,
    config: LogConfig,
    redactor: Redactor,
    // Sizes of what is kept by name and age, once read.
    book: Mutex<Option<BTreeMap<(i64, String), usize>>>,
}

/// The whole log of a run as an administrator of the private side sees it: the kept one, or what
/// its steps have said so far.
pub async fn whole_log(client: Client, namespace: &str, run: &str) -> kube::Result<Option<String>> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    if let Some(kept) = api.get_opt(&log_name(run)).await? {
        return Ok(kept.data.and_then(|mut data| data.remove("log")));
    }
    let logs = Logs::new(client, namespace, LogConfig::default());
    let steps = logs.steps(run).await?;
    let pieces = logs.read_steps(steps, Instant::now() + ASKED).await;
    Ok((!pieces.is_empty()).then(|| whole(&pieces, usize::MAX)))
}

impl Logs {
    pub(crate) fn new(client: Client, namespace: &str, config: LogConfig) -> Self {
        let redactor = Redactor::new(&config.redact);
        Self { client, namespace: namespace.to_owned(), config, redactor, book: Mutex::default() }
    }

    /// What the steps of a run said, as far as it can be had soon.
    pub(crate) async fn read(&self, run: &str) -> Vec<Piece> {
        let until = Instant::now() + PATIENCE;
        match timeout_at(until, self.steps(run)).await {
            Ok(Ok(steps)) => self.read_steps(steps, until).await,
            Ok(Err(error)) => {
                tracing::warn!(run, cause = %tarbet_cluster::describe(&error), "The logs of a run could not be read.");
                Vec::new()
            }
            Err(_) => {
                tracing::warn!(run, "The logs of a run could not be read in time.");
                Vec::new()
            }
        }
    }

    /// The steps of a run, in the order in which they were made.
    async fn steps(&self, run: &str) -> kube::Result<Vec<Step>> {
        let mut pods = self
            .pods()
            .list(&ListParams::default().labels(&format!("tekton.dev/pipelineRun={run}")))
            .await?
            .items;
        pods.sort_by_key(|pod| (pod.creation_timestamp(), pod.name_any()));
        let steps = pods.iter().flat_map(|pod| {
            let task = pod.labels().get("tekton.dev/pipelineTask").cloned().unwrap_or_else(|| pod.name_any());
            let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
            let steps = containers.filter(|container| container.name.starts_with("step-"));
            steps.map(move |container| Step {
                pod: pod.name_any(),
                task: task.clone(),
                container: container.name.clone(),
            })
        });
        Ok(steps.collect())
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn read_steps(&self, steps: Vec<Step>, until: Instant) -> Vec<Piece> {
        stream::iter(steps).map(|step| self.read_step(step, until)).buffered(AT_ONCE).collect().await
    }

    async fn read_step(&self, Step { pod, task, container }: Step, until: Instant) -> Piece {
        // Half of what is left: one that does not come to its end leaves time for those after it.
        let now = Instant::now();
        let late = now + until.saturating_duration_since(now) / 2;
        let most = self.config.keep_per_request.max(self.config.tail_total).max(4096);
        let params = LogParams {
            container: Some(container.clone()),
            tail_lines: Some(LINES.into()),
            // A limit of bytes would leave out the end, and what went wrong stands there.
            ..LogParams::default()
        };
        let said = match timeout_at(late, self.pods().log_stream(&pod, &params)).await {
            Ok(Ok(said)) => end_of_stream(said, most, late).await,
            Ok(Err(error)) => {
                let text = format!("[the log is not available: {}]\n", tarbet_cluster::describe(&error));
                Said { text, ..Said::default() }
            }
            Err(_) => Said { broken: true, ..Said::default() },
        };
        let mut text = self.redactor.redact(&said.text);
        if said.broken {
            // Afterwards: a secret whose end is missing reaches up to the end.
            let newline = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
            text.extend([newline, UNREAD]);
        }
        Piece { task, step: container.trim_start_matches("step-").to_owned(), text, cut: said.cut }
    }

    /// The end of each step's log, within the configured sizes.
    pub(crate) fn tails(&self, pieces: &[Piece]) -> Vec<StepLog> {
        tails(pieces, self.config.tail_per_step, self.config.tail_total)
    }

    /// Keeps the whole log on the private cluster. A failure is only logged.
    pub(crate) async fn keep(&self, run: &str, key: &Key, pieces: &[Piece]) {
        if pieces.is_empty() || self.config.keep_per_request == 0 {
            return;
        }
        let text = whole(pieces, self.config.keep_per_request);
        let name = log_name(run);
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": name,
                "labels": { LABEL_LOG: "true" },
                "annotations": { ANNOTATION_OWNER: format!("{}/{}", key.namespace, key.name) },
            },
            "data": { "log": text },
        });
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        match tarbet_cluster::apply(&api, &name, "tarbet-jobs", &map).await {
            Ok(kept) => {
                let made = kept.creation_timestamp().map_or(0, |time| time.0.as_second());
                if let Err(error) = self.make_room(&api, made, name, text.len()).await {
                    tracing::warn!(cause = %tarbet_cluster::describe(&error), "Old logs could not be removed.");
                }
            }
            Err(error) => {
                tracing::warn!(run, cause = %tarbet_cluster::describe(&error), "The log of a run could not be kept.");
            }
        }
    }

    /// Removes the oldest logs beyond the configured size.
    async fn make_room(
        &self,
        api: &Api<ConfigMap>,
        made: i64,
        name: String,
        size: usize,
    ) -> kube::Result<()> {
        let mut book = self.book.lock().await;
        if book.is_none() {
            let kept = api.list(&ListParams::default().labels(LABEL_LOG)).await?;
            let entry = |map: ConfigMap| {
                let size = map.data.iter().flatten().map(|(_, text)| text.len()).sum();
                ((map.creation_timestamp().map_or(0, |time| time.0.as_second()), map.name_any()), size)
            };
            *book = Some(kept.items.into_iter().map(entry).collect());
        }
        let Some(book) = book.as_mut() else { return Ok(()) };
        book.insert((made, name), size);
        let mut total: usize = book.values().sum();
        while total > self.config.keep_total && book.len() > 1 {
            let Some(((_, oldest), size)) = book.pop_first() else { break };
            total -= size;
            self.delete(api, &oldest).await?;
        }
        Ok(())
    }

    /// Removes the log of a run whose request is gone.
    pub(crate) async fn forget(&self, run: &str) -> kube::Result<()> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let name = log_name(run);
        if let Some(book) = self.book.lock().await.as_mut() {
            book.retain(|(_, kept), _| *kept != name);
        }
        self.delete(&api, &name).await
    }

    async fn delete(&self, api: &Api<ConfigMap>, name: &str) -> kube::Result<()> {
        match api.delete(name, &DeleteParams::default()).await {
            Err(error) if tarbet_cluster::class(&error) != tarbet_cluster::Class::Missing => Err(error),
            _ => Ok(()),
        }
    }
}

fn tails(pieces: &[Piece], per_step: usize, total: usize) -> Vec<StepLog> {
    // The last steps matter most, so the room is given out from the end.
    let mut left = total;
    let mut tails: Vec<StepLog> = Vec::new();
    for piece in pieces.iter().rev() {
        let (tail, shortened) = end_of(&piece.text, per_step.min(left));
        let truncated = shortened || piece.cut;
        // What is left of a step that got too little room may be a bare end of line: that says nothing.
        if tail.trim().is_empty() && (truncated || piece.text.is_empty()) {
            continue;
        }
        left = left.saturating_sub(tail.len());
        tails.push(StepLog { task: clip(&piece.task, 253), step: clip(&piece.step, 253), tail, truncated });
    }
    tails.reverse();
    tails
}

fn whole(pieces: &[Piece], most: usize) -> String {
    let mut text = String::new();
    for Piece { task, step, text: said, cut } in pieces {
        let newline = if said.is_empty() || said.ends_with('\n') { "" } else { "\n" };
        let left_out = if *cut { LEFT_OUT } else { "" };
        text.extend(["=== ", task, " / ", step, "\n", left_out, said, newline]);
    }
    let (end, truncated) = end_of(&text, most.saturating_sub(64));
    if truncated { format!("{LEFT_OUT}{end}") } else { end }
}

/// The last bytes of what is read until then, by whole lines. What was read before the stream broke is better than
/// nothing.
async fn end_of_stream(said: impl AsyncBufRead, most: usize, late: Instant) -> Said {
    let mut said = std::pin::pin!(said);
    let (mut kept, mut piece, mut dropped, mut lines) = (Vec::new(), vec![0; 16 * 1024], false, 0);
    let broken = loop {
        let Ok(Ok(read)) = timeout_at(late, said.read(&mut piece)).await else { break true };
        if read == 0 {
            break false;
        }
        lines += piece[..read].iter().map(|byte| usize::from(*byte == b'\n')).sum::<usize>();
        kept.extend_from_slice(&piece[..read]);
        // Moved seldom, so that a long log is not copied once for every piece of it.
        if kept.len() > most.saturating_mul(2) {
            kept.drain(..kept.len() - most);
            dropped = true;
        }
    };
    let text = String::from_utf8_lossy(&kept);
    let start = text.ceil_char_boundary(text.len().saturating_sub(most));
    let cut = dropped || start > 0;
    let mut text = &text[start..];
    if cut {
        // Its line may be the rest of a secret that cannot be told any more.
        text = text.split_once('\n').map_or("", |(_, rest)| rest);
    }
    // So many lines were asked for: the beginning may be left out by whoever keeps the log.
    if cut || lines >= usize::from(LINES) {
        text = without_torn_key(text);
    }
    Said { text: text.to_owned(), cut, broken }
}

/// A text whose beginning was cut off, without the rest of a private key that began there.
fn without_torn_key(text: &str) -> &str {
    match key_line(text, "-----END ") {
        Some((at, end)) if key_line(&text[..at], "-----BEGIN ").is_none() => &text[end..],
        _ => text,
    }
}

/// Where the first line is that begins so and is one of a private key.
fn key_line(text: &str, begins: &str) -> Option<(usize, usize)> {
    const DASHES: &str = "-----";
    text.match_indices(begins).find_map(|(at, _)| {
        let (label, _) = text[at + begins.len()..].split_once(DASHES)?;
        let is_key = label.ends_with("PRIVATE KEY")
            && label.bytes().all(|byte| byte == b' ' || byte.is_ascii_uppercase());
        is_key.then_some((at, at + begins.len() + label.len() + DASHES.len()))
    })
}

/// The last bytes of a text, from the beginning of a line where there is one; and whether any are left out.
fn end_of(text: &str, most: usize) -> (String, bool) {
    if text.len() <= most {
        return (text.to_owned(), false);
    }
    let start = (text.len() - most..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len());
    let tail = &text[start..];
    let at_line = start == 0 || text[..start].ends_with('\n');
    let tail = match tail.find('\n') {
        Some(newline) if !at_line && newline + 1 < tail.len() => &tail[newline + 1..],
        _ => tail,
    };
    (tail.to_owned(), true)
}

#[cfg(test)]
mod tests {
    use futures::TryStreamExt;
    use proptest::prelude::*;

    use super::*;

    fn piece(step: &str, text: &str) -> Piece {
        Piece { task: "t".into(), step: step.into(), text: text.into(), cut: false }
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_hours(1)
    }

    #[tokio::test]
    async fn of_a_long_log_the_end_is_read() {
        let lines: Vec<String> = (0..50_000).map(|line| format!("line {line}")).collect();
        let long = lines.join("\n") + "\n";
        for most in [7, 100, 4096, 100_000] {
            let Said { text: end, cut, broken } = end_of_stream(long.as_bytes(), most, later()).await;
            assert!(cut && !broken && end.len() <= most && long.ends_with(&end), "{most}");
            assert!(most < 20 || end.starts_with("line ") && end.ends_with("line 49999\n"), "{most}: {end}");
        }
        let short = Said { text: "short\n".into(), ..Said::default() };
        assert_eq!(end_of_stream("short\n".as_bytes(), 100, later()).await, short);
        let cut = Piece { cut: true, ..piece("s", "end\n") };
        assert!(tails(std::slice::from_ref(&cut), 100, 100)[0].truncated);
        assert_eq!(whole(&[cut], 1000), format!("=== t / s\n{LEFT_OUT}end\n"));
    }

    #[tokio::test]
    async fn what_was_read_before_a_stream_broke_or_stood_still_is_kept() {
        let kept = Said { text: "one\ntw".into(), cut: false, broken: true };
        let first = || stream::iter([Ok::<_, std::io::Error>("one\ntw")]);
        let breaks =
            first().chain(stream::iter([Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset))]));
        assert_eq!(end_of_stream(breaks.into_async_read(), 100, later()).await, kept);
        let stands = first().chain(stream::pending());
        // Whatever is there when the time is over is taken along.
        let soon = Instant::now() + Duration::from_millis(1);
        assert_eq!(end_of_stream(stands.into_async_read(), 100, soon).await, kept);
    }

    /// A log of a key, as lines; and what the key is made of.
    fn log_of_key(before: usize) -> (String, String) {
        let body: Vec<String> = (0..40).map(|line| format!("{line:02}{}", "k3Y/".repeat(15))).collect();
        let before = "step output\n".repeat(before);
        let key =
            format!("-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----", body.join("\n"));
        (format!("{before}{key}\nafter\n"), "k3Y/".into())
    }

    #[tokio::test]
    async fn wherever_a_log_is_cut_nothing_of_a_key_is_left() {
        let (log, secret) = log_of_key(3);
        let redactor = Redactor::new(&[]);
        for most in 1..log.len() {
            let said = end_of_stream(log.as_bytes(), most, later()).await;
            let text = redactor.redact(&said.text);
            assert!(said.cut && !text.contains(&secret), "{most}: {text}");
            assert!(most < 10 || text.ends_with("after\n"), "{most}: {text}");
        }
        // One line and nothing else: what it is the rest of cannot be told.
        let token = format!("token={}", "a1".repeat(50));
        assert_eq!(end_of_stream(token.as_bytes(), 40, later()).await.text, "");
    }

    #[tokio::test]
    async fn a_key_whose_beginning_was_not_sent_is_left_out_too() {
        let (log, secret) = log_of_key(0);
        let body = log.split_once('\n').unwrap().1;
        let sent = format!("{body}{}", "line\n".repeat(usize::from(LINES)));
        let said = end_of_stream(sent.as_bytes(), 1 << 20, later()).await;
        assert!(!said.cut && !said.text.contains(&secret) && said.text.contains("after\nline\n"));
        // A log that is whole stays so, whatever it ends.
        let whole = end_of_stream(body.as_bytes(), 1 << 20, later()).await;
        assert_eq!(whole.text, body);
    }

    #[test]
    fn the_end_is_kept_by_whole_lines() {
        assert_eq!(end_of("one\ntwo\nthree\n", 8), ("three\n".into(), true));
        assert_eq!(end_of("one\ntwo\n", 8), ("one\ntwo\n".into(), false));
        assert_eq!(end_of("x\nlonglonglong", 6), ("nglong".into(), true));
    }

    #[test]
    fn the_last_steps_get_the_room() {
        let pieces = [piece("a", "first\n"), piece("b", "second\n"), piece("c", "third\n")];
        let steps = |total| tails(&pieces, 100, total).into_iter().map(|log| log.step).collect::<Vec<_>>();
        assert_eq!(steps(100), ["a", "b", "c"]);
        assert_eq!(steps(14), ["b", "c"]);
        assert_eq!(steps(0), Vec::<String>::new());
        assert!(whole(&pieces, 1000).starts_with("=== t / a\nfirst\n=== t / b"));
    }

    proptest! {
        #[test]
        fn sizes_hold_for_any_text(texts in proptest::collection::vec("(\\PC|\n){0,60}", 0..6), per_step in 0usize..50, total in 0usize..120) {
            let pieces: Vec<Piece> = texts.iter().map(|text| piece("s", text)).collect();
            let tails = tails(&pieces, per_step, total);
            prop_assert!(tails.iter().all(|log| log.tail.len() <= per_step));
            prop_assert!(tails.iter().map(|log| log.tail.len()).sum::<usize>() <= total);
            prop_assert!(whole(&pieces, total.max(100)).len() <= total.max(100));
        }
    }
}
