//! Evaluates compiled rules as the kernel does, for the first packet of a connection.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::rc::Rc;

use knit_model::filter::field::{FIB_LOCAL, Field, IpFamily, Value, ct_state, ct_status};
use knit_model::filter::rule::{Comparison, Expression, FilterRule, LookupResult, Register, Verdict};
use knit_model::filter::{ChainType, ElementData, FilterTable, Hook, KeyPart, TableFamily};
use knit_service::{
    Backend, Connection, ServiceIndex, ServiceKey, SourceClass, chain_elements, dispatch, pod_set,
};

use crate::support::{node_addresses, pod_ranges};

/// The first and the last value of a part of a key.
type Bounds = (Vec<u8>, Vec<u8>);

/// The tables of a node with all elements, and what their rules have learned.
pub struct Tables {
    pub table: Rc<FilterTable>,
    /// The elements of each set.
    elements: BTreeMap<String, BTreeMap<Vec<Vec<u8>>, ElementData>>,
    /// The elements of each set of ranges.
    ranges: BTreeMap<String, Vec<(Vec<Bounds>, ElementData)>>,
    /// The elements of dynamic maps.
    pub learned: BTreeMap<(String, Vec<u8>), Vec<u8>>,
    /// Whether dynamic maps accept no more elements.
    pub is_full: bool,
}

/// What becomes of the first packet of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It arrives; `None`: where it is addressed to.
    Accepted {
        translated: Option<Backend>,
        masquerade: Masquerade,
    },
    Rejected,
    Dropped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Masquerade {
    Yes,
    No,
    /// The packet is delivered on this node and never reaches that hook.
    NotReached,
}

struct Packet {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    port: u16,
    mark: u32,
    priority: u32,
    is_translated: bool,
    /// The random number.
    choice: u32,
}

/// What a rule or chain leads to.
enum Step {
    Next,
    Accept,
    Return,
    Drop,
    Reject,
    Masquerade,
    Translate(Backend),
    Jump(String),
    Goto(String),
}

const REGISTERS: usize = 16;

/// The registers of one rule. As in the kernel, no rule reads what it has not written.
struct Registers {
    bytes: [u8; REGISTERS * 4],
    is_written: [bool; REGISTERS],
}

impl Registers {
    fn write(&mut self, at: Register, value: &[u8]) {
        let start = usize::from(at.0) * 4;
        let end = start + value.len().next_multiple_of(4);
        self.bytes[start..end].fill(0);
        self.bytes[start..start + value.len()].copy_from_slice(value);
        self.is_written[start / 4..end / 4].fill(true);
    }

    fn read(&self, at: Register, length: usize) -> &[u8] {
        let start = usize::from(at.0) * 4;
        let end = start + length.next_multiple_of(4);
        assert!(self.is_written[start / 4..end / 4].iter().all(|is_written| *is_written));
        &self.bytes[start..start + length]
    }
}

impl Tables {
    /// The tables with the elements of all Services.
    pub fn of(index: &ServiceIndex) -> Self {
        let keys: Vec<ServiceKey> = index.services().map(|service| service.key.clone()).collect();
        let chains = index.chains();
        let mut table = FilterTable::default();
        dispatch(&mut table, &chains);
        let pods = pod_ranges().into_iter().map(|range| {
            let set = pod_set(IpFamily::of(range.addr()));
            (TableFamily::Inet.table().element(set, vec![KeyPart::range(range)]), ElementData::Key)
        });
        let services = keys.iter().flat_map(|key| index.elements_of(key));
        let all = services.chain(chain_elements(&chains)).chain(pods);
        let mut tables = Self {
            table: Rc::new(table),
            elements: BTreeMap::new(),
            ranges: BTreeMap::new(),
            learned: BTreeMap::new(),
            is_full: false,
        };
        let mut seen = BTreeSet::new();
        for (key, data) in all {
            assert!(seen.insert(key.clone()), "{key} is there twice");
            tables.check(&key.set, &key.key, &data);
            let parts = key.key.iter().map(|part| (part.bounds().0.bytes(), part.bounds().1.bytes()));
            if tables.table.sets[&key.set].intervals {
                tables.ranges.entry(key.set.clone()).or_default().push((parts.collect(), data));
            } else {
                let parts = parts.map(|(value, _)| value).collect();
                tables.elements.entry(key.set.clone()).or_default().insert(parts, data);
            }
        }
        tables
    }

