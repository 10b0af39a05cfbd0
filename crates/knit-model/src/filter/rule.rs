//! Filter rules: matches in order, then statements.
//!
//! A rule is the list of expressions that the kernel evaluates on its registers, built by methods that read like `nft`'s
//! syntax from left to right.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::field::{FIB_LOCAL, Field, IpFamily, Value, ct_status, mask_of};

/// A rule of a chain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterRule {
    /// What the kernel evaluates, in order.
    pub expressions: Vec<Expression>,
    /// Shown by `nft` as the rule's comment. At most 127 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

/// A register of four bytes. Longer values occupy the following ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Register(pub u8);

impl Register {
    /// The first one, in which comparisons find their value.
    pub const FIRST: Self = Self(0);

    /// Whether it is the first one: a default that serialized rules leave out.
    fn is_first(&self) -> bool {
        *self == Self::FIRST
    }

    /// The register after a value of this length.
    #[must_use]
    pub fn after(self, length: usize) -> Self {
        Self(self.0 + length.div_ceil(4) as u8)
    }
}

/// An expression. A match that fails ends the rule. Comparisons and masks read the first register.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Expression {
    /// Loads a field.
    Load {
        /// The field.
        field: Field,
        /// Where to.
        to: Register,
    },
    /// Matches by comparison with a value.
    Compare {
        /// How to compare.
        is: Comparison,
        /// The value.
        value: Value,
    },
    /// Matches if the value is between two others, both included.
    Between {
        /// The first.
        first: Value,
        /// The last.
        last: Value,
    },
    /// Keeps the bits of a mask, then inverts others.
    Mask {
        /// The bits to keep.
        mask: Value,
        /// The bits to invert.
        xor: Value,
    },
    /// Matches if a set or map contains the key; negated, if it does not.
    Lookup {
        /// The set.
        set: String,
        /// Match if the key is missing.
        negated: bool,
        /// What to do with the data of a map.
        to: LookupResult,
        /// The first register of the key.
        #[serde(default, skip_serializing_if = "Register::is_first")]
        from: Register,
    },
    /// Sets the packet mark.
    SetMark,
    /// Sets the mark of the connection.
    SetCtMark,
    /// Sets the packet's priority.
    SetPriority,
    /// A number below `modulus`, counted up or random, plus `offset`.
    Number {
        /// How many numbers there are.
        modulus: u32,
        /// The first.
        offset: u32,
        /// Random, or each in turn.
        random: bool,
        /// Where to.
        to: Register,
    },
    /// The hash of the first registers modulo a number, plus `offset`.
    Hash {
        /// The bytes to hash.
        length: u32,
        /// How many results there are.
        modulus: u32,
        /// The seed.
        seed: u32,
        /// The first result.
        offset: u32,
        /// Where to.
        to: Register,
    },
    /// Adds the key in the first register to a dynamic set, or renews its timeout.
    Learn {
        /// The set.
        set: String,
        /// The register of a map's data.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        data: Option<Register>,
        /// Whether an existing element's timeout starts again.
        renew: bool,
        /// The timeout of the element in milliseconds; the set's own if missing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout: Option<u64>,
    },
    /// Removes the key in the first register from a dynamic set.
    Forget {
        /// The set.
        set: String,
        /// A register with data of a map, which the kernel requires but does not compare.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        data: Option<Register>,
    },
    /// Counts packets and bytes in the rule itself.
    Count,
    /// Counts packets and bytes in a named counter of the table.
    CountIn(String),
    /// Matches up to a rate of packets.
    Limit {
        /// The number of packets
        packets: u64,
        /// in this many seconds: one second, minute, hour, day or week.
        seconds: u64,
        /// Packets that may exceed the rate at once.
        burst: u32,
    },
    /// Logs the packet.
    Log {
        /// Text before the packet's description.
        prefix: String,
        /// The group of a user-space receiver; the kernel log if missing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group: Option<u16>,
    },
    /// Drops the packet and answers.
    Reject(RejectWith),
    /// Has connection tracking ignore the packet.
    NoTrack,
    /// DNAT or SNAT to an address in registers.
    Nat {
        /// What is translated.
        translates: Translation,
        /// The family of the address.
        family: IpFamily,
        /// The first register of the address.
        #[serde(default, skip_serializing_if = "Register::is_first")]
        address: Register,
        /// The register of the port, if it is translated too.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<Register>,
    },
    /// SNAT to the address of the output interface.
    Masquerade {
        /// From a random port, or from the original one if it is free.
        random: bool,
    },
    /// Ends the evaluation of the rule with a verdict.
    Verdict(Verdict),
    /// An expression that Knit does not write, by name.
    Foreign(String),
}

/// How to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Comparison {
    /// Equal.
    Equal,
    /// Not equal.
    NotEqual,
}

/// What a lookup does with the data of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LookupResult {
    /// Nothing: a set.
    Match,
    /// Loads the data.
    Load(Register),
    /// Takes the data as the verdict.
    Verdict,
}

/// What NAT translates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Translation {
    /// SNAT.
    Source,
    /// DNAT.
    Destination,
}

