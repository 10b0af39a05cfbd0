use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use super::append;

#[derive(Serialize)]
struct Nothing;

#[derive(Serialize)]
struct Wrapped(u16);

#[derive(Serialize)]
struct Pair(i8, String);

#[derive(Serialize)]
struct Flat {
    first: bool,
    #[serde(flatten)]
    rest: BTreeMap<String, u8>,
}

#[derive(Serialize)]
enum Choice {
    Unit,
    Newtype(Option<char>),
    Tuple(u8, f32),
    Struct { a: Vec<i64>, b: Option<Box<Choice>> },
}

#[derive(Serialize)]
#[serde(tag = "kind")]
enum Tagged {
    One(Flat),
    Two { text: String },
}

fn written(value: &impl Serialize) -> String {
    let mut bytes = Vec::new();
    append(&mut bytes, value).unwrap();
    String::from_utf8(bytes).unwrap()
}

fn check(value: &impl Serialize) {
    assert_eq!(written(value), serde_json::to_string(value).unwrap());
}

#[test]
fn every_form_is_written_as_serde_json_writes_it() {
    check(&(Nothing, Wrapped(65535), Pair(-128, "a".to_owned()), ()));
    check(&[Choice::Unit, Choice::Newtype(None), Choice::Newtype(Some('"')), Choice::Tuple(0, 1.5)]);
    let inner = Some(Box::new(Choice::Struct { a: Vec::new(), b: None }));
    check(&Choice::Struct { a: vec![i64::MIN, 0, i64::MAX], b: inner });
    let flat = |rest: &[(&str, u8)]| Flat {
        first: true,
        rest: rest.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
    };
    check(&(Tagged::One(flat(&[])), Tagged::One(flat(&[("b", 1)])), Tagged::Two { text: String::new() }));
    check(&(u64::MAX, u128::MAX, i128::MIN, f64::NAN, -0.1_f64, 1e300_f64, f32::INFINITY));
    check(&json!({"a": [null, true, -1, 2.5, {"b": {}}], "c": []}));
    check(&Value::Null);
}

#[test]
fn keys_of_maps_are_texts() {
    check(&BTreeMap::from([(-1_i8, 1_u8), (7, 2)]));
    check(&BTreeMap::from([(true, "a"), (false, "b")]));
    check(&BTreeMap::from([('x', Some(1)), ('"', None)]));
    let rejected = BTreeMap::from([((1, 2), 3)]);
    assert!(append(&mut Vec::new(), &rejected).is_err());
    assert!(serde_json::to_string(&rejected).is_err());
}

#[test]
fn every_character_is_escaped_as_serde_json_does() {
    for character in (0..=0x2fff_u32).filter_map(char::from_u32).chain(['\u{10ffff}']) {
        check(&character);
        check(&format!("a{character}b"));
    }
    check(&"a text that is longer than a register: \u{e9} \"quoted\" \\ \n");
}
