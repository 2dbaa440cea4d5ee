//! The test bed for people and scripts.
//!
//!     testbed up [redis] [kube]   starts a Redis and a pair of control planes (or one of
//!                                 these), says where they are, and waits for Ctrl-C
//!     testbed lease COUNT         prints leased ports and holds them until its input ends

use std::{
    env,
    io::{self, Read, Write},
};

use anyhow::{Context, Result, bail};
use tarbet_testbed::{Lease, Pair, Redis};
use tokio::signal::unix::{SignalKind, signal};

const USAGE: &str = "usage: testbed up [redis] [kube] | testbed lease COUNT";

#[tokio::main]
async fn main() -> Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["up"] => up(true, true).await,
        ["up", parts @ ..] if parts.iter().all(|part| ["redis", "kube"].contains(part)) => {
            up(parts.contains(&"redis"), parts.contains(&"kube")).await
        }
        ["lease", count] => lease(count.parse().context(USAGE)?),
        _ => bail!(USAGE),
    }
}

async fn up(redis: bool, kube: bool) -> Result<()> {
    // Asked for first, so that a Ctrl-C while parts start ends them in good order too.
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let serve = async {
        let redis = if redis { Some(Redis::start().await?) } else { None };
        if let Some(redis) = &redis {
            say(&format!("redis    {} (process {})", redis.url(), redis.pid()))?;
        }
        let pair = if kube { Some(Pair::start().await?) } else { None };
        for plane in pair.iter().flat_map(|pair| [&pair.private, &pair.public]) {
            say(&format!("{:8} export KUBECONFIG={}", plane.name(), plane.kubeconfig().display()))?;
        }
        say("ready    end with Ctrl-C")?;
        std::future::pending::<Result<()>>().await
    };
    tokio::select! {
        ended = serve => ended,
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    }
}

fn lease(count: u16) -> Result<()> {
    let lease = Lease::block(count)?;
    say(&lease.ports().map(|port| port.to_string()).collect::<Vec<_>>().join(" "))?;
    io::stdin().read_to_end(&mut Vec::new()).context("wait for the end of the input")?;
    Ok(())
}

fn say(line: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("write to standard output")
}
