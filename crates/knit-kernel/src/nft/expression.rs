//! Expressions of a rule: to and from the kernel's attributes.

use std::collections::BTreeMap;

use knit_model::filter::field::{DataType, Field, IpFamily, Value};
use knit_model::filter::rule::{
    Comparison, Expression, LookupResult, Register, RejectWith, Translation, Verdict,
};
use knit_model::filter::{FilterSet, MapData};

use super::constants::*;
use crate::netlink::{Attribute, Attributes, Message};

/// The number of registers of four bytes in one of sixteen.
const REGISTERS_PER_LONG: u32 = 4;
/// The longest value that a register or a key has, in bytes.
const MAX_KEY: usize = 64;

/// How the kernel loads a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Meta(u32),
    Payload { base: u32, offset: u32, length: u32 },
    Fib { result: u32, flags: u32 },
    Conntrack { key: u32, direction: Option<u8> },
    Route(u32),
}

fn load_of(field: Field) -> Load {
    let payload = |base, offset| Load::Payload { base, offset, length: field.length() as u32 };
    let ct = |key| Load::Conntrack { key, direction: None };
    let original = |key| Load::Conntrack { key, direction: Some(IP_CT_DIR_ORIGINAL) };
    let reply = |key| Load::Conntrack { key, direction: Some(IP_CT_DIR_REPLY) };
    let fib = |result, flags| Load::Fib { result, flags };
    match field {
        Field::IifName => Load::Meta(NFT_META_IIFNAME),
        Field::OifName => Load::Meta(NFT_META_OIFNAME),
        Field::NfProto => Load::Meta(NFT_META_NFPROTO),
        Field::EtherType => Load::Meta(NFT_META_PROTOCOL),
        Field::L4Protocol => Load::Meta(NFT_META_L4PROTO),
        Field::Mark => Load::Meta(NFT_META_MARK),
        Field::Priority => Load::Meta(NFT_META_PRIORITY),
        Field::DestinationMac => payload(NFT_PAYLOAD_LL_HEADER, 0),
        Field::SourceMac => payload(NFT_PAYLOAD_LL_HEADER, 6),
        Field::ArpSenderMac => payload(NFT_PAYLOAD_NETWORK_HEADER, 8),
        Field::ArpSenderIp => payload(NFT_PAYLOAD_NETWORK_HEADER, 14),
        Field::ArpTargetIp => payload(NFT_PAYLOAD_NETWORK_HEADER, 24),
        Field::Source(IpFamily::V4) => payload(NFT_PAYLOAD_NETWORK_HEADER, 12),
        Field::Destination(IpFamily::V4) => payload(NFT_PAYLOAD_NETWORK_HEADER, 16),
        Field::Source(IpFamily::V6) => payload(NFT_PAYLOAD_NETWORK_HEADER, 8),
        Field::Destination(IpFamily::V6) => payload(NFT_PAYLOAD_NETWORK_HEADER, 24),
        Field::SourcePort | Field::IcmpType => payload(NFT_PAYLOAD_TRANSPORT_HEADER, 0),
        Field::DestinationPort => payload(NFT_PAYLOAD_TRANSPORT_HEADER, 2),
        Field::TcpFlags => payload(NFT_PAYLOAD_TRANSPORT_HEADER, 13),
        Field::NdTarget => payload(NFT_PAYLOAD_TRANSPORT_HEADER, 8),
        Field::FibDestinationType => fib(NFT_FIB_RESULT_ADDRTYPE, NFTA_FIB_F_DADDR),
        Field::FibSourceType => fib(NFT_FIB_RESULT_ADDRTYPE, NFTA_FIB_F_SADDR),
        Field::FibReversePath => fib(NFT_FIB_RESULT_OIF, NFTA_FIB_F_SADDR | NFTA_FIB_F_IIF),
        Field::CtState => ct(NFT_CT_STATE),
        Field::CtStatus => ct(NFT_CT_STATUS),
        Field::CtMark => ct(NFT_CT_MARK),
        Field::CtDirection => ct(NFT_CT_DIRECTION),
        Field::CtOriginalDestination(IpFamily::V4) => original(NFT_CT_DST_IP),
        Field::CtOriginalDestination(IpFamily::V6) => original(NFT_CT_DST_IP6),
        Field::CtOriginalSource(IpFamily::V4) => original(NFT_CT_SRC_IP),
        Field::CtOriginalSource(IpFamily::V6) => original(NFT_CT_SRC_IP6),
        Field::CtReplySource(IpFamily::V4) => reply(NFT_CT_SRC_IP),
        Field::CtReplySource(IpFamily::V6) => reply(NFT_CT_SRC_IP6),
        Field::CtReplySourcePort => reply(NFT_CT_PROTO_SRC),
        Field::CtProtocol => ct(NFT_CT_PROTOCOL),
        Field::NextHop(IpFamily::V4) => Load::Route(NFT_RT_NEXTHOP4),
        Field::NextHop(IpFamily::V6) => Load::Route(NFT_RT_NEXTHOP6),
    }
}

