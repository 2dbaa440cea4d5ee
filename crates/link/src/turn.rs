//! When a connection is written: after everybody who is ready now has had a turn.
//!
//! Schedulers like to run what was woken last at once. For the driver of a link that would mean one
//! small write for every stream that has something to say. So it lets those go first that are ready
//! at the same moment, and writes for all of them together.

use std::task::{Context, Poll};

/// Whether the driver has stepped back since it was last woken.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    stepped_back: bool,
}

impl Turn {
    /// Pending once, with the waker woken, then ready.
    pub(crate) fn poll_last(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.stepped_back = !self.stepped_back;
        if self.stepped_back {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::sync::{Arc, Mutex};

    #[tokio::test]
    async fn those_who_are_ready_go_first() {
        let order = Arc::new(Mutex::new(Vec::new()));
        let note = |who: &'static str| {
            let order = Arc::clone(&order);
            move || order.lock().unwrap().push(who)
        };
        let (driver, stream) = (note("driver"), note("stream"));
        let mut turn = Turn::default();
        let driver = tokio::spawn(async move {
            poll_fn(|cx| turn.poll_last(cx)).await;
            driver();
        });
        let stream = tokio::spawn(async move { stream() });
        driver.await.unwrap();
        stream.await.unwrap();
        assert_eq!(*order.lock().unwrap(), ["stream", "driver"]);
    }
}
