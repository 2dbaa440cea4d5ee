//! The one table of error codes.
//!
//! A code is stable: people search for it, scripts match it, and it is never given a second
//! meaning. `TB-0xxx` belongs to the ground all roles stand on, `1xxx` to reach, `2xxx` to jobs,
//! `3xxx` to pods, `4xxx` to nets, `5xxx` to mesh.

/// Whose doing an error is: decides the status code, the alert and the tone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// The caller asked for something that cannot be given.
    Caller,
    /// A part further along the path failed.
    Upstream,
    /// Tarbet itself failed.
    Ours,
}

/// One row of the table: what is always true of errors with this code.
#[derive(Debug, PartialEq, Eq)]
pub struct Code {
    /// `TB-` and four digits.
    pub id: &'static str,
    /// A few words for lists.
    pub title: &'static str,
    /// Whose doing it is.
    pub whose: Whose,
    /// Whether the same request may succeed later.
    pub retry: bool,
    /// The HTTP status an API answers with.
    pub http: u16,
    /// The exit code of a command: 1 failed, 2 usage, 3 not found, 4 refused, 5 timed out.
    pub exit: u8,
    /// Where it usually happens.
    pub hop: &'static str,
    /// Why it usually happens.
    pub cause: &'static str,
    /// What to try first.
    pub remedy: &'static str,
    /// The longer story that `tarbet explain` prints.
    pub page: &'static str,
}

/// Declares the codes of one range as constants, and their list.
macro_rules! codes {
    ($($name:ident = $id:literal $title:literal {
        whose: $whose:ident, retry: $retry:literal, http: $http:literal, exit: $exit:literal,
        hop: $hop:literal, cause: $cause:literal, remedy: $remedy:literal, page: $page:literal $(,)?
    })*) => {
        $(
            #[doc = $title]
            pub static $name: crate::Code = crate::Code {
                id: $id, title: $title, whose: crate::Whose::$whose, retry: $retry, http: $http, exit: $exit,
                hop: $hop, cause: $cause, remedy: $remedy, page: $page,
            };
        )*
        pub(super) static RANGE: &[&crate::Code] = &[$(&$name),*];
    };
}

pub mod cluster;
pub mod ground;
pub mod jobs;
pub mod mesh;
pub mod nets;
pub mod pods;
pub mod reach;

static RANGES: &[&[&Code]] =
    &[ground::RANGE, cluster::RANGE, reach::RANGE, jobs::RANGE, pods::RANGE, nets::RANGE, mesh::RANGE];

/// Every code, in order.
pub fn all() -> impl Iterator<Item = &'static Code> {
    RANGES.iter().flat_map(|range| range.iter().copied())
}

/// The code with this id, whatever the case and with or without `TB-`.
pub fn find(id: &str) -> Option<&'static Code> {
    let wanted = id.trim().to_ascii_uppercase();
    let digits = wanted.strip_prefix("TB-").unwrap_or(&wanted);
    all().find(|code| code.id.strip_prefix("TB-") == Some(digits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_code_has_hop_cause_remedy_and_a_page() {
        for code in all() {
            for (field, text) in [
                ("title", code.title),
                ("hop", code.hop),
                ("cause", code.cause),
                ("remedy", code.remedy),
                ("page", code.page),
            ] {
                assert!(text.trim().len() > 3, "{} has no {field}", code.id);
            }
            assert!(code.page.len() > code.remedy.len(), "{}: the page says no more than the hint", code.id);
            assert!((400..600).contains(&code.http), "{}", code.id);
            assert!((1..=5).contains(&code.exit), "{}", code.id);
        }
    }

    #[test]
    fn ids_are_unique_ordered_and_in_their_range() {
        let ids: Vec<_> = all().map(|code| code.id).collect();
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
        assert!(ids.is_sorted(), "{ids:?}");
        for id in ids {
            let digits = id.strip_prefix("TB-").unwrap();
            assert!(digits.len() == 4 && digits.bytes().all(|b| b.is_ascii_digit()), "{id}");
        }
        assert!(ground::RANGE.iter().all(|c| c.id.starts_with("TB-0")));
        assert!(reach::RANGE.iter().all(|c| c.id.starts_with("TB-1")));
        assert!(nets::RANGE.iter().all(|c| c.id.starts_with("TB-4")));
    }

    #[test]
    fn finds_a_code_however_it_is_typed() {
        for typed in ["TB-0101", "tb-0101", "0101", " TB-0101 "] {
            assert_eq!(find(typed).map(|c| c.id), Some("TB-0101"), "{typed}");
        }
        assert!(find("TB-9999").is_none());
        assert!(find("").is_none());
    }
}
