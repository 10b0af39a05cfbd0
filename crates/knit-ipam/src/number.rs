//! Addresses as numbers, so that both families share one arithmetic.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Which family a number is an address of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    pub(crate) fn address(self, number: u128) -> IpAddr {
        match self {
            Self::V4 => {
                let number = u32::try_from(number).expect("numbers of IPv4 come from IPv4 ranges");
                Ipv4Addr::from_bits(number).into()
            }
            Self::V6 => Ipv6Addr::from_bits(number).into(),
        }
    }
}

pub(crate) fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// A range's first and last address as numbers, host bits or not.
pub fn bounds(range: IpNet) -> (u128, u128) {
    (number(range.network()), number(range.broadcast()))
}
