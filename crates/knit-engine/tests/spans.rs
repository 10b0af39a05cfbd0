//! Networks that are one on all nodes: tunnels follow blocks, numbers are decided alike, and a pod takes its address along.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #![allow(dead_code, reason = "each test file uses a part of it")]
    pub mod blocks;
    #[path = "../../../knit-model/tests/support/kernel.rs"]
    pub mod kernel;
    pub mod node;
}

use std::collections::BTreeSet;
use std::net::IpAddr;

use knit_engine::{Event, ObjectKey, StoredObject, Unit};
use knit_model::SandboxId;
use knit_model::intent::IntentSpec;
use knit_model::link::{Kind, Link, Master, Vxlan};
use knit_model::problem::{Problem, Reason};
use proptest::prelude::*;
use support::blocks::{Cluster, on_network, spanning, underlay};

const RANGE: &str = "10.0.0.0/24";

/// Two nodes or more, on one network.
fn cluster(nodes: usize) -> Cluster {
    Cluster::knowing(nodes, &[spanning("shop", "blue", RANGE), on_network("shop", "blue", "x", &[])])
}

fn tunnel(cluster: &Cluster, node: usize) -> Option<Link> {
    let made = cluster.nodes[node].state.made.values().find_map(|made| made.tunnel.clone());
    made.map(|tunnel| cluster.nodes[node].host_link(tunnel.link.as_str()).unwrap())
}

fn vxlan(cluster: &Cluster, node: usize) -> Vxlan {
    match tunnel(cluster, node).unwrap().kind {
        Kind::Vxlan(vxlan) => vxlan,
        other => panic!("{other:?}"),
    }
}

fn flood(cluster: &Cluster, node: usize) -> Vec<String> {
    vxlan(cluster, node).flood.unwrap().iter().map(ToString::to_string).collect()
}

fn warnings(cluster: &Cluster, node: usize, kind: &str, name: &str) -> Vec<String> {
    let key = ObjectKey { kind: kind.to_owned(), namespace: "shop".to_owned(), name: name.to_owned() };
    cluster.nodes[node].state.report(&key).unwrap().warnings
}

fn tell_all(cluster: &mut Cluster) {
    cluster.settle();
    for node in 0..cluster.nodes.len() {
        cluster.tell_addresses(node);
    }
}

#[test]
fn a_tunnel_goes_to_the_nodes_that_hold_a_block_and_follows_them() {
    let mut cluster = cluster(3);
    cluster.add(0, 1);
    tell_all(&mut cluster);
    assert_eq!(flood(&cluster, 0), [""; 0]);
    assert!(tunnel(&cluster, 1).is_none(), "no pod is on it there");
    cluster.add(1, 2);
    tell_all(&mut cluster);
    assert_eq!(flood(&cluster, 0), ["192.0.2.2"]);
    assert_eq!(flood(&cluster, 1), ["192.0.2.1"]);
    assert_eq!(vxlan(&cluster, 0).vni, vxlan(&cluster, 1).vni);
    cluster.add(2, 3);
    tell_all(&mut cluster);
    assert_eq!(flood(&cluster, 0), ["192.0.2.2", "192.0.2.3"]);
    let said = cluster.nodes[0].state.node_states();
    let network = said.iter().find(|one| one.object.kind == "VirtualNetwork").unwrap();
    let link = tunnel(&cluster, 0).unwrap();
    let expected = format!(
        "vxlan, VNI {}, by {} to node1 (192.0.2.2), node2 (192.0.2.3)",
        vxlan(&cluster, 0).vni,
        link.name
    );
    assert_eq!(network.items[0].what, expected);
    assert!(network.ready, "{network:?}");
    // The last pod of a node goes, and with it the bridge, the block and the others' entry.
    cluster.remove(1, 2);
    assert!(tunnel(&cluster, 1).is_none());
    cluster.review(1);
    cluster.review(1);
    tell_all(&mut cluster);
    assert_eq!(flood(&cluster, 0), ["192.0.2.3"]);
    assert_eq!(cluster.nodes[0].replayed().remembered(), cluster.nodes[0].state.remembered());
}

