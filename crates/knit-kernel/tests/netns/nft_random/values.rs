//! Random declarations of sets, values of every data type, and elements.

use std::collections::BTreeMap;

use knit_model::filter::field::{DataType, Value, ct_state, ct_status};
use knit_model::filter::rule::Verdict;
use knit_model::filter::{ElementData, FilterSet, KeyPart, MapData};

use super::spec::{Choices, SetSpec};

const TYPES: [DataType; 14] = [
    DataType::Ipv4,
    DataType::Ipv6,
    DataType::Port,
    DataType::Protocol,
    DataType::Mac,
    DataType::Name,
    DataType::Mark,
    DataType::NfProto,
    DataType::EtherType,
    DataType::IcmpType,
    DataType::CtState,
    DataType::CtStatus,
    DataType::CtDirection,
    DataType::AddressType,
];

/// Types whose values sort in the byte order of the packet. The kernel orders ranges by bytes, so a range of numbers in host
/// byte order, such as marks, would not be the range that it seems.
pub const ORDERED: [DataType; 8] = [
    DataType::Ipv4,
    DataType::Ipv6,
    DataType::Port,
    DataType::Protocol,
    DataType::Mac,
    DataType::NfProto,
    DataType::EtherType,
    DataType::IcmpType,
];

/// Keys that rules look up often, so that many lookups find a set.
const USUAL_KEYS: [&[DataType]; 5] = [
    &[DataType::Mark],
    &[DataType::Ipv4],
    &[DataType::Protocol, DataType::Port],
    &[DataType::Name],
    &[DataType::Ipv6, DataType::Protocol],
];

/// Data that statements use: addresses and ports for NAT, marks.
const USUAL_DATA: [&[DataType]; 5] = [
    &[DataType::Mark],
    &[DataType::Ipv4],
    &[DataType::Ipv4, DataType::Port],
    &[DataType::Ipv6],
    &[DataType::Ipv6, DataType::Port],
];

/// The declaration of a set.
pub fn declaration(spec: &SetSpec) -> FilterSet {
    let mut choices = Choices(spec.declaration);
    let kind = choices.below(5);
    let (intervals, dynamic, is_usual) = (kind == 1, kind == 2, kind == 3);
    let mut several = |types: &[DataType], most: u64| {
        let count = 1 + choices.below(most);
        (0..count).map(|_| types[choices.below(types.len() as u64) as usize]).collect::<Vec<_>>()
    };
    // A concatenation of more than three long parts does not fit into the registers.
    let random_key = several(if intervals { &ORDERED } else { &TYPES }, 3);
    // Of the maps of ranges, also its own, `nft` lists numbers in concatenated data in the wrong byte order.
    let random_data = several(&TYPES, if intervals { 1 } else { 2 });
    let has_usual_key = is_usual || choices.is_true();
    let usual = choices.one_of(&USUAL_KEYS).unwrap().to_vec();
    let fits = |key: &[DataType]| !intervals || key.iter().all(|part| ORDERED.contains(part));
    let key = if has_usual_key && fits(&usual) { usual } else { random_key };
    let data = match choices.below(4) {
        // What address translation needs.
        _ if is_usual => Some(MapData::Values(choices.one_of(&USUAL_DATA).unwrap().to_vec())),
        0 => None,
        1 => Some(MapData::Values(choices.one_of(&USUAL_DATA).unwrap().to_vec())),
        // Rules cannot add elements with a verdict.
        2 if !dynamic => Some(MapData::Verdict),
        2 => None,
        _ => Some(MapData::Values(random_data)),
    };
    // Whole seconds, because the kernel rounds to its own ticks; long, because elements must not expire during the test.
    let timeout = dynamic.then(|| [0, 3_600_000, 86_400_000][choices.below(3) as usize]);
    let size = timeout.and_then(|_| [None, Some(7_000)][choices.below(2) as usize]);
    FilterSet { key, data, intervals, timeout, size }
}

