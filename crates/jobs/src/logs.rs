//! What the steps of a run said: the end of it for the requester, the whole kept for the administrators.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::{AsyncBufRead, AsyncReadExt, StreamExt, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{DeleteParams, ListParams, LogParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::sync::Mutex;

use crate::config::LogConfig;
use crate::crd::StepLog;
use crate::machine::clip;
use crate::names::{ANNOTATION_OWNER, LABEL_LOG, log_name};
use crate::redact::Redactor;
use crate::request::Key;

/// How long the end of a request may be delayed for the sake of its logs.
const PATIENCE: Duration = Duration::from_secs(10);
/// Lines of one step that are asked for.
const LINES: i64 = 10_000;
/// Logs read at once.
const AT_ONCE: usize = 4;
/// Stands where a log was too long.
const LEFT_OUT: &str = "[the beginning is left out]\n";

/// The log of one step, without secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) task: String,
    pub(crate) step: String,
    pub(crate) text: String,
    /// Whether it said more before.
    pub(crate) cut: bool,
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
    let pieces = logs.read_all(run).await?;
    Ok((!pieces.is_empty()).then(|| whole(&pieces, usize::MAX)))
}

impl Logs {
    pub(crate) fn new(client: Client, namespace: &str, config: LogConfig) -> Self {
        let redactor = Redactor::new(&config.redact);
        Self { client, namespace: namespace.to_owned(), config, redactor, book: Mutex::default() }
    }

    /// What the steps of a run said, as far as it can be had soon.
    pub(crate) async fn read(&self, run: &str) -> Vec<Piece> {
        match tokio::time::timeout(PATIENCE, self.read_all(run)).await {
            Ok(Ok(pieces)) => pieces,
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

    async fn read_all(&self, run: &str) -> kube::Result<Vec<Piece>> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut pods =
            api.list(&ListParams::default().labels(&format!("tekton.dev/pipelineRun={run}"))).await?.items;
        pods.sort_by_key(|pod| (pod.creation_timestamp(), pod.name_any()));
        let wanted: Vec<(String, String, String)> = pods
            .iter()
            .flat_map(|pod| {
                let task =
                    pod.labels().get("tekton.dev/pipelineTask").cloned().unwrap_or_else(|| pod.name_any());
                let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
                let steps = containers.filter(|container| container.name.starts_with("step-"));
                steps
                    .map(move |container| (pod.name_any(), task.clone(), container.name.clone()))
                    .collect::<Vec<_>>()
            })
            .collect();
        let most = self.config.keep_per_request.max(self.config.tail_total).max(4096);
        let read = |(pod, task, container): (String, String, String)| {
            let api = api.clone();
            async move {
                let params = LogParams {
                    container: Some(container.clone()),
                    tail_lines: Some(LINES),
                    // A limit of bytes would leave out the end, and what went wrong stands there.
                    ..LogParams::default()
                };
                let (text, cut) = match api.log_stream(&pod, &params).await {
                    Ok(said) => end_of_stream(said, most).await,
                    Err(error) => {
                        (format!("[the log is not available: {}]\n", tarbet_cluster::describe(&error)), false)
                    }
                };
                let step = container.trim_start_matches("step-").to_owned();
                Piece { task, step, text: self.redactor.redact(&text), cut }
            }
        };
        Ok(stream::iter(wanted).map(read).buffered(AT_ONCE).collect().await)
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

/// The last bytes of what is read, by whole lines; and whether any are left out. What was read before the stream
/// broke is better than nothing.
async fn end_of_stream(said: impl AsyncBufRead, most: usize) -> (String, bool) {
    let mut said = std::pin::pin!(said);
    let (mut kept, mut piece, mut dropped) = (Vec::new(), vec![0; 16 * 1024], false);
    while let Ok(read @ 1..) = said.read(&mut piece).await {
        kept.extend_from_slice(&piece[..read]);
        // Moved seldom, so that a long log is not copied once for every piece of it.
        if kept.len() > most.saturating_mul(2) {
            kept.drain(..kept.len() - most);
            dropped = true;
        }
    }
    let text = String::from_utf8_lossy(&kept);
    let (end, cut) = end_of(&text, most.min(if dropped { text.len().saturating_sub(1) } else { most }));
    (end, cut || dropped)
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
    use super::*;
    use proptest::prelude::*;

    fn piece(step: &str, text: &str) -> Piece {
        Piece { task: "t".into(), step: step.into(), text: text.into(), cut: false }
    }

    #[tokio::test]
    async fn of_a_long_log_the_end_is_read() {
        let lines: Vec<String> = (0..50_000).map(|line| format!("line {line}")).collect();
        let long = lines.join("\n") + "\n";
        for most in [7, 100, 4096, 100_000] {
            let (end, cut) = end_of_stream(long.as_bytes(), most).await;
            assert!(cut && end.len() <= most && long.ends_with(&end), "{most}");
            assert!(most < 20 || end.starts_with("line ") && end.ends_with("line 49999\n"), "{most}: {end}");
        }
        assert_eq!(end_of_stream("short\n".as_bytes(), 100).await, ("short\n".to_owned(), false));
        let cut = Piece { cut: true, ..piece("s", "end\n") };
        assert!(tails(std::slice::from_ref(&cut), 100, 100)[0].truncated);
        assert_eq!(whole(&[cut], 1000), format!("=== t / s\n{LEFT_OUT}end\n"));
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