#[test]
fn the_bridge_is_the_same_on_all_nodes_and_everything_fits_into_the_tunnel() {
    let mut cluster = cluster(2);
    cluster.add(0, 1);
    cluster.add(1, 2);
    tell_all(&mut cluster);
    let bridge = |node: usize| cluster.nodes[node].host_link("vn-blue").unwrap();
    assert_eq!(bridge(0).attrs.mac, bridge(1).attrs.mac);
    let link = tunnel(&cluster, 0).unwrap();
    assert_eq!(link.attrs.master, Some(Master::Of("vn-blue".parse().unwrap())));
    assert_ne!(link.attrs.mac, tunnel(&cluster, 1).unwrap().attrs.mac);
    assert_eq!((link.attrs.mtu, bridge(0).attrs.mtu), (Some(1450), Some(1450)));
    assert_eq!(cluster.nodes[0].link("p1", "net1").unwrap().attrs.mtu, Some(1450));
    // A link of the node changes: everything follows.
    let mut jumbo = underlay(0, 2);
    jumbo.ends[0].mtu = 9_000;
    let event = cluster.nodes[0].state.underlay_news(jumbo).unwrap();
    cluster.nodes[0].hear(event);
    assert_eq!(cluster.nodes[0].link("p1", "net1").unwrap().attrs.mtu, Some(8950));
    // What is stated holds, and is told if it does not fit.
    cluster.tell_addresses(0);
    let mut stated = spanning("shop", "blue", RANGE);
    let IntentSpec::Network(want) = &mut stated.intents[0].spec else { unreachable!() };
    want.mtu = Some(1500);
    cluster.nodes[0].hear(Event::ObjectApplied(stated));
    assert_eq!(cluster.nodes[0].link("p1", "net1").unwrap().attrs.mtu, Some(1500));
    let told = warnings(&cluster, 0, "VirtualNetwork", "blue");
    assert!(
        told.iter().any(|one| one.contains("1500 bytes do not fit") && one.contains("carry 1450")),
        "{told:?}"
    );
}

#[test]
fn a_network_that_becomes_local_gives_its_tunnel_back() {
    let mut cluster = cluster(2);
    cluster.add(0, 1);
    cluster.add(1, 2);
    tell_all(&mut cluster);
    let link = tunnel(&cluster, 0).unwrap().name;
    let mut local = spanning("shop", "blue", RANGE);
    let IntentSpec::Network(want) = &mut local.intents[0].spec else { unreachable!() };
    want.span = None;
    cluster.nodes[0].hear(Event::ObjectApplied(local));
    assert!(cluster.nodes[0].host_link(link.as_str()).is_none());
    assert!(cluster.nodes[0].host_link("vn-blue").is_some());
    assert_eq!(cluster.nodes[0].link("p1", "net1").unwrap().attrs.mtu, Some(1500));
}

#[test]
fn a_restart_without_an_api_server_leaves_tunnels_as_they_are() {
    let mut cluster = cluster(2);
    cluster.add(0, 1);
    cluster.add(1, 2);
    tell_all(&mut cluster);
    let steps = cluster.nodes[0].steps;
    cluster.restart(0, false);
    assert_eq!(cluster.nodes[0].steps, steps, "nothing was done");
    assert_eq!(flood(&cluster, 0), ["192.0.2.2"]);
    tell_all(&mut cluster);
    assert_eq!(cluster.nodes[0].steps, steps, "and nothing then");
}

#[test]
fn before_addresses_are_told_the_network_is_there_and_says_what_is_missing() {
    let mut cluster = cluster(1);
    cluster.add(0, 1);
    cluster.settle();
    assert!(tunnel(&cluster, 0).is_none());
    let told = warnings(&cluster, 0, "VirtualNetwork", "blue");
    assert!(told[0].contains("has not told yet which addresses nodes have"), "{told:?}");
    cluster.tell_addresses(0);
    assert!(tunnel(&cluster, 0).is_some());
    assert_eq!(warnings(&cluster, 0, "VirtualNetwork", "blue"), [""; 0]);
}

/// The same with another number, and made at this time.
fn numbered(object: StoredObject, vni: u32, created: &str) -> StoredObject {
    let mut object = object;
    let IntentSpec::Network(want) = &mut object.intents[0].spec else { unreachable!() };
    let span = want.span.as_mut().unwrap();
    (span.vni, span.created) = (Some(vni), created.to_owned());
    object
}

