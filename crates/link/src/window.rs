//! How large the windows of a link's streams should be.
//!
//! A stream carries at most its window a round trip, so a far peer needs a large one; but whatever
//! a window permits may come to lie here unread. So windows start small, grow with what is really
//! carried over the distance, and shrink when streams are left unread.

use std::time::Duration;

use crate::settings::Settings;

/// No stream is given more: at 40 ms it carries 800 MB/s. Permission to send on is only given once a third
/// of a window was read, so that a stream that never waits needs one and a half round trips' worth.
const LARGEST: u32 = 48 * 1024 * 1024;
/// How many round trips' worth a window is: twice what is needed, to find out that more could be carried.
const AHEAD: f64 = 3.0;

/// The window every stream should have, given what was read of them lately (bytes a second), how far
/// the peer is and what lies here unread.
pub(crate) fn suited(
    settings: &Settings,
    current: u32,
    rate: f64,
    distance: Option<Duration>,
    unread: usize,
) -> u32 {
    let base = settings.stream_window;
    // By halves: where somebody reads, though more slowly than before, half of it is soon enough.
    if unread > settings.unread_budget / 4 * 3 {
        return (current / 2).max(base);
    }
    let Some(distance) = distance.filter(|_| unread <= settings.unread_budget / 4) else { return current };
    let wanted = (rate * distance.as_secs_f64() * AHEAD).min(f64::from(u32::MAX)) as u32;
    wanted.clamp(base, base.max(LARGEST)).max(current)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u32 = 1024 * 1024;

    fn suits(current: u32, rate: f64, distance: u64, unread: usize) -> u32 {
        suited(&Settings::default(), current, rate, Some(Duration::from_millis(distance)), unread)
    }

    #[test]
    fn a_far_stream_that_fills_its_window_soon_has_all_it_needs() {
        let mut window = MIB;
        for _ in 0..4 {
            window = suits(window, f64::from(window) / 0.04, 40, 0);
        }
        assert_eq!(window, LARGEST);
    }

    #[test]
    fn a_near_peer_needs_no_more_than_the_usual() {
        assert_eq!(suited(&Settings::default(), MIB, 1e9, Some(Duration::from_micros(200)), 0), MIB);
        assert_eq!(suited(&Settings::default(), MIB, 1e9, None, 0), MIB, "the distance is not known yet");
    }

    #[test]
    fn what_nobody_reads_takes_it_back() {
        let budget = Settings::default().unread_budget;
        assert_eq!(suits(LARGEST, 1e9, 40, budget), LARGEST / 2);
        let looks = (0..6).fold(LARGEST, |window, _| suits(window, 0.0, 40, budget));
        assert_eq!(looks, MIB, "within the time after which a stream that is not read may be reset");
        assert_eq!(suits(4 * MIB, 1e9, 40, budget / 3), 4 * MIB, "no more, but no less");
    }

    #[test]
    fn a_stream_that_is_read_keeps_its_window_however_much_of_it_waits() {
        // Its reader takes what it can, and all that is not on the way lies here.
        for rate in [50e6, 200e6, 400e6, 1e9] {
            let window = suits(MIB, rate, 40, 0);
            let waiting = f64::from(window) - (rate * 0.04).min(f64::from(window));
            assert_eq!(suits(window, rate, 40, waiting as usize), window, "{rate}");
        }
    }

    proptest! {
        #[test]
        fn it_stays_within_its_bounds(rate in 0.0..1e12f64, distance in 0u64..10_000, unread in 0usize..1 << 30) {
            let window = suits(MIB, rate, distance, unread);
            prop_assert!((MIB..=LARGEST).contains(&window));
        }
    }
}
