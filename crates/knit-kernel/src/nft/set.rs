//! Sets and maps: declarations and elements, to and from the kernel's attributes.

use knit_model::filter::field::{DataType, Value};
use knit_model::filter::{ElementData, FilterSet, KeyPart, MapData};

use super::constants::*;
use super::expression::{decode_values, decode_verdict, encode_values, encode_verdict, put_value};
use crate::netlink::{Attributes, Message};

/// Bits of a data type in the type of a concatenation.
const TYPE_BITS: u32 = 6;

/// The size that a set gets when a rule adds elements to it and no other size is declared.
const DEFAULT_SIZE: u32 = 0xffff;

/// Entries of a set's userdata by which the `nft` program lists keys and data in the right byte order.
const KEY_BYTEORDER: u8 = 0;
const DATA_BYTEORDER: u8 = 1;

/// An entry with the byte order of a single value: type, length, value in host byte order. Concatenations have none.
fn byte_order(entry: u8, types: &[DataType]) -> Vec<u8> {
    let [only] = types else { return Vec::new() };
    let order: u32 = match only {
        DataType::Name
        | DataType::Mark
        | DataType::CtState
        | DataType::CtStatus
        | DataType::AddressType
        | DataType::Index => 1,
        _ => 2,
    };
    [&[entry, 4][..], &order.to_ne_bytes()].concat()
}

/// The number of a data type in the `nft` program, which lists Knit's tables by it. The kernel does not interpret it.
fn number(kind: DataType) -> u32 {
    match kind {
        DataType::NfProto => 2,
        DataType::Ipv4 => 7,
        DataType::Ipv6 => 8,
        DataType::Mac => 9,
        DataType::EtherType => 10,
        DataType::Protocol => 12,
        DataType::Port => 13,
        DataType::IcmpType => 14,
        DataType::TcpFlags => 15,
        DataType::Mark => 19,
        DataType::Index => 20,
        DataType::CtState => 26,
        DataType::CtDirection => 27,
        DataType::CtStatus => 28,
        DataType::AddressType => 38,
        DataType::Name => 41,
    }
}

const ALL: [DataType; 16] = [
    DataType::NfProto,
    DataType::Ipv4,
    DataType::Ipv6,
    DataType::Mac,
    DataType::EtherType,
    DataType::Protocol,
    DataType::Port,
    DataType::IcmpType,
    DataType::TcpFlags,
    DataType::Mark,
    DataType::Index,
    DataType::CtState,
    DataType::CtDirection,
    DataType::CtStatus,
    DataType::AddressType,
    DataType::Name,
];

/// The type and length of a concatenation: six bits of type for each part; each part starts at a register.
fn concatenated(parts: &[DataType]) -> (u32, u32) {
    if let [only] = parts {
        return (number(*only), only.length() as u32);
    }
    let kind = parts.iter().fold(0, |whole, part| whole << TYPE_BITS | number(*part));
    let length: usize = parts.iter().map(|part| part.length().next_multiple_of(4)).sum();
    (kind, length as u32)
}

/// The parts of a concatenation; `None` if a part is of another type.
fn parts_of(mut kind: u32) -> Option<Vec<DataType>> {
    let mut parts = Vec::new();
    while kind != 0 {
        let last = kind & ((1 << TYPE_BITS) - 1);
        parts.push(ALL.into_iter().find(|one| number(*one) == last)?);
        kind >>= TYPE_BITS;
    }
    parts.reverse();
    Some(parts)
}

/// Whether the kernel keeps both ends of a range in one element. Sets of one address range have an element for each end.
fn is_concatenated_range(set: &FilterSet) -> bool {
    set.intervals && set.key.len() > 1
}