    /// The kernel accepts only elements of the declared types.
    fn check(&self, set: &str, key: &[KeyPart], data: &ElementData) {
        let declared = self.table.sets.get(set).unwrap_or_else(|| panic!("{set} is no set of the table"));
        let lengths = |values: &mut dyn Iterator<Item = &Value>| -> Vec<usize> {
            values.map(|value| value.bytes().len()).collect()
        };
        let types = |types: &[knit_model::filter::field::DataType]| -> Vec<usize> {
            types.iter().map(|one| one.length()).collect()
        };
        assert_eq!(lengths(&mut key.iter().map(|part| part.bounds().0)), types(&declared.key), "{set}");
        for part in key {
            assert_eq!(matches!(part, KeyPart::Range(..)), declared.intervals, "{set}");
        }
        match (data, &declared.data) {
            (ElementData::Key, None) => {}
            (ElementData::Values(values), Some(knit_model::filter::MapData::Values(data))) => {
                assert_eq!(lengths(&mut values.iter()), types(data), "{set}");
            }
            (ElementData::Verdict(Verdict::Jump(to)), Some(knit_model::filter::MapData::Verdict)) => {
                assert!(self.table.chains.contains_key(to), "{set} leads to {to}, which does not exist");
            }
            other => panic!("{set}: {other:?}"),
        }
    }

    /// The first packet of a connection through all hooks. `choice` is the kernel's random number.
    pub fn send(&mut self, connection: &Connection, choice: u32) -> Outcome {
        let mut packet = Packet {
            source: connection.source,
            destination: connection.destination,
            protocol: connection.protocol.number(),
            port: connection.port,
            mark: 0,
            priority: 0,
            is_translated: false,
            choice,
        };
        let is_from_node = connection.source_class == SourceClass::Node;
        let first = if is_from_node { Hook::Output } else { Hook::Prerouting };
        let mut translated = None;
        let mut masquerade = Masquerade::NotReached;
        let is_local = |packet: &Packet| node_addresses().contains(&packet.destination);
        let mut hooks = vec![first];
        for at in 0.. {
            let Some(hook) = hooks.get(at).cloned() else { break };
            match self.hook(&hook, &mut packet) {
                Step::Drop => return Outcome::Dropped,
                Step::Reject => return Outcome::Rejected,
                Step::Masquerade => masquerade = Masquerade::Yes,
                Step::Translate(backend) => translated = Some(backend),
                _ if hook == Hook::Postrouting => masquerade = Masquerade::No,
                _ => {}
            }
            if at > 0 {
                continue;
            }
            let to_node = is_local(&packet);
            hooks.extend(match (is_from_node, to_node) {
                (true, true) => vec![Hook::Postrouting, Hook::Input],
                (true, false) => vec![Hook::Postrouting],
                (false, true) => vec![Hook::Input],
                (false, false) => vec![Hook::Forward, Hook::Postrouting],
            });
        }
        assert!(masquerade != Masquerade::Yes || packet.mark == 0, "the mark leaves the node");
        assert!(translated.is_none() || packet.priority == 0, "the priority leaves the node");
        Outcome::Accepted { translated, masquerade }
    }

    /// All base chains of a hook by priority.
    fn hook(&mut self, hook: &Hook, packet: &mut Packet) -> Step {
        let table = Rc::clone(&self.table);
        let chains = table.chains.iter().filter_map(|(name, chain)| {
            let base = chain.base.as_ref().filter(|base| base.hook == *hook)?;
            Some((base.priority, name, base.chain_type))
        });
        let mut chains: Vec<_> = chains.collect();
        chains.sort_by_key(|(priority, ..)| *priority);
        let mut result = Step::Next;
        for (_, name, kind) in chains {
            match self.chain(name, packet) {
                Step::Translate(backend) => {
                    assert_eq!(kind, ChainType::Nat);
                    (packet.destination, packet.port) = (backend.address, backend.port);
                    packet.is_translated = true;
                    result = Step::Translate(backend);
                }
                Step::Masquerade => result = Step::Masquerade,
                ends @ (Step::Drop | Step::Reject) => return ends,
                _ => {}
            }
        }
        result
    }

