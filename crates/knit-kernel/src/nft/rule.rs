//! A rule: what must hold, in order, and what happens then.

use ipnet::IpNet;

use super::constants::{IPS_DST_NAT, RTN_LOCAL};
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

    /// Only if the connection has another destination than its first packet asked for.
    #[must_use]
    pub fn redirected(self) -> Self {
        let mask = Value::Number(IPS_DST_NAT).bytes();
        self.load(&[Field::ConnectionStatus])
            .then(Expression::Mask { mask })
            .compare(false, Value::Number(0).bytes())
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
        self.then(Expression::Mask { mask: Value::from(range.netmask()).bytes() })
    }

    fn compare(self, is: bool, value: Vec<u8>) -> Self {
        self.then(Expression::Compare { is, value })
    }

    fn then(mut self, expression: Expression) -> Self {
        self.expressions.push(expression);
        self
    }
}
