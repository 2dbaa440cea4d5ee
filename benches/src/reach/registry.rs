//! Looking a site up among very many.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use jiff::Timestamp;
use tarbet_reach::local::{LinkId, LocalLinks};
use tarbet_reach::names::SiteName;
use tarbet_reach::registry::{GatewayRecord, LinkRecord, Registry, Rhythm};
use tarbet_store::{Clock, Commit, StoreConfig, Table};

use crate::Bench;
use crate::figure::{Figure, Mark, Section};

const LOOKUPS: usize = 20_000;
/// Entries that are written at once.
const BATCH: usize = 100;

pub(super) async fn measure(bench: &Bench) -> Result<Section> {
    let count: usize = if bench.scale.is_quick() { 100_000 } else { 1_000_000 };
    let store = tarbet_store::open(&StoreConfig::Memory {}, Clock::system()).await?;
    let links: Table<(String, String), LinkRecord> = Table::new(&store, "links")?;
    let gateways: Table<String, GatewayRecord> = Table::new(&store, "gateways")?;
    let hour = Duration::from_hours(1);
    let other = GatewayRecord {
        name: "other".into(),
        url: "grpc://10.0.0.1:8155".into(),
        agents: None,
        started: Timestamp::now(),
    };
    gateways.put_for(&"other".to_owned(), &other, hour).await?;
    let record = LinkRecord {
        gateway: "other".into(),
        services: vec!["kubernetes".into()],
        agent: "bench 0".into(),
        key: None,
        since: Timestamp::now(),
        bulk: false,
    };
    let name = |index: usize| format!("site-{index:07}");
    for start in (0..count).step_by(BATCH) {
        let mut commit = Commit::new();
        for index in start..(start + BATCH).min(count) {
            let key = (name(index), LinkId::fresh().to_string());
            commit = commit.with(links.put_for_op(&key, &record, hour)?);
        }
        store.commit(commit).await?;
    }
    // Every question goes to the tables: what was looked up lately is not used again.
    let rhythm = Rhythm { cache: Duration::ZERO, ..Rhythm::default() };
    let registry =
        Registry::new(&store, "own", "grpc://own", LocalLinks::default(), rhythm, Timestamp::now())?;
    let (mut middle, mut late) = (Vec::new(), Vec::new());
    for _ in 0..bench.scale.rounds {
        let mut times = Vec::with_capacity(LOOKUPS);
        for turn in 0..LOOKUPS {
            let site: SiteName = name(turn * 7_919 % count).parse()?;
            let begun = Instant::now();
            let found = registry.elsewhere(&site).await?;
            times.push(begun.elapsed().as_secs_f64() * 1e6);
            ensure!(found.len() == 1, "{site} was not found");
        }
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times[(times.len() as f64 * share) as usize];
        middle.push(at(0.5));
        late.push(at(0.99));
    }
    let mut section =
        Section::new("Many sites", "Looking up who holds a site, in the memory store, without a cache.");
    section.push(Figure::new(format!("{count} sites, p50"), "µs", middle));
    section.push(Figure::new(format!("{count} sites, p99"), "µs", late).mark(Mark::AtMost(50.0)));
    Ok(section)
}
