//! Nodes that share a range: no address twice, no wait while there is room, and nothing kept that is empty.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #![allow(dead_code, reason = "each test file uses a part of it")]
    pub mod blocks;
    #[path = "../../../knit-model/tests/support/kernel.rs"]
    pub mod kernel;
    pub mod node;
}

use proptest::prelude::*;
use support::blocks::{Cluster, shared};
use support::node::{Node, object, sandbox, veth};

fn texts(addresses: &[std::net::IpAddr]) -> Vec<String> {
    addresses.iter().map(ToString::to_string).collect()
}

#[test]
fn the_first_node_has_the_first_addresses_and_the_next_node_the_next_block() {
    let mut cluster = Cluster::new(2, "192.168.100.0/24");
    cluster.add(0, 1);
    assert_eq!(texts(&cluster.addresses(0)), [""; 0]);
    let words = cluster.nodes[0].problems("net");
    assert_eq!(
        words,
        [
            "spec.entries[0]: network shop/br0 range 192.168.100.0/24 waits for a block of addresses, which is being claimed for this node"
        ]
    );
    cluster.settle();
    assert_eq!(cluster.nodes[0].problems("net"), [""; 0]);
    cluster.add(0, 2);
    cluster.add(1, 3);
    cluster.settle();
    assert_eq!(texts(&cluster.addresses(0)), ["192.168.100.2", "192.168.100.3"]);
    assert_eq!(texts(&cluster.addresses(1)), ["192.168.100.16"]);
    assert_eq!(cluster.held(), ["node0:192.168.100.0/28", "node1:192.168.100.16/28"]);
}

#[test]
fn what_a_node_can_reach_is_its_own_and_what_nobody_holds() {
    let mut cluster = Cluster::new(2, "10.0.0.0/24");
    let pool = knit_ipam::Pool::with_gateway("shop/br0", "10.0.0.0/24".parse().unwrap());
    let total = |cluster: &Cluster, node: usize| cluster.nodes[node].state.blocks.reachable(&pool).total();
    assert_eq!(total(&cluster, 0), 253);
    cluster.add(0, 1);
    cluster.add(1, 2);
    cluster.settle();
    assert_eq!((total(&cluster, 0), total(&cluster, 1)), (253 - 16, 253 - 14));
}

#[test]
fn two_nodes_that_want_the_same_block_end_with_one_each() {
    let mut cluster = Cluster::new(2, "192.168.100.0/24");
    cluster.add(0, 1);
    cluster.add(1, 2);
    // Neither knows of the other.
    cluster.order(1, true);
    cluster.order(0, true);
    cluster.order(0, true);
    assert_eq!(texts(&cluster.addresses(1)), ["192.168.100.2"]);
    assert_eq!(texts(&cluster.addresses(0)), ["192.168.100.16"]);
}

#[test]
fn a_file_s_range_is_all_this_node_s() {
    let mut node = Node::holding(Default::default());
    let own = object("Veth", "shop", "net", vec![veth("x", "net", "br0", "10.0.0.0/24")]);
    node.hear(knit_engine::Event::ObjectApplied(own));
    node.hear(knit_engine::Event::SandboxSeen(sandbox("a", 7, "shop", "x")));
    assert_eq!(node.problems("net"), [""; 0]);
    assert!(node.orders.is_empty());
}