impl Load {
    fn name(self) -> &'static str {
        match self {
            Self::Meta(_) => "meta",
            Self::Payload { .. } => "payload",
            Self::Fib { .. } => "fib",
            Self::Conntrack { .. } => "ct",
            Self::Route(_) => "rt",
        }
    }

    fn encode(self, to: u32, data: &mut Message) {
        match self {
            Self::Meta(key) => data.put_be32(NFTA_META_KEY, key).put_be32(NFTA_META_DREG, to),
            Self::Payload { base, offset, length } => data
                .put_be32(NFTA_PAYLOAD_DREG, to)
                .put_be32(NFTA_PAYLOAD_BASE, base)
                .put_be32(NFTA_PAYLOAD_OFFSET, offset)
                .put_be32(NFTA_PAYLOAD_LEN, length),
            Self::Fib { result, flags } => data
                .put_be32(NFTA_FIB_DREG, to)
                .put_be32(NFTA_FIB_RESULT, result)
                .put_be32(NFTA_FIB_FLAGS, flags),
            Self::Conntrack { key, direction } => {
                data.put_be32(NFTA_CT_KEY, key).put_be32(NFTA_CT_DREG, to);
                if let Some(direction) = direction {
                    data.put_u8(NFTA_CT_DIRECTION, direction);
                }
                data
            }
            Self::Route(key) => data.put_be32(NFTA_RT_KEY, key).put_be32(NFTA_RT_DREG, to),
        };
    }

    /// The load and its register, if the expression is one.
    fn decode(name: &str, data: Attributes<'_>) -> Option<(Self, Register)> {
        let number = |kind: u16| data.first(kind)?.be32();
        let (load, to) = match name {
            "meta" => (Self::Meta(number(NFTA_META_KEY)?), number(NFTA_META_DREG)?),
            "payload" => {
                let (base, offset) = (number(NFTA_PAYLOAD_BASE)?, number(NFTA_PAYLOAD_OFFSET)?);
                let length = number(NFTA_PAYLOAD_LEN)?;
                (Self::Payload { base, offset, length }, number(NFTA_PAYLOAD_DREG)?)
            }
            "fib" => {
                let (result, flags) = (number(NFTA_FIB_RESULT)?, number(NFTA_FIB_FLAGS)?);
                (Self::Fib { result, flags }, number(NFTA_FIB_DREG)?)
            }
            "ct" => {
                let key = number(NFTA_CT_KEY)?;
                // The kernel reports a direction only for keys that have one.
                let direction = data.first(NFTA_CT_DIRECTION).and_then(|direction| direction.u8());
                (Self::Conntrack { key, direction }, number(NFTA_CT_DREG)?)
            }
            "rt" => (Self::Route(number(NFTA_RT_KEY)?), number(NFTA_RT_DREG)?),
            _ => return None,
        };
        Some((load, register_of(to)?))
    }
}

/// The kernel's number of a register.
fn number_of(register: Register) -> u32 {
    NFT_REG32_00 + u32::from(register.0)
}

/// The register of a number. The kernel reports the long name of a register that is the first of a long one.
fn register_of(number: u32) -> Option<Register> {
    let short = if number >= NFT_REG32_00 {
        number - NFT_REG32_00
    } else {
        number.checked_sub(1)? * REGISTERS_PER_LONG
    };
    Some(Register(u8::try_from(short).ok()?))
}

