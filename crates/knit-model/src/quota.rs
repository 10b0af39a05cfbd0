//! Quotas of a namespace.

use std::ops::{Add, Sub};

use serde::{Deserialize, Serialize};

/// Numbers of interfaces, addresses and bridges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceCounts {
    /// Interfaces in pods.
    pub interfaces: u64,
    /// Addresses of those interfaces.
    pub addresses: u64,
    /// Bridges on nodes; a bridge on two nodes counts twice.
    pub bridges: u64,
}

/// Limits of a namespace; `None`: unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaIntent {
    /// Interfaces.
    pub interfaces: Option<u64>,
    /// Addresses.
    pub addresses: Option<u64>,
    /// Bridges.
    pub bridges: Option<u64>,
}

impl ResourceCounts {
    /// Combines each field with a function.
    fn zip_with(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            interfaces: of(self.interfaces, other.interfaces),
            addresses: of(self.addresses, other.addresses),
            bridges: of(self.bridges, other.bridges),
        }
    }

    /// The maximum of each field.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        self.zip_with(other, u64::max)
    }

    /// The minimum of each field.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        self.zip_with(other, u64::min)
    }

    /// Whether all fields are zero.
    pub fn is_zero(self) -> bool {
        self == Self::default()
    }

    /// Whether any field is larger than in `other`.
    pub fn exceeds(self, other: Self) -> bool {
        self.max(other) != other
    }
}

impl QuotaIntent {
    /// The limits as counts; `u64::MAX` for unlimited.
    pub fn counts(self) -> ResourceCounts {
        ResourceCounts {
            interfaces: self.interfaces.unwrap_or(u64::MAX),
            addresses: self.addresses.unwrap_or(u64::MAX),
            bridges: self.bridges.unwrap_or(u64::MAX),
        }
    }
}

/// Saturating sum of each field.
impl Add for ResourceCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.zip_with(other, u64::saturating_add)
    }
}

/// Saturating difference of each field.
impl Sub for ResourceCounts {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.zip_with(other, u64::saturating_sub)
    }
}
