//! One hot path, so many times: `hotpath request 1000`. The counting test runs it under valgrind.

mod decisions;
mod request;

use anyhow::{Context, Result, bail};

/// Makes ready, and gives back what is counted.
type Path = fn() -> Result<Box<dyn FnMut()>>;

const PATHS: [(&str, Path); 6] = [
    ("request", request::request),
    ("policy", decisions::policy),
    ("tag", decisions::tag),
    ("job", || Ok(decisions::read(JOB, tarbet_jobs::fuzz::request))),
    ("pod", || Ok(decisions::read(POD, tarbet_pods::fuzz::pod))),
    ("offer", || Ok(decisions::read(OFFER, tarbet_mesh::fuzz::offer))),
];

const JOB: &[u8] = include_bytes!("../../../fuzz/corpus/internal_request/seed");
const POD: &[u8] = include_bytes!("../../../fuzz/corpus/pod/seed");
const OFFER: &[u8] = include_bytes!("../../../fuzz/corpus/federated_service/json");

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, times] = arguments.as_slice() else { bail!("usage: hotpath NAME TIMES") };
    let (_, prepare) = PATHS.iter().find(|(path, _)| path == name).context("no such path")?;
    let mut path = prepare()?;
    for _ in 0..times.parse::<usize>()? {
        path();
    }
    Ok(())
}