    fn chain(&mut self, name: &str, packet: &mut Packet) -> Step {
        let table = Rc::clone(&self.table);
        for rule in &table.chains[name].rules {
            match self.rule(rule, packet) {
                Step::Next => {}
                Step::Jump(to) => match self.chain(&to, packet) {
                    Step::Next | Step::Return => {}
                    ends => return ends,
                },
                Step::Goto(to) => {
                    return match self.chain(&to, packet) {
                        Step::Next => Step::Return,
                        other => other,
                    };
                }
                ends => return ends,
            }
        }
        Step::Next
    }

    fn rule(&mut self, rule: &FilterRule, packet: &mut Packet) -> Step {
        let mut registers = Registers { bytes: [0; REGISTERS * 4], is_written: [false; REGISTERS] };
        let first = Register::FIRST;
        for expression in &rule.expressions {
            match expression {
                Expression::Load { field, to } => match value(*field, packet) {
                    Some(value) => registers.write(*to, &value.bytes()),
                    None => return Step::Next,
                },
                Expression::Compare { is, value } => {
                    let value = value.bytes();
                    if (registers.read(first, value.len()) == value) != (*is == Comparison::Equal) {
                        return Step::Next;
                    }
                }
                Expression::Mask { mask, xor } => {
                    let (mask, xor) = (mask.bytes(), xor.bytes());
                    let old = registers.read(first, mask.len()).iter().zip(mask.iter().zip(&xor));
                    let new: Vec<u8> = old.map(|(old, (mask, xor))| (old & mask) ^ xor).collect();
                    registers.write(first, &new);
                }
                Expression::Lookup { set, negated, to, from } => {
                    match (self.lookup(set, &registers, *from), to) {
                        (None, LookupResult::Match) if *negated => {}
                        (Some(_), LookupResult::Match) if !*negated => {}
                        (Some(Found::Bytes(data)), LookupResult::Load(to)) => registers.write(*to, &data),
                        (Some(Found::Verdict(verdict)), LookupResult::Verdict) => return step(&verdict),
                        _ => return Step::Next,
                    }
                }
                Expression::Number { modulus, offset, random: true, to } => {
                    registers.write(*to, &(packet.choice % modulus + offset).to_ne_bytes());
                }
                Expression::Learn { set, data: Some(data), renew: true, timeout: Some(_) } => {
                    let (key, length) = (self.key(set, &registers), self.data_length(set));
                    let data = registers.read(*data, length).to_vec();
                    let element = (set.clone(), key);
                    if self.is_full && !self.learned.contains_key(&element) {
                        return Step::Next;
                    }
                    // The kernel renews the timeout of an element and keeps its data.
                    self.learned.entry(element).or_insert(data);
                }
                Expression::Forget { set, data: Some(data) } => {
                    registers.read(*data, self.data_length(set));
                    let key = self.key(set, &registers);
                    self.learned.remove(&(set.clone(), key));
                }
                Expression::SetPriority => {
                    packet.priority = u32::from_ne_bytes(registers.read(first, 4).try_into().unwrap());
                }
                Expression::SetMark => {
                    packet.mark = u32::from_ne_bytes(registers.read(first, 4).try_into().unwrap());
                }
                Expression::Nat { family, address, port: Some(port), .. } => {
                    let kind = family.data_type();
                    let Some(Value::Address(address)) = kind.decode(registers.read(*address, kind.length()))
                    else {
                        panic!("no address")
                    };
                    let port = u16::from_be_bytes(registers.read(*port, 2).try_into().unwrap());
                    return Step::Translate(Backend { address, port });
                }
                Expression::Masquerade { random: true } => return Step::Masquerade,
                Expression::Reject(_) => return Step::Reject,
                Expression::Verdict(verdict) => return step(verdict),
                other => panic!("{other:?} is not expected for a Service"),
            }
        }
        Step::Next
    }