/// The answer to a rejected packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RejectWith {
    /// ICMP or ICMPv6 "administratively prohibited".
    Prohibited,
    /// ICMP or ICMPv6 "port unreachable".
    PortUnreachable,
    /// A TCP reset.
    TcpReset,
}

/// A verdict.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// Accepts the packet; no further rule of the base chain is evaluated.
    Accept,
    /// Drops the packet.
    Drop,
    /// Goes on with the calling chain.
    Return,
    /// Evaluates another chain, then goes on.
    Jump(String),
    /// Evaluates another chain in place of the rest of this one.
    Goto(String),
}

impl FilterRule {
    /// A rule that matches every packet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the comment.
    #[must_use]
    pub fn comment(mut self, text: impl Into<String>) -> Self {
        self.comment = Some(text.into());
        self
    }

    /// Matches packets of this IP family.
    #[must_use]
    pub fn family(self, family: IpFamily) -> Self {
        self.is(Field::NfProto, family.number())
    }

    /// Matches if a field has this value.
    #[must_use]
    pub fn is(self, field: Field, value: impl Into<Value>) -> Self {
        self.load(&[field]).compare(Comparison::Equal, value.into())
    }

    /// Matches if a field has another value.
    #[must_use]
    pub fn is_not(self, field: Field, value: impl Into<Value>) -> Self {
        self.load(&[field]).compare(Comparison::NotEqual, value.into())
    }

    /// Matches if a field is between two values, both included.
    #[must_use]
    pub fn between(self, field: Field, first: impl Into<Value>, last: impl Into<Value>) -> Self {
        self.load(&[field]).then(Expression::Between { first: first.into(), last: last.into() })
    }

    /// Matches if an address is in a range.
    #[must_use]
    pub fn within(self, field: Field, range: IpNet) -> Self {
        self.masked(field, range).compare(Comparison::Equal, range.network().into())
    }

    /// Matches if an address is not in a range.
    #[must_use]
    pub fn not_within(self, field: Field, range: IpNet) -> Self {
        self.masked(field, range).compare(Comparison::NotEqual, range.network().into())
    }

    /// Matches if the concatenation of these fields is in a set.
    #[must_use]
    pub fn in_set(self, fields: &[Field], set: &str) -> Self {
        self.lookup(fields, set, false, LookupResult::Match)
    }

    /// Matches if the concatenation of these fields is not in a set.
    #[must_use]
    pub fn not_in_set(self, fields: &[Field], set: &str) -> Self {
        self.lookup(fields, set, true, LookupResult::Match)
    }

    /// Takes the verdict that a map has for the concatenation of these fields, if any.
    #[must_use]
    pub fn verdict_map(self, fields: &[Field], map: &str) -> Self {
        self.lookup(fields, map, false, LookupResult::Verdict)
    }

    /// Matches packets to an address of this node (`fib daddr type local`).
    #[must_use]
    pub fn to_local(self) -> Self {
        self.is(Field::FibDestinationType, FIB_LOCAL)
    }

    /// Matches packets from an address of this node (`fib saddr type local`).
    #[must_use]
    pub fn from_local(self) -> Self {
        self.is(Field::FibSourceType, FIB_LOCAL)
    }

    /// Matches packets to any other address.
    #[must_use]
    pub fn not_to_local(self) -> Self {
        self.is_not(Field::FibDestinationType, FIB_LOCAL)
    }

    /// Matches if any of these bits of a field is set.
    #[must_use]
    pub fn any_bit(self, field: Field, bits: u32) -> Self {
        self.bits(field, bits).compare(Comparison::NotEqual, Value::Number(0))
    }

    /// Matches if none of these bits of a field is set.
    #[must_use]
    pub fn no_bit(self, field: Field, bits: u32) -> Self {
        self.bits(field, bits).compare(Comparison::Equal, Value::Number(0))
    }

    /// Matches if none of these flags of the TCP header is set. The rule must match the protocol first.
    #[must_use]
    pub fn no_flag(self, flags: u8) -> Self {
        let masked =
            self.load(&[Field::TcpFlags]).then(Expression::Mask { mask: flags.into(), xor: 0u8.into() });
        masked.compare(Comparison::Equal, 0u8.into())
    }

    /// Matches connections with DNAT (`ct status dnat`).
    #[must_use]
    pub fn with_dnat(self) -> Self {
        self.any_bit(Field::CtStatus, ct_status::DNAT)
    }

    /// Matches connections without DNAT.
    #[must_use]
    pub fn without_dnat(self) -> Self {
        self.no_bit(Field::CtStatus, ct_status::DNAT)
    }

    /// Matches connections without SNAT.
    #[must_use]
    pub fn without_snat(self) -> Self {
        self.no_bit(Field::CtStatus, ct_status::SNAT)
    }