#[test]
fn of_two_networks_with_one_number_the_older_has_it_on_every_node() {
    let blue = numbered(spanning("shop", "blue", RANGE), 42, "2026-01-02T00:00:00Z");
    let red = numbered(spanning("shop", "red", "10.1.0.0/24"), 42, "2026-01-01T00:00:00Z");
    let (on_blue, on_red) = (on_network("shop", "blue", "x", &[]), on_network("shop", "red", "y", &[]));
    // They are heard in another order on each node.
    let mut cluster = Cluster::knowing(2, &[]);
    let orders = [[&blue, &red, &on_blue, &on_red], [&on_red, &on_blue, &red, &blue]];
    for (node, order) in orders.into_iter().enumerate() {
        order.into_iter().for_each(|object| cluster.nodes[node].hear(Event::ObjectApplied(object.clone())));
        cluster.add_labelled(node, 1 + node as u32, "x");
        cluster.add_labelled(node, 11 + node as u32, "y");
    }
    tell_all(&mut cluster);
    for node in 0..2 {
        let problems = cluster.nodes[node].problems("blue");
        assert_eq!(
            problems,
            [
                "spec.transport: network blue does not reach other nodes from here: VNI 42 is that of virtualnetwork/red in shop, which is older: state another `vni`"
            ]
        );
        assert_eq!(cluster.nodes[node].problems("red"), [""; 0]);
        let bridge = Unit::Bridge(knit_engine::state::BridgeKey {
            namespace: "shop".to_owned(),
            name: "vn-red".parse().unwrap(),
        });
        assert!(cluster.nodes[node].state.made[&bridge].tunnel.is_some());
    }
    // The older goes: the other has the number then.
    cluster.nodes[0].hear(Event::ObjectDeleted(red.key()));
    assert_eq!(cluster.nodes[0].problems("blue"), [""; 0]);
    // The cluster's own is nobody's.
    let taken = numbered(spanning("shop", "blue", RANGE), 7_500, "2026-01-02T00:00:00Z");
    cluster.nodes[1].hear(Event::ObjectApplied(taken));
    let problems = cluster.nodes[1].problems("blue");
    assert!(problems[0].contains("VNI 7500 is that of the cluster's own tunnels"), "{problems:?}");
}

#[test]
fn a_network_of_a_file_is_this_machine_s_alone() {
    let mut cluster = Cluster::knowing(1, &[]);
    let mut own = spanning("shop", "blue", RANGE);
    own.intents[0].origin.dialect = knit_model::provenance::Dialect::File;
    cluster.nodes[0].hear(Event::ObjectApplied(own));
    cluster.nodes[0].hear(Event::ObjectApplied(on_network("shop", "blue", "x", &[])));
    cluster.add(0, 1);
    cluster.tell_addresses(0);
    assert!(tunnel(&cluster, 0).is_none());
    assert_eq!(cluster.nodes[0].link("p1", "net1").unwrap().attrs.mtu, Some(1500));
}

#[test]
fn a_kernel_without_vxlan_has_the_network_on_its_node_alone_and_says_so() {
    let mut cluster = cluster(1);
    cluster.nodes[0].without = Some("vxlan");
    cluster.tell_addresses(0);
    cluster.add(0, 1);
    tell_all(&mut cluster);
    assert!(tunnel(&cluster, 0).is_none());
    assert!(cluster.nodes[0].link("p1", "net1").is_some(), "pods here reach each other");
    let problems = cluster.nodes[0].problems("blue");
    assert!(problems[0].ends_with("this kernel has no vxlan: CONFIG"), "{problems:?}");
}

#[test]
fn without_the_filter_that_keeps_gateways_apart_there_is_no_tunnel() {
    let mut cluster = cluster(1);
    cluster.add(0, 1);
    tell_all(&mut cluster);
    assert!(tunnel(&cluster, 0).is_some());
    let message = "no packet filter of bridges".to_owned();
    let why = Problem { field: String::new(), reason: Reason::KernelLacks, message };
    cluster.nodes[0].hear(Event::Forwarded(Err(why)));
    assert!(tunnel(&cluster, 0).is_none());
    let problems = cluster.nodes[0].problems("blue");
    assert!(problems[0].ends_with("no packet filter of bridges"), "{problems:?}");
    assert!(cluster.nodes[0].link("p1", "net1").is_some(), "pods here reach each other");
}

