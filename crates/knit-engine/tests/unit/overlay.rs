//! Overlays between nodes: tunnels follow address blocks, all nodes choose the same VNI, and a fixed address moves
//! with its pod.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use knit_engine::{Event, ObjectKey, Record, StoredObject, Unit};
use knit_model::filter::FilterStep;
use knit_model::intent::IntentSpec;
use knit_model::link::{Kind, Link, Master, Vxlan};
use knit_model::{Plan, SandboxId, Scope, Step};
use proptest::prelude::*;

use crate::support::blocks_cluster::{BlockCluster, interface_on_network, overlay_network, tunnels};
use crate::support::cases;

const RANGE: &str = "10.0.0.0/24";

/// Nodes on one overlay network.
fn overlay_cluster(nodes: usize) -> BlockCluster {
    BlockCluster::with_objects(
        nodes,
        &[overlay_network("shop", "blue", RANGE), interface_on_network("shop", "blue", "x", &[])],
    )
}

fn tunnel(cluster: &BlockCluster, node: usize) -> Option<Link> {
    let tunnel = cluster.nodes[node].state.units.values().find_map(|made| made.tunnel.clone());
    tunnel.map(|tunnel| cluster.nodes[node].host_link(tunnel.link.as_str()).unwrap())
}

fn vxlan(cluster: &BlockCluster, node: usize) -> Vxlan {
    match tunnel(cluster, node).unwrap().kind {
        Kind::Vxlan(vxlan) => vxlan,
        other => panic!("{other:?}"),
    }
}

fn flood(cluster: &BlockCluster, node: usize) -> Vec<String> {
    vxlan(cluster, node).flood.unwrap().iter().map(ToString::to_string).collect()
}

fn warnings_of(cluster: &BlockCluster, node: usize, kind: &str, name: &str) -> Vec<String> {
    let key = ObjectKey { kind: kind.to_owned(), namespace: "shop".to_owned(), name: name.to_owned() };
    cluster.nodes[node].state.report(&key).unwrap().warnings
}

fn sync_all(cluster: &mut BlockCluster) {
    cluster.settle();
    for node in 0..cluster.nodes.len() {
        cluster.update_underlay(node);
    }
}

#[test]
fn overlay_reaches_the_nodes_that_hold_a_block() {
    let mut cluster = overlay_cluster(3);
    cluster.add_pod(0, 1);
    sync_all(&mut cluster);
    assert_eq!(flood(&cluster, 0), [""; 0]);
    assert!(tunnel(&cluster, 1).is_none(), "no pod of that node is on the network");
    cluster.add_pod(1, 2);
    sync_all(&mut cluster);
    assert_eq!(flood(&cluster, 0), ["192.0.2.2"]);
    assert_eq!(flood(&cluster, 1), ["192.0.2.1"]);
    assert_eq!(vxlan(&cluster, 0).vni, vxlan(&cluster, 1).vni);
    cluster.add_pod(2, 3);
    sync_all(&mut cluster);
    assert_eq!(flood(&cluster, 0), ["192.0.2.2", "192.0.2.3"]);
    let states = cluster.nodes[0].state.node_states();
    let network = states.iter().find(|one| one.object.kind == "VirtualNetwork").unwrap();
    let link = tunnel(&cluster, 0).unwrap();
    let expected = format!(
        "vxlan, VNI {}, by {} to node1 (192.0.2.2), node2 (192.0.2.3)",
        vxlan(&cluster, 0).vni,
        link.name
    );
    assert_eq!(network.items[0].description, expected);
    assert!(network.ready, "{network:?}");
    // Deleting the last pod of a node deletes its bridge, its block and the entries of the other nodes.
    cluster.remove_pod(1, 2);
    assert!(tunnel(&cluster, 1).is_none());
    cluster.review(1);
    cluster.review(1);
    sync_all(&mut cluster);
    assert_eq!(flood(&cluster, 0), ["192.0.2.3"]);
    assert_eq!(cluster.nodes[0].replayed().persistent(), cluster.nodes[0].state.persistent());
}

