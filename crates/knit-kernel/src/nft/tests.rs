use knit_model::IfName;

use super::*;
use crate::netlink::header::{Header as _, NetfilterHeader};
use crate::netlink::{Attribute, Attributes};

fn name(text: &str) -> IfName {
    text.parse().unwrap()
}

fn map(elements: usize) -> Set {
    let element = |number: usize| {
        let address: std::net::IpAddr = "10.75.0.3".parse().unwrap();
        (vec![6u8.into(), (number as u16).into()], vec![address.into(), 80u16.into()])
    };
    Set {
        name: "any4".to_owned(),
        key: vec![DataType::Protocol, DataType::Port],
        contents: SetContents::Map {
            data: vec![DataType::Ipv4, DataType::Port],
            elements: (0..elements).map(element).collect(),
        },
    }
}

fn table() -> Table {
    let base = Some(BaseChain { chain_type: ChainType::Nat, hook: Hook::Prerouting, priority: -100 });
    let rules = vec![
        Rule::new().is_not(Field::IifName, &name("knit0")).family(IpFamily::V4).dnat(
            IpFamily::V4,
            &[Field::L4Protocol, Field::DestinationPort],
            "any4",
        ),
        Rule::new()
            .family(IpFamily::V4)
            .within(Field::Destination(IpFamily::V4), "127.0.0.0/8".parse().unwrap())
            .drop(),
    ];
    Table {
        family: Family::Inet,
        name: "t",
        sets: vec![map(1)],
        chains: vec![Chain { name: "c", base, rules }],
    }
}

/// The attributes of a message.
fn attributes(message: &Message) -> Attributes<'_> {
    NetfilterHeader::split(&message.as_bytes()[16..]).unwrap().1
}

fn contexts(table: &Table) -> Vec<String> {
    contexts_of(&table.steps())
}

fn contexts_of(steps: &[Step]) -> Vec<String> {
    steps.iter().map(|step| step.message.context().to_string()).collect()
}

/// The expressions of a rule by name, with the bytes of each.
fn expressions(message: &Message) -> Vec<(String, Vec<u8>)> {
    let list = attributes(message).first(NFTA_RULE_EXPRESSIONS).unwrap();
    let read = |entry: Attribute<'_>| {
        let name = entry.nested().first(NFTA_EXPR_NAME).unwrap().str().unwrap().to_owned();
        (name, entry.nested().first(NFTA_EXPR_DATA).unwrap().value.to_vec())
    };
    list.nested().map(read).collect()
}

/// An encoded attribute of four bytes.
fn be32(kind: u16, value: u32) -> Vec<u8> {
    let mut bytes = [8u16.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value.to_be_bytes());
    bytes
}

#[test]
fn a_table_is_deleted_before_it_is_created_and_rules_come_last() {
    let expected = [
        "ensure table inet t",
        "delete table inet t",
        "create table inet t",
        "create chain c in table inet t",
        "create set any4 in table inet t",
        "add elements to set any4 in table inet t",
        "add rule 1 to chain c in table inet t",
        "add rule 2 to chain c in table inet t",
    ];
    assert_eq!(contexts(&table()), expected);
    assert_eq!(contexts(&Table::empty(Family::Inet, "t")), expected[..2]);
}

