//! Whether the cluster's network has addresses left for more pods on this node, said so that it does not flap.
//!
//! There is no room from the moment on that a family has no address left. There is room again as soon as a good part of
//! the addresses is free; a few that come and go with pods that restart have to stay free for a while first.

use std::time::Duration;

/// So long a few free addresses have to stay free.
pub const SETTLE: Duration = Duration::from_secs(30);
/// A sixteenth of the addresses is a good part of them, but no less and no more than these numbers.
const GOOD_PART: (u128, u128) = (2, 8);

/// What is left in one address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Whether this is about IPv6.
    pub ipv6: bool,
    /// Addresses that pods can have.
    pub total: u128,
    /// Addresses that the next pod can have.
    pub free: u128,
}

impl Left {
    fn is_good_part(&self) -> bool {
        let (least, most) = GOOD_PART;
        self.free >= (self.total / 16).clamp(least, most).min(self.total)
    }
}

/// Whether there is room, and since when there seems to be some.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    is_full: bool,
    free_since: Option<Duration>,
}

/// What is to be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether no more pods should come.
    pub is_full: bool,
    /// After so long it may be otherwise, if nothing changes until then.
    pub again: Option<Duration>,
}

impl Room {
    /// Goes on from what was said before.
    pub fn said(is_full: bool) -> Self {
        Self { is_full, free_since: None }
    }

    /// Looks at what is left. `now` is the time since any moment that stays the same.
    pub fn judge(&mut self, left: &[Left], now: Duration) -> Verdict {
        if left.iter().any(|one| one.free == 0) {
            *self = Self::said(true);
        } else if self.is_full {
            let waited = now.saturating_sub(*self.free_since.get_or_insert(now));
            if left.iter().all(Left::is_good_part) || waited >= SETTLE {
                *self = Self::said(false);
            }
        }
        let again = self.free_since.map(|since| (since + SETTLE).saturating_sub(now));
        Verdict { is_full: self.is_full, again }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO: Verdict = Verdict { is_full: false, again: None };
    const FULL: Verdict = Verdict { is_full: true, again: None };

    /// A /24 and a /64 with so many IPv4 addresses free.
    fn left(free: u128) -> [Left; 2] {
        [Left { ipv6: false, total: 253, free }, Left { ipv6: true, total: 1 << 64, free: 1 << 63 }]
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_last_address_of_one_family_is_the_end_and_the_last_but_one_is_not() {
        let mut room = Room::default();
        assert_eq!(room.judge(&left(1), at(0)), NO);
        assert_eq!(room.judge(&left(0), at(1)), FULL);
        let [four, six] = left(9);
        assert_eq!(Room::default().judge(&[four, Left { free: 0, ..six }], at(0)), FULL);
    }

    #[test]
    fn a_few_that_come_and_go_are_no_room_until_they_stay() {
        let mut room = Room::said(true);
        let waits = |seconds| Verdict { is_full: true, again: Some(at(seconds)) };
        assert_eq!(room.judge(&left(1), at(10)), waits(30));
        assert_eq!(room.judge(&left(2), at(30)), waits(10));
        assert_eq!(room.judge(&left(0), at(31)), FULL, "gone again");
        assert_eq!(room.judge(&left(1), at(32)), waits(30), "the wait begins anew");
        assert_eq!(room.judge(&left(1), at(62)), NO);
        assert_eq!(room.judge(&left(1), at(63)), NO, "and it stays so");
    }

    #[test]
    fn a_good_part_is_room_at_once() {
        assert_eq!(Room::said(true).judge(&left(8), at(0)), NO);
        assert!(Room::said(true).judge(&left(7), at(0)).is_full);
        let tiny = |total, free| [Left { ipv6: false, total, free }];
        assert!(Room::said(true).judge(&tiny(5, 1), at(0)).is_full);
        assert_eq!(Room::said(true).judge(&tiny(5, 2), at(0)), NO);
        assert_eq!(Room::said(true).judge(&tiny(1, 1), at(0)), NO, "there will never be more");
    }
}