#[test]
fn tunnel_ports_are_open_to_nodes_with_tunnels_only() {
    let mut cluster = overlay_cluster(3);
    let peers = |cluster: &BlockCluster| {
        let filter = cluster.nodes[0].kernel.filter(&Scope::Host);
        let elements = filter.elements.keys().filter(|key| key.set == "tunnel_peers4");
        elements.map(ToString::to_string).collect::<Vec<_>>()
    };
    let has_guard = |cluster: &BlockCluster| {
        let filter = cluster.nodes[0].kernel.filter(&Scope::Host);
        filter.tables.values().any(|table| table.chains.contains_key("tunnel_input"))
    };
    cluster.add_pod(0, 1);
    sync_all(&mut cluster);
    assert!(has_guard(&cluster) && peers(&cluster).is_empty(), "no other node has a tunnel yet");
    cluster.add_pod(1, 2);
    sync_all(&mut cluster);
    assert_eq!(peers(&cluster), ["inet knit @tunnel_peers4 { 192.0.2.2 }"]);
    cluster.add_pod(2, 3);
    sync_all(&mut cluster);
    assert_eq!(
        peers(&cluster),
        ["inet knit @tunnel_peers4 { 192.0.2.2/31 }"],
        "adjacent addresses are one range"
    );
    cluster.remove_pod(1, 2);
    cluster.review(1);
    cluster.review(1);
    sync_all(&mut cluster);
    assert_eq!(peers(&cluster), ["inet knit @tunnel_peers4 { 192.0.2.3 }"]);
}

#[test]
fn bridge_mac_is_the_same_on_all_nodes_and_mtu_fits_the_tunnel() {
    let mut cluster = overlay_cluster(2);
    cluster.add_pod(0, 1);
    cluster.add_pod(1, 2);
    sync_all(&mut cluster);
    let bridge = |node: usize| cluster.nodes[node].host_link("vn-blue").unwrap();
    assert_eq!(bridge(0).attrs.mac, bridge(1).attrs.mac);
    let link = tunnel(&cluster, 0).unwrap();
    assert_eq!(link.attrs.master, Some(Master::Link("vn-blue".parse().unwrap())));
    assert_ne!(link.attrs.mac, tunnel(&cluster, 1).unwrap().attrs.mac);
    assert_eq!((link.attrs.mtu, bridge(0).attrs.mtu), (Some(1450), Some(1450)));
    assert_eq!(cluster.nodes[0].link("p1", "net1").unwrap().attrs.mtu, Some(1450));
    // A changed underlay MTU updates everything.
    let mut jumbo = tunnels(0);
    jumbo.endpoints[0].mtu = 9_000;
    cluster.nodes[0].handle(Event::TunnelEndpoints(jumbo));
    assert_eq!(cluster.nodes[0].link("p1", "net1").unwrap().attrs.mtu, Some(8950));
    // A stated MTU is used, with a warning if it does not fit.
    cluster.update_underlay(0);
    let mut stated = overlay_network("shop", "blue", RANGE);
    let IntentSpec::Network(intent) = &mut stated.intents[0].spec else { unreachable!() };
    intent.mtu = Some(1500);
    cluster.nodes[0].handle(Event::ObjectApplied(stated));
    assert_eq!(cluster.nodes[0].link("p1", "net1").unwrap().attrs.mtu, Some(1500));
    let warnings = warnings_of(&cluster, 0, "VirtualNetwork", "blue");
    assert!(
        warnings.iter().any(|one| one.contains("1500 bytes do not fit") && one.contains("carry 1450")),
        "{warnings:?}"
    );
}

#[test]
fn network_without_overlay_deletes_its_tunnel() {
    let mut cluster = overlay_cluster(2);
    cluster.add_pod(0, 1);
    cluster.add_pod(1, 2);
    sync_all(&mut cluster);
    let link = tunnel(&cluster, 0).unwrap().name;
    let mut local = overlay_network("shop", "blue", RANGE);
    let IntentSpec::Network(intent) = &mut local.intents[0].spec else { unreachable!() };
    intent.overlay = None;
    cluster.nodes[0].handle(Event::ObjectApplied(local));
    assert!(cluster.nodes[0].host_link(link.as_str()).is_none());
    assert!(cluster.nodes[0].host_link("vn-blue").is_some());
    assert_eq!(cluster.nodes[0].link("p1", "net1").unwrap().attrs.mtu, Some(1500));
}

#[test]
fn restart_without_api_server_keeps_tunnels() {
    let mut cluster = overlay_cluster(2);
    cluster.add_pod(0, 1);
    cluster.add_pod(1, 2);
    sync_all(&mut cluster);
    let steps = cluster.nodes[0].applied_steps;
    cluster.restart(0, false);
    assert_eq!(cluster.nodes[0].applied_steps, steps, "the restart changed nothing");
    assert_eq!(flood(&cluster, 0), ["192.0.2.2"]);
    sync_all(&mut cluster);
    assert_eq!(cluster.nodes[0].applied_steps, steps, "the sync changed nothing");
}

