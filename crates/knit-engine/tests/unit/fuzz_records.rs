//! Damaged journals: values replaced, fields removed, records left out, repeated or reordered. A journal written
//! by an older version or edited by hand may be wrong, but reading it never panics.

use knit_engine::blocks::{Block, BlockEvent};
use knit_engine::{Event, Record, State, step};
use knit_ipam::Time;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::node::{Node, bridge, eth0_mtu, key, object, sandbox, veth, with_eth0};

/// The journal of a node with some history, with at least one record of each kind.
fn journal() -> Vec<Value> {
    let mut node = Node::with_kernel(with_eth0(&["a", "b"]));
    node.handle(Event::SandboxUpdated(sandbox("a", 7, "cnf", "x")));
    node.handle(Event::SandboxUpdated(sandbox("b", 8, "cnf", "x")));
    let links = object("PodConfig", "cnf", "links", vec![veth("x", "pc0", "br0", "10.0.0.0/29")]);
    node.handle(Event::ObjectApplied(links.clone()));
    let change = vec![bridge("br1", "10.1.0.0/24"), eth0_mtu("x", 1300)];
    node.handle(Event::ObjectApplied(object("PodNetworkConfig", "cnf", "change", change)));
    node.handle(Event::ObjectDeleted(key(&links)));
    node.handle(Event::SandboxRemoved(knit_model::SandboxId("b".to_owned())));
    let block = Block {
        name: "cnf.br0.10.0.0.0-24-0".to_owned(),
        uid: "u".to_owned(),
        pool: "cnf/br0/10.0.0.0/24".to_owned(),
        cidr: "10.0.0.0/28".parse().unwrap(),
        node: "here".to_owned(),
        is_local: true,
    };
    node.handle(Event::Blocks(BlockEvent::Listed(vec![block.clone()])));
    node.handle(Event::Blocks(BlockEvent::Deleted { name: block.name, uid: block.uid }));
    node.journal.iter().map(|record| serde_json::to_value(record).unwrap()).collect()
}

/// One kind of damage.
#[derive(Clone, Debug)]
enum Damage {
    Replace { record: usize, path: Vec<usize>, with: Value },
    Remove { record: usize, path: Vec<usize> },
    Drop { record: usize },
    Repeat { record: usize, at: usize },
    Swap { one: usize, other: usize },
}

fn odd_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        prop::sample::select(vec!["", "eth0", "10.0.0.0/0", "::/0", "255.255.255.255/32", "a/b", "ä", "br0"])
            .prop_map(Value::from),
        Just(json!([])),
        Just(json!({})),
    ]
}

fn damage() -> impl Strategy<Value = Damage> {
    let path = || prop::collection::vec(0..6_usize, 1..8);
    let record = any::<usize>;
    prop_oneof![
        6 => (record(), path(), odd_value())
            .prop_map(|(record, path, with)| Damage::Replace { record, path, with }),
        2 => (record(), path()).prop_map(|(record, path)| Damage::Remove { record, path }),
        1 => record().prop_map(|record| Damage::Drop { record }),
        1 => (record(), record()).prop_map(|(record, at)| Damage::Repeat { record, at }),
        1 => (record(), record()).prop_map(|(one, other)| Damage::Swap { one, other }),
    ]
}

fn apply_damage(journal: &mut Vec<Value>, damage: &Damage) {
    if journal.is_empty() {
        return;
    }
    let length = journal.len();
    match damage {
        Damage::Replace { record, path, with } => {
            *value_at(&mut journal[record % length], path).0 = with.clone();
        }
        Damage::Remove { record, path } => {
            let (value, rest) = value_at(&mut journal[record % length], path);
            let at = rest.first().or(path.last()).copied().unwrap_or_default();
            match value {
                Value::Object(fields) => {
                    let name = fields.keys().nth(at % fields.len().max(1)).cloned();
                    name.map(|name| fields.remove(&name));
                }
                Value::Array(items) if !items.is_empty() => drop(items.remove(at % items.len())),
                _ => {}
            }
        }
        Damage::Drop { record } => drop(journal.remove(record % length)),
        Damage::Repeat { record, at } => {
            let copy = journal[record % length].clone();
            journal.insert(at % length, copy);
        }
        Damage::Swap { one, other } => journal.swap(one % length, other % length),
    }
}

/// The value at a path of positions, as deep as it exists, and the rest of the path.
fn value_at<'a, 'b>(value: &'a mut Value, path: &'b [usize]) -> (&'a mut Value, &'b [usize]) {
    let Some((first, rest)) = path.split_first() else { return (value, path) };
    let inner = match value {
        Value::Object(fields) if !fields.is_empty() => fields.len(),
        Value::Array(items) if !items.is_empty() => items.len(),
        _ => return (value, path),
    };
    match value {
        Value::Object(fields) => value_at(fields.values_mut().nth(first % inner).unwrap(), rest),
        Value::Array(items) => value_at(&mut items[first % inner], rest),
        _ => unreachable!("only containers get here"),
    }
}

proptest! {
    #[test]
    fn damaged_journal_never_panics(damages in prop::collection::vec(damage(), 1..8)) {
        let mut journal = journal();
        damages.iter().for_each(|damage| apply_damage(&mut journal, damage));
        let mut state = State::default();
        for record in journal {
            // A malformed record is rejected by its type.
            let Ok(record) = serde_json::from_value::<Record>(record) else { continue };
            state.record(&record);
        }
        // A snapshot of the result survives a round trip.
        let text = serde_json::to_string(&state.persistent()).unwrap();
        let reread: State = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(serde_json::to_string(&reread).unwrap(), text);
        // A resync and its reports do not panic either.
        step(&mut state, Event::Resync, Time(1));
        for object in state.objects.keys() {
            prop_assert!(state.report(object).is_some());
        }
    }
}
