//! Sets and maps, in which rules look up keys.

use ipnet::IpNet;

use super::constants::*;
use super::expression::put_value;
use super::field::{DataType, Value};
use crate::netlink::{Message, align};

// Set userdata of the `nft` program: type, length, value in host byte order.
const USERDATA_KEY_BYTEORDER: [u8; 6] = userdata(0, 2);
const USERDATA_AUTO_MERGE: [u8; 6] = userdata(2, 1);

const fn userdata(kind: u8, value: u32) -> [u8; 6] {
    let [a, b, c, d] = value.to_ne_bytes();
    [kind, 4, a, b, c, d]
}

/// A key of one or more parts.
pub type Key = Vec<Value>;

/// A set or map with its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Its name, unique in the table.
    pub name: String,
    /// The data type of its keys.
    pub key: Vec<DataType>,
    /// Its elements.
    pub contents: SetContents,
}

/// The elements of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetContents {
    /// These keys.
    Keys(Vec<Key>),
    /// A map from keys to data.
    Map {
        /// The data type of the values.
        data: Vec<DataType>,
        /// The elements; each key once.
        elements: Vec<(Key, Key)>,
    },
    /// Address ranges, which may overlap.
    Intervals(Vec<IpNet>),
}

impl Set {
    /// Writes the attributes of the set. `id` is unique in the transaction.
    pub(super) fn encode(&self, id: u32, message: &mut Message) {
        let flags = match &self.contents {
            SetContents::Keys(_) => 0,
            SetContents::Map { .. } => NFT_SET_MAP,
            SetContents::Intervals(_) => NFT_SET_INTERVAL,
        };
        message.put_str(NFTA_SET_NAME, &self.name).put_be32(NFTA_SET_FLAGS, flags);
        let (kind, length) = concatenated(&self.key);
        message.put_be32(NFTA_SET_KEY_TYPE, kind).put_be32(NFTA_SET_KEY_LEN, length);
        if let SetContents::Map { data, .. } = &self.contents {
            let (kind, length) = concatenated(data);
            message.put_be32(NFTA_SET_DATA_TYPE, kind).put_be32(NFTA_SET_DATA_LEN, length);
        }
        message.put_be32(NFTA_SET_ID, id);
        if matches!(self.contents, SetContents::Intervals(_)) {
            let userdata = [USERDATA_KEY_BYTEORDER, USERDATA_AUTO_MERGE].concat();
            message.put_bytes(NFTA_SET_USERDATA, &userdata);
        }
    }

    /// Its elements.
    pub(super) fn elements(&self) -> Vec<Element> {
        match &self.contents {
            SetContents::Keys(keys) => {
                keys.iter().map(|key| Element { key: bytes(key), data: None, is_end: false }).collect()
            }
            SetContents::Map { elements, .. } => elements
                .iter()
                .map(|(key, data)| Element { key: bytes(key), data: Some(bytes(data)), is_end: false })
                .collect(),
            SetContents::Intervals(ranges) => interval_elements(ranges),
        }
    }

    /// Whether the sets differ only in elements that can be updated one by one. Intervals cannot: adjacent ranges
    /// share boundaries.
    pub(super) fn same_except_elements(&self, other: &Self) -> bool {
        let kinds = match (&self.contents, &other.contents) {
            (SetContents::Keys(_), SetContents::Keys(_)) => true,
            (SetContents::Map { data, .. }, SetContents::Map { data: other, .. }) => data == other,
            (one, other) => one == other,
        };
        kinds && self.name == other.name && self.key == other.key
    }
}

/// An encoded element. A range has two: its first address, and the one after its last.
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

/// The type and length of a concatenation: six bits of type for each part; each part starts at a register.
fn concatenated(parts: &[DataType]) -> (u32, u32) {
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

/// The boundaries of ranges. Ranges that overlap or touch are merged: the kernel rejects overlaps.
fn interval_elements(ranges: &[IpNet]) -> Vec<Element> {
    let Some(width) = ranges.first().map(|range| range.max_prefix_len()) else { return Vec::new() };
    let highest = u128::MAX >> (128 - u32::from(width));
    let number = |address| match address {
        std::net::IpAddr::V4(address) => u128::from(u32::from(address)),
        std::net::IpAddr::V6(address) => u128::from(address),
    };
    let mut intervals: Vec<(u128, u128)> =
        ranges.iter().map(|range| (number(range.network()), number(range.broadcast()))).collect();
    intervals.sort_unstable();
    let mut merged: Vec<(u128, u128)> = Vec::with_capacity(intervals.len());
    for (first, last) in intervals {
        match merged.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = (*end).max(last),
            _ => merged.push((first, last)),
        }
    }
    let element = |at: u128, is_end| {
        let key = at.to_be_bytes()[16 - usize::from(width) / 8..].to_vec();
        Element { key, data: None, is_end }
    };
    // The interval before the first range is marked as not in the set.
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