/// The kernel's name of an expression.
pub(super) fn name(expression: &Expression) -> &str {
    match expression {
        Expression::Load { field, .. } => load_of(*field).name(),
        Expression::Compare { .. } => "cmp",
        Expression::Between { .. } => "range",
        Expression::Mask { .. } => "bitwise",
        Expression::Lookup { .. } => "lookup",
        Expression::SetMark | Expression::SetPriority => "meta",
        Expression::SetCtMark => "ct",
        Expression::Number { .. } => "numgen",
        Expression::Hash { .. } => "hash",
        Expression::Learn { .. } | Expression::Forget { .. } => "dynset",
        Expression::Count => "counter",
        Expression::CountIn(_) => "objref",
        Expression::Limit { .. } => "limit",
        Expression::Log { .. } => "log",
        Expression::Reject(_) => "reject",
        Expression::NoTrack => "notrack",
        Expression::Nat { .. } => "nat",
        Expression::Masquerade { .. } => "masq",
        Expression::Verdict(_) => "immediate",
        Expression::Foreign(name) => name,
    }
}

/// Expressions that a kernel with nftables may lack, with the build option of each.
pub(super) fn optional(name: &str) -> Option<&'static str> {
    Some(match name {
        "fib" => "CONFIG_NFT_FIB_INET",
        "ct" | "notrack" => "CONFIG_NFT_CT",
        "nat" => "CONFIG_NFT_NAT",
        "masq" => "CONFIG_NFT_MASQ",
        "numgen" => "CONFIG_NFT_NUMGEN",
        "hash" => "CONFIG_NFT_HASH",
        "limit" => "CONFIG_NFT_LIMIT",
        "log" => "CONFIG_NFT_LOG",
        "reject" => "CONFIG_NFT_REJECT",
        _ => return None,
    })
}

/// Writes an expression as an element of a rule's list.
pub(super) fn encode(expression: &Expression, list: &mut Message) {
    list.nest(NFTA_LIST_ELEM, |entry| {
        entry.put_str(NFTA_EXPR_NAME, name(expression));
        entry.nest(NFTA_EXPR_DATA, |data| encode_data(expression, data));
    });
}

