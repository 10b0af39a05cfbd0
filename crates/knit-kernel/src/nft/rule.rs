//! A rule: what must hold, in order, and what happens then.

use ipnet::IpNet;

use super::constants::{IP_CT_DIR_ORIGINAL, IPS_DST_NAT, IPS_SRC_NAT, RTN_LOCAL};
use super::expression::{Expression, Register, Verdict};
use super::field::{Field, Ip, Value};

/// A rule, built from left to right as one reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    pub(super) expressions: Vec<Expression>,
}

impl Rule {
    /// A rule for every packet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Only if it is of this version of the internet protocol.
    #[must_use]
    pub fn of(self, version: Ip) -> Self {
        self.is(Field::Version, version.number())
    }

    /// Only if a field has this value.
    #[must_use]
    pub fn is(self, field: Field, value: impl Into<Value>) -> Self {
        self.load(&[field]).compare(true, value.into().bytes())
    }

    /// Only if a field has another value.
    #[must_use]
    pub fn is_not(self, field: Field, value: impl Into<Value>) -> Self {
        self.load(&[field]).compare(false, value.into().bytes())
    }

    /// Only if an address is of a range.
    #[must_use]
    pub fn within(self, field: Field, range: IpNet) -> Self {
        self.load(&[field]).masked(range).compare(true, Value::from(range.network()).bytes())
    }

    /// Only if an address is not of a range.
    #[must_use]
    pub fn not_within(self, field: Field, range: IpNet) -> Self {
        self.load(&[field]).masked(range).compare(false, Value::from(range.network()).bytes())
    }

    /// Only if these fields together are in a set.
    #[must_use]
    pub fn found(self, fields: &[Field], set: &str) -> Self {
        self.load(fields).then(Expression::Lookup { set: set.to_owned(), is: true, to: None })
    }

    /// Only if these fields together are not in a set.
    #[must_use]
    pub fn not_found(self, fields: &[Field], set: &str) -> Self {
        self.load(fields).then(Expression::Lookup { set: set.to_owned(), is: false, to: None })
    }

    /// Only if it goes to an address of this node.
    #[must_use]
    pub fn to_this_node(self) -> Self {
        self.is(Field::DestinationKind, Value::Number(RTN_LOCAL))
    }

    /// Only if it goes to an address that is not this node's.
    #[must_use]
    pub fn to_others(self) -> Self {
        self.is_not(Field::DestinationKind, Value::Number(RTN_LOCAL))
    }

    /// Only if the connection has another destination than its first packet asked for.
    #[must_use]
    pub fn redirected(self) -> Self {
        self.bits(Field::ConnectionStatus, IPS_DST_NAT).compare(false, Value::Number(0).bytes())
    }

    /// Only if the connection has the source that its first packet said.
    #[must_use]
    pub fn untranslated(self) -> Self {
        self.bits(Field::ConnectionStatus, IPS_SRC_NAT).compare(true, Value::Number(0).bytes())
    }

    /// Only if it goes the way of its connection's first packet, and is no answer.
    #[must_use]
    pub fn asking(self) -> Self {
        self.is(Field::ConnectionDirection, IP_CT_DIR_ORIGINAL)
    }

    /// Only if its mark has this value in these bits.
    #[must_use]
    pub fn marked(self, value: u32, bits: u32) -> Self {
        self.bits(Field::Mark, bits).compare(true, Value::Number(value).bytes())
    }

    /// Gives its mark this value in these bits, and lets the others be.
    #[must_use]
    pub fn mark(self, value: u32, bits: u32) -> Self {
        let (mask, flip) = (Value::Number(!bits).bytes(), Value::Number(value).bytes());
        self.load(&[Field::Mark]).then(Expression::Mask { mask, flip }).then(Expression::SetMark)
    }

    /// Lets it pass, with no further rule of the table at this place.
    #[must_use]
    pub fn accept(self) -> Self {
        self.then(Expression::Verdict(Verdict::Accept))
    }

    /// Drops it.
    #[must_use]
    pub fn drop(self) -> Self {
        self.then(Expression::Verdict(Verdict::Drop))
    }

    /// Goes through another chain of the table.
    #[must_use]
    pub fn jump(self, chain: &str) -> Self {
        self.then(Expression::Verdict(Verdict::Jump(chain.to_owned())))
    }

    /// Gives it the address of the link that it leaves by; from a random port, or from its own where that is free.
    #[must_use]
    pub fn masquerade(self, random: bool) -> Self {
        self.then(Expression::Masquerade { random })
    }

    /// Leads it to the address and port that a map has for these fields together, if it has some.
    #[must_use]
    pub fn redirect(self, version: Ip, fields: &[Field], map: &str) -> Self {
        let (to, port) = (Register::FIRST, Register::FIRST.after(version.kind().length()));
        self.load(fields)
            .then(Expression::Lookup { set: map.to_owned(), is: true, to: Some(to) })
            .then(Expression::DestinationNat { version, port })
    }

    /// Gives it the address that a map has for these fields together, if it has one; from its own port where that is free.
    #[must_use]
    pub fn translate(self, version: Ip, fields: &[Field], map: &str) -> Self {
        self.load(fields)
            .then(Expression::Lookup { set: map.to_owned(), is: true, to: Some(Register::FIRST) })
            .then(Expression::SourceNat { version })
    }

    /// Loads fields one behind the other, each from a register on.
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
        let flip = vec![0; mask.len()];
        self.then(Expression::Mask { mask, flip })
    }

    /// Loads some bits of a number.
    fn bits(self, field: Field, bits: u32) -> Self {
        let (mask, flip) = (Value::Number(bits).bytes(), Value::Number(0).bytes());
        self.load(&[field]).then(Expression::Mask { mask, flip })
    }

    fn compare(self, is: bool, value: Vec<u8>) -> Self {
        self.then(Expression::Compare { is, value })
    }

    fn then(mut self, expression: Expression) -> Self {
        self.expressions.push(expression);
        self
    }
}