#[test]
fn network_works_locally_before_node_addresses_are_known() {
    let mut cluster = overlay_cluster(1);
    cluster.add_pod(0, 1);
    cluster.settle();
    assert!(tunnel(&cluster, 0).is_none());
    let warnings = warnings_of(&cluster, 0, "VirtualNetwork", "blue");
    assert!(
        warnings[0].contains("addresses of nodes have not been synced from the API server"),
        "{warnings:?}"
    );
    cluster.update_underlay(0);
    assert!(tunnel(&cluster, 0).is_some());
    assert_eq!(warnings_of(&cluster, 0, "VirtualNetwork", "blue"), [""; 0]);
}

/// The same with another VNI and creation time.
fn with_vni(object: StoredObject, vni: u32, created: &str) -> StoredObject {
    let mut object = object;
    let IntentSpec::Network(intent) = &mut object.intents[0].spec else { unreachable!() };
    let span = intent.overlay.as_mut().unwrap();
    (span.vni, span.created) = (Some(vni), created.to_owned());
    object
}

#[test]
fn older_network_keeps_a_shared_vni_on_every_node() {
    let blue = with_vni(overlay_network("shop", "blue", RANGE), 42, "2026-01-02T00:00:00Z");
    let red = with_vni(overlay_network("shop", "red", "10.1.0.0/24"), 42, "2026-01-01T00:00:00Z");
    let (on_blue, on_red) =
        (interface_on_network("shop", "blue", "x", &[]), interface_on_network("shop", "red", "y", &[]));
    // Each node receives the objects in a different order.
    let mut cluster = BlockCluster::with_objects(2, &[]);
    let orders = [[&blue, &red, &on_blue, &on_red], [&on_red, &on_blue, &red, &blue]];
    for (node, order) in orders.into_iter().enumerate() {
        order.into_iter().for_each(|object| cluster.nodes[node].handle(Event::ObjectApplied(object.clone())));
        cluster.add_pod_labelled(node, 1 + node as u32, "x");
        cluster.add_pod_labelled(node, 11 + node as u32, "y");
    }
    sync_all(&mut cluster);
    for node in 0..2 {
        let problems = cluster.nodes[node].problems("blue");
        assert_eq!(
            problems,
            [
                "spec.transport: network blue is not connected to other nodes: VNI 42 is used by virtualnetwork/red in shop, which is older: choose another `vni`"
            ]
        );
        assert_eq!(cluster.nodes[node].problems("red"), [""; 0]);
        let bridge = Unit::Bridge(knit_engine::state::BridgeKey {
            namespace: "shop".to_owned(),
            name: "vn-red".parse().unwrap(),
        });
        assert!(cluster.nodes[node].state.units[&bridge].tunnel.is_some());
    }
    // Deleting the older network gives the VNI to the other.
    cluster.nodes[0].handle(Event::ObjectDeleted(red.key()));
    assert_eq!(cluster.nodes[0].problems("blue"), [""; 0]);
    // The cluster's own VNI is reserved.
    let taken = with_vni(overlay_network("shop", "blue", RANGE), 7_500, "2026-01-02T00:00:00Z");
    cluster.nodes[1].handle(Event::ObjectApplied(taken));
    let problems = cluster.nodes[1].problems("blue");
    assert!(problems[0].contains("VNI 7500 is used by the cluster network"), "{problems:?}");
}

#[test]
fn network_of_a_file_has_no_overlay() {
    let mut cluster = BlockCluster::with_objects(1, &[]);
    let mut own = overlay_network("shop", "blue", RANGE);
    own.intents[0].origin.dialect = knit_model::provenance::Dialect::File;
    cluster.nodes[0].handle(Event::ObjectApplied(own));
    cluster.nodes[0].handle(Event::ObjectApplied(interface_on_network("shop", "blue", "x", &[])));
    cluster.add_pod(0, 1);
    cluster.update_underlay(0);
    assert!(tunnel(&cluster, 0).is_none());
    assert_eq!(cluster.nodes[0].link("p1", "net1").unwrap().attrs.mtu, Some(1500));
}

