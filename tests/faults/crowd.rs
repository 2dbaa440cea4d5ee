//! Callers who ask every site through two gateways, again and again, while something happens to a gateway.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use tarbet_reach::client::{Client, RemoteSite};
use tarbet_testbed::eventually;
use tarbet_testbed::product::{Gateway, Product};
use tokio::task::JoinHandle;

use super::{SOON, asking, name};

const CALLERS: usize = 8;

/// What callers met.
#[derive(Default)]
pub(crate) struct Tally {
    pub(super) asked: AtomicUsize,
    /// Answered by the second gateway, since the first one failed.
    detours: AtomicUsize,
    pub(super) failed: AtomicUsize,
    misrouted: AtomicUsize,
    pub(super) over: AtomicBool,
}

pub(super) struct Crowd {
    tally: Arc<Tally>,
    callers: Vec<JoinHandle<()>>,
}

impl Crowd {
    pub(super) fn start(product: &Product, gateways: &[Gateway; 2], sites: &[String]) -> Self {
        let tally = Arc::new(Tally::default());
        let callers = (0..CALLERS)
            .map(|caller| {
                let clients = gateways.each_ref().map(|gateway| asking::client(product, gateway));
                tokio::spawn(ask(clients, sites.to_vec(), Arc::clone(&tally), caller * 7))
            })
            .collect();
        Self { tally, callers }
    }

    /// Waits until so many more have been asked.
    pub(super) async fn goes_on(&self, more: usize) {
        let goal = self.tally.asked.load(SeqCst) + more;
        let reached = || std::future::ready(self.tally.asked.load(SeqCst) >= goal);
        eventually(SOON, "requests to go on", reached).await.unwrap();
    }

    /// How many were answered by the other gateway until now.
    pub(super) fn detours(&self) -> usize {
        self.tally.detours.load(SeqCst)
    }

    /// Ends it. Nobody was answered by the wrong site, and whoever was lost at one gateway was answered by
    /// the other: it gives how many asked.
    pub(super) async fn end(self) -> usize {
        self.tally.over.store(true, SeqCst);
        for caller in self.callers {
            caller.await.unwrap();
        }
        let [asked, failed, misrouted] =
            [&self.tally.asked, &self.tally.failed, &self.tally.misrouted].map(|count| count.load(SeqCst));
        assert_eq!(misrouted, 0, "of {asked}");
        assert_eq!(failed, 0, "of {asked} failed in spite of a retry");
        asked
    }
}

/// Asks one site after the other, beginning at either gateway, with one retry at the other one.
async fn ask(clients: [Client; 2], sites: Vec<String>, tally: Arc<Tally>, offset: usize) {
    let ways: Vec<[RemoteSite; 2]> = sites
        .iter()
        .map(|site| clients.each_ref().map(|client| client.site(site.parse().unwrap())))
        .collect();
    for turn in offset.. {
        if tally.over.load(SeqCst) {
            return;
        }
        let (site, first) = (turn % sites.len(), turn / sites.len() % 2);
        let mut answer = name(&ways[site][first]).await;
        if answer.is_err() {
            answer = name(&ways[site][1 - first]).await;
            tally.detours.fetch_add(usize::from(answer.is_ok()), SeqCst);
        }
        tally.asked.fetch_add(1, SeqCst);
        match answer {
            Ok(name) if name == sites[site] => {}
            Ok(_) => drop(tally.misrouted.fetch_add(1, SeqCst)),
            Err(error) => {
                eprintln!("{} failed twice: {error:?}", sites[site]);
                tally.failed.fetch_add(1, SeqCst);
            }
        }
    }
}