fn encode_data(expression: &Expression, data: &mut Message) {
    let first = number_of(Register::FIRST);
    match expression {
        Expression::Load { field, to } => load_of(*field).encode(number_of(*to), data),
        Expression::Compare { is, value } => {
            let op = if *is == Comparison::Equal { NFT_CMP_EQ } else { NFT_CMP_NEQ };
            data.put_be32(NFTA_CMP_SREG, first).put_be32(NFTA_CMP_OP, op);
            put_value(data, NFTA_CMP_DATA, &value.bytes());
        }
        Expression::Between { first: from, last } => {
            data.put_be32(NFTA_RANGE_SREG, first).put_be32(NFTA_RANGE_OP, NFT_RANGE_EQ);
            put_value(data, NFTA_RANGE_FROM_DATA, &from.bytes());
            put_value(data, NFTA_RANGE_TO_DATA, &last.bytes());
        }
        Expression::Mask { mask, xor } => {
            let (mask, xor) = (mask.bytes(), xor.bytes());
            data.put_be32(NFTA_BITWISE_SREG, first).put_be32(NFTA_BITWISE_DREG, first);
            data.put_be32(NFTA_BITWISE_LEN, mask.len() as u32);
            put_value(data, NFTA_BITWISE_MASK, &mask);
            put_value(data, NFTA_BITWISE_XOR, &xor);
        }
        Expression::Lookup { set, negated, to, from } => {
            data.put_str(NFTA_LOOKUP_SET, set).put_be32(NFTA_LOOKUP_SREG, number_of(*from));
            match to {
                LookupResult::Match => {}
                LookupResult::Load(to) => drop(data.put_be32(NFTA_LOOKUP_DREG, number_of(*to))),
                LookupResult::Verdict => drop(data.put_be32(NFTA_LOOKUP_DREG, NFT_REG_VERDICT)),
            }
            if *negated {
                data.put_be32(NFTA_LOOKUP_FLAGS, NFT_LOOKUP_F_INV);
            }
        }
        Expression::SetMark => {
            data.put_be32(NFTA_META_KEY, NFT_META_MARK).put_be32(NFTA_META_SREG, first);
        }
        Expression::SetPriority => {
            data.put_be32(NFTA_META_KEY, NFT_META_PRIORITY).put_be32(NFTA_META_SREG, first);
        }
        Expression::SetCtMark => {
            data.put_be32(NFTA_CT_KEY, NFT_CT_MARK).put_be32(NFTA_CT_SREG, first);
        }
        Expression::Number { modulus, offset, random, to } => {
            let kind = if *random { NFT_NG_RANDOM } else { NFT_NG_INCREMENTAL };
            data.put_be32(NFTA_NG_DREG, number_of(*to)).put_be32(NFTA_NG_MODULUS, *modulus);
            data.put_be32(NFTA_NG_TYPE, kind).put_be32(NFTA_NG_OFFSET, *offset);
        }
        Expression::Hash { length, modulus, seed, offset, to } => {
            data.put_be32(NFTA_HASH_SREG, first).put_be32(NFTA_HASH_DREG, number_of(*to));
            data.put_be32(NFTA_HASH_LEN, *length).put_be32(NFTA_HASH_MODULUS, *modulus);
            data.put_be32(NFTA_HASH_SEED, *seed).put_be32(NFTA_HASH_OFFSET, *offset);
            data.put_be32(NFTA_HASH_TYPE, NFT_HASH_JENKINS);
        }
        Expression::Learn { set, data: value, renew, timeout } => {
            let op = if *renew { NFT_DYNSET_OP_UPDATE } else { NFT_DYNSET_OP_ADD };
            data.put_str(NFTA_DYNSET_SET_NAME, set).put_be32(NFTA_DYNSET_OP, op);
            data.put_be32(NFTA_DYNSET_SREG_KEY, first);
            if let Some(value) = value {
                data.put_be32(NFTA_DYNSET_SREG_DATA, number_of(*value));
            }
            if let Some(timeout) = timeout {
                data.put_bytes(NFTA_DYNSET_TIMEOUT, &timeout.to_be_bytes());
            }
        }
        Expression::Forget { set, data: value } => {
            data.put_str(NFTA_DYNSET_SET_NAME, set).put_be32(NFTA_DYNSET_OP, NFT_DYNSET_OP_DELETE);
            data.put_be32(NFTA_DYNSET_SREG_KEY, first);
            if let Some(value) = value {
                data.put_be32(NFTA_DYNSET_SREG_DATA, number_of(*value));
            }
        }
        Expression::CountIn(counter) => {
            data.put_be32(NFTA_OBJREF_IMM_TYPE, NFT_OBJECT_COUNTER).put_str(NFTA_OBJREF_IMM_NAME, counter);
        }
        Expression::Limit { packets, seconds, burst } => {
            data.put_bytes(NFTA_LIMIT_RATE, &packets.to_be_bytes());
            data.put_bytes(NFTA_LIMIT_UNIT, &seconds.to_be_bytes());
            data.put_be32(NFTA_LIMIT_BURST, *burst).put_be32(NFTA_LIMIT_TYPE, NFT_LIMIT_PKTS);
        }
        Expression::Log { prefix, group } => {
            data.put_str(NFTA_LOG_PREFIX, prefix);
            if let Some(group) = group {
                data.put_be16(NFTA_LOG_GROUP, *group);
            }
        }
        Expression::Reject(with) => {
            let (kind, code) = match with {
                RejectWith::TcpReset => (NFT_REJECT_TCP_RST, None),
                RejectWith::PortUnreachable => {
                    (NFT_REJECT_ICMPX_UNREACH, Some(NFT_REJECT_ICMPX_PORT_UNREACH))
                }
                RejectWith::Prohibited => (NFT_REJECT_ICMPX_UNREACH, Some(NFT_REJECT_ICMPX_ADMIN_PROHIBITED)),
            };
            data.put_be32(NFTA_REJECT_TYPE, kind);
            if let Some(code) = code {
                data.put_u8(NFTA_REJECT_ICMP_CODE, code);
            }
        }
        Expression::Nat { translates, family, address, port } => {
            let kind = if *translates == Translation::Source { NFT_NAT_SNAT } else { NFT_NAT_DNAT };
            data.put_be32(NFTA_NAT_TYPE, kind).put_be32(NFTA_NAT_FAMILY, u32::from(family.number()));
            data.put_be32(NFTA_NAT_REG_ADDR_MIN, number_of(*address));
            if let Some(port) = port {
                data.put_be32(NFTA_NAT_REG_PROTO_MIN, number_of(*port));
            }
        }
        Expression::Masquerade { random: true } => {
            data.put_be32(NFTA_MASQ_FLAGS, NF_NAT_RANGE_PROTO_RANDOM);
        }
        Expression::Verdict(verdict) => {
            data.put_be32(NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT);
            data.nest(NFTA_IMMEDIATE_DATA, |data| encode_verdict(verdict, data));
        }
        Expression::Masquerade { random: false }
        | Expression::Count
        | Expression::NoTrack
        | Expression::Foreign(_) => {}
    }
}

