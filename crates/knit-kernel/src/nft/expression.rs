//! Expressions of a rule, which the kernel evaluates in order on its registers.

use super::constants::*;
use super::field::IpFamily;
use crate::netlink::{Message, align};

/// A register of four bytes. Longer values occupy the following ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Register(u32);

impl Register {
    pub(super) const FIRST: Self = Self(0);

    /// The register after a value of this length.
    pub(super) fn after(self, length: usize) -> Self {
        Self(self.0 + (align(length) / 4) as u32)
    }

    fn number(self) -> u32 {
        NFT_REG32_00 + self.0
    }
}

/// An expression. A comparison that fails ends the rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expression {
    Load { what: Load, to: Register },
    Compare { equal: bool, value: Vec<u8> },
    Mask { mask: Vec<u8>, xor: Vec<u8> },
    Lookup { set: String, matches: bool, to: Option<Register> },
    DestinationNat { version: IpFamily, port: Register },
    SourceNat { version: IpFamily },
    SetMark,
    Masquerade { random: bool },
    Verdict(Verdict),
}

/// What to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    Meta(u32),
    Payload { base: u32, offset: u32, length: u32 },
    FibDestinationType,
    Conntrack(u32),
    Route(u32),
}

/// A verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Accept,
    Drop,
    Jump(String),
}

impl Expression {
    /// Its kernel name.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Load { what, .. } => match what {
                Load::Meta(_) => "meta",
                Load::Payload { .. } => "payload",
                Load::FibDestinationType => "fib",
                Load::Conntrack(_) => "ct",
                Load::Route(_) => "rt",
            },
            Self::Compare { .. } => "cmp",
            Self::Mask { .. } => "bitwise",
            Self::Lookup { .. } => "lookup",
            Self::DestinationNat { .. } | Self::SourceNat { .. } => "nat",
            Self::SetMark => "meta",
            Self::Masquerade { .. } => "masq",
            Self::Verdict(_) => "immediate",
        }
    }

    /// Whether a kernel with nftables may lack it.
    pub(super) fn is_optional(&self) -> bool {
        matches!(self.name(), "fib" | "ct" | "nat" | "masq")
    }

    pub(super) fn encode(&self, list: &mut Message) {
        list.nest(NFTA_LIST_ELEM, |entry| {
            entry.put_str(NFTA_EXPR_NAME, self.name()).nest(NFTA_EXPR_DATA, |data| self.encode_data(data));
        });
    }

    fn encode_data(&self, data: &mut Message) {
        let first = Register::FIRST.number();
        match self {
            Self::Load { what, to } => what.encode(to.number(), data),
            Self::Compare { equal, value } => {
                data.put_be32(NFTA_CMP_SREG, first);
                data.put_be32(NFTA_CMP_OP, if *equal { NFT_CMP_EQ } else { NFT_CMP_NEQ });
                put_value(data, NFTA_CMP_DATA, value);
            }
            Self::Mask { mask, xor } => {
                data.put_be32(NFTA_BITWISE_SREG, first).put_be32(NFTA_BITWISE_DREG, first);
                data.put_be32(NFTA_BITWISE_LEN, mask.len() as u32);
                put_value(data, NFTA_BITWISE_MASK, mask);
                put_value(data, NFTA_BITWISE_XOR, xor);
            }
            Self::Lookup { set, matches, to } => {
                data.put_str(NFTA_LOOKUP_SET, set).put_be32(NFTA_LOOKUP_SREG, first);
                if let Some(to) = to {
                    data.put_be32(NFTA_LOOKUP_DREG, to.number());
                }
                if !matches {
                    data.put_be32(NFTA_LOOKUP_FLAGS, NFT_LOOKUP_F_INV);
                }
            }
            Self::DestinationNat { version, port } => {
                data.put_be32(NFTA_NAT_TYPE, NFT_NAT_DNAT);
                data.put_be32(NFTA_NAT_FAMILY, u32::from(version.number()));
                data.put_be32(NFTA_NAT_REG_ADDR_MIN, first).put_be32(NFTA_NAT_REG_PROTO_MIN, port.number());
            }
            Self::SourceNat { version } => {
                data.put_be32(NFTA_NAT_TYPE, NFT_NAT_SNAT);
                data.put_be32(NFTA_NAT_FAMILY, u32::from(version.number()));
                data.put_be32(NFTA_NAT_REG_ADDR_MIN, first);
            }
            Self::SetMark => {
                data.put_be32(NFTA_META_KEY, NFT_META_MARK).put_be32(NFTA_META_SREG, first);
            }
            Self::Masquerade { random: true } => {
                data.put_be32(NFTA_MASQ_FLAGS, NF_NAT_RANGE_PROTO_RANDOM);
            }
            Self::Masquerade { random: false } => {}
            Self::Verdict(verdict) => {
                data.put_be32(NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT);
                data.nest(NFTA_IMMEDIATE_DATA, |data| verdict.encode(data));
            }
        }
    }
}

impl Load {
    fn encode(self, to: u32, data: &mut Message) {
        match self {
            Self::Meta(key) => data.put_be32(NFTA_META_KEY, key).put_be32(NFTA_META_DREG, to),
            Self::Payload { base, offset, length } => data
                .put_be32(NFTA_PAYLOAD_DREG, to)
                .put_be32(NFTA_PAYLOAD_BASE, base)
                .put_be32(NFTA_PAYLOAD_OFFSET, offset)
                .put_be32(NFTA_PAYLOAD_LEN, length),
            Self::FibDestinationType => data
                .put_be32(NFTA_FIB_DREG, to)
                .put_be32(NFTA_FIB_RESULT, NFT_FIB_RESULT_ADDRTYPE)
                .put_be32(NFTA_FIB_FLAGS, NFTA_FIB_F_DADDR),
            Self::Conntrack(key) => data.put_be32(NFTA_CT_KEY, key).put_be32(NFTA_CT_DREG, to),
            Self::Route(key) => data.put_be32(NFTA_RT_KEY, key).put_be32(NFTA_RT_DREG, to),
        };
    }
}

impl Verdict {
    fn encode(&self, data: &mut Message) {
        data.nest(NFTA_DATA_VERDICT, |verdict| match self {
            Self::Accept => {
                verdict.put_be32(NFTA_VERDICT_CODE, NF_ACCEPT as u32);
            }
            Self::Drop => {
                verdict.put_be32(NFTA_VERDICT_CODE, NF_DROP as u32);
            }
            Self::Jump(chain) => {
                verdict.put_be32(NFTA_VERDICT_CODE, NFT_JUMP as u32).put_str(NFTA_VERDICT_CHAIN, chain);
            }
        });
    }
}

pub(super) fn put_value(message: &mut Message, kind: u16, value: &[u8]) {
    message.nest(kind, |data| {
        data.put_bytes(NFTA_DATA_VALUE, value);
    });
}