/// Two nodes on a network where pods labelled `far` ask for an address by value.
fn with_fixed(address: &str) -> Cluster {
    let fixed = on_network("shop", "blue", "far", &[address]);
    Cluster::knowing(2, &[spanning("shop", "blue", RANGE), on_network("shop", "blue", "x", &[]), fixed])
}

#[test]
fn several_addresses_are_claimed_in_order_and_kept_until_all_are_there() {
    let both = on_network("shop", "blue", "far", &["10.0.0.200/24", "10.0.0.201/24"]);
    let one = on_network("shop", "blue", "near", &["10.0.0.201/24"]);
    let mut cluster = Cluster::knowing(2, &[spanning("shop", "blue", RANGE), both, one]);
    cluster.add_labelled(1, 1, "near");
    cluster.settle();
    cluster.add_labelled(0, 2, "far");
    cluster.settle();
    assert_eq!(alone(&cluster), ["node0:10.0.0.200/32", "node1:10.0.0.201/32"]);
    cluster.remove(1, 1);
    cluster.settle();
    assert_eq!(alone(&cluster), ["node0:10.0.0.200/32", "node0:10.0.0.201/32"]);
    assert_eq!(cluster.addresses(0).len(), 3);
}

#[test]
fn of_two_nodes_that_want_the_same_addresses_one_has_all_of_them() {
    let far = on_network("shop", "blue", "far", &["10.0.0.200/24", "10.0.0.201/24"]);
    let mut cluster = Cluster::knowing(2, &[spanning("shop", "blue", RANGE), far]);
    for node in 0..2 {
        cluster.add_labelled(node, 1 + node as u32, "far");
    }
    // Their blocks, and then whatever each asks for, as the API server happens to hear it.
    for node in [0, 1, 0, 1, 1, 1, 1, 0] {
        cluster.order(node, true);
        cluster.watch(0);
        cluster.watch(1);
    }
    cluster.settle();
    let alone = alone(&cluster);
    assert!(alone.len() == 2 && alone[0][..5] == alone[1][..5], "{alone:?}");
}

fn alone(cluster: &Cluster) -> Vec<String> {
    let held = cluster.held().into_iter();
    held.filter(|block| block.ends_with("/32")).collect()
}

#[test]
fn a_pod_that_moves_takes_its_address_along() {
    let mut cluster = with_fixed("10.0.0.200/24");
    cluster.add_labelled(0, 1, "far");
    cluster.settle();
    assert_eq!(alone(&cluster), ["node0:10.0.0.200/32"]);
    let has =
        |cluster: &Cluster, node: usize| cluster.addresses(node).contains(&IpAddr::from([10, 0, 0, 200]));
    assert!(has(&cluster, 0));
    // It comes on the other node before it is gone from this one.
    cluster.add_labelled(1, 2, "far");
    cluster.settle();
    assert!(!has(&cluster, 1));
    assert_eq!(
        cluster.nodes[1].problems("far"),
        [
            "spec.entries[0]: network shop/network/blue: 10.0.0.200 waits for podaddressblock/shop.network.blue.10.0.0.0-24-ac8, which node node0 holds until its pod there is gone"
        ]
    );
    cluster.remove(0, 1);
    assert_eq!(cluster.nodes[0].orders.len(), 1, "it goes back at once, and not after a while");
    cluster.settle();
    assert!(has(&cluster, 1) && !has(&cluster, 0));
    assert_eq!(alone(&cluster), ["node1:10.0.0.200/32"]);
    assert_eq!(cluster.nodes[1].problems("far"), [""; 0]);
    let said = &cluster.nodes[1].state.made[&Unit::Sandbox(SandboxId("p2".to_owned()))].interfaces[0].1;
    assert!(said.addresses.contains(&"10.0.0.200/24".parse().unwrap()), "{said:?}");
}

