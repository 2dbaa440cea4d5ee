use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
struct Written {
    table: String,
    key: Vec<u8>,
    put: Option<(u64, u64, Vec<u8>)>,
}

impl Written {
    fn change(&self) -> Change<'_> {
        let (table, key) = (self.table.as_str(), &self.key[..]);
        match &self.put {
            Some((revision, expiry, value)) => {
                Change::Put { table, key, revision: *revision, expiry: *expiry, value }
            }
            None => Change::Delete { table, key },
        }
    }
}

fn written() -> impl Strategy<Value = Written> {
    let put = proptest::option::of((any::<u64>(), any::<u64>(), vec(any::<u8>(), 0..60)));
    ("[a-z]{1,8}", vec(any::<u8>(), 1..20), put).prop_map(|(table, key, put)| Written { table, key, put })
}

/// A journal of some records, and where each of them ends.
fn journal(generation: u64, batches: &[Vec<Written>]) -> (Vec<u8>, Vec<usize>) {
    let (mut bytes, mut ends) = (Vec::new(), Vec::new());
    let mut changes = Changes::default();
    for (number, batch) in batches.iter().enumerate() {
        changes.clear();
        for written in batch {
            changes.push(&written.change());
        }
        let place = bytes.len() as u64;
        bytes.extend(changes.seal(generation, place, number as u64 + 1).unwrap());
        ends.push(bytes.len());
    }
    (bytes, ends)
}

/// The batches that a journal gives back.
fn check(generation: u64, bytes: &[u8], batches: &[Vec<Written>], whole: usize) {
    let read: Vec<Record<'_>> = records(generation, bytes).collect();
    assert_eq!(read.len(), whole);
    for (number, (record, batch)) in read.iter().zip(batches).enumerate() {
        assert_eq!(record.revision, number as u64 + 1);
        let expected: Vec<Change<'_>> = batch.iter().map(Written::change).collect();
        assert_eq!(record.changes().unwrap(), expected);
    }
}

proptest! {
    #[test]
    fn a_cut_anywhere_leaves_the_records_before_it(batches in vec(vec(written(), 0..5), 1..8), generation: u64) {
        let (bytes, ends) = journal(generation, &batches);
        for cut in 0..=bytes.len() {
            let whole = ends.iter().filter(|end| **end <= cut).count();
            check(generation, &bytes[..cut], &batches, whole);
        }
    }

    #[test]
    fn a_changed_byte_ends_it_there(
        batches in vec(vec(written(), 0..5), 1..8),
        place: prop::sample::Index,
        bit in 0..8_u32,
    ) {
        let (mut bytes, ends) = journal(9, &batches);
        let place = place.index(bytes.len());
        bytes[place] ^= 1_u8 << bit;
        check(9, &bytes, &batches, ends.iter().filter(|end| **end <= place).count());
    }

    /// The file is written from its start again over what an earlier generation left.
    #[test]
    fn what_an_earlier_generation_left_is_not_read(
        old in vec(vec(written(), 0..5), 0..8),
        new in vec(vec(written(), 0..5), 0..8),
        torn: prop::sample::Index,
    ) {
        let (mut bytes, _) = journal(1, &old);
        let (fresh, ends) = journal(2, &new);
        let torn = torn.index(fresh.len() + 1);
        if bytes.len() < torn {
            bytes.resize(torn, 0);
        }
        bytes[..torn].copy_from_slice(&fresh[..torn]);
        // A record of the other generation may begin alike, so that the torn one is whole after all.
        let whole = records(2, &bytes).count();
        prop_assert!(whole >= ends.iter().filter(|end| **end <= torn).count());
        check(2, &bytes, &new, whole);
        prop_assert_eq!(records(3, &bytes).count(), 0);
    }

    #[test]
    fn any_bytes_are_read_without_harm(bytes in vec(any::<u8>(), 0..200)) {
        read_any(&bytes);
    }
}

#[test]
fn a_record_moved_to_another_place_is_none() {
    let batches = [vec![], vec![]];
    let (bytes, ends) = journal(5, &batches);
    assert_eq!(records(5, &bytes).count(), 2);
    assert_eq!(records(5, &bytes[ends[0]..]).count(), 0);
}
