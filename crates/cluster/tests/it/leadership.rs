//! One replica leads; another follows when it ends, and never while it works.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use tarbet_cluster::{Election, Source, Timings, connect};
use tarbet_testbed::{eventually, shared_pair, wait_for};
use tokio_util::sync::CancellationToken;

const SOON: Duration = Duration::from_mins(1);

fn quick() -> Timings {
    // Its retries are quick; who holds a lease keeps it on a machine that stalls for seconds.
    Timings { retry: Duration::from_millis(200), ..Timings::default() }
}

#[derive(Clone, Default)]
struct Watched {
    working: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    terms: Arc<std::sync::Mutex<Vec<(String, i32)>>>,
}

impl Watched {
    fn start(&self, election: Election, name: &str, stop: CancellationToken) -> tokio::task::JoinHandle<()> {
        let (watched, name) = (self.clone(), name.to_owned());
        tokio::spawn(async move {
            election
                .lead(stop, |term| {
                    let (watched, name) = (watched.clone(), name.clone());
                    async move {
                        struct Leave(Arc<AtomicUsize>);
                        impl Drop for Leave {
                            fn drop(&mut self) {
                                self.0.fetch_sub(1, Ordering::SeqCst);
                            }
                        }
                        let now = watched.working.fetch_add(1, Ordering::SeqCst) + 1;
                        let _leave = Leave(Arc::clone(&watched.working));
                        watched.most.fetch_max(now, Ordering::SeqCst);
                        watched.terms.lock().unwrap().push((name, term.number()));
                        term.ended().cancelled().await;
                    }
                })
                .await;
        })
    }

    fn leaders(&self) -> Vec<String> {
        self.terms.lock().unwrap().iter().map(|(name, _)| name.clone()).collect()
    }
}

#[tokio::test]
async fn the_next_takes_over_when_the_first_stops_or_falls_silent() {
    let pair = shared_pair().await.unwrap();
    let namespace = pair.private.unique_namespace("lead").await.unwrap();
    let client = connect(&Source::file(pair.private.kubeconfig())).await.unwrap();
    let watched = Watched::default();
    let candidate = |name: &str| Election::new(client.clone(), &namespace, "role", name, quick());
    let stops: Vec<CancellationToken> = (0..3).map(|_| CancellationToken::new()).collect();

    let first = watched.start(candidate("first"), "first", stops[0].clone());
    wait_for(SOON, "a leader", || watched.leaders() == ["first"]).await.unwrap();
    let second = watched.start(candidate("second"), "second", stops[1].clone());
    stops[0].cancel();
    first.await.unwrap();
    wait_for(SOON, "the second", || watched.leaders() == ["first", "second"]).await.unwrap();

    // Silent without a word, as a killed process is: the lease has to run out.
    let third = watched.start(candidate("third"), "third", stops[2].clone());
    second.abort();
    let _ = second.await;
    wait_for(SOON, "the third", || watched.leaders() == ["first", "second", "third"]).await.unwrap();
    stops[2].cancel();
    third.await.unwrap();

    assert_eq!(watched.most.load(Ordering::SeqCst), 1, "never two at once");
    let terms = watched.terms.lock().unwrap().clone();
    assert!(terms.windows(2).all(|pair| pair[0].1 < pair[1].1), "{terms:?}");
}

#[tokio::test]
async fn a_leader_whose_lease_was_taken_stops_working() {
    let pair = shared_pair().await.unwrap();
    let namespace = pair.private.unique_namespace("usurp").await.unwrap();
    let client = connect(&Source::file(pair.private.kubeconfig())).await.unwrap();
    let watched = Watched::default();
    let stop = CancellationToken::new();
    let election = Election::new(client.clone(), &namespace, "role", "victim", quick());
    let task = watched.start(election, "victim", stop.clone());
    wait_for(SOON, "a leader", || watched.working.load(Ordering::SeqCst) == 1).await.unwrap();

    let api: Api<Lease> = Api::namespaced(client, &namespace);
    let patch = serde_json::json!({ "spec": { "holderIdentity": "usurper", "leaseDurationSeconds": 3600 } });
    eventually(SOON, "the lease taken", || tarbet_cluster::merge(&api, "role", &patch)).await.unwrap();
    wait_for(SOON, "the end of its work", || watched.working.load(Ordering::SeqCst) == 0).await.unwrap();
    stop.cancel();
    task.await.unwrap();
    assert_eq!(api.get("role").await.unwrap().spec.unwrap().holder_identity.as_deref(), Some("usurper"));
}
