//! The chain as bytes: how a record becomes a line, and how lines are checked. No files here.

use std::collections::BTreeSet;
use std::fmt;
use std::io::BufRead;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tarbet_telemetry::RequestId;

/// How each line begins; the hash covers what comes after its comma.
const START: &str = "{\"hash\":\"";
const HASH: usize = 64;
/// A line of this length was not written here.
const MAX_LINE: usize = 64 * 1024;

/// What happened, before it has its place in the chain.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// The request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestId>,
    /// The site it was for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
    /// Who asked, as far as this end knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// What was asked for.
    pub wants: String,
    /// `begun`, and then `answered`, `opened`, `permitted`, `refused`, `failed` or `abandoned`.
    pub outcome: String,
    /// The number of the line with which it began, if this is how it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun: Option<u64>,
    /// The HTTP status of an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The code of a refusal or failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

/// A record in the chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its number, from 1.
    pub seq: u64,
    /// When it was written.
    pub time: Timestamp,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// Lines from the newest to the oldest, of which those that tell how something began give way to those that
/// tell how it ended.
#[derive(Default)]
pub(super) struct Joined(BTreeSet<u64>);

impl Joined {
    pub(super) fn stands_alone(&mut self, entry: &Entry) -> bool {
        self.0.extend(entry.event.begun);
        !self.0.remove(&entry.seq)
    }
}

/// The end of a chain: the number and hash of its last record. Written `NUMBER:HASH`.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Head {
    /// The number of the last record; 0 if there is none.
    pub seq: u64,
    /// Its hash.
    hash: [u8; 32],
}

/// The text is not a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected the head of an audit log: a number, `:` and 64 hexadecimal digits")]
pub struct NotAHead;

impl Head {
    /// Adds a record: the line to write, without its end, and the new head.
    pub fn append(&self, time: Timestamp, event: &Event) -> (String, Self) {
        let entry = Entry { seq: self.seq + 1, time, event: event.clone() };
        // Strings and numbers always become JSON.
        let body = serde_json::to_string(&entry).unwrap_or_default();
        let rest = &body[1..];
        let head = Self { seq: entry.seq, hash: seal(&self.hash, rest.as_bytes()) };
        (format!("{START}{}\",{rest}", hex(&head.hash)), head)
    }
}

fn seal(before: &[u8; 32], rest: &[u8]) -> [u8; 32] {
    Sha256::new_with_prefix(before).chain_update(rest).finalize().into()
}

/// A line taken apart: the record, the hash it claims and the bytes that the hash covers.
pub(super) fn read(line: &[u8]) -> Option<(Entry, [u8; 32], &[u8])> {
    let after = line.strip_prefix(START.as_bytes())?;
    let (digits, rest) = after.split_at_checked(HASH)?;
    let rest = rest.strip_prefix(b"\",")?;
    let hash = unhex(std::str::from_utf8(digits).ok()?)?;
    let mut body = Vec::with_capacity(rest.len() + 1);
    body.push(b'{');
    body.extend_from_slice(rest);
    Some((serde_json::from_slice(&body).ok()?, hash, rest))
}

/// Where the last whole line leaves the chain.
pub(super) fn head_of(line: &[u8]) -> Option<Head> {
    read(line).map(|(entry, hash, _)| Head { seq: entry.seq, hash })
}

/// Why a log is not what was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// A line is no record.
    #[error("line {line} is not a record")]
    Malformed {
        /// The line, from 1.
        line: u64,
    },
    /// A record does not follow the one before it.
    #[error(
        "record {found} on line {line} does not follow record {before}: something there was changed, added or removed"
    )]
    Chain {
        /// The line, from 1.
        line: u64,
        /// The number before.
        before: u64,
        /// The number found.
        found: u64,
    },
    /// The log ends before its head.
    #[error("the log ends at record {found}, but {expected} records were written")]
    Truncated {
        /// The last record there is.
        found: u64,
        /// The last record there was.
        expected: u64,
    },
    /// The log has another record where the head was.
    #[error("record {seq} is not the one that was written: the log was replaced")]
    Replaced {
        /// The number of the head.
        seq: u64,
    },
    /// It cannot be read.
    #[error("the log cannot be read: {0}")]
    Unreadable(String),
}

/// A log that is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verified {
    /// Where it ends.
    pub head: Head,
    /// Whether the last line is only begun, as a crash leaves it.
    pub torn: bool,
    /// How many records its lines tell of: one that began and ended has two lines.
    pub records: u64,
}