#[test]
fn a_node_with_room_asks_nobody_and_one_without_says_so_and_tries_again() {
    let mut cluster = Cluster::new(1, "10.0.0.0/24");
    cluster.add(0, 1);
    cluster.settle();
    cluster.api.away = true;
    for pod in 2..15 {
        cluster.add(0, pod);
        assert!(cluster.nodes[0].orders.is_empty(), "pod {pod}");
    }
    assert_eq!(cluster.addresses(0).len(), 14);
    // After a restart, too: what is its own is written down.
    cluster.restart(0, false);
    cluster.remove(0, 3);
    cluster.add(0, 15);
    assert_eq!(cluster.addresses(0).len(), 14);
    cluster.add(0, 16);
    assert!(cluster.nodes[0].problems("net")[0].contains("has not told yet which are taken"));
    cluster.list(0);
    cluster.order(0, true);
    let words = cluster.nodes[0].problems("net");
    assert!(words[0].contains("none can be claimed so far (the API server does not answer)"), "{words:?}");
    // An address of its own that becomes free serves as well.
    cluster.remove(0, 4);
    assert_eq!(cluster.nodes[0].problems("net"), [""; 0]);
    cluster.add(0, 17);
    cluster.api.away = false;
    cluster.settle();
    assert_eq!(cluster.nodes[0].problems("net"), [""; 0]);
    assert_eq!(cluster.addresses(0).len(), 15);
}

#[test]
fn many_pods_at_once_claim_as_many_blocks_as_they_need() {
    let mut cluster = Cluster::new(1, "10.0.0.0/24");
    for pod in 1..=40 {
        cluster.add(0, pod);
    }
    // 14, 16 and 16.
    assert_eq!(cluster.nodes[0].orders.len(), 3);
    cluster.settle();
    assert_eq!((cluster.addresses(0).len(), cluster.held().len()), (40, 3));
}

#[test]
fn an_empty_block_goes_back_after_a_while_and_not_at_once() {
    let mut cluster = Cluster::new(2, "10.0.0.0/24");
    cluster.add(0, 1);
    cluster.settle();
    cluster.remove(0, 1);
    cluster.review(0);
    cluster.settle();
    assert_eq!(cluster.held().len(), 1);
    // Someone came and went meanwhile: the block is there, and nobody is asked.
    cluster.add(0, 2);
    cluster.review(0);
    cluster.remove(0, 2);
    cluster.review(0);
    cluster.settle();
    assert_eq!(cluster.held().len(), 1);
    cluster.review(0);
    assert_eq!(cluster.nodes[0].orders.len(), 1);
    // From here on it is not used, though it is still there.
    cluster.add(0, 3);
    assert_eq!(texts(&cluster.addresses(0)), [""; 0]);
    cluster.settle();
    assert_eq!(cluster.addresses(0).len(), 1);
    assert_eq!(cluster.held().len(), 1);
}

#[test]
fn a_list_from_before_a_block_went_back_does_not_bring_it_back() {
    let mut cluster = Cluster::new(2, "10.0.0.0/29");
    cluster.add(0, 1);
    cluster.settle();
    cluster.remove(0, 1);
    cluster.relist(0);
    cluster.review(0);
    cluster.review(0);
    cluster.order(0, true);
    cluster.watch(1);
    cluster.add(1, 2);
    cluster.order(1, true);
    assert_eq!(texts(&cluster.addresses(1)), ["10.0.0.2"]);
    // Now the list is heard, which has the block as the first node's.
    cluster.watch(0);
    cluster.add(0, 3);
    assert_eq!(texts(&cluster.addresses(0)), [""; 0]);
    cluster.settle();
    assert_eq!(texts(&cluster.addresses(0)), ["10.0.0.3"]);
}

#[test]
fn a_block_that_was_going_back_when_the_agent_died_is_not_used_and_goes_back() {
    let mut cluster = Cluster::new(2, "10.0.0.0/29");
    cluster.add(0, 1);
    cluster.settle();
    cluster.remove(0, 1);
    cluster.review(0);
    cluster.review(0);
    assert_eq!(cluster.nodes[0].orders.len(), 1);
    // The agent dies. Whether its request is on the way nobody knows: the list still has the block.
    cluster.restart(0, false);
    cluster.watch(0);
    cluster.add(0, 2);
    assert_eq!(texts(&cluster.addresses(0)), [""; 0], "of a block that may go at any moment");
    let orders = cluster.nodes[0].orders.iter();
    let returns = orders.filter(|order| matches!(order, knit_engine::blocks::Order::Return { .. })).count();
    assert_eq!(returns, 1, "{:?}", cluster.nodes[0].orders);
    cluster.settle();
    assert_eq!(cluster.addresses(0).len(), 1);
    assert_eq!(cluster.held().len(), 1);
    assert_eq!(cluster.nodes[0].replayed().remembered(), cluster.nodes[0].state.remembered());
}