/// Reads the expressions of a rule of a table with these sets. The type of a compared value follows from what was loaded
/// before.
pub(super) fn decode_all(list: Attributes<'_>, sets: &BTreeMap<String, FilterSet>) -> Vec<Expression> {
    let mut loaded = None;
    let decode = |entry: Attribute<'_>| {
        let name = entry.nested().first(NFTA_EXPR_NAME).and_then(|name| name.str()).unwrap_or("?");
        let empty = Attributes::new(&[]);
        let data = entry.nested().first(NFTA_EXPR_DATA).map_or(empty, |data| data.nested());
        let expression = decode(name, data, loaded).unwrap_or_else(|| Expression::Foreign(name.to_owned()));
        match &expression {
            Expression::Load { field, to: Register::FIRST } => loaded = Some(field.data_type()),
            // A number in host byte order, as a mark.
            Expression::Number { to: Register::FIRST, .. } | Expression::Hash { to: Register::FIRST, .. } => {
                loaded = Some(DataType::Mark);
            }
            Expression::Lookup { set, to: LookupResult::Load(Register::FIRST), .. } => {
                loaded = match sets.get(set).and_then(|set| set.data.as_ref()) {
                    Some(MapData::Values(types)) => types.first().copied(),
                    _ => None,
                };
            }
            _ => {}
        }
        expression
    };
    list.map(decode).collect()
}