/// Checks a log from its first record on. `known` is a head that the log once had.
pub fn verify(mut lines: impl BufRead, known: Option<Head>) -> Result<Verified, Broken> {
    let (mut head, mut met, mut number) = (Head::default(), known.is_none_or(|known| known.seq == 0), 0);
    let (mut torn, mut ends) = (false, 0);
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut limited = std::io::Read::take(&mut lines, MAX_LINE as u64);
        let count =
            limited.read_until(b'\n', &mut line).map_err(|error| Broken::Unreadable(error.to_string()))?;
        if count == 0 {
            break;
        }
        number += 1;
        if line.pop_if(|byte| *byte == b'\n').is_none() {
            if count < MAX_LINE {
                torn = true;
                break;
            }
            return Err(Broken::Malformed { line: number });
        }
        let (entry, hash, rest) = read(&line).ok_or(Broken::Malformed { line: number })?;
        if entry.seq != head.seq + 1 || seal(&head.hash, rest) != hash {
            return Err(Broken::Chain { line: number, before: head.seq, found: entry.seq });
        }
        head = Head { seq: entry.seq, hash };
        ends += u64::from(entry.event.begun.is_some());
        if let Some(known) = known.filter(|known| known.seq == head.seq) {
            if known != head {
                return Err(Broken::Replaced { seq: head.seq });
            }
            met = true;
        }
    }
    match known {
        Some(known) if !met => Err(Broken::Truncated { found: head.seq, expected: known.seq }),
        _ => Ok(Verified { head, torn, records: head.seq.saturating_sub(ends) }),
    }
}

fn hex(bytes: &[u8; 32]) -> String {
    bytes.iter().fold(String::with_capacity(HASH), |mut text, byte| {
        let _ = fmt::Write::write_fmt(&mut text, format_args!("{byte:02x}"));
        text
    })
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    if text.len() != HASH || !text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.seq, hex(&self.hash))
    }
}

impl fmt::Debug for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Head {
    type Err = NotAHead;

    fn from_str(text: &str) -> Result<Self, NotAHead> {
        let (seq, hash) = text.trim().split_once(':').ok_or(NotAHead)?;
        Ok(Self { seq: seq.parse().map_err(|_| NotAHead)?, hash: unhex(hash).ok_or(NotAHead)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn log(count: usize) -> (Vec<String>, Vec<Head>) {
        let (mut head, mut lines, mut heads) = (Head::default(), Vec::new(), vec![Head::default()]);
        for i in 0..count {
            let event = Event {
                wants: format!("kubernetes GET /{i} \"\n\u{7}"),
                principal: Some("ann".into()),
                outcome: "answered".into(),
                status: Some(200),
                ..Event::default()
            };
            let (line, next) = head.append(Timestamp::UNIX_EPOCH, &event);
            assert!(!line.contains('\n'));
            lines.push(line);
            head = next;
            heads.push(next);
        }
        (lines, heads)
    }

    fn check(lines: &[String], known: Option<Head>) -> Result<Verified, Broken> {
        let text = lines.iter().fold(String::new(), |text, line| text + line + "\n");
        verify(text.as_bytes(), known)
    }

    #[test]
    fn a_whole_log_is_accepted_and_its_lines_are_json() {
        let (lines, heads) = log(5);
        assert_eq!(check(&lines, None).unwrap().head, heads[5]);
        assert_eq!(check(&lines, Some(heads[3])).unwrap().head, heads[5]);
        assert_eq!(heads[5].to_string().parse(), Ok(heads[5]));
        let value: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
        assert_eq!((value["seq"].as_u64(), value["status"].as_u64()), (Some(1), Some(200)));
        assert!(check(&[], None).is_ok());
    }

    #[test]
    fn a_shortened_or_replaced_log_is_told_by_its_head() {
        let (lines, heads) = log(5);
        assert!(check(&lines[..3], None).is_ok(), "without the head nobody can tell");
        assert_eq!(check(&lines[..3], Some(heads[5])), Err(Broken::Truncated { found: 3, expected: 5 }));
        let (mut other, _) = log(4);
        let event = Event { wants: "something else".into(), ..Event::default() };
        other.push(heads[4].append(Timestamp::UNIX_EPOCH, &event).0);
        assert_eq!(check(&other, Some(heads[5])), Err(Broken::Replaced { seq: 5 }));
    }

    #[test]
    fn a_line_that_was_only_begun_is_not_a_break() {
        let (lines, heads) = log(2);
        let text = format!("{}\n{}\n{}", lines[0], lines[1], &lines[0][..40]);
        assert_eq!(verify(text.as_bytes(), None), Ok(Verified { head: heads[2], torn: true, records: 2 }));
    }

    proptest! {
        #[test]
        fn any_change_of_a_byte_is_noticed(line in 0usize..6, at: prop::sample::Index, to: u8) {
            let (lines, heads) = log(6);
            let mut bytes: Vec<Vec<u8>> = lines.iter().map(|line| line.clone().into_bytes()).collect();
            let index = at.index(bytes[line].len());
            prop_assume!(bytes[line][index] != to);
            bytes[line][index] = to;
            let text = bytes.join(&b'\n').into_iter().chain([b'\n']).collect::<Vec<u8>>();
            prop_assert!(verify(&text[..], Some(heads[6])).is_err());
        }

        #[test]
        fn any_removed_or_repeated_record_is_noticed(line in 0usize..6, again: bool) {
            let (mut lines, heads) = log(6);
            if again {
                lines.insert(line, lines[line].clone());
            } else {
                lines.remove(line);
            }
            prop_assert!(check(&lines, Some(heads[6])).is_err());
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
            let _ = verify(&bytes[..], None);
        }
    }
}
