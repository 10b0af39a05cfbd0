//! The packet filter as text, in the syntax of `nft` as far as it goes.

use std::collections::BTreeMap;
use std::fmt;

use super::field::{Field, Value};
use super::rule::{
    Comparison, Expression, FilterRule, LookupResult, Register, RejectWith, Translation, Verdict,
};
use super::step::FilterStep;
use super::{ElementData, ElementKey, FilterSet, KeyPart, MapData, TableKey};

impl fmt::Display for TableKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.family.name(), self.name)
    }
}

impl fmt::Display for KeyPart {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(value) => write!(out, "{value}"),
            Self::Range(first, last) if first == last => write!(out, "{first}"),
            Self::Range(first, last) => match prefix_of(first, last) {
                Some(prefix) => write!(out, "{prefix}"),
                None => write!(out, "{first}-{last}"),
            },
        }
    }
}

/// The prefix whose first and last addresses these are.
fn prefix_of(first: &Value, last: &Value) -> Option<ipnet::IpNet> {
    let (Value::Address(first), Value::Address(last)) = (first, last) else { return None };
    let bits = |address: &std::net::IpAddr| match address {
        std::net::IpAddr::V4(address) => (u128::from(u32::from(*address)), 32),
        std::net::IpAddr::V6(address) => (u128::from(*address), 128),
    };
    let ((low, width), (high, _)) = (bits(first), bits(last));
    let length = width - (128 - (low ^ high).leading_zeros());
    let range = ipnet::IpNet::new(*first, length as u8).ok()?;
    (range.network() == *first && range.broadcast() == *last).then_some(range)
}

impl fmt::Display for ElementKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.key.iter().map(KeyPart::to_string).collect();
        write!(out, "{} @{} {{ {} }}", self.table, self.set, parts.join(" . "))
    }
}

impl fmt::Display for ElementData {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key => Ok(()),
            Self::Values(values) => {
                let values: Vec<String> = values.iter().map(Value::to_string).collect();
                write!(out, " : {}", values.join(" . "))
            }
            Self::Verdict(verdict) => write!(out, " : {verdict}"),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accept => out.write_str("accept"),
            Self::Drop => out.write_str("drop"),
            Self::Return => out.write_str("return"),
            Self::Jump(chain) => write!(out, "jump {chain}"),
            Self::Goto(chain) => write!(out, "goto {chain}"),
        }
    }
}

impl FilterSet {
    fn noun(&self) -> &'static str {
        match self.data {
            None => "set",
            Some(MapData::Values(_)) => "map",
            Some(MapData::Verdict) => "verdict map",
        }
    }
}

impl fmt::Display for FilterStep {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddTable(table) | Self::RemoveTable(table) => write!(out, "table {table}"),
            Self::AddSet(table, name, set) | Self::RemoveSet(table, name, set) => {
                write!(out, "{} {table} {name}", set.noun())
            }
            Self::AddCounter(table, name) | Self::RemoveCounter(table, name) => {
                write!(out, "counter {table} {name}")
            }
            Self::AddChain(table, name, _) | Self::RemoveChain(table, name, _) => {
                write!(out, "chain {table} {name}")
            }
            Self::SetRules { table, chain, before, after } => {
                write!(out, "rules of chain {table} {chain}: {} -> {}", before.len(), after.len())
            }
            Self::AddElement(key, data) | Self::RemoveElement(key, data) => {
                write!(out, "element {key}{data}")
            }
            Self::ReplaceElement { key, before, after } => write!(out, "element {key}{before} ->{after}"),
        }
    }
}

/// What a register holds.
#[derive(Clone)]
enum Held {
    Field(Field),
    Text(String),
}

impl fmt::Display for Held {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(field) => write!(out, "{field}"),
            Self::Text(text) => out.write_str(text),
        }
    }
}

/// Follows the registers, and shows each match with what it reads.
impl fmt::Display for FilterRule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut registers, mut earlier) = (BTreeMap::new(), BTreeMap::new());
        let mut parts: Vec<String> = Vec::new();
        for expression in &self.expressions {
            parts.extend(show(expression, &mut registers, &mut earlier));
        }
        if let Some(comment) = &self.comment {
            parts.push(format!("comment {comment:?}"));
        }
        out.write_str(&parts.join(" "))
    }
}