#[test]
fn kernel_without_vxlan_keeps_the_network_local_and_reports_it() {
    let mut cluster = overlay_cluster(1);
    cluster.nodes[0].missing_kind = Some("vxlan");
    cluster.update_underlay(0);
    cluster.add_pod(0, 1);
    sync_all(&mut cluster);
    assert!(tunnel(&cluster, 0).is_none());
    assert!(cluster.nodes[0].link("p1", "net1").is_some(), "pods of one node reach each other");
    let problems = cluster.nodes[0].problems("blue");
    assert!(problems[0].ends_with("this kernel has no vxlan: CONFIG"), "{problems:?}");
}

#[test]
fn no_overlay_without_the_filter_that_isolates_gateways() {
    let mut cluster = overlay_cluster(1);
    cluster.add_pod(0, 1);
    sync_all(&mut cluster);
    assert!(tunnel(&cluster, 0).is_some());
    let elements = isolation(&cluster);
    let link = tunnel(&cluster, 0).unwrap().name;
    assert_eq!(elements["overlay_tunnels"], [link.to_string()]);
    let mac = cluster.nodes[0].host_link("vn-blue").unwrap().attrs.mac.unwrap();
    assert_eq!(elements["gateway_macs"], [format!("{link} . {mac}")]);
    assert_eq!(elements["gateway_addresses4"], [format!("{link} . 10.0.0.1")]);
    // The tables are gone and cannot be restored.
    cluster.nodes[0].kernel.flush_ruleset(&Scope::Host);
    cluster.nodes[0].failing_unit = Some(Unit::PacketFilter.to_string());
    cluster.nodes[0].handle(Event::Resync);
    assert!(tunnel(&cluster, 0).is_none());
    let problems = cluster.nodes[0].problems("blue");
    assert!(problems[0].ends_with("not connected to other nodes: injected failure"), "{problems:?}");
    assert!(cluster.nodes[0].link("p1", "net1").is_some(), "pods of one node reach each other");
    // As soon as they can be applied again, the tunnel is back.
    cluster.nodes[0].failing_unit = None;
    cluster.nodes[0].handle(Event::ResyncUnits([Unit::Sandbox(SandboxId("p1".to_owned()))].into()));
    assert_eq!(cluster.nodes[0].problems("blue"), [""; 0]);
    assert_eq!(tunnel(&cluster, 0).unwrap().name, link);
    assert_eq!(isolation(&cluster), elements);
    // The elements end with the tunnel.
    cluster.remove_pod(0, 1);
    assert!(isolation(&cluster).is_empty());
}

/// The elements that keep gateway addresses of the first node out of tunnels, by set.
fn isolation(cluster: &BlockCluster) -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let is_isolation = |set: &str| set.starts_with("gateway_") || set == "overlay_tunnels";
    for key in cluster.nodes[0].kernel.filter(&Scope::Host).elements.keys() {
        if is_isolation(&key.set) {
            let parts: Vec<String> = key.key.iter().map(ToString::to_string).collect();
            all.entry(key.set.clone()).or_default().push(parts.join(" . "));
        }
    }
    all
}

#[test]
fn filter_of_a_tunnel_precedes_it() {
    let mut cluster = overlay_cluster(1);
    cluster.add_pod(0, 1);
    sync_all(&mut cluster);
    let plans = cluster.nodes[0].journal.iter().filter_map(|record| match record {
        Record::ChangeStarted(started) => Some(&started.plan),
        _ => None,
    });
    let is_element = |step: &Step| matches!(step, Step::Filter(FilterStep::AddElement(key, _)) if key.set == "overlay_tunnels");
    let is_tunnel =
        |step: &Step| matches!(step, Step::CreateLink { link, .. } if matches!(link.kind, Kind::Vxlan(_)));
    let position = |plan: &Plan, is_it: &dyn Fn(&Step) -> bool| {
        plan.steps.iter().position(|planned| is_it(&planned.step))
    };
    let positions: Vec<_> =
        plans.filter_map(|plan| Some((position(plan, &is_tunnel)?, position(plan, &is_element)))).collect();
    let [(link, Some(element))] = positions[..] else { panic!("{positions:?}") };
    assert!(element < link);
}

/// Two nodes on a network where pods labelled `far` have a fixed address.
fn with_fixed(address: &str) -> BlockCluster {
    let fixed = interface_on_network("shop", "blue", "far", &[address]);
    BlockCluster::with_objects(
        2,
        &[overlay_network("shop", "blue", RANGE), interface_on_network("shop", "blue", "x", &[]), fixed],
    )
}

