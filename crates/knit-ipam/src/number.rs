//! Addresses as integers, so that both families share the same arithmetic.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Address family of a number.
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
                let number = u32::try_from(number).expect("IPv4 numbers come from IPv4 ranges");
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

/// First and last address of a range as numbers, regardless of host bits.
pub fn bounds(range: IpNet) -> (u128, u128) {
    (number(range.network()), number(range.broadcast()))
}