fn decode(name: &str, data: Attributes<'_>, loaded: Option<DataType>) -> Option<Expression> {
    if let Some((load, to)) = Load::decode(name, data) {
        let field = Field::ALL.into_iter().find(|field| load_of(*field) == load)?;
        return Some(Expression::Load { field, to });
    }
    let number = |kind: u16| data.first(kind)?.be32();
    let first = |kind: u16| (register_of(number(kind)?)? == Register::FIRST).then_some(());
    let value = |kind: u16| loaded?.decode(data.first(kind)?.nested().first(NFTA_DATA_VALUE)?.value);
    Some(match name {
        "cmp" => {
            first(NFTA_CMP_SREG)?;
            let is = match number(NFTA_CMP_OP)? {
                NFT_CMP_EQ => Comparison::Equal,
                NFT_CMP_NEQ => Comparison::NotEqual,
                _ => return None,
            };
            Expression::Compare { is, value: value(NFTA_CMP_DATA)? }
        }
        "range" if number(NFTA_RANGE_OP)? == NFT_RANGE_EQ => {
            first(NFTA_RANGE_SREG)?;
            Expression::Between { first: value(NFTA_RANGE_FROM_DATA)?, last: value(NFTA_RANGE_TO_DATA)? }
        }
        "bitwise" => {
            first(NFTA_BITWISE_SREG).and_then(|()| first(NFTA_BITWISE_DREG))?;
            Expression::Mask { mask: value(NFTA_BITWISE_MASK)?, xor: value(NFTA_BITWISE_XOR)? }
        }
        "lookup" => {
            let to = match number(NFTA_LOOKUP_DREG) {
                None => LookupResult::Match,
                Some(NFT_REG_VERDICT) => LookupResult::Verdict,
                Some(register) => LookupResult::Load(register_of(register)?),
            };
            let negated = number(NFTA_LOOKUP_FLAGS).is_some_and(|flags| flags & NFT_LOOKUP_F_INV != 0);
            let from = register_of(number(NFTA_LOOKUP_SREG)?)?;
            Expression::Lookup { set: data.first(NFTA_LOOKUP_SET)?.str()?.to_owned(), negated, to, from }
        }
        "meta" => {
            first(NFTA_META_SREG)?;
            match number(NFTA_META_KEY)? {
                NFT_META_MARK => Expression::SetMark,
                NFT_META_PRIORITY => Expression::SetPriority,
                _ => return None,
            }
        }
        "ct" if number(NFTA_CT_KEY)? == NFT_CT_MARK => {
            first(NFTA_CT_SREG)?;
            Expression::SetCtMark
        }
        "numgen" => Expression::Number {
            modulus: number(NFTA_NG_MODULUS)?,
            offset: number(NFTA_NG_OFFSET)?,
            random: number(NFTA_NG_TYPE)? == NFT_NG_RANDOM,
            to: register_of(number(NFTA_NG_DREG)?)?,
        },
        "hash" if number(NFTA_HASH_TYPE).unwrap_or(NFT_HASH_JENKINS) == NFT_HASH_JENKINS => {
            first(NFTA_HASH_SREG)?;
            Expression::Hash {
                length: number(NFTA_HASH_LEN)?,
                modulus: number(NFTA_HASH_MODULUS)?,
                seed: number(NFTA_HASH_SEED).unwrap_or_default(),
                offset: number(NFTA_HASH_OFFSET).unwrap_or_default(),
                to: register_of(number(NFTA_HASH_DREG)?)?,
            }
        }
        "dynset" => {
            first(NFTA_DYNSET_SREG_KEY)?;
            let set = data.first(NFTA_DYNSET_SET_NAME)?.str()?.to_owned();
            let value = number(NFTA_DYNSET_SREG_DATA).and_then(register_of);
            let renew = match number(NFTA_DYNSET_OP)? {
                NFT_DYNSET_OP_ADD => false,
                NFT_DYNSET_OP_UPDATE => true,
                NFT_DYNSET_OP_DELETE => return Some(Expression::Forget { set, data: value }),
                _ => return None,
            };
            let timeout = data.first(NFTA_DYNSET_TIMEOUT).and_then(|it| it.value.try_into().ok());
            let timeout = timeout.map(u64::from_be_bytes).filter(|timeout| *timeout > 0);
            Expression::Learn { set, data: value, renew, timeout }
        }
        "counter" => Expression::Count,
        "objref" if number(NFTA_OBJREF_IMM_TYPE)? == NFT_OBJECT_COUNTER => {
            Expression::CountIn(data.first(NFTA_OBJREF_IMM_NAME)?.str()?.to_owned())
        }
        "limit"
            if number(NFTA_LIMIT_TYPE).unwrap_or(NFT_LIMIT_PKTS) == NFT_LIMIT_PKTS
                && number(NFTA_LIMIT_FLAGS).unwrap_or_default() == 0 =>
        {
            Expression::Limit {
                packets: data.first(NFTA_LIMIT_RATE)?.be64()?,
                seconds: data.first(NFTA_LIMIT_UNIT)?.be64()?,
                burst: number(NFTA_LIMIT_BURST)?,
            }
        }
        "log" => Expression::Log {
            prefix: data.first(NFTA_LOG_PREFIX)?.str()?.to_owned(),
            group: data.first(NFTA_LOG_GROUP).and_then(|group| group.be16()),
        },
        "reject" => {
            let code = data.first(NFTA_REJECT_ICMP_CODE).and_then(|code| code.u8());
            Expression::Reject(match (number(NFTA_REJECT_TYPE)?, code) {
                (NFT_REJECT_TCP_RST, _) => RejectWith::TcpReset,
                (NFT_REJECT_ICMPX_UNREACH, Some(NFT_REJECT_ICMPX_PORT_UNREACH)) => {
                    RejectWith::PortUnreachable
                }
                (NFT_REJECT_ICMPX_UNREACH, Some(NFT_REJECT_ICMPX_ADMIN_PROHIBITED)) => RejectWith::Prohibited,
                _ => return None,
            })
        }
        "notrack" => Expression::NoTrack,
        "nat" => {
            let family = number(NFTA_NAT_FAMILY)?;
            Expression::Nat {
                translates: match number(NFTA_NAT_TYPE)? {
                    NFT_NAT_SNAT => Translation::Source,
                    _ => Translation::Destination,
                },
                family: IpFamily::ALL.into_iter().find(|one| u32::from(one.number()) == family)?,
                address: register_of(number(NFTA_NAT_REG_ADDR_MIN)?)?,
                port: number(NFTA_NAT_REG_PROTO_MIN).and_then(register_of),
            }
        }
        "masq" => {
            let flags = number(NFTA_MASQ_FLAGS).unwrap_or_default();
            Expression::Masquerade { random: flags & NF_NAT_RANGE_PROTO_RANDOM != 0 }
        }
        "immediate" if number(NFTA_IMMEDIATE_DREG)? == NFT_REG_VERDICT => {
            Expression::Verdict(decode_verdict(data.first(NFTA_IMMEDIATE_DATA)?.nested())?)
        }
        _ => return None,
    })
}