#[test]
fn a_range_that_other_nodes_hold_is_exhausted_in_words_until_one_gives_back() {
    // Of four single addresses one can be given.
    let mut cluster = Cluster::new(2, "10.0.0.0/30");
    cluster.add(0, 1);
    cluster.settle();
    cluster.add(1, 2);
    cluster.settle();
    assert_eq!(
        cluster.nodes[1].problems("net"),
        [
            "spec.entries[0]: network shop/br0 range 10.0.0.0/30 is exhausted: other nodes hold all of its 1 blocks"
        ]
    );
    cluster.add(0, 3);
    assert_eq!(
        cluster.nodes[0].problems("net"),
        ["spec.entries[0]: network shop/br0 range 10.0.0.0/30 is exhausted: its only address is in use"]
    );
    cluster.remove(0, 3);
    cluster.remove(0, 1);
    cluster.review(0);
    cluster.review(0);
    cluster.settle();
    assert_eq!(cluster.nodes[1].problems("net"), [""; 0]);
    assert_eq!(texts(&cluster.addresses(1)), ["10.0.0.2"]);
}

#[test]
fn a_deleted_block_is_not_used_any_more_and_claimed_again_for_those_who_have_it() {
    let mut cluster = Cluster::new(2, "10.0.0.0/24");
    cluster.add(0, 1);
    cluster.settle();
    let name = cluster.api.blocks.keys().next().unwrap().clone();
    cluster.api.delete(&name, None);
    cluster.watch(0);
    assert_eq!(cluster.nodes[0].orders.len(), 1, "it is claimed again");
    cluster.settle();
    assert_eq!(cluster.held(), ["node0:10.0.0.0/28"]);
    assert_eq!(texts(&cluster.addresses(0)), ["10.0.0.2"]);

    // The other one is faster: the pod keeps what it has, and that is told.
    cluster.api.delete(&name, None);
    cluster.watch(1);
    cluster.add(1, 2);
    cluster.order(1, true);
    cluster.settle();
    assert_eq!(texts(&cluster.addresses(0)), ["10.0.0.2"]);
    let key = shared("10.0.0.0/24").key();
    let warnings = cluster.nodes[0].state.report(&key).unwrap().warnings;
    assert!(warnings.len() == 1 && warnings[0].contains("node node1 holds its block"), "{warnings:?}");
    // What comes now comes from another block.
    cluster.add(0, 3);
    cluster.settle();
    assert_eq!(texts(&cluster.addresses(0)), ["10.0.0.2", "10.0.0.16"]);
    // When the other is gone the block is claimed for the pod that has its address.
    cluster.remove(1, 2);
    cluster.review(1);
    cluster.review(1);
    cluster.settle();
    assert_eq!(cluster.nodes[0].state.report(&key).unwrap().warnings, [""; 0]);
    assert_eq!(cluster.held(), ["node0:10.0.0.0/28", "node0:10.0.0.16/28"]);
}

#[test]
fn addresses_from_before_there_were_blocks_get_theirs() {
    let mut cluster = Cluster::new(2, "10.0.0.0/24");
    let node = &mut cluster.nodes[0];
    let mut own = shared("10.0.0.0/24");
    own.intents[0].origin.dialect = knit_model::provenance::Dialect::File;
    own.object.generation = 2;
    node.hear(knit_engine::Event::ObjectApplied(own));
    for pod in 1..=16 {
        node.hear(knit_engine::Event::SandboxSeen(sandbox(&format!("p{pod}"), pod, "shop", "x")));
    }
    assert_eq!((node.orders.len(), node.state.blocks.has_any()), (0, false));
    let mut now = shared("10.0.0.0/24");
    now.object.generation = 3;
    node.hear(knit_engine::Event::ObjectApplied(now));
    let before = cluster.addresses(0);
    cluster.settle();
    assert_eq!(cluster.addresses(0), before);
    assert_eq!(cluster.held(), ["node0:10.0.0.0/28", "node0:10.0.0.16/28"]);
}