/// `earlier` is what was loaded before the first register was loaded again.
fn show(
    expression: &Expression,
    registers: &mut BTreeMap<u8, Held>,
    earlier: &mut BTreeMap<u8, Held>,
) -> Option<String> {
    let first = || registers.get(&0).map_or_else(|| "?".to_owned(), Held::to_string);
    let between = |from: u8, to: u8| {
        let parts: Vec<String> = registers.range(from..to).map(|(_, held)| held.to_string()).collect();
        parts.join(" . ")
    };
    let all = || between(0, u8::MAX);
    let held = |to: &Register, text: String, registers: &mut BTreeMap<u8, Held>| {
        registers.insert(to.0, Held::Text(text));
        None
    };
    let text = match expression {
        Expression::Load { field, to } => {
            if to.0 == 0 {
                earlier.append(registers);
            }
            registers.insert(to.0, Held::Field(*field));
            return None;
        }
        Expression::Compare { is: Comparison::Equal, value } => format!("{} {value}", first()),
        Expression::Compare { is: Comparison::NotEqual, value } => format!("{} != {value}", first()),
        Expression::Between { first: from, last } => format!("{} {from}-{last}", first()),
        Expression::Mask { mask, xor } => {
            let masked = match xor {
                Value::Number(0) | Value::Address(_) => format!("{} & {mask}", first()),
                other => format!("{} & {mask} ^ {other}", first()),
            };
            return held(&Register::FIRST, masked, registers);
        }
        Expression::Lookup { set, negated, to, from } => {
            let key = between(from.0, u8::MAX);
            match to {
                LookupResult::Match if *negated => format!("{key} != @{set}"),
                LookupResult::Match => format!("{key} @{set}"),
                LookupResult::Verdict => format!("{key} vmap @{set}"),
                LookupResult::Load(to) => {
                    registers.split_off(&to.0);
                    return held(to, format!("{key} map @{set}"), registers);
                }
            }
        }
        Expression::SetMark => format!("meta mark set {}", first()),
        Expression::SetPriority => format!("meta priority set {}", first()),
        Expression::SetCtMark => format!("ct mark set {}", first()),
        Expression::Number { modulus, offset, random, to } => {
            let how = if *random { "random" } else { "inc" };
            return held(to, format!("numgen {how} mod {modulus} offset {offset}"), registers);
        }
        Expression::Hash { modulus, offset, to, .. } => {
            let text = format!("jhash {} mod {modulus} offset {offset}", all());
            return held(to, text, registers);
        }
        Expression::Learn { set, renew, data, .. } => {
            let key = between(0, data.map_or(u8::MAX, |data| data.0));
            let data = data.and_then(|data| registers.get(&data.0));
            let data = data.map(|held| format!(" : {held}")).unwrap_or_default();
            format!("{} @{set} {{ {key}{data} }}", if *renew { "update" } else { "add" })
        }
        Expression::Forget { set, data } => {
            format!("delete @{set} {{ {} }}", between(0, data.map_or(u8::MAX, |data| data.0)))
        }
        Expression::Count => "counter".to_owned(),
        Expression::CountIn(name) => format!("counter name {name}"),
        Expression::Limit { packets, seconds, burst } => {
            format!("limit rate {packets}/{} burst {burst} packets", unit(*seconds))
        }
        Expression::Log { prefix, group: None } => format!("log prefix {prefix:?}"),
        Expression::Log { prefix, group: Some(group) } => format!("log prefix {prefix:?} group {group}"),
        Expression::Reject(RejectWith::Prohibited) => "reject with icmpx admin-prohibited".to_owned(),
        Expression::Reject(RejectWith::PortUnreachable) => "reject with icmpx port-unreachable".to_owned(),
        Expression::Reject(RejectWith::TcpReset) => "reject with tcp reset".to_owned(),
        Expression::NoTrack => "notrack".to_owned(),
        Expression::Nat { translates, address, .. } => {
            let kind = if *translates == Translation::Source { "snat" } else { "dnat" };
            let held = registers.get(&address.0).or_else(|| earlier.get(&address.0));
            format!("{kind} to {}", held.map_or_else(|| "?".to_owned(), Held::to_string))
        }
        Expression::Masquerade { random: true } => "masquerade random".to_owned(),
        Expression::Masquerade { random: false } => "masquerade".to_owned(),
        Expression::Verdict(verdict) => verdict.to_string(),
        Expression::Foreign(name) => format!("<{name}>"),
    };
    Some(text)
}

/// A unit of time by its length in seconds.
fn unit(seconds: u64) -> String {
    match seconds {
        1 => "second".to_owned(),
        60 => "minute".to_owned(),
        3_600 => "hour".to_owned(),
        86_400 => "day".to_owned(),
        604_800 => "week".to_owned(),
        other => format!("{other} seconds"),
    }
}