    /// Matches what both rules match.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.expressions.extend(other.expressions);
        self
    }

    /// Matches packets in the original direction of their connection.
    #[must_use]
    pub fn original_direction(self) -> Self {
        self.is(Field::CtDirection, 0u8)
    }

    /// Matches if the masked bits of a mark have this value.
    #[must_use]
    pub fn has_bits(self, field: Field, value: u32, mask: u32) -> Self {
        self.bits(field, mask).compare(Comparison::Equal, Value::Number(value))
    }

    /// Matches if the masked packet mark has this value.
    #[must_use]
    pub fn has_mark(self, value: u32, mask: u32) -> Self {
        self.has_bits(Field::Mark, value, mask)
    }

    /// Sets the masked bits of the packet mark and keeps the others.
    #[must_use]
    pub fn set_mark(self, value: u32, mask: u32) -> Self {
        self.with_bits(Field::Mark, value, mask).then(Expression::SetMark)
    }

    /// Sets the masked bits of the connection's mark and keeps the others.
    #[must_use]
    pub fn set_ct_mark(self, value: u32, mask: u32) -> Self {
        self.with_bits(Field::CtMark, value, mask).then(Expression::SetCtMark)
    }

    /// Accepts the packet.
    #[must_use]
    pub fn accept(self) -> Self {
        self.then(Expression::Verdict(Verdict::Accept))
    }

    /// Drops the packet.
    #[must_use]
    pub fn drop(self) -> Self {
        self.then(Expression::Verdict(Verdict::Drop))
    }

    /// Returns to the calling chain.
    #[must_use]
    pub fn return_(self) -> Self {
        self.then(Expression::Verdict(Verdict::Return))
    }

    /// Jumps to another chain of the table.
    #[must_use]
    pub fn jump(self, chain: &str) -> Self {
        self.then(Expression::Verdict(Verdict::Jump(chain.to_owned())))
    }

    /// Goes to another chain of the table and does not come back.
    #[must_use]
    pub fn goto(self, chain: &str) -> Self {
        self.then(Expression::Verdict(Verdict::Goto(chain.to_owned())))
    }

    /// Drops the packet and answers.
    #[must_use]
    pub fn reject(self, with: RejectWith) -> Self {
        self.then(Expression::Reject(with))
    }

    /// Masquerades: SNAT to the address of the output interface, from a random port, or from the original one if it is
    /// free.
    #[must_use]
    pub fn masquerade(self, random: bool) -> Self {
        self.then(Expression::Masquerade { random })
    }

    /// DNAT to the address and port that a map has for the concatenation of these fields, if any.
    #[must_use]
    pub fn dnat(self, family: IpFamily, fields: &[Field], map: &str) -> Self {
        let port = Some(Register::FIRST.after(family.data_type().length()));
        let translates = Translation::Destination;
        self.lookup(fields, map, false, LookupResult::Load(Register::FIRST)).then(Expression::Nat {
            translates,
            family,
            address: Register::FIRST,
            port,
        })
    }

    /// SNAT to the address that a map has for the concatenation of these fields, if any; from the original port if it is
    /// free.
    #[must_use]
    pub fn snat(self, family: IpFamily, fields: &[Field], map: &str) -> Self {
        let translates = Translation::Source;
        self.lookup(fields, map, false, LookupResult::Load(Register::FIRST)).then(Expression::Nat {
            translates,
            family,
            address: Register::FIRST,
            port: None,
        })
    }

    /// Loads fields into consecutive registers.
    #[must_use]
    pub fn load(self, fields: &[Field]) -> Self {
        self.load_at(Register::FIRST, fields)
    }

    /// Loads fields into consecutive registers from this one on.
    #[must_use]
    pub fn load_at(mut self, mut to: Register, fields: &[Field]) -> Self {
        for field in fields {
            self.expressions.push(Expression::Load { field: *field, to });
            to = to.after(field.length());
        }
        self
    }

    /// Appends an expression.
    #[must_use]
    pub fn then(mut self, expression: Expression) -> Self {
        self.expressions.push(expression);
        self
    }

    fn lookup(self, fields: &[Field], set: &str, negated: bool, to: LookupResult) -> Self {
        let from = Register::FIRST;
        self.load(fields).then(Expression::Lookup { set: set.to_owned(), negated, to, from })
    }

    fn masked(self, field: Field, range: IpNet) -> Self {
        let zero = match range {
            IpNet::V4(_) => std::net::IpAddr::from([0u8; 4]),
            IpNet::V6(_) => std::net::IpAddr::from([0u8; 16]),
        };
        self.load(&[field]).then(Expression::Mask { mask: mask_of(range), xor: zero.into() })
    }

    /// Loads the masked bits of a number.
    fn bits(self, field: Field, bits: u32) -> Self {
        self.load(&[field]).then(Expression::Mask { mask: bits.into(), xor: 0u32.into() })
    }

    /// Loads a number and replaces its masked bits.
    fn with_bits(self, field: Field, value: u32, mask: u32) -> Self {
        self.load(&[field]).then(Expression::Mask { mask: (!mask).into(), xor: value.into() })
    }

    fn compare(self, is: Comparison, value: Value) -> Self {
        self.then(Expression::Compare { is, value })
    }
}
