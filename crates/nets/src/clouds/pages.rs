//! Lists that come page by page, each with the mark of the next.

use std::collections::HashSet;

use crate::error::Error;

/// More pages than any list of a cloud has: hundreds of thousands of things at the smallest usual page.
const PAGES_MAX: usize = 10_000;

/// The pages of one list. A cloud that gives a mark twice, or ever new ones, would keep its caller for ever.
pub(super) struct Pages<'a> {
    cloud: &'a str,
    call: &'a str,
    turned: HashSet<String>,
}

impl<'a> Pages<'a> {
    /// Before the first page of what `call` lists.
    pub(super) fn of(cloud: &'a str, call: &'a str) -> Self {
        Self { cloud, call, turned: HashSet::new() }
    }

    /// Before the next page, whose mark this is.
    pub(super) fn turn(&mut self, mark: &str) -> Result<(), Error> {
        let failed = |said: String| {
            Err(Error::Cloud { cloud: self.cloud.into(), what: format!("the list {}", self.call), said })
        };
        if self.turned.contains(mark) {
            return failed("its pages go round in a circle: it gave the mark of one of them twice".into());
        }
        if self.turned.len() == PAGES_MAX {
            return failed(format!("it did not end after {PAGES_MAX} pages"));
        }
        self.turned.insert(mark.to_owned());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tarbet_telemetry::Coded as _;

    use super::*;

    #[test]
    fn lists_end() {
        let mut pages = Pages::of("gcp", "projects/p/global/firewalls");
        for mark in ["a", "b"] {
            pages.turn(mark).unwrap();
        }
        let circle = pages.turn("a").unwrap_err();
        assert!(circle.to_string().contains("projects/p/global/firewalls"), "{circle}");
        assert!(circle.problem().cause.contains("twice"));
        let mut pages = Pages::of("gcp", "x");
        let turned = (0..=2 * PAGES_MAX).take_while(|mark| pages.turn(&mark.to_string()).is_ok()).count();
        assert_eq!(turned, PAGES_MAX);
    }
}
