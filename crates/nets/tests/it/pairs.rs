//! The guide's table of cloud pairs is the one that is kept.

use std::collections::BTreeMap;

use tarbet_nets::plan::connect::pair;

const CLOUDS: [&str; 5] = ["aws", "azure", "gcp", "ibm", "local"];

#[test]
fn every_pair_connects_or_is_refused_as_the_guide_says() {
    let guide = include_str!("../../../../docs/guides/nets.md");
    let (_, guide) = guide.split_once("\n## Which clouds connect\n").unwrap();
    let mut told: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    for line in guide.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        if let [a, b, how] = cells.as_slice()
            && CLOUDS.contains(a)
        {
            assert!(told.insert((a, b), how).is_none(), "{a} and {b} are listed twice");
        }
    }
    for (at, a) in CLOUDS.iter().enumerate() {
        for b in &CLOUDS[at..] {
            let how = told.remove(&(a, b)).unwrap_or_else(|| panic!("the guide does not list {a} and {b}"));
            let kept = match pair(a, b) {
                Ok(pair) if pair.bgp => format!("{} tunnels, BGP", pair.tunnels),
                Ok(pair) => format!("{} tunnels, static routes", pair.tunnels),
                Err(_) => "refused".into(),
            };
            assert!(how.starts_with(&kept), "{a} and {b}: the guide says {how}, the code {kept}");
            assert_eq!(pair(a, b).ok(), pair(b, a).ok(), "the order does not matter");
        }
    }
    assert!(told.is_empty(), "{told:?}");
}