#[test]
fn a_map_declares_the_types_of_its_keys_and_data() {
    let steps = table().steps();
    let created = attributes(&steps[4].message);
    let number = |kind: u16| u32::from_be_bytes(created.first(kind).unwrap().value.try_into().unwrap());
    assert_eq!(number(NFTA_SET_FLAGS), NFT_SET_MAP);
    // Numbers of the nft program: inet_proto . inet_service, and ipv4_addr . inet_service.
    assert_eq!((number(NFTA_SET_KEY_TYPE), number(NFTA_SET_KEY_LEN)), (12 << 6 | 13, 8));
    assert_eq!((number(NFTA_SET_DATA_TYPE), number(NFTA_SET_DATA_LEN)), (7 << 6 | 13, 8));
    let list = attributes(&steps[5].message).first(NFTA_SET_ELEM_LIST_ELEMENTS).unwrap();
    let element = list.nested().next().unwrap().nested();
    let value = |kind: u16| element.first(kind).unwrap().nested().first(NFTA_DATA_VALUE).unwrap().value;
    assert_eq!(value(NFTA_SET_ELEM_KEY), [6, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(value(NFTA_SET_ELEM_DATA), [10, 75, 0, 3, 0, 80, 0, 0]);
}

#[test]
fn many_elements_are_split_into_messages_that_fit() {
    let table = Table { sets: vec![map(1_001)], ..table() };
    let additions: Vec<_> =
        table.steps().into_iter().filter(|step| step.message.context().starts_with("add elements")).collect();
    assert_eq!(additions.len(), 3);
    assert!(additions.iter().all(|step| !step.message.overflowed()));
}

#[test]
fn a_rule_is_a_list_of_expressions_on_registers() {
    let steps = table().steps();
    let rule = expressions(&steps[6].message);
    let names: Vec<&str> = rule.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["meta", "cmp", "meta", "cmp", "meta", "payload", "lookup", "nat"]);
    assert_eq!(rule[0].1, [be32(NFTA_META_KEY, NFT_META_IIFNAME), be32(NFTA_META_DREG, 8)].concat());
    assert_eq!(rule[1].1[..16], [be32(NFTA_CMP_SREG, 8), be32(NFTA_CMP_OP, NFT_CMP_NEQ)].concat());
    assert_eq!(
        rule[1].1[24..],
        *b"knit0\0\0\0\0\0\0\0\0\0\0\0",
        "an interface name is compared including its padding"
    );
    // The port of the key is in the register after the protocol's.
    assert_eq!(rule[5].1[..8], be32(NFTA_PAYLOAD_DREG, 9));
    // So is the port in the map's data.
    assert_eq!(
        rule[7].1,
        [
            be32(NFTA_NAT_TYPE, NFT_NAT_DNAT),
            be32(NFTA_NAT_FAMILY, 2),
            be32(NFTA_NAT_REG_ADDR_MIN, 8),
            be32(NFTA_NAT_REG_PROTO_MIN, 9)
        ]
        .concat()
    );
    let rule = expressions(&steps[7].message);
    let names: Vec<&str> = rule.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["meta", "cmp", "payload", "bitwise", "cmp", "immediate"]);
}

#[test]
fn an_ipv6_address_takes_four_registers() {
    let rule = Rule::new().dnat(IpFamily::V6, &[Field::Destination(IpFamily::V6), Field::L4Protocol], "at6");
    let table = Table {
        chains: vec![Chain { name: "c", base: None, rules: vec![rule] }],
        ..Table::empty(Family::Inet, "t")
    };
    let steps = table.steps();
    let rule = expressions(&steps.last().unwrap().message);
    assert_eq!(rule[1].1[8..], be32(NFTA_META_DREG, 12));
    assert!(rule[3].1.ends_with(&be32(NFTA_NAT_REG_PROTO_MIN, 12)));
}

#[test]
fn set_mark_keeps_unmasked_bits_and_snat_uses_a_map() {
    let rules = vec![
        Rule::new().original_direction().without_snat().set_mark(0x0700_0000, 0xff00_0000),
        Rule::new().has_mark(0x0700_0000, 0xff00_0000).snat(
            IpFamily::V4,
            &[Field::Source(IpFamily::V4)],
            "m",
        ),
    ];
    let table =
        Table { chains: vec![Chain { name: "c", base: None, rules }], ..Table::empty(Family::Inet, "t") };
    let steps = table.steps();
    let [.., marks, translates] = &steps[..] else { panic!("{}", steps.len()) };
    let rule = expressions(&marks.message);
    let names: Vec<&str> = rule.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["ct", "cmp", "ct", "bitwise", "cmp", "meta", "bitwise", "meta"]);
    let value = |number: u32| number.to_ne_bytes();
    assert_eq!(rule[6].1[32..36], value(0x00ff_ffff), "the bits that are kept");
    assert_eq!(rule[6].1[44..48], value(0x0700_0000));
    assert_eq!(rule[7].1, [be32(NFTA_META_KEY, NFT_META_MARK), be32(NFTA_META_SREG, 8)].concat());
    let rule = expressions(&translates.message);
    let names: Vec<&str> = rule.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["meta", "bitwise", "cmp", "payload", "lookup", "nat"]);
    assert!(rule[5].1.starts_with(&be32(NFTA_NAT_TYPE, NFT_NAT_SNAT)));
}