#[test]
fn several_fixed_addresses_are_claimed_in_order_and_kept_until_complete() {
    let both = interface_on_network("shop", "blue", "far", &["10.0.0.200/24", "10.0.0.201/24"]);
    let one = interface_on_network("shop", "blue", "near", &["10.0.0.201/24"]);
    let mut cluster = BlockCluster::with_objects(2, &[overlay_network("shop", "blue", RANGE), both, one]);
    cluster.add_pod_labelled(1, 1, "near");
    cluster.settle();
    cluster.add_pod_labelled(0, 2, "far");
    cluster.settle();
    assert_eq!(single_address_claims(&cluster), ["node0:10.0.0.200/32", "node1:10.0.0.201/32"]);
    cluster.remove_pod(1, 1);
    cluster.settle();
    assert_eq!(single_address_claims(&cluster), ["node0:10.0.0.200/32", "node0:10.0.0.201/32"]);
    assert_eq!(cluster.addresses(0).len(), 3);
}

#[test]
fn of_two_nodes_claiming_the_same_addresses_one_gets_all() {
    let far = interface_on_network("shop", "blue", "far", &["10.0.0.200/24", "10.0.0.201/24"]);
    let mut cluster = BlockCluster::with_objects(2, &[overlay_network("shop", "blue", RANGE), far]);
    for node in 0..2 {
        cluster.add_pod_labelled(node, 1 + node as u32, "far");
    }
    // First their blocks, then their claims, in an arbitrary order.
    for node in [0, 1, 0, 1, 1, 1, 1, 0] {
        cluster.process_request(node, true);
        cluster.deliver_watch_event(0);
        cluster.deliver_watch_event(1);
    }
    cluster.settle();
    let claims = single_address_claims(&cluster);
    assert!(claims.len() == 2 && claims[0][..5] == claims[1][..5], "{claims:?}");
}

fn single_address_claims(cluster: &BlockCluster) -> Vec<String> {
    let held = cluster.held_blocks().into_iter();
    held.filter(|block| block.ends_with("/32")).collect()
}

#[test]
fn fixed_address_moves_with_its_pod() {
    let mut cluster = with_fixed("10.0.0.200/24");
    cluster.add_pod_labelled(0, 1, "far");
    cluster.settle();
    assert_eq!(single_address_claims(&cluster), ["node0:10.0.0.200/32"]);
    let has = |cluster: &BlockCluster, node: usize| {
        cluster.addresses(node).contains(&IpAddr::from([10, 0, 0, 200]))
    };
    assert!(has(&cluster, 0));
    // The pod starts on the other node before it is deleted on this one.
    cluster.add_pod_labelled(1, 2, "far");
    cluster.settle();
    assert!(!has(&cluster, 1));
    assert_eq!(
        cluster.nodes[1].problems("far"),
        [
            "spec.entries[0]: network shop/network/blue: 10.0.0.200 waits for podaddressblock/shop.network.blue.10.0.0.0-24-ac8, which node node0 holds until its pod there is gone"
        ]
    );
    cluster.remove_pod(0, 1);
    assert_eq!(cluster.nodes[0].block_requests.len(), 1, "a single-address claim is released at once");
    cluster.settle();
    assert!(has(&cluster, 1) && !has(&cluster, 0));
    assert_eq!(single_address_claims(&cluster), ["node1:10.0.0.200/32"]);
    assert_eq!(cluster.nodes[1].problems("far"), [""; 0]);
    let interface = &cluster.nodes[1].state.units[&Unit::Sandbox(SandboxId("p2".to_owned()))].interfaces[0].1;
    assert!(interface.addresses.contains(&"10.0.0.200/24".parse().unwrap()), "{interface:?}");
}

#[test]
fn next_pod_of_the_node_gets_the_address_after_deletion() {
    let mut cluster = with_fixed("10.0.0.200/24");
    cluster.add_pod_labelled(0, 1, "far");
    cluster.settle();
    cluster.add_pod_labelled(0, 2, "far");
    cluster.settle();
    assert!(cluster.nodes[0].problems("far")[0].contains("is in use by interface net1 of pod shop/p1"));
    cluster.remove_pod(0, 1);
    cluster.settle();
    assert_eq!(cluster.nodes[0].problems("far"), [""; 0]);
    assert_eq!(single_address_claims(&cluster), ["node0:10.0.0.200/32"]);
}

