//! Random bytes in the protobuf wire format.

use proptest::prelude::*;

/// A varint.
pub fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// Random fields, often with existing numbers and types and with these texts as contents; a content may be nested
/// fields. Numbers are never those of running processes, so that an agent resolves none as a PID.
pub fn fields(texts: &[&str]) -> impl Strategy<Value = Vec<u8>> + use<> {
    let number = || prop_oneof![8 => 1..20_u64, 1 => any::<u32>().prop_map(u64::from)];
    let texts: Vec<Vec<u8>> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    let content = prop_oneof![
        1 => prop::collection::vec(any::<u8>(), 0..12),
        3 => prop::sample::select(texts),
    ];
    let value = prop_oneof![
        Just(0_u64),
        Just(u64::MAX),
        any::<u32>().prop_map(|value| u64::from(value | 1 << 23)),
        any::<u32>().prop_map(|value| u64::from(value) << 32),
    ];
    let tagged = |number: u64, wire: u64, rest: Vec<u8>| [varint(number << 3 | wire), rest].concat();
    let sized = |bytes: Vec<u8>| [varint(bytes.len() as u64), bytes].concat();
    let whole = (number(), value).prop_map(move |(number, value)| tagged(number, 0, varint(value)));
    let odd = (number(), 3..8_u64, content.clone())
        .prop_map(move |(number, wire, rest)| tagged(number, wire, rest));
    let leaf = (number(), content).prop_map(move |(number, bytes)| tagged(number, 2, sized(bytes)));
    let field = prop_oneof![6 => leaf, 2 => whole, 1 => odd].prop_recursive(5, 40, 5, move |inner| {
        (number(), prop::collection::vec(inner, 0..5))
            .prop_map(move |(number, fields)| tagged(number, 2, sized(fields.concat())))
    });
    prop::collection::vec(field, 0..8).prop_map(|fields| fields.concat())
}