pub(super) fn encode_verdict(verdict: &Verdict, data: &mut Message) {
    let (code, chain) = match verdict {
        Verdict::Accept => (NF_ACCEPT, None),
        Verdict::Drop => (NF_DROP, None),
        Verdict::Return => (NFT_RETURN, None),
        Verdict::Jump(chain) => (NFT_JUMP, Some(chain)),
        Verdict::Goto(chain) => (NFT_GOTO, Some(chain)),
    };
    data.nest(NFTA_DATA_VERDICT, |verdict| {
        verdict.put_be32(NFTA_VERDICT_CODE, code as u32);
        if let Some(chain) = chain {
            verdict.put_str(NFTA_VERDICT_CHAIN, chain);
        }
    });
}

pub(super) fn decode_verdict(data: Attributes<'_>) -> Option<Verdict> {
    let verdict = data.first(NFTA_DATA_VERDICT)?.nested();
    let chain = || Some(verdict.first(NFTA_VERDICT_CHAIN)?.str()?.to_owned());
    Some(match verdict.first(NFTA_VERDICT_CODE)?.be32()? as i32 {
        NF_ACCEPT => Verdict::Accept,
        NF_DROP => Verdict::Drop,
        NFT_RETURN => Verdict::Return,
        NFT_JUMP => Verdict::Jump(chain()?),
        NFT_GOTO => Verdict::Goto(chain()?),
        _ => return None,
    })
}

pub(super) fn put_value(message: &mut Message, kind: u16, value: &[u8]) {
    message.nest(kind, |data| {
        data.put_bytes(NFTA_DATA_VALUE, value);
    });
}

/// The value of an attribute that holds data of these types, each at a register of its own.
pub(super) fn decode_values(types: &[DataType], bytes: &[u8]) -> Option<Vec<Value>> {
    let mut rest = bytes;
    let mut values = Vec::with_capacity(types.len());
    for kind in types {
        let (value, more) = rest.split_at_checked(kind.length())?;
        values.push(kind.decode(value)?);
        let padding = kind.length().next_multiple_of(4) - kind.length();
        rest = more.get(padding.min(more.len())..)?;
    }
    Some(values)
}

/// The encoding of a concatenation: each part but a single one starts at a register of its own.
pub(super) fn encode_values<'a>(values: impl IntoIterator<Item = &'a Value>) -> Vec<u8> {
    let mut all = Vec::with_capacity(MAX_KEY);
    let mut parts = 0;
    for value in values {
        pad(&mut all);
        value.append_to(&mut all);
        parts += 1;
    }
    if parts > 1 {
        pad(&mut all);
    }
    all
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}
