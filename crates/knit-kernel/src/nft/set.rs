//! Sets and maps: what rules look things up in.

use ipnet::IpNet;

use super::constants::*;
use super::expression::put_value;
use super::field::{Kind, Value};
use crate::netlink::{Message, align};

// What the `nft` program leaves with a set for itself: kind, length, value in the machine's order.
const ITS_KEY_IS_BIG_ENDIAN: [u8; 6] = note(0, 2);
const ITS_RANGES_ARE_MERGED: [u8; 6] = note(2, 1);

const fn note(kind: u8, value: u32) -> [u8; 6] {
    let [a, b, c, d] = value.to_ne_bytes();
    [kind, 4, a, b, c, d]
}

/// A key of one or more parts.
pub type Key = Vec<Value>;

/// A set or map with all of its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Its name, of which the table has one.
    pub name: String,
    /// The type of its keys.
    pub key: Vec<Kind>,
    /// What is in it.
    pub contents: Contents,
}

/// What is in a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// These keys.
    Keys(Vec<Key>),
    /// These keys, and what each leads to.
    Map {
        /// The type of what keys lead to.
        to: Vec<Kind>,
        /// Each key once.
        elements: Vec<(Key, Key)>,
    },
    /// The addresses of these ranges, which may overlap.
    Ranges(Vec<IpNet>),
}

impl Set {
    /// The attributes that make the set. `id` is one that no other set of the transaction has.
    pub(super) fn encode(&self, id: u32, message: &mut Message) {
        let flags = match &self.contents {
            Contents::Keys(_) => 0,
            Contents::Map { .. } => NFT_SET_MAP,
            Contents::Ranges(_) => NFT_SET_INTERVAL,
        };
        message.put_str(NFTA_SET_NAME, &self.name).put_be32(NFTA_SET_FLAGS, flags);
        let (kind, length) = whole(&self.key);
        message.put_be32(NFTA_SET_KEY_TYPE, kind).put_be32(NFTA_SET_KEY_LEN, length);
        if let Contents::Map { to, .. } = &self.contents {
            let (kind, length) = whole(to);
            message.put_be32(NFTA_SET_DATA_TYPE, kind).put_be32(NFTA_SET_DATA_LEN, length);
        }
        message.put_be32(NFTA_SET_ID, id);
        if matches!(self.contents, Contents::Ranges(_)) {
            let notes = [ITS_KEY_IS_BIG_ENDIAN, ITS_RANGES_ARE_MERGED].concat();
            message.put_bytes(NFTA_SET_USERDATA, &notes);
        }
    }

    /// Its elements.
    pub(super) fn elements(&self) -> Vec<Element> {
        match &self.contents {
            Contents::Keys(keys) => {
                keys.iter().map(|key| Element { key: bytes(key), data: None, is_end: false }).collect()
            }
            Contents::Map { elements, .. } => elements
                .iter()
                .map(|(key, data)| Element { key: bytes(key), data: Some(bytes(data)), is_end: false })
                .collect(),
            Contents::Ranges(ranges) => boundaries(ranges),
        }
    }

    /// Whether another set is the same but for its elements, which can be told one by one. Ends of ranges cannot: where two
    /// touch there is none.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let kinds = match (&self.contents, &other.contents) {
            (Contents::Keys(_), Contents::Keys(_)) => true,
            (Contents::Map { to, .. }, Contents::Map { to: other, .. }) => to == other,
            (one, other) => one == other,
        };
        kinds && self.name == other.name && self.key == other.key
    }
}

/// One element on the wire. A range is two: its first address, and the one behind its last.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Element {
    key: Vec<u8>,
    data: Option<Vec<u8>>,
    is_end: bool,
}

impl Element {
    pub(super) fn encode(&self, list: &mut Message) {
        list.nest(NFTA_LIST_ELEM, |entry| {
            if self.is_end {
                entry.put_be32(NFTA_SET_ELEM_FLAGS, NFT_SET_ELEM_INTERVAL_END);
            }
            put_value(entry, NFTA_SET_ELEM_KEY, &self.key);
            if let Some(data) = &self.data {
                put_value(entry, NFTA_SET_ELEM_DATA, data);
            }
        });
    }
}

/// The type and length of several parts together: six bits of type for each; each begins at a register.
fn whole(parts: &[Kind]) -> (u32, u32) {
    if let [only] = parts {
        return (only.number(), only.length() as u32);
    }
    let kind = parts.iter().fold(0, |whole, part| whole << 6 | part.number());
    let length: usize = parts.iter().map(|part| align(part.length())).sum();
    (kind, length as u32)
}

fn bytes(key: &[Value]) -> Vec<u8> {
    let mut all = Vec::new();
    for part in key {
        all.extend(part.bytes());
        if key.len() > 1 {
            all.resize(align(all.len()), 0);
        }
    }
    all
}

/// Where ranges begin and end. What overlaps or touches becomes one: the kernel takes no two that overlap.
fn boundaries(ranges: &[IpNet]) -> Vec<Element> {
    let Some(width) = ranges.first().map(|range| range.max_prefix_len()) else { return Vec::new() };
    let highest = u128::MAX >> (128 - u32::from(width));
    let number = |address| match address {
        std::net::IpAddr::V4(address) => u128::from(u32::from(address)),
        std::net::IpAddr::V6(address) => u128::from(address),
    };
    let mut spans: Vec<(u128, u128)> =
        ranges.iter().map(|range| (number(range.network()), number(range.broadcast()))).collect();
    spans.sort_unstable();
    let mut merged: Vec<(u128, u128)> = Vec::with_capacity(spans.len());
    for (first, last) in spans {
        match merged.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = (*end).max(last),
            _ => merged.push((first, last)),
        }
    }
    let element = |at: u128, is_end| {
        let key = at.to_be_bytes()[16 - usize::from(width) / 8..].to_vec();
        Element { key, data: None, is_end }
    };
    // What lies before the first range is said to be outside.
    let before = merged.first().filter(|(first, _)| *first > 0).map(|_| element(0, true));
    let mut elements: Vec<Element> = before.into_iter().collect();
    for (first, last) in merged {
        elements.push(element(first, false));
        if last < highest {
            elements.push(element(last + 1, true));
        }
    }
    elements
}