/// A value of a type.
pub fn value(kind: DataType, choices: &mut Choices) -> Value {
    let states = [ct_state::NEW, ct_state::ESTABLISHED, ct_state::RELATED, ct_state::INVALID];
    match kind {
        DataType::Name => {
            let names = ["eth0", "a", "br-0.5_x", "fifteen-bytes-x"];
            Value::Name(choices.one_of(&names).unwrap().parse().unwrap())
        }
        DataType::EtherType if choices.is_true() => {
            Value::Port(*choices.one_of(&[0x0800, 0x0806, 0x86dd]).unwrap())
        }
        DataType::NfProto => Value::Byte([2, 10][choices.below(2) as usize]),
        DataType::CtState => Value::Number(*choices.one_of(&states).unwrap()),
        DataType::CtStatus => Value::Number([ct_status::SNAT, ct_status::DNAT][choices.below(2) as usize]),
        DataType::CtDirection => Value::Byte(choices.below(2) as u8),
        DataType::AddressType => Value::Number(choices.below(12) as u32),
        kind => kind.decode(&choices.bytes::<16>()[..kind.length()]).unwrap(),
    }
}

/// A range of values that sort in byte order. Ranges with different first digits are disjoint.
pub fn range(kind: DataType, first_digit: Option<u8>, choices: &mut Choices) -> KeyPart {
    let width = kind.length();
    let (mut first, mut last) = (choices.bytes::<16>(), choices.bytes::<16>());
    match choices.below(4) {
        // As wide as possible: it touches the next one.
        0 => (first, last) = ([0; 16], [u8::MAX; 16]),
        1 => last = first,
        // A prefix.
        2 => {
            let bytes = choices.below(width as u64) as usize;
            last = first;
            first[bytes..].fill(0);
            last[bytes..].fill(u8::MAX);
        }
        _ => {}
    }
    if let Some(digit) = first_digit {
        for bytes in [&mut first, &mut last] {
            bytes[0] = digit << 4 | bytes[0] & 0xf;
        }
    }
    let bound = |bytes: [u8; 16]| kind.decode(&bytes[..width]).unwrap();
    KeyPart::Range(bound(first.min(last)), bound(first.max(last)))
}

/// The elements of a set. `targets` are chains that verdicts may jump to. Elements of dynamic sets are no part of a state.
pub fn elements(set: &FilterSet, spec: &SetSpec, targets: &[String]) -> BTreeMap<Vec<KeyPart>, ElementData> {
    let mut elements = BTreeMap::new();
    let mut digits = Vec::new();
    for seed in spec.elements.iter().filter(|_| set.timeout.is_none()) {
        let mut choices = Choices(*seed);
        // Ranges must not overlap: each has a first digit of its own.
        let digit = choices.below(16) as u8;
        if set.intervals && digits.contains(&digit) {
            continue;
        }
        digits.push(digit);
        let data = match &set.data {
            None => ElementData::Key,
            Some(MapData::Values(types)) => {
                ElementData::Values(types.iter().map(|kind| value(*kind, &mut choices)).collect())
            }
            Some(MapData::Verdict) => ElementData::Verdict(verdict(targets, &mut choices)),
        };
        let part = |(number, kind): (usize, &DataType)| match set.intervals {
            true => range(*kind, (number == 0).then_some(digit), &mut choices),
            false => KeyPart::One(value(*kind, &mut choices)),
        };
        elements.insert(set.key.iter().enumerate().map(part).collect(), data);
    }
    elements
}

fn verdict(targets: &[String], choices: &mut Choices) -> Verdict {
    let target = choices.one_of(targets).cloned();
    match (choices.below(5), target) {
        (0, Some(target)) => Verdict::Jump(target),
        (1, Some(target)) => Verdict::Goto(target),
        (2, _) => Verdict::Drop,
        (3, _) => Verdict::Return,
        _ => Verdict::Accept,
    }
}