/// Writes the declaration of a set. `id` is unique in the transaction.
pub(super) fn encode_set(name: &str, set: &FilterSet, id: u32, message: &mut Message) {
    let mut flags = 0;
    flags |= if set.intervals { NFT_SET_INTERVAL } else { 0 };
    flags |= if is_concatenated_range(set) { NFT_SET_CONCAT } else { 0 };
    flags |= if set.data.is_some() { NFT_SET_MAP } else { 0 };
    flags |= if set.timeout.is_some() { NFT_SET_TIMEOUT | NFT_SET_EVAL } else { 0 };
    message.put_str(NFTA_SET_NAME, name).put_be32(NFTA_SET_FLAGS, flags);
    let (kind, length) = concatenated(&set.key);
    message.put_be32(NFTA_SET_KEY_TYPE, kind).put_be32(NFTA_SET_KEY_LEN, length);
    match &set.data {
        Some(MapData::Values(data)) => {
            let (kind, length) = concatenated(data);
            message.put_be32(NFTA_SET_DATA_TYPE, kind).put_be32(NFTA_SET_DATA_LEN, length);
        }
        Some(MapData::Verdict) => drop(message.put_be32(NFTA_SET_DATA_TYPE, NFT_DATA_VERDICT)),
        None => {}
    }
    message.put_be32(NFTA_SET_ID, id);
    if is_concatenated_range(set) || set.size.is_some() {
        message.nest(NFTA_SET_DESC, |desc| {
            if let Some(size) = set.size {
                desc.put_be32(NFTA_SET_DESC_SIZE, size);
            }
            if is_concatenated_range(set) {
                desc.nest(NFTA_SET_DESC_CONCAT, |fields| {
                    for part in &set.key {
                        fields.nest(NFTA_LIST_ELEM, |field| {
                            field.put_be32(NFTA_SET_FIELD_LEN, part.length() as u32);
                        });
                    }
                });
            }
        });
    }
    if let Some(timeout) = set.timeout.filter(|timeout| *timeout > 0) {
        message.put_bytes(NFTA_SET_TIMEOUT, &timeout.to_be_bytes());
    }
    let mut userdata = byte_order(KEY_BYTEORDER, &set.key);
    if let Some(MapData::Values(data)) = &set.data {
        userdata.extend(byte_order(DATA_BYTEORDER, data));
    }
    if !userdata.is_empty() {
        message.put_bytes(NFTA_SET_USERDATA, &userdata);
    }
}

/// Reads the declaration of a set: its name, and the set. A set that Knit does not declare so has no key.
pub(super) fn decode_set(attributes: Attributes<'_>) -> Option<(String, FilterSet)> {
    let number = |kind: u16| attributes.first(kind)?.be32();
    let flags = number(NFTA_SET_FLAGS).unwrap_or_default();
    let data = match number(NFTA_SET_DATA_TYPE).filter(|_| flags & NFT_SET_MAP != 0) {
        Some(NFT_DATA_VERDICT) => Some(MapData::Verdict),
        Some(kind) => Some(MapData::Values(parts_of(kind).unwrap_or_default())),
        None => None,
    };
    let timeout = || {
        let bytes = attributes.first(NFTA_SET_TIMEOUT)?.value.try_into().ok()?;
        Some(u64::from_be_bytes(bytes))
    };
    let size = || attributes.first(NFTA_SET_DESC)?.nested().first(NFTA_SET_DESC_SIZE)?.be32();
    let set = FilterSet {
        key: parts_of(number(NFTA_SET_KEY_TYPE)?).unwrap_or_default(),
        data,
        intervals: flags & NFT_SET_INTERVAL != 0,
        timeout: (flags & NFT_SET_TIMEOUT != 0).then(|| timeout().unwrap_or_default()),
        size: size().filter(|size| *size != DEFAULT_SIZE),
    };
    Some((attributes.first(NFTA_SET_NAME)?.str()?.to_owned(), set))
}

