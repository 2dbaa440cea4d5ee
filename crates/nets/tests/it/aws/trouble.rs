//! AWS under its limits of calls, and failing.

use tarbet_nets::cloud::Cloud as _;

use super::proxy::Trouble;
use super::{Bed, step};

/// How many calls a life takes.
async fn live(bed: &Bed, trouble: Trouble) -> usize {
    bed.proxy.trouble(trouble);
    let (aws, mut uris) = (bed.aws(), Vec::new());
    for number in 0..7 {
        step(number, &aws, &mut uris).await.unwrap_or_else(|error| panic!("step {number}: {error:?}"));
    }
    assert!(aws.list_resources("").await.unwrap().is_empty());
    bed.proxy.actions().len()
}

#[tokio::test]
async fn a_cloud_in_trouble_is_borne_with_few_calls_more() {
    let bed = Bed::start().await;
    let least = live(&bed, Trouble::default()).await;
    for trouble in [
        Trouble { throttle_every: 3, fail_every: 0 },
        Trouble { throttle_every: 0, fail_every: 4 },
        Trouble { throttle_every: 4, fail_every: 5 },
    ] {
        let calls = live(&bed, trouble).await;
        assert!(calls > least && calls <= 3 * least, "{calls} calls instead of {least} with {trouble:?}");
    }
}
