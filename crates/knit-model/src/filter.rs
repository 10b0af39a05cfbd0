//! The packet filter of a scope: Knit's nftables tables.
//!
//! The structure of a table (chains with their rules, declarations of sets and maps) and the elements of its sets are
//! separate items with separate owners: structure does not grow with pods, and each pod owns the elements about it. So a
//! pod that starts or ends costs a few elements and never a rule.
//!
//! Every table named [`TABLE`] is Knit's own, whatever is in it. No other table is ever read or changed.

mod display;
pub mod field;
pub mod rule;
mod step;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::name::IfName;
use field::{DataType, IpFamily, Value};
use rule::{FilterRule, Verdict};
pub use step::{FilterItem, FilterStep};

/// The name of all of Knit's tables.
pub const TABLE: &str = "knit";

/// The packet filter of a scope.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    /// The structure of tables.
    #[serde(with = "crate::serde_pairs")]
    pub tables: BTreeMap<TableKey, FilterTable>,
    /// Elements of sets and maps. In observed state only the requested ones.
    #[serde(with = "crate::serde_pairs")]
    pub elements: BTreeMap<ElementKey, ElementData>,
}

/// The family of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TableFamily {
    /// IPv4 and IPv6.
    Inet,
    /// Frames on bridges.
    Bridge,
    /// Frames at the ingress of a link.
    Netdev,
}

/// Identity of a table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TableKey {
    /// The family.
    pub family: TableFamily,
    /// Its name, unique in the family.
    pub name: Cow<'static, str>,
}

/// The structure of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterTable {
    /// Its sets and maps, without elements.
    pub sets: BTreeMap<String, FilterSet>,
    /// Its chains.
    pub chains: BTreeMap<String, FilterChain>,
    /// Its named counters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counters: Vec<String>,
}

/// The declaration of a set or map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterSet {
    /// The data types of its keys.
    pub key: Vec<DataType>,
    /// The data of a map.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<MapData>,
    /// Whether its keys are ranges.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub intervals: bool,
    /// Whether rules add elements, which end after this time in milliseconds; 0: each with its own timeout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u64>,
    /// How many elements rules may add; the kernel's default, 65,535, if missing. The kernel reserves memory for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u32>,
}

/// What a map maps to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MapData {
    /// Values of these types.
    Values(Vec<DataType>),
    /// A verdict.
    Verdict,
}

/// A chain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterChain {
    /// The hook of a base chain; `None` for a chain that others jump to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<BaseChain>,
    /// Its rules, in order.
    pub rules: Vec<FilterRule>,
}

/// The type, hook and priority of a base chain. Its policy is accept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseChain {
    /// The chain type.
    pub chain_type: ChainType,
    /// The hook.
    pub hook: Hook,
    /// The priority: chains with lower numbers run first.
    pub priority: i32,
}

/// The type of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChainType {
    /// Accepts and drops packets.
    Filter,
    /// Translates the addresses of connections.
    Nat,
    /// Routes locally created packets again if their mark changed.
    Route,
}

/// A netfilter hook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hook {
    /// All received packets.
    Prerouting,
    /// Packets to this node.
    Input,
    /// Packets through this node.
    Forward,
    /// Packets from this node.
    Output,
    /// All sent packets.
    Postrouting,
    /// Packets received on a link, before any other hook.
    Ingress(IfName),
}

/// Identity of an element.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ElementKey {
    /// The table.
    pub table: TableKey,
    /// The set.
    pub set: String,
    /// The parts of its key.
    pub key: Vec<KeyPart>,
}

/// A part of an element's key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum KeyPart {
    /// One value.
    One(Value),
    /// All values from the first to the last. Every part of a key of a set of ranges is one, also of a single value.
    Range(Value, Value),
}

/// The data of an element.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ElementData {
    /// None: the element of a set.
    #[default]
    Key,
    /// Values.
    Values(Vec<Value>),
    /// A verdict.
    Verdict(Verdict),
}

impl Filter {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty() && self.elements.is_empty()
    }

    /// Adds an element.
    pub fn add(&mut self, key: ElementKey, data: ElementData) {
        self.elements.insert(key, data);
    }
}

impl TableFamily {
    /// Its name in nftables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inet => "inet",
            Self::Bridge => "bridge",
            Self::Netdev => "netdev",
        }
    }

    /// Knit's table of this family.
    pub fn table(self) -> TableKey {
        TableKey { family: self, name: Cow::Borrowed(TABLE) }
    }
}

impl TableKey {
    /// An element of a set of this table.
    pub fn element(&self, set: impl Into<String>, key: Vec<KeyPart>) -> ElementKey {
        ElementKey { table: self.clone(), set: set.into(), key }
    }
}

impl ElementKey {
    /// The address, if the key is one.
    pub fn address(&self) -> Option<IpAddr> {
        match &self.key[..] {
            [KeyPart::One(Value::Address(address))] => Some(*address),
            _ => None,
        }
    }

    /// Whether it is the key of more than one value.
    pub fn has_range(&self) -> bool {
        self.key.iter().any(|part| matches!(part, KeyPart::Range(..)))
    }
}

impl FilterSet {
    /// A set of these keys.
    pub fn keys(key: &[DataType]) -> Self {
        Self { key: key.to_vec(), ..Self::default() }
    }

    /// A set of address ranges.
    pub fn ranges(family: IpFamily) -> Self {
        Self { intervals: true, ..Self::keys(&[family.data_type()]) }
    }

    /// A map from keys to values.
    pub fn map(key: &[DataType], data: &[DataType]) -> Self {
        Self { data: Some(MapData::Values(data.to_vec())), ..Self::keys(key) }
    }

    /// A map from keys to verdicts.
    pub fn verdicts(key: &[DataType]) -> Self {
        Self { data: Some(MapData::Verdict), ..Self::keys(key) }
    }
}

impl<T: Into<Value>> From<T> for KeyPart {
    fn from(value: T) -> Self {
        Self::One(value.into())
    }
}

impl KeyPart {
    /// All addresses of a range, for a set of ranges.
    pub fn range(range: IpNet) -> Self {
        Self::Range(range.network().into(), range.broadcast().into())
    }

    /// A single value, for a set of ranges.
    pub fn only(value: impl Into<Value>) -> Self {
        let value = value.into();
        Self::Range(value.clone(), value)
    }

    /// The first and the last value.
    pub fn bounds(&self) -> (&Value, &Value) {
        match self {
            Self::One(value) => (value, value),
            Self::Range(first, last) => (first, last),
        }
    }
}

/// The ranges that no other one of the list contains, sorted. A set of ranges accepts no overlaps, and two prefixes either
/// nest or are disjoint.
pub fn outermost(ranges: impl IntoIterator<Item = IpNet>) -> Vec<IpNet> {
    let mut ranges: Vec<IpNet> = ranges.into_iter().map(|range| range.trunc()).collect();
    // A wider range sorts before those within it.
    ranges.sort_by_key(|range| (range.network(), range.prefix_len()));
    let mut kept: Vec<IpNet> = Vec::with_capacity(ranges.len());
    for range in ranges {
        if !kept.last().is_some_and(|last| last.contains(&range)) {
            kept.push(range);
        }
    }
    kept
}

/// The multicast range of a family.
pub fn multicast(family: IpFamily) -> IpNet {
    match family {
        IpFamily::V4 => IpNet::new_assert(IpAddr::from([224, 0, 0, 0]), 4),
        IpFamily::V6 => IpNet::new_assert(IpAddr::from([0xff00, 0, 0, 0, 0, 0, 0, 0]), 8),
    }
}