/// Writes an element: one entry of a list, or two for a range of a set of ranges.
pub(super) fn encode_element(key: &[KeyPart], data: &ElementData, list: &mut Message) {
    let first = encode_values(key.iter().map(|part| part.bounds().0));
    let is_range = key.iter().any(|part| matches!(part, KeyPart::Range(..)));
    list.nest(NFTA_LIST_ELEM, |entry| {
        put_value(entry, NFTA_SET_ELEM_KEY, &first);
        if is_range && key.len() > 1 {
            let last = encode_values(key.iter().map(|part| part.bounds().1));
            put_value(entry, NFTA_SET_ELEM_KEY_END, &last);
        }
        match data {
            ElementData::Key => {}
            ElementData::Values(values) => put_value(entry, NFTA_SET_ELEM_DATA, &encode_values(values)),
            ElementData::Verdict(verdict) => {
                entry.nest(NFTA_SET_ELEM_DATA, |data| encode_verdict(verdict, data));
            }
        }
    });
    if let [KeyPart::Range(_, last)] = key {
        encode_range_end(last, list);
    }
}

/// Writes the end of a range: the value after its last, if there is one.
fn encode_range_end(last: &Value, list: &mut Message) {
    let mut end = last.bytes();
    // The next value; none follows the highest one.
    let Some(at) = end.iter().rposition(|byte| *byte != u8::MAX) else { return };
    end[at] += 1;
    end[at + 1..].fill(0);
    list.nest(NFTA_LIST_ELEM, |entry| {
        entry.put_be32(NFTA_SET_ELEM_FLAGS, NFT_SET_ELEM_INTERVAL_END);
        put_value(entry, NFTA_SET_ELEM_KEY, &end);
    });
}

/// An element as the kernel lists it.
#[derive(Clone, Debug)]
pub(super) struct RawElement {
    key: Vec<u8>,
    key_end: Option<Vec<u8>>,
    is_end: bool,
    data: Option<RawData>,
}

#[derive(Clone, Debug)]
enum RawData {
    Bytes(Vec<u8>),
    Verdict(knit_model::filter::rule::Verdict),
}

impl RawElement {
    /// Whether this is the element with this key.
    pub(super) fn has_key(&self, key: &[KeyPart]) -> bool {
        let first = encode_values(key.iter().map(|part| part.bounds().0));
        let last = || encode_values(key.iter().map(|part| part.bounds().1));
        self.key == first && self.key_end.as_ref().is_none_or(|end| *end == last())
    }

    /// Its data, if no declaration is needed to decode it.
    pub(super) fn plain_data(&self) -> Option<ElementData> {
        match &self.data {
            None => Some(ElementData::Key),
            Some(RawData::Verdict(verdict)) => Some(ElementData::Verdict(verdict.clone())),
            Some(RawData::Bytes(_)) => None,
        }
    }

    /// Its data in a set; `None` if it is of another type than the set's.
    pub(super) fn data_in(&self, set: &FilterSet) -> Option<ElementData> {
        match (&self.data, &set.data) {
            (Some(RawData::Bytes(bytes)), Some(MapData::Values(types))) => {
                Some(ElementData::Values(decode_values(types, bytes)?))
            }
            (Some(RawData::Bytes(_)), _) => Some(ElementData::Key),
            _ => self.plain_data(),
        }
    }
}

/// Reads the elements of a message.
pub(super) fn decode_elements(attributes: Attributes<'_>) -> Vec<RawElement> {
    let Some(list) = attributes.first(NFTA_SET_ELEM_LIST_ELEMENTS) else { return Vec::new() };
    list.nested().filter_map(|entry| decode_element(entry.nested())).collect()
}

fn decode_element(entry: Attributes<'_>) -> Option<RawElement> {
    let value = |kind: u16| Some(entry.first(kind)?.nested().first(NFTA_DATA_VALUE)?.value.to_vec());
    let data = entry.first(NFTA_SET_ELEM_DATA).and_then(|data| match decode_verdict(data.nested()) {
        Some(verdict) => Some(RawData::Verdict(verdict)),
        None => Some(RawData::Bytes(data.nested().first(NFTA_DATA_VALUE)?.value.to_vec())),
    });
    let flags = entry.first(NFTA_SET_ELEM_FLAGS).and_then(|flags| flags.be32()).unwrap_or_default();
    Some(RawElement {
        key: value(NFTA_SET_ELEM_KEY)?,
        key_end: value(NFTA_SET_ELEM_KEY_END),
        is_end: flags & NFT_SET_ELEM_INTERVAL_END != 0,
        data,
    })
}

