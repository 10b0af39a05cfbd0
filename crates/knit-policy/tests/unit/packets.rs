//! Evaluates compiled rules as the kernel does, for one connection.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use knit_model::IfName;
use knit_model::filter::field::{Field, IpFamily, Value, ct_status};
use knit_model::filter::rule::{Comparison, Expression, FilterRule, LookupResult, Verdict};
use knit_model::filter::{ElementData, ElementKey, FilterTable, KeyPart};
use knit_policy::{DropLogTarget, Element, Flow, InterfacePolicies, LocalPod, PodKey, PolicyIndex, dispatch};

/// The tables of a node with all elements.
pub struct Tables {
    table: FilterTable,
    /// The elements of each set.
    elements: BTreeMap<String, Vec<Element>>,
}

impl Tables {
    /// The tables of a node with these pods, each with its addresses.
    pub fn of(index: &mut PolicyIndex, local: &[(LocalPod<'_>, Vec<IpAddr>)]) -> Self {
        Self::with_logs(index, local, &BTreeSet::new())
    }

    /// The same, with logs of dropped packets.
    pub fn with_logs(
        index: &mut PolicyIndex,
        local: &[(LocalPod<'_>, Vec<IpAddr>)],
        targets: &BTreeSet<DropLogTarget>,
    ) -> Self {
        let mut compiled = index.compile(local.iter().map(|(pod, _)| *pod));
        let keys = local
            .iter()
            .map(|(pod, _)| PodKey { namespace: pod.namespace.to_owned(), name: pod.name.to_owned() });
        let rules = index.drop_rules(&compiled.tables, keys.zip(&compiled.pods));
        compiled.tables.log_drops(&rules, targets);
        let mut table = FilterTable::default();
        dispatch(&mut table, &compiled.tables);
        let mut elements: Vec<_> = compiled.elements.into_iter().chain(index.peer_elements()).collect();
        for (chains, (_, addresses)) in compiled.pods.iter().zip(local) {
            elements.extend(addresses.iter().flat_map(|address| chains.elements(*address)));
        }
        Self::new(table, elements)
    }

    /// The table of a pod.
    pub fn of_pod(policies: InterfacePolicies) -> Self {
        Self::new(policies.table, policies.elements)
    }

    fn new(table: FilterTable, elements: Vec<Element>) -> Self {
        let mut keys = BTreeSet::new();
        for (key, data) in &elements {
            assert!(table.sets.contains_key(&key.set), "{key} is in no set of the table");
            assert!(keys.insert(key.clone()), "{key} is there twice");
            if let ElementData::Verdict(Verdict::Jump(chain)) = data {
                assert!(table.chains.contains_key(chain), "{key} leads to {chain}, which does not exist");
            }
        }
        let mut of_sets: BTreeMap<String, Vec<Element>> = BTreeMap::new();
        for element in elements {
            of_sets.entry(element.0.set.clone()).or_default().push(element);
        }
        Self { table, elements: of_sets }
    }

    /// The prefixes of logs, in the order of chains and rules.
    pub fn log_prefixes(&self) -> Vec<String> {
        let rules = self.table.chains.values().flat_map(|chain| &chain.rules);
        let expressions = rules.flat_map(|rule| &rule.expressions);
        let prefix = |expression: &Expression| match expression {
            Expression::Log { prefix, .. } => Some(prefix.clone()),
            _ => None,
        };
        expressions.filter_map(prefix).collect()
    }

    /// The number of chains.
    pub fn chains(&self) -> usize {
        self.table.chains.len()
    }

    /// Whether the base chain accepts packets of the connection. The mark of a packet that is not one of a known
    /// connection is tested with real packets.
    pub fn accept(&self, flow: &Flow) -> bool {
        self.chain("policy", &Packet { flow, interface: None, reply: false }) != Some(false)
    }

    /// Whether a pod's table accepts the packets of a connection in both directions, which one of its interfaces received or
    /// sent.
    pub fn accept_on(&self, interface: &IfName, received: bool, flow: &Flow) -> bool {
        let packet = |reply: bool| Packet { flow, interface: Some(interface), reply };
        let hooks =
            if received { ["policy_input", "policy_output"] } else { ["policy_output", "policy_input"] };
        let [original, reply] = hooks.map(|hook| (hook, hook != hooks[0]));
        let accepts = |(hook, is_reply): (&str, bool)| self.chain(hook, &packet(is_reply)) != Some(false);
        let [original, reply] = [original, reply].map(accepts);
        assert_eq!(original, reply, "replies have the verdict of their connection");
        original
    }

    /// The verdict of a chain; `None`: it returns.
    fn chain(&self, name: &str, packet: &Packet<'_>) -> Option<bool> {
        for rule in &self.table.chains[name].rules {
            match self.rule(rule, packet) {
                None => {}
                Some(Verdict::Accept) => return Some(true),
                Some(Verdict::Drop) => return Some(false),
                Some(Verdict::Return) => return None,
                Some(Verdict::Jump(to)) => {
                    if let Some(verdict) = self.chain(&to, packet) {
                        return Some(verdict);
                    }
                }
                Some(Verdict::Goto(to)) => return self.chain(&to, packet),
            }
        }
        None
    }

    fn rule(&self, rule: &FilterRule, packet: &Packet<'_>) -> Option<Verdict> {
        let mut loaded: Vec<Value> = Vec::new();
        let mut may_append = false;
        for expression in &rule.expressions {
            match expression {
                Expression::Load { field, .. } => {
                    if !may_append {
                        loaded.clear();
                    }
                    loaded.push(value(*field, packet)?);
                    may_append = true;
                    continue;
                }
                Expression::Compare { is, value } => {
                    if (loaded == [value.clone()]) != (*is == Comparison::Equal) {
                        return None;
                    }
                }
                Expression::Between { first, last } => {
                    if !(first.bytes()..=last.bytes()).contains(&loaded[0].bytes()) {
                        return None;
                    }
                }
                Expression::Mask { mask, .. } => loaded = vec![masked(&loaded[0], mask)],
                Expression::Lookup { set, negated, to, .. } => {
                    let found = self.lookup(set, &loaded);
                    match (to, found) {
                        (LookupResult::Verdict, Some(ElementData::Verdict(verdict))) => {
                            return Some(verdict.clone());
                        }
                        (LookupResult::Match, found) if found.is_some() != *negated => {}
                        _ => return None,
                    }
                }
                // A rule that logs has no verdict, whether the limit is exceeded or not.
                Expression::Count | Expression::Limit { .. } | Expression::Log { .. } => {}
                Expression::Verdict(verdict) => return Some(verdict.clone()),
                other => panic!("{other:?} is not expected in a policy"),
            }
            may_append = false;
        }
        None
    }

    fn lookup(&self, set: &str, key: &[Value]) -> Option<&ElementData> {
        let contains = |part: &KeyPart, value: &Value| {
            let (first, last) = part.bounds();
            (first.bytes()..=last.bytes()).contains(&value.bytes())
        };
        let is_key = |element: &ElementKey| {
            element.key.len() == key.len()
                && element.key.iter().zip(key).all(|(part, one)| contains(part, one))
        };
        let mut found = self.elements.get(set).into_iter().flatten().filter(|(element, _)| is_key(element));
        found.next().map(|(_, data)| data)
    }
}

/// A packet of an established connection, in its original direction or not.
struct Packet<'a> {
    flow: &'a Flow,
    interface: Option<&'a IfName>,
    reply: bool,
}

/// A field of a packet.
fn value(field: Field, packet: &Packet<'_>) -> Option<Value> {
    let flow = packet.flow;
    let family = IpFamily::of(flow.source);
    let address = |of_field: IpFamily, address: IpAddr| (of_field == family).then(|| Value::from(address));
    match field {
        Field::NfProto => Some(family.number().into()),
        Field::L4Protocol | Field::CtProtocol => Some(flow.protocol.into()),
        Field::Source(of_field) | Field::CtOriginalSource(of_field) => address(of_field, flow.source),
        Field::Destination(of_field) | Field::CtReplySource(of_field) => address(of_field, flow.destination),
        Field::CtReplySourcePort => Some(flow.port.into()),
        Field::IifName | Field::OifName => packet.interface.cloned().map(Value::Name),
        Field::CtDirection => Some(u8::from(packet.reply).into()),
        Field::CtState => Some(Value::Number(2)),
        Field::CtStatus => Some(Value::Number(if flow.through_service { ct_status::DNAT } else { 0 })),
        other => panic!("{other} is not expected in a policy"),
    }
}

fn masked(value: &Value, mask: &Value) -> Value {
    let bytes: Vec<u8> = value.bytes().iter().zip(mask.bytes()).map(|(value, mask)| value & mask).collect();
    match value {
        Value::Address(IpAddr::V4(_)) => IpAddr::from(<[u8; 4]>::try_from(bytes).unwrap()).into(),
        Value::Address(IpAddr::V6(_)) => IpAddr::from(<[u8; 16]>::try_from(bytes).unwrap()).into(),
        Value::Number(_) => Value::Number(u32::from_ne_bytes(bytes.try_into().unwrap())),
        other => panic!("{other} is not expected with a mask"),
    }
}
