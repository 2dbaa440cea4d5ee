//! Waiting for a condition with a deadline: the one place that sleeps.

use std::{fmt::Display, future::Future, time::Duration};

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep, timeout_at};

/// Long enough not to burn a shared core, short enough not to be noticed.
const PAUSE: Duration = Duration::from_millis(25);

/// What one look at the world may return.
pub trait Outcome {
    /// What is had once the look succeeds.
    type Value;
    /// The value, or what was seen instead.
    fn settle(self) -> Result<Self::Value, String>;
}

impl<T> Outcome for Option<T> {
    type Value = T;
    fn settle(self) -> Result<T, String> {
        self.ok_or_else(|| "nothing yet".to_owned())
    }
}

impl<T, E: Display> Outcome for Result<T, E> {
    type Value = T;
    fn settle(self) -> Result<T, String> {
        // The alternate form makes anyhow print the whole chain.
        self.map_err(|error| format!("{error:#}"))
    }
}

impl Outcome for bool {
    type Value = ();
    fn settle(self) -> Result<(), String> {
        if self { Ok(()) } else { Err("not true yet".to_owned()) }
    }
}

/// Looks again and again until the look gives `Some`, `Ok` or `true`, and returns the value.
///
/// After `deadline` it fails with `what` and the last thing that was seen. A look that hangs
/// is cut off at the deadline too. Not for tests on a paused clock: the world does not pause.
pub async fn eventually<O, F, Fut>(deadline: Duration, what: &str, mut look: F) -> Result<O::Value>
where
    O: Outcome,
    F: FnMut() -> Fut,
    Fut: Future<Output = O>,
{
    let end = Instant::now() + deadline;
    let mut last = "never looked".to_owned();
    loop {
        match timeout_at(end, look()).await {
            Ok(outcome) => match outcome.settle() {
                Ok(value) => return Ok(value),
                Err(seen) => last = seen,
            },
            Err(_) => last = format!("the last look did not return; before it: {last}"),
        }
        if Instant::now() + PAUSE >= end {
            bail!("waited {deadline:?} for {what}; last seen: {last}");
        }
        sleep(PAUSE).await;
    }
}

/// [`eventually`] for a condition that needs no waiting itself.
pub async fn wait_for(deadline: Duration, what: &str, mut condition: impl FnMut() -> bool) -> Result<()> {
    eventually(deadline, what, || std::future::ready(condition())).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn returns_the_first_value() {
        let mut looks = 0;
        let value = eventually(Duration::from_secs(10), "three", || {
            looks += 1;
            std::future::ready((looks == 3).then_some(looks))
        });
        assert_eq!(value.await.unwrap(), 3);
    }

    #[tokio::test]
    async fn a_failure_names_the_wish_and_the_last_state() {
        let look = || std::future::ready(Err::<(), _>("door is shut"));
        let error = eventually(Duration::from_millis(1), "an open door", look).await.unwrap_err();
        assert!(error.to_string().contains("an open door"), "{error}");
        assert!(error.to_string().contains("door is shut"), "{error}");
    }

    #[tokio::test]
    async fn a_look_that_hangs_is_cut_off() {
        let look = std::future::pending::<bool>;
        let error = eventually(Duration::from_millis(50), "an answer", look).await.unwrap_err();
        assert!(error.to_string().contains("did not return"), "{error}");
    }
}