#[test]
fn fixed_addresses_are_in_the_last_quarter_of_a_subnet_only() {
    let mut cluster = with_fixed("10.0.0.50/24");
    cluster.add_pod_labelled(0, 1, "far");
    cluster.settle();
    let problems = cluster.nodes[0].problems("far");
    assert!(problems[0].ends_with("use the last quarter of a subnet (10.0.0.192/26)"), "{problems:?}");
    for pod in 2..260 {
        cluster.add_pod(0, pod);
    }
    cluster.settle();
    let given = cluster.addresses(0);
    // Without the network address, the bridge address, and the fixed address.
    assert_eq!(given.len(), 192 - 3);
    assert!(given.iter().all(|address| *address < IpAddr::from([10, 0, 0, 192])), "{given:?}");
    assert!(cluster.nodes[0].problems("x")[0].contains("is exhausted"));
}

/// An operation on a node or on the API server.
#[derive(Clone, Debug)]
enum Operation {
    Add(usize, u32, bool),
    Remove(usize, u32),
    DeliverWatchEvent(usize),
    ProcessRequest(usize),
    Review(usize),
    List(usize),
    Restart(usize, bool),
    SetUnavailable(bool),
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let (node, pod) = (|| 0..2_usize, || 0..6_u32);
    let operation = prop_oneof![
        4 => (node(), pod(), any::<bool>()).prop_map(|(node, pod, fixed)| Operation::Add(node, pod, fixed)),
        3 => (node(), pod()).prop_map(|(node, pod)| Operation::Remove(node, pod)),
        4 => node().prop_map(Operation::DeliverWatchEvent),
        5 => node().prop_map(Operation::ProcessRequest),
        2 => node().prop_map(Operation::Review),
        1 => node().prop_map(Operation::List),
        1 => (node(), any::<bool>()).prop_map(|(node, sent)| Operation::Restart(node, sent)),
        1 => any::<bool>().prop_map(Operation::SetUnavailable),
    ];
    prop::collection::vec(operation, 1..120)
}

proptest! {
    #![proptest_config(cases(40))]

    #[test]
    fn no_interleaving_allocates_a_fixed_address_twice(
        operations in operations(),
        (range, fixed) in prop::sample::select(vec![
            ("10.0.0.0/24", ["10.0.0.200/24", "10.0.0.201/24"]),
            ("10.0.0.0/28", ["10.0.0.13/28", "10.0.0.14/28"]),
            ("fd00::/64", ["fd00::f000:0:0:7/64", "fd00::f000:0:0:9/64"]),
        ]),
    ) {
        let objects = [
            overlay_network("shop", "blue", range),
            interface_on_network("shop", "blue", "x", &[]),
            interface_on_network("shop", "blue", "far", &fixed),
        ];
        let mut cluster = BlockCluster::with_objects(2, &objects);
        for operation in operations {
            match operation.clone() {
                Operation::Add(node, pod, fixed) => {
                    cluster.add_pod_labelled(node, pod * 2 + node as u32, if fixed { "far" } else { "x" });
                }
                Operation::Remove(node, pod) => cluster.remove_pod(node, pod * 2 + node as u32),
                Operation::DeliverWatchEvent(node) => cluster.deliver_watch_event(node),
                Operation::ProcessRequest(node) => cluster.process_request(node, true),
                Operation::Review(node) => cluster.review(node),
                Operation::List(node) if !cluster.api.unavailable => cluster.restart_watch(node),
                Operation::List(_) => {}
                Operation::Restart(node, sent) => cluster.restart(node, sent),
                Operation::SetUnavailable(unavailable) => cluster.api.unavailable = unavailable,
            }
            prop_assert_eq!(cluster.duplicate_addresses(), BTreeSet::new(), "after {:?}", operation);
        }
        cluster.api.unavailable = false;
        for node in 0..2 {
            cluster.list(node);
        }
        cluster.settle();
        prop_assert_eq!(cluster.duplicate_addresses(), BTreeSet::new());
        for node in 0..2 {
            let names: Vec<u32> = cluster.nodes[node].state.sandboxes.values().map(|pod| pod.number).collect();
            names.into_iter().for_each(|pod| cluster.remove_pod(node, pod));
            cluster.review(node);
            cluster.review(node);
        }
        cluster.settle();
        prop_assert_eq!(cluster.held_blocks(), Vec::<String>::new());
    }
}