#[test]
fn the_next_pod_of_the_same_node_has_the_address_when_the_first_is_gone() {
    let mut cluster = with_fixed("10.0.0.200/24");
    cluster.add_labelled(0, 1, "far");
    cluster.settle();
    cluster.add_labelled(0, 2, "far");
    cluster.settle();
    assert!(cluster.nodes[0].problems("far")[0].contains("is in use by interface net1 of pod shop/p1"));
    cluster.remove(0, 1);
    cluster.settle();
    assert_eq!(cluster.nodes[0].problems("far"), [""; 0]);
    assert_eq!(alone(&cluster), ["node0:10.0.0.200/32"]);
}

#[test]
fn only_the_last_quarter_is_asked_for_by_value_and_nothing_else_is_given_of_it() {
    let mut cluster = with_fixed("10.0.0.50/24");
    cluster.add_labelled(0, 1, "far");
    cluster.settle();
    let problems = cluster.nodes[0].problems("far");
    assert!(
        problems[0].ends_with("the last quarter of each subnet is for that (10.0.0.192/26)"),
        "{problems:?}"
    );
    for pod in 2..260 {
        cluster.add(0, pod);
    }
    cluster.settle();
    let given = cluster.addresses(0);
    // Without the network's own, the bridge's, and the one that is asked for by value all the same.
    assert_eq!(given.len(), 192 - 3);
    assert!(given.iter().all(|address| *address < IpAddr::from([10, 0, 0, 192])), "{given:?}");
    assert!(cluster.nodes[0].problems("x")[0].contains("is exhausted"));
}

/// What may happen to a node, at any moment.
#[derive(Clone, Debug)]
enum Deed {
    Add(usize, u32, bool),
    Remove(usize, u32),
    Watch(usize),
    Order(usize),
    Review(usize),
    List(usize),
    Restart(usize, bool),
    Away(bool),
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let (node, pod) = (|| 0..2_usize, || 0..6_u32);
    let deed = prop_oneof![
        4 => (node(), pod(), any::<bool>()).prop_map(|(node, pod, fixed)| Deed::Add(node, pod, fixed)),
        3 => (node(), pod()).prop_map(|(node, pod)| Deed::Remove(node, pod)),
        4 => node().prop_map(Deed::Watch),
        5 => node().prop_map(Deed::Order),
        2 => node().prop_map(Deed::Review),
        1 => node().prop_map(Deed::List),
        1 => (node(), any::<bool>()).prop_map(|(node, sent)| Deed::Restart(node, sent)),
        1 => any::<bool>().prop_map(Deed::Away),
    ];
    prop::collection::vec(deed, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn no_interleaving_gives_an_address_twice_that_is_asked_for_by_value(
        deeds in deeds(),
        (range, fixed) in prop::sample::select(vec![
            ("10.0.0.0/24", ["10.0.0.200/24", "10.0.0.201/24"]),
            ("10.0.0.0/28", ["10.0.0.13/28", "10.0.0.14/28"]),
            ("fd00::/64", ["fd00::f000:0:0:7/64", "fd00::f000:0:0:9/64"]),
        ]),
    ) {
        let objects = [
            spanning("shop", "blue", range),
            on_network("shop", "blue", "x", &[]),
            on_network("shop", "blue", "far", &fixed),
        ];
        let mut cluster = Cluster::knowing(2, &objects);
        for deed in deeds {
            match deed.clone() {
                Deed::Add(node, pod, fixed) => {
                    cluster.add_labelled(node, pod * 2 + node as u32, if fixed { "far" } else { "x" });
                }
                Deed::Remove(node, pod) => cluster.remove(node, pod * 2 + node as u32),
                Deed::Watch(node) => cluster.watch(node),
                Deed::Order(node) => cluster.order(node, true),
                Deed::Review(node) => cluster.review(node),
                Deed::List(node) if !cluster.api.away => cluster.relist(node),
                Deed::List(_) => {}
                Deed::Restart(node, sent) => cluster.restart(node, sent),
                Deed::Away(away) => cluster.api.away = away,
            }
            prop_assert_eq!(cluster.twice(), BTreeSet::new(), "after {:?}", deed);
        }
        cluster.api.away = false;
        for node in 0..2 {
            cluster.list(node);
        }
        cluster.settle();
        prop_assert_eq!(cluster.twice(), BTreeSet::new());
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