/// The elements of a set in the model's types. Elements of other types than the set's are left out.
pub(super) fn elements_of(set: &FilterSet, mut raw: Vec<RawElement>) -> Vec<(Vec<KeyPart>, ElementData)> {
    if set.intervals && set.key.len() == 1 {
        // The end of a range sorts before the start of the next one.
        raw.sort_by(|one, other| (&one.key, !one.is_end).cmp(&(&other.key, !other.is_end)));
        // The second of two equal starts would end the first range before it starts.
        raw.dedup_by(|one, other| (&one.key, one.is_end) == (&other.key, other.is_end));
        let ends: Vec<Option<&RawElement>> = raw.iter().skip(1).map(Some).chain([None]).collect();
        let ranges = raw.iter().zip(ends).filter(|(start, _)| !start.is_end);
        return ranges
            .filter_map(|(start, end)| {
                let first = set.key[0].decode(&start.key)?;
                let last = match end {
                    Some(end) => set.key[0].decode(&before(&end.key)?)?,
                    None => set.key[0].decode(&vec![u8::MAX; start.key.len()])?,
                };
                Some((vec![KeyPart::Range(first, last)], start.data_in(set)?))
            })
            .collect();
    }
    raw.iter()
        .filter_map(|element| {
            let first = decode_values(&set.key, &element.key)?;
            let last = match &element.key_end {
                Some(end) => decode_values(&set.key, end)?,
                None => first.clone(),
            };
            let part = |(first, last)| match set.intervals {
                true => KeyPart::Range(first, last),
                false => KeyPart::One(first),
            };
            let key = first.into_iter().zip(last).map(part).collect();
            Some((key, element.data_in(set)?))
        })
        .collect()
}

/// The value before; `None` for zero.
fn before(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = bytes.to_vec();
    let at = bytes.iter().rposition(|byte| *byte != 0)?;
    bytes[at] -= 1;
    bytes[at + 1..].fill(u8::MAX);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_concatenation_of_types_can_be_read_back() {
        for parts in [&ALL[..1], &ALL[1..4], &[DataType::Name, DataType::Mac, DataType::Ipv6]] {
            assert_eq!(parts_of(concatenated(parts).0).unwrap(), parts);
        }
        assert_eq!(parts_of(63), None, "no such type");
    }

    fn raw(key: [u8; 4], is_end: bool) -> RawElement {
        RawElement { key: key.to_vec(), key_end: None, is_end, data: None }
    }

    fn ranges(listed: Vec<RawElement>) -> Vec<String> {
        let set = FilterSet { intervals: true, ..FilterSet::keys(&[DataType::Ipv4]) };
        elements_of(&set, listed).iter().map(|(key, _)| key[0].to_string()).collect()
    }

    #[test]
    fn a_range_that_is_listed_twice_is_one_range() {
        let listed = vec![
            raw([10, 0, 1, 0], false),
            raw([10, 0, 2, 0], true),
            raw([10, 0, 1, 0], false),
            raw([10, 0, 2, 0], true),
        ];
        assert_eq!(ranges(listed), ["10.0.1.0/24"]);
    }

    #[test]
    fn ranges_that_touch_stay_separate() {
        // As the kernel may list them, in any order.
        let listed = vec![
            raw([10, 0, 1, 0], false),
            raw([10, 0, 1, 0], true),
            raw([10, 0, 0, 0], false),
            raw([10, 0, 2, 0], true),
            raw([255, 255, 0, 0], false),
        ];
        assert_eq!(ranges(listed), ["10.0.0.0/24", "10.0.1.0/24", "255.255.0.0/16"]);
    }
}
