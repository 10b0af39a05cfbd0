//! How much of it all a namespace may have.

use std::ops::{Add, Sub};

use serde::{Deserialize, Serialize};

/// Interfaces, addresses and bridges, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Interfaces in pods.
    pub interfaces: u64,
    /// Addresses of those.
    pub addresses: u64,
    /// Bridges on nodes; one on two nodes is two.
    pub bridges: u64,
}

/// At most so many of each; nothing is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaIntent {
    /// Interfaces.
    pub interfaces: Option<u64>,
    /// Addresses.
    pub addresses: Option<u64>,
    /// Bridges.
    pub bridges: Option<u64>,
}

impl Counts {
    /// One of each, as a function says.
    fn each(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            interfaces: of(self.interfaces, other.interfaces),
            addresses: of(self.addresses, other.addresses),
            bridges: of(self.bridges, other.bridges),
        }
    }

    /// The larger of each.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        self.each(other, u64::max)
    }

    /// The smaller of each.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        self.each(other, u64::min)
    }

    /// Whether there is nothing.
    pub fn is_zero(self) -> bool {
        self == Self::default()
    }

    /// Whether there is more of something than there.
    pub fn exceeds(self, other: Self) -> bool {
        self.max(other) != other
    }
}

impl QuotaIntent {
    /// The limits as counts; where there is none, more than there can be.
    pub fn counts(self) -> Counts {
        Counts {
            interfaces: self.interfaces.unwrap_or(u64::MAX),
            addresses: self.addresses.unwrap_or(u64::MAX),
            bridges: self.bridges.unwrap_or(u64::MAX),
        }
    }
}

/// As much as both together.
impl Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.each(other, u64::saturating_add)
    }
}

/// What is left; nothing where there is too little.
impl Sub for Counts {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.each(other, u64::saturating_sub)
    }
}
