//! Rules: matches in order, then a statement.

use ipnet::IpNet;

use super::constants::{IP_CT_DIR_ORIGINAL, IPS_DST_NAT, IPS_SRC_NAT, RTN_LOCAL};
use super::expression::{Expression, Register, Verdict};
use super::field::{Field, IpFamily, Value};

/// A rule, built from left to right as `nft` prints it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    pub(super) expressions: Vec<Expression>,
}

impl Rule {
    /// A rule that matches every packet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Matches packets of this IP family.
    #[must_use]
    pub fn family(self, version: IpFamily) -> Self {
        self.is(Field::NfProto, version.number())
    }

    /// Matches if a field has this value.
    #[must_use]
    pub fn is(self, field: Field, value: impl Into<Value>) -> Self {
        self.load(&[field]).compare(true, value.into().bytes())
    }

    /// Matches if a field has another value.
    #[must_use]
    pub fn is_not(self, field: Field, value: impl Into<Value>) -> Self {
        self.load(&[field]).compare(false, value.into().bytes())
    }

    /// Matches if an address is in a range.
    #[must_use]
    pub fn within(self, field: Field, range: IpNet) -> Self {
        self.load(&[field]).masked(range).compare(true, Value::from(range.network()).bytes())
    }

    /// Matches if an address is not in a range.
    #[must_use]
    pub fn not_within(self, field: Field, range: IpNet) -> Self {
        self.load(&[field]).masked(range).compare(false, Value::from(range.network()).bytes())
    }

    /// Matches if the concatenation of these fields is in a set.
    #[must_use]
    pub fn in_set(self, fields: &[Field], set: &str) -> Self {
        self.load(fields).then(Expression::Lookup { set: set.to_owned(), matches: true, to: None })
    }

    /// Matches if the concatenation of these fields is not in a set.
    #[must_use]
    pub fn not_in_set(self, fields: &[Field], set: &str) -> Self {
        self.load(fields).then(Expression::Lookup { set: set.to_owned(), matches: false, to: None })
    }

    /// Matches packets to an address of this node (`fib daddr type local`).
    #[must_use]
    pub fn to_local(self) -> Self {
        self.is(Field::FibDestinationType, Value::Number(RTN_LOCAL))
    }

    /// Matches packets to any other address.
    #[must_use]
    pub fn not_to_local(self) -> Self {
        self.is_not(Field::FibDestinationType, Value::Number(RTN_LOCAL))
    }

    /// Matches connections with DNAT (`ct status dnat`).
    #[must_use]
    pub fn with_dnat(self) -> Self {
        self.masked_bits(Field::CtStatus, IPS_DST_NAT).compare(false, Value::Number(0).bytes())
    }

    /// Matches connections without SNAT.
    #[must_use]
    pub fn without_snat(self) -> Self {
        self.masked_bits(Field::CtStatus, IPS_SRC_NAT).compare(true, Value::Number(0).bytes())
    }

    /// Matches packets in the original direction of their connection.
    #[must_use]
    pub fn original_direction(self) -> Self {
        self.is(Field::CtDirection, IP_CT_DIR_ORIGINAL)
    }

    /// Matches if the masked packet mark has this value.
    #[must_use]
    pub fn has_mark(self, value: u32, mask: u32) -> Self {
        self.masked_bits(Field::Mark, mask).compare(true, Value::Number(value).bytes())
    }

    /// Sets the masked bits of the packet mark and keeps the others.
    #[must_use]
    pub fn set_mark(self, value: u32, mask: u32) -> Self {
        let (mask, xor) = (Value::Number(!mask).bytes(), Value::Number(value).bytes());
        self.load(&[Field::Mark]).then(Expression::Mask { mask, xor }).then(Expression::SetMark)
    }

    /// Accepts the packet; no further rule of the chain is evaluated.
    #[must_use]
    pub fn accept(self) -> Self {
        self.then(Expression::Verdict(Verdict::Accept))
    }

    /// Drops the packet.
    #[must_use]
    pub fn drop(self) -> Self {
        self.then(Expression::Verdict(Verdict::Drop))
    }

    /// Jumps to another chain of the table.
    #[must_use]
    pub fn jump(self, chain: &str) -> Self {
        self.then(Expression::Verdict(Verdict::Jump(chain.to_owned())))
    }

    /// Masquerades: SNAT to the address of the output interface, from a random port, or from the original one if it
    /// is free.
    #[must_use]
    pub fn masquerade(self, random: bool) -> Self {
        self.then(Expression::Masquerade { random })
    }

    /// DNAT to the address and port that a map has for the concatenation of these fields, if any.
    #[must_use]
    pub fn dnat(self, version: IpFamily, fields: &[Field], map: &str) -> Self {
        let (to, port) = (Register::FIRST, Register::FIRST.after(version.kind().length()));
        self.load(fields)
            .then(Expression::Lookup { set: map.to_owned(), matches: true, to: Some(to) })
            .then(Expression::DestinationNat { version, port })
    }

    /// SNAT to the address that a map has for the concatenation of these fields, if any; from the original port if it
    /// is free.
    #[must_use]
    pub fn snat(self, version: IpFamily, fields: &[Field], map: &str) -> Self {
        self.load(fields)
            .then(Expression::Lookup { set: map.to_owned(), matches: true, to: Some(Register::FIRST) })
            .then(Expression::SourceNat { version })
    }

    /// Loads fields into consecutive registers.
    fn load(mut self, fields: &[Field]) -> Self {
        let mut to = Register::FIRST;
        for field in fields {
            self.expressions.push(Expression::Load { what: field.load(), to });
            to = to.after(field.length());
        }
        self
    }

    fn masked(self, range: IpNet) -> Self {
        let mask = Value::from(range.netmask()).bytes();
        let xor = vec![0; mask.len()];
        self.then(Expression::Mask { mask, xor })
    }

    /// Loads the masked bits of a number.
    fn masked_bits(self, field: Field, bits: u32) -> Self {
        let (mask, xor) = (Value::Number(bits).bytes(), Value::Number(0).bytes());
        self.load(&[field]).then(Expression::Mask { mask, xor })
    }

    fn compare(self, equal: bool, value: Vec<u8>) -> Self {
        self.then(Expression::Compare { equal, value })
    }

    fn then(mut self, expression: Expression) -> Self {
        self.expressions.push(expression);
        self
    }
}