    fn lengths(&self, set: &str) -> Vec<usize> {
        self.table.sets[set].key.iter().map(|kind| kind.length()).collect()
    }

    fn key(&self, set: &str, registers: &Registers) -> Vec<u8> {
        let length = self.lengths(set).iter().map(|length| length.next_multiple_of(4)).sum();
        registers.read(Register::FIRST, length).to_vec()
    }

    fn data_length(&self, set: &str) -> usize {
        match &self.table.sets[set].data {
            Some(knit_model::filter::MapData::Values(types)) => {
                types.iter().map(|kind| kind.length().next_multiple_of(4)).sum()
            }
            _ => panic!("{set} has no data"),
        }
    }

    fn lookup(&self, set: &str, registers: &Registers, mut from: Register) -> Option<Found> {
        let mut parts: Vec<&[u8]> = Vec::new();
        let first = from;
        for length in self.lengths(set) {
            parts.push(registers.read(from, length));
            from = from.after(length);
        }
        if knit_service::is_dynamic_set(set) {
            assert_eq!(first, Register::FIRST);
            return self.learned.get(&(set.to_owned(), self.key(set, registers))).cloned().map(Found::Bytes);
        }
        let is_match = |key: &[Bounds]| {
            let mut all = key.iter().zip(&parts);
            all.all(|((first, last), part)| (&first[..]..=&last[..]).contains(part))
        };
        let in_range = || self.ranges.get(set)?.iter().find(|(key, _)| is_match(key)).map(|(_, data)| data);
        let exact =
            || self.elements.get(set)?.get(&parts.iter().map(|part| part.to_vec()).collect::<Vec<_>>());
        let data = exact().or_else(in_range)?;
        Some(match data {
            ElementData::Key => Found::Bytes(Vec::new()),
            ElementData::Verdict(verdict) => Found::Verdict(verdict.clone()),
            ElementData::Values(values) => {
                let mut bytes = Vec::new();
                for value in values {
                    value.append_to(&mut bytes);
                    bytes.resize(bytes.len().next_multiple_of(4), 0);
                }
                Found::Bytes(bytes)
            }
        })
    }
}

enum Found {
    Bytes(Vec<u8>),
    Verdict(Verdict),
}

fn step(verdict: &Verdict) -> Step {
    match verdict {
        Verdict::Accept => Step::Accept,
        Verdict::Drop => Step::Drop,
        Verdict::Return => Step::Return,
        Verdict::Jump(to) => Step::Jump(to.clone()),
        Verdict::Goto(to) => Step::Goto(to.clone()),
    }
}

/// A field of a packet.
fn value(field: Field, packet: &Packet) -> Option<Value> {
    let family = IpFamily::of(packet.source);
    let address = |of_field: IpFamily, address: IpAddr| {
        assert_eq!(of_field, family, "the rule has to match the family first");
        Some(Value::from(address))
    };
    let kind =
        |address: &IpAddr| Value::Number(if node_addresses().contains(address) { FIB_LOCAL } else { 1 });
    match field {
        Field::NfProto => Some(family.number().into()),
        Field::L4Protocol => Some(packet.protocol.into()),
        Field::Source(of_field) => address(of_field, packet.source),
        Field::Destination(of_field) => address(of_field, packet.destination),
        Field::DestinationPort => Some(packet.port.into()),
        Field::FibSourceType => Some(kind(&packet.source)),
        Field::FibDestinationType => Some(kind(&packet.destination)),
        Field::CtState => Some(Value::Number(ct_state::NEW)),
        Field::CtStatus => Some(Value::Number(if packet.is_translated { ct_status::DNAT } else { 0 })),
        Field::Priority => Some(Value::Number(packet.priority)),
        Field::Mark => Some(Value::Number(packet.mark)),
        other => panic!("{other} is not expected for a Service"),
    }
}