#[test]
fn ranges_that_overlap_or_touch_are_merged_and_the_last_address_has_no_end() {
    let ranges = |texts: &[&str]| Set {
        name: "ranges".to_owned(),
        key: vec![DataType::Ipv4],
        contents: SetContents::Intervals(texts.iter().map(|text| text.parse().unwrap()).collect()),
    };
    let shown = |texts: &[&str]| -> Vec<String> {
        ranges(texts).elements().iter().map(|element| format!("{element:?}")).collect()
    };
    let element = |key: [u8; 4], is_end: bool| {
        format!("Element {{ key: {:?}, data: None, is_end: {is_end} }}", key.to_vec())
    };
    assert_eq!(
        shown(&["192.0.2.7/32", "10.1.2.0/24", "10.1.0.0/16", "10.2.0.0/16"]),
        [
            element([0; 4], true),
            element([10, 1, 0, 0], false),
            element([10, 3, 0, 0], true),
            element([192, 0, 2, 7], false),
            element([192, 0, 2, 8], true),
        ]
    );
    assert_eq!(shown(&["0.0.0.0/0"]), [element([0; 4], false)]);
    assert_eq!(shown(&[]), Vec::<String>::new());
}

#[test]
fn unsupported_features_are_named() {
    let steps = table().steps();
    let rejected =
        |errno| Error::Rejected { context: "add rule 1".into(), errno, message: None, offset: None };
    let text = steps[6].requirement.explain(rejected(Errno::ENOENT)).to_string();
    assert!(text.starts_with("add rule 1: this kernel has no nftables nat: CONFIG_NFT_"), "{text}");
    let text = steps[7].requirement.explain(rejected(Errno::ENOENT)).to_string();
    assert!(text.ends_with("CONFIG_NF_TABLES_INET"), "{text}");
    assert!(matches!(steps[6].requirement.explain(rejected(Errno::EPERM)), Error::Rejected { .. }));
    assert!(explain_unsupported(rejected(Errno::EOPNOTSUPP)).unsupported_feature().is_some());
}

#[test]
fn an_update_sends_only_the_differences() {
    let old = table();
    let with = |set: Set| Table { sets: vec![set], ..table() };
    let from_old = |new: &Table| contexts_of(&new.update_steps(std::slice::from_ref(&old)));
    assert_eq!(from_old(&old), [""; 0]);
    assert_eq!(from_old(&with(map(3))), ["add elements to set any4 in table inet t"]);
    assert_eq!(from_old(&with(map(0))), ["remove elements from set any4 in table inet t"]);
    // An element with new data is removed before it is added.
    let mut moved = map(1);
    if let SetContents::Map { elements, .. } = &mut moved.contents {
        elements[0].1[1] = 81u16.into();
    }
    let both = ["remove elements from set any4 in table inet t", "add elements to set any4 in table inet t"];
    assert_eq!(from_old(&with(moved)), both);
    // Intervals, other sets, other rules, and a missing table: replaced as a whole.
    let ranges = |text: &str| Set {
        name: "inside4".to_owned(),
        key: vec![DataType::Ipv4],
        contents: SetContents::Intervals(vec![text.parse().unwrap()]),
    };
    let (one, other) = (with(ranges("10.0.0.0/8")), with(ranges("10.0.0.0/9")));
    assert_eq!(contexts_of(&other.update_steps(std::slice::from_ref(&one))), contexts(&other));
    assert_eq!(from_old(&one), contexts(&one));
    let mut other_rules = table();
    other_rules.chains[0].rules.pop();
    assert_eq!(from_old(&other_rules), contexts(&other_rules));
    assert_eq!(contexts_of(&old.update_steps(&[])), contexts(&old));
}
