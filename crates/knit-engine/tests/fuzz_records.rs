//! Records that no engine wrote: values replaced, fields removed, records left out, repeated or in another order. A state
//! that was written by an older version or touched by hand may be wrong, but reading it never panics.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[path = "../../../knit-model/tests/support/kernel.rs"]
    #[allow(dead_code, reason = "shared with the plans' own tests")]
    pub mod kernel;
    #[allow(dead_code, reason = "shared with the node's own tests")]
    pub mod node;
}

use knit_engine::blocks::{Block, News};
use knit_engine::{Event, Record, State, step};
use knit_ipam::Time;
use proptest::prelude::*;
use serde_json::{Value, json};
use support::node::{Node, bridge, eth0_mtu, key, object, sandbox, veth, with_eth0};

/// The journal of a node with some history: of every record at least one.
fn journal() -> Vec<Value> {
    let mut node = Node::holding(with_eth0(&["a", "b"]));
    node.hear(Event::SandboxSeen(sandbox("a", 7, "cnf", "x")));
    node.hear(Event::SandboxSeen(sandbox("b", 8, "cnf", "x")));
    let links = object("PodConfig", "cnf", "links", vec![veth("x", "pc0", "br0", "10.0.0.0/29")]);
    node.hear(Event::ObjectApplied(links.clone()));
    let change = vec![bridge("br1", "10.1.0.0/24"), eth0_mtu("x", 1300)];
    node.hear(Event::ObjectApplied(object("PodNetworkConfig", "cnf", "change", change)));
    node.hear(Event::ObjectDeleted(key(&links)));
    node.hear(Event::SandboxGone(knit_model::SandboxId("b".to_owned())));
    let block = Block {
        name: "cnf.br0.10.0.0.0-24-0".to_owned(),
        uid: "u".to_owned(),
        pool: "cnf/br0/10.0.0.0/24".to_owned(),
        cidr: "10.0.0.0/28".parse().unwrap(),
        node: "here".to_owned(),
        mine: true,
    };
    node.hear(Event::Blocks(News::Listed(vec![block.clone()])));
    node.hear(Event::Blocks(News::Deleted { name: block.name, uid: block.uid }));
    node.journal.iter().map(|record| serde_json::to_value(record).unwrap()).collect()
}

/// What happens to the journal.
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

fn hurt(journal: &mut Vec<Value>, damage: &Damage) {
    if journal.is_empty() {
        return;
    }
    let length = journal.len();
    match damage {
        Damage::Replace { record, path, with } => {
            *reach(&mut journal[record % length], path).0 = with.clone();
        }
        Damage::Remove { record, path } => {
            let (value, rest) = reach(&mut journal[record % length], path);
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
            let again = journal[record % length].clone();
            journal.insert(at % length, again);
        }
        Damage::Swap { one, other } => journal.swap(one % length, other % length),
    }
}

/// The value at a path of positions, as deep as it goes, and what is left of the path.
fn reach<'a, 'b>(value: &'a mut Value, path: &'b [usize]) -> (&'a mut Value, &'b [usize]) {
    let Some((first, rest)) = path.split_first() else { return (value, path) };
    let inner = match value {
        Value::Object(fields) if !fields.is_empty() => fields.len(),
        Value::Array(items) if !items.is_empty() => items.len(),
        _ => return (value, path),
    };
    match value {
        Value::Object(fields) => reach(fields.values_mut().nth(first % inner).unwrap(), rest),
        Value::Array(items) => reach(&mut items[first % inner], rest),
        _ => unreachable!("only containers get here"),
    }
}

proptest! {
    #[test]
    fn no_journal_makes_the_engine_panic(hurts in prop::collection::vec(damage(), 1..8)) {
        let mut journal = journal();
        hurts.iter().for_each(|damage| hurt(&mut journal, damage));
        let mut state = State::default();
        for record in journal {
            // A record that makes no sense at all is refused by its own type.
            let Ok(record) = serde_json::from_value::<Record>(record) else { continue };
            state.record(&record);
        }
        // A snapshot of it can be written, and says the same when it is read.
        let text = serde_json::to_string(&state.remembered()).unwrap();
        let again: State = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(serde_json::to_string(&again).unwrap(), text);
        // What follows from it is decided without a panic, too, and told.
        step(&mut state, Event::Resync, Time(1));
        for object in state.objects.keys() {
            prop_assert!(state.report(object).is_some());
        }
    }
}
