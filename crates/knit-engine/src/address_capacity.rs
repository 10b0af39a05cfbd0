//! Whether the cluster network has free addresses for more pods on this node, with hysteresis.
//!
//! The node is full as soon as one family has no free address. It has capacity again as soon as a threshold is free,
//! or as soon as fewer free addresses have stayed free for [`SETTLE_TIME`], so that restarting pods do not make the
//! status flap.

use std::time::Duration;

/// How long addresses below the threshold have to stay free.
pub const SETTLE_TIME: Duration = Duration::from_secs(30);
/// The threshold is a sixteenth of all addresses, within these bounds.
const FREE_THRESHOLD: (u128, u128) = (2, 8);

/// The capacity of one address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FamilyCapacity {
    /// Whether this is IPv6.
    pub ipv6: bool,
    /// All usable addresses.
    pub total: u128,
    /// Free addresses.
    pub free: u128,
}

impl FamilyCapacity {
    fn is_above_threshold(&self) -> bool {
        let (least, most) = FREE_THRESHOLD;
        self.free >= (self.total / 16).clamp(least, most).min(self.total)
    }
}

/// The current status, and since when addresses are free again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressCapacity {
    is_full: bool,
    free_since: Option<Duration>,
}

/// The status to publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapacityStatus {
    /// Whether no more pods should be scheduled here.
    pub is_full: bool,
    /// When to check again if nothing changes until then.
    pub recheck_after: Option<Duration>,
}

impl AddressCapacity {
    /// Continues from a published status.
    pub fn with_status(is_full: bool) -> Self {
        Self { is_full, free_since: None }
    }

    /// Updates the status. `now` is the time since a fixed instant.
    pub fn update(&mut self, left: &[FamilyCapacity], now: Duration) -> CapacityStatus {
        if left.iter().any(|one| one.free == 0) {
            *self = Self::with_status(true);
        } else if self.is_full {
            let waited = now.saturating_sub(*self.free_since.get_or_insert(now));
            if left.iter().all(FamilyCapacity::is_above_threshold) || waited >= SETTLE_TIME {
                *self = Self::with_status(false);
            }
        }
        let recheck_after = self.free_since.map(|since| (since + SETTLE_TIME).saturating_sub(now));
        CapacityStatus { is_full: self.is_full, recheck_after }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO: CapacityStatus = CapacityStatus { is_full: false, recheck_after: None };
    const FULL: CapacityStatus = CapacityStatus { is_full: true, recheck_after: None };

    /// A /24 and a /64 with this many free IPv4 addresses.
    fn left(free: u128) -> [FamilyCapacity; 2] {
        [
            FamilyCapacity { ipv6: false, total: 253, free },
            FamilyCapacity { ipv6: true, total: 1 << 64, free: 1 << 63 },
        ]
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_last_address_of_one_family_is_the_end_and_the_last_but_one_is_not() {
        let mut capacity = AddressCapacity::default();
        assert_eq!(capacity.update(&left(1), at(0)), NO);
        assert_eq!(capacity.update(&left(0), at(1)), FULL);
        let [four, six] = left(9);
        assert_eq!(
            AddressCapacity::default().update(&[four, FamilyCapacity { free: 0, ..six }], at(0)),
            FULL
        );
    }

    #[test]
    fn a_few_that_come_and_go_are_no_room_until_they_stay() {
        let mut capacity = AddressCapacity::with_status(true);
        let waits = |seconds| CapacityStatus { is_full: true, recheck_after: Some(at(seconds)) };
        assert_eq!(capacity.update(&left(1), at(10)), waits(30));
        assert_eq!(capacity.update(&left(2), at(30)), waits(10));
        assert_eq!(capacity.update(&left(0), at(31)), FULL, "gone again");
        assert_eq!(capacity.update(&left(1), at(32)), waits(30), "the wait begins anew");
        assert_eq!(capacity.update(&left(1), at(62)), NO);
        assert_eq!(capacity.update(&left(1), at(63)), NO, "and it stays so");
    }

    #[test]
    fn a_good_part_is_room_at_once() {
        assert_eq!(AddressCapacity::with_status(true).update(&left(8), at(0)), NO);
        assert!(AddressCapacity::with_status(true).update(&left(7), at(0)).is_full);
        let tiny = |total, free| [FamilyCapacity { ipv6: false, total, free }];
        assert!(AddressCapacity::with_status(true).update(&tiny(5, 1), at(0)).is_full);
        assert_eq!(AddressCapacity::with_status(true).update(&tiny(5, 2), at(0)), NO);
        assert_eq!(
            AddressCapacity::with_status(true).update(&tiny(1, 1), at(0)),
            NO,
            "there will never be more"
        );
    }
}
