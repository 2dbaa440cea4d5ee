use super::*;
use proptest::prelude::*;

fn quotas(site: SiteLimits, principal: PrincipalLimits) -> Quotas {
    Quotas::new(QuotaConfig { site, principal })
}

fn lab() -> SiteName {
    "lab".parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn streams_are_counted_until_they_end_and_nothing_is_left_behind() {
    let quotas = quotas(SiteLimits { streams: Some(2), ..SiteLimits::default() }, PrincipalLimits::default());
    let now = Instant::now();
    let first = quotas.enter(&lab(), "ann", now).unwrap();
    let second = quotas.enter(&lab(), "bob", now).unwrap();
    let refused = quotas.enter(&lab(), "ann", now).err().unwrap();
    assert_eq!((refused.setting, refused.value), ("site.streams", 2));
    assert!(refused.problem().message.contains("`lab`"), "{refused}");
    drop(quotas.enter(&"other".parse().unwrap(), "ann", now).unwrap());
    drop(first);
    drop(quotas.enter(&lab(), "ann", now).unwrap());
    drop(second);
    assert_eq!(quotas.counted(), 0);
    assert!(quotas.lock().usage.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_refusal_by_one_limit_does_not_charge_the_other() {
    let rate = PrincipalLimits { requests_per_second: Some(1), ..PrincipalLimits::default() };
    let quotas = quotas(SiteLimits { streams: Some(1), ..SiteLimits::default() }, rate);
    let held = quotas.enter(&lab(), "ann", Instant::now()).unwrap();
    for _ in 0..5 {
        assert_eq!(quotas.enter(&lab(), "bob", Instant::now()).err().unwrap().setting, "site.streams");
    }
    drop(held);
    drop(quotas.enter(&lab(), "bob", Instant::now()).unwrap());
    let early = quotas.enter(&lab(), "bob", Instant::now()).err().unwrap();
    assert_eq!(early.setting, "principal.requests_per_second");
    tokio::time::advance(early.retry_after.unwrap()).await;
    drop(quotas.enter(&lab(), "bob", Instant::now()).unwrap());
}

#[tokio::test(start_paused = true)]
async fn connections_of_one_caller_are_limited() {
    let quotas =
        quotas(SiteLimits::default(), PrincipalLimits { links: Some(1), ..PrincipalLimits::default() });
    let held = quotas.connect("ann").unwrap();
    assert!(quotas.connect("ann").is_err());
    let _other = quotas.connect("bob").unwrap();
    drop(held);
    let _again = quotas.connect("ann").unwrap();
}

#[tokio::test(start_paused = true)]
async fn without_limits_nothing_is_remembered() {
    let quotas = quotas(SiteLimits::default(), PrincipalLimits::default());
    let _permit = quotas.enter(&lab(), "ann", Instant::now()).unwrap();
    assert!(quotas.lock().usage.is_empty());
}

proptest! {
    #[test]
    fn no_second_has_more_than_rate_and_burst(
        rate in 1u32..50, burst in 1u32..20, gaps in prop::collection::vec(0u64..200, 1..300),
    ) {
        let start = Instant::now();
        let (mut now, mut due, mut passed) = (start, None, Vec::new());
        for gap in gaps {
            now += Duration::from_millis(gap);
            if let Ok(next) = gcra(due, now, rate, burst) {
                due = Some(next);
                passed.push(now);
            }
        }
        for (i, from) in passed.iter().enumerate() {
            let within = passed[i..].iter().take_while(|at| **at - *from < Duration::from_secs(1)).count();
            prop_assert!(within <= (rate + burst) as usize, "{within} in a second");
        }
    }

    #[test]
    fn who_waits_as_long_as_told_gets_through(rate in 1u32..50, burst in 1u32..20) {
        let now = Instant::now();
        let mut due = None;
        while let Ok(next) = gcra(due, now, rate, burst) {
            due = Some(next);
        }
        let early = gcra(due, now, rate, burst).unwrap_err();
        prop_assert!(gcra(due, now + early, rate, burst).is_ok());
    }
}