#[test]
fn an_address_that_is_asked_for_by_value_is_given_to_nobody_else() {
    let mut cluster = Cluster::new(1, "10.0.0.0/24");
    let mut fixed = shared("10.0.0.0/24");
    fixed.object.name = "fixed".to_owned();
    let knit_model::intent::IntentSpec::Interface(want) = &mut fixed.intents[0].spec else { unreachable!() };
    want.pods = knit_model::intent::Selector::label("net", "far");
    want.ranges.clear();
    want.fixed = vec!["10.0.0.2/24".parse().unwrap()];
    cluster.nodes[0].hear(knit_engine::Event::ObjectApplied(fixed));
    cluster.add(0, 1);
    cluster.settle();
    assert_eq!(texts(&cluster.addresses(0)), ["10.0.0.3"]);
}

/// What may happen to a node, at any moment.
#[derive(Clone, Debug)]
enum Deed {
    Add(usize, u32),
    Remove(usize, u32),
    Watch(usize),
    Order(usize),
    Review(usize),
    List(usize),
    Restart(usize, bool),
    Away(bool),
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let (node, pod) = (|| 0..2_usize, || 0..12_u32);
    let deed = prop_oneof![
        4 => (node(), pod()).prop_map(|(node, pod)| Deed::Add(node, pod)),
        3 => (node(), pod()).prop_map(|(node, pod)| Deed::Remove(node, pod)),
        4 => node().prop_map(Deed::Watch),
        5 => node().prop_map(Deed::Order),
        3 => node().prop_map(Deed::Review),
        1 => node().prop_map(Deed::List),
        1 => (node(), any::<bool>()).prop_map(|(node, sent)| Deed::Restart(node, sent)),
        1 => any::<bool>().prop_map(Deed::Away),
    ];
    prop::collection::vec(deed, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_interleaving_of_two_nodes_gives_an_address_twice(
        deeds in deeds(),
        range in prop::sample::select(vec!["10.0.0.0/24", "10.0.0.0/28", "10.0.0.0/29", "fd00::/64"]),
    ) {
        let mut cluster = Cluster::new(2, range);
        for deed in deeds {
            match deed.clone() {
                // Pods have names of their own on each node.
                Deed::Add(node, pod) => cluster.add(node, pod * 2 + node as u32),
                Deed::Remove(node, pod) => cluster.remove(node, pod * 2 + node as u32),
                Deed::Watch(node) => cluster.watch(node),
                Deed::Order(node) => cluster.order(node, true),
                Deed::Review(node) => cluster.review(node),
                Deed::List(node) if !cluster.api.away => cluster.relist(node),
                Deed::List(_) => {}
                Deed::Restart(node, sent) => cluster.restart(node, sent),
                Deed::Away(away) => cluster.api.away = away,
            }
            prop_assert_eq!(cluster.twice(), [].into(), "after {:?}", deed);
        }
        // At the end everything comes to rest, and what is empty goes back.
        cluster.api.away = false;
        for node in 0..2 {
            cluster.list(node);
        }
        cluster.settle();
        prop_assert_eq!(cluster.twice(), [].into());
        for node in 0..2 {
            let names: Vec<u32> = cluster.nodes[node].state.sandboxes.values().map(|pod| pod.number).collect();
            names.into_iter().for_each(|pod| cluster.remove(node, pod));
            cluster.review(node);
            cluster.review(node);
        }
        cluster.settle();
        prop_assert_eq!(cluster.held(), Vec::<String>::new());
    }
}
