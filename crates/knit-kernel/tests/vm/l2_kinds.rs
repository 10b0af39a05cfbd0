//! VLAN, ipvlan, VRF, dummy, macvtap and bond: created in running sandboxes, compared with `ip`, changed field by field, used,
//! failed at every step, and removed without a trace.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::time::Duration;

use knit_model::link::{
    Bond, BondMode, IpvlanFlag, IpvlanMode, Kind, Link, LinkKind, Macvtap, MacvtapMode, Master, Veth,
    VethPeer, Vlan, VlanProtocol, XmitHashPolicy,
};
use knit_model::{Mac, NetState, Plan, Scope};
use knit_testbed::eventually;
use serde_json::{Value, json};

use crate::support::edits::{COMMON, Edit, change_each, flush_neighbours};
use crate::support::faults::{roll_back_every_fault, survive_every_fault_fast};
use crate::support::l2::{add, add_red, dummy, edit, ipvlan, vlan};
use crate::support::node::{TestNode, sandbox};
use crate::support::states::{add_bridge, add_veth, name};

/// Common changes, for kinds without ARP and multicast by default.
fn common_of_noarp_kinds() -> Vec<Edit> {
    let needs_arp = |field: &str| matches!(field, "arp" | "multicast");
    let mut edits: Vec<Edit> = COMMON.iter().copied().filter(|(field, _)| !needs_arp(field)).collect();
    edits.push(("multicast", |link| link.attrs.multicast = Some(true)));
    edits.push(("arp", |link| link.attrs.arp = Some(true)));
    edits.push(("arp", |link| link.attrs.arp = Some(false)));
    edits
}

/// A link as `ip -d -j link` shows it.
fn shown(node: &TestNode, sandbox: usize, link: &str) -> Value {
    let text = node.sandboxes[sandbox].ip(&["-d", "-j", "link", "show", "dev", link]);
    let all: Value = serde_json::from_str(&text).unwrap();
    all[0].clone()
}

/// Creates and removes a state, with a fault at every step of both.
fn survive_creation_and_removal(node: &TestNode, state: &NetState) {
    survive_every_fault_fast(node, &node.plan(state));
    node.converge(state);
    survive_every_fault_fast(node, &node.plan(&NetState::default()));
}

/// Changes a state, with a fault at every step. Returns the plan.
fn survive_change(node: &TestNode, state: &NetState) -> Plan {
    let plan = node.plan(state);
    survive_every_fault_fast(node, &plan);
    node.converge(state)
}

fn remove_all(node: &TestNode, before: &[(String, knit_testbed::Dump)]) {
    node.converge(&NetState::default());
    node.assert_unchanged(before, "after removal");
}

fn vlan_fields(link: &mut Link) -> &mut Vlan {
    let Kind::Vlan(vlan) = &mut link.kind else { panic!("not a vlan") };
    vlan
}

#[test]
fn dummy_holds_an_address() {
    let node = TestNode::new("dummy", &["a"]);
    let before = node.dumps();
    let mut state = NetState::default();
    add(&mut state, "a", "dm0", dummy(), &["10.9.0.1/32", "fd09::1/128"]);
    survive_creation_and_removal(&node, &state);
    assert_eq!(shown(&node, 0, "dm0")["linkinfo"]["info_kind"], "dummy");
    change_each(&node, &mut state, &sandbox("a"), "dm0", &common_of_noarp_kinds());
    for address in ["10.9.0.1", "fd09::1"] {
        node.sandboxes[0].ping(address).unwrap();
    }
    remove_all(&node, &before);
}

#[test]
fn vlan_on_a_veth_pair_over_a_trunk() {
    // Two pods with the same VLAN on a bridge that passes tags, and a third one without the VLAN.
    let node = TestNode::new("vlan", &["a", "b", "c"]);
    let before = node.dumps();
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    for (id, number) in [("a", 2), ("b", 3), ("c", 4)] {
        add_veth(&mut state, id, "br0", &[&format!("10.50.0.{number}/24")]);
        if id != "c" {
            let addresses = [format!("10.51.0.{number}/24"), format!("fd51::{number}/64")];
            let addresses = addresses.each_ref().map(String::as_str);
            add(&mut state, id, "vl100", vlan("net1", 100, VlanProtocol::Dot1q), &addresses);
        }
    }
    node.converge(&state);
    let reach = || {
        flush_neighbours(&node);
        node.sandboxes[0].ping("10.51.0.3").unwrap();
        node.sandboxes[1].ping("fd51::2").unwrap();
        node.sandboxes[0].ping("10.50.0.4").unwrap();
    };
    reach();
    change_each(&node, &mut state, &sandbox("a"), "vl100", COMMON);
    let own: &[Edit] = &[
        ("gvrp", |link| vlan_fields(link).gvrp = Some(true)),
        ("mvrp", |link| vlan_fields(link).mvrp = Some(true)),
        ("loose_binding", |link| vlan_fields(link).loose_binding = Some(true)),
        ("reorder_header", |link| vlan_fields(link).reorder_header = Some(false)),
        ("ingress_qos", |link| vlan_fields(link).ingress_qos = Some(vec![(1, 6), (7, 2)])),
        ("egress_qos", |link| vlan_fields(link).egress_qos = Some(vec![(2, 7), (65_536, 1)])),
    ];
    change_each(&node, &mut state, &sandbox("a"), "vl100", own);
    let info = &shown(&node, 0, "vl100")["linkinfo"];
    assert_eq!(info["info_kind"], "vlan");
    let data = &info["info_data"];
    assert_eq!((&data["id"], &data["protocol"]), (&json!(100), &json!("802.1Q")));
    assert_eq!(data["flags"], json!(["GVRP", "MVRP", "LOOSE_BINDING"]));
    assert_eq!(data["ingress_qos"], json!([{ "from": 1, "to": 6 }, { "from": 7, "to": 2 }]));
    // And back, in place.
    let back: &[Edit] = &[
        ("egress_qos", |link| vlan_fields(link).egress_qos = Some(vec![(2, 3)])),
        ("ingress_qos", |link| vlan_fields(link).ingress_qos = Some(Vec::new())),
        ("reorder_header", |link| vlan_fields(link).reorder_header = Some(true)),
        ("gvrp", |link| vlan_fields(link).gvrp = Some(false)),
    ];
    change_each(&node, &mut state, &sandbox("a"), "vl100", back);
    reach();

    // Another id is another VLAN: the link is recreated, and no longer reaches the other pod.
    vlan_fields(edit(&mut state, &sandbox("a"), "vl100")).id = 101;
    let text = node.converge(&state).to_string();
    assert!(
        text.contains("recreated: the kernel cannot make this change of `id` on an existing vlan"),
        "{text}"
    );
    flush_neighbours(&node);
    assert!(node.sandboxes[0].ping("10.51.0.3").is_err());
    remove_all(&node, &before);
}

#[test]
fn stacked_vlans_survive_faults_and_mtu_changes_of_parents() {
    let node = TestNode::new("qinq", &["a", "b"]);
    let before = node.dumps();
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    for (id, number) in [("a", 2), ("b", 3)] {
        add_veth(&mut state, id, "br0", &[]);
        add(&mut state, id, "outer", vlan("net1", 7, VlanProtocol::Dot1ad), &[]);
        add(
            &mut state,
            id,
            "inner",
            vlan("outer", 8, VlanProtocol::Dot1q),
            &[&format!("10.52.0.{number}/24")],
        );
    }
    survive_creation_and_removal(&node, &state);
    assert_eq!(shown(&node, 0, "outer")["linkinfo"]["info_data"]["protocol"], "802.1ad");
    node.sandboxes[0].ping("10.52.0.3").unwrap();

    // All three grow together, the lowest first; then they shrink together, the highest first.
    for mtu in [9000, 1400] {
        for link in ["net1", "outer", "inner"] {
            edit(&mut state, &sandbox("a"), link).attrs.mtu = Some(mtu);
        }
        edit(&mut state, &Scope::Host, "ha").attrs.mtu = Some(mtu);
        survive_change(&node, &state);
        assert_eq!(shown(&node, 0, "inner")["mtu"], json!(mtu));
    }
    remove_all(&node, &before);
}

#[test]
fn ipvlan_in_every_mode() {
    // Three pods: two with an ipvlan each on a link of the host, the third behind the bridge.
    let node = TestNode::new("ipvlan", &["a", "b", "c"]);
    let before = node.dumps();
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_veth(&mut state, "c", "br0", &["10.53.0.9/24"]);
    // The parent is one end of a veth pair on the host, whose other end is a port of the bridge.
    let pair = |scope: &str, peer: &str| {
        let peer = knit_model::link::VethPeer { scope: Scope::Host, name: name(peer) };
        crate::support::states::link(
            &Scope::Host,
            scope,
            Kind::Veth(knit_model::link::Veth { peer: Some(peer) }),
        )
    };
    let mut up0 = pair("up0", "up1");
    let mut up1 = Link { owner: up0.owner.clone(), ..pair("up1", "up0") };
    up0.attrs.mac = Some(Mac::derived("up0"));
    up1.attrs.mac = Some(Mac::derived("up1"));
    up1.attrs.master = Some(Master::Link(name("br0")));
    let host = state.scope(&Scope::Host);
    host.add_link(up0);
    host.add_link(up1);
    for (id, number) in [("a", 2), ("b", 3)] {
        let addresses = [format!("10.53.0.{number}/24"), format!("fd53::{number}/64")];
        add(&mut state, id, "iv0", ipvlan("up0", IpvlanMode::L2), &addresses.each_ref().map(String::as_str));
        edit(&mut state, &sandbox(id), "iv0").parent_scope = Some(Scope::Host);
    }
    survive_creation_and_removal(&node, &state);
    let reach = |far: bool| {
        flush_neighbours(&node);
        node.sandboxes[0].ping("10.53.0.3").unwrap();
        if far {
            node.sandboxes[0].ping("10.53.0.9").unwrap();
        }
    };
    reach(true);
    node.sandboxes[1].ping("fd53::2").unwrap();
    let common: Vec<Edit> = COMMON.iter().copied().filter(|(field, _)| *field != "mac").collect();
    change_each(&node, &mut state, &sandbox("a"), "iv0", &common);
    edit(&mut state, &sandbox("a"), "iv0").attrs.arp = None;

    // All ipvlans of a parent share mode and flag, so both are changed.
    for (mode, word) in [(IpvlanMode::L3, "l3"), (IpvlanMode::L3s, "l3s"), (IpvlanMode::L2, "l2")] {
        for id in ["a", "b"] {
            let Kind::Ipvlan(ipvlan) = &mut edit(&mut state, &sandbox(id), "iv0").kind else { panic!() };
            ipvlan.mode = Some(mode);
        }
        node.converge(&state);
        let data = shown(&node, 1, "iv0")["linkinfo"]["info_data"].clone();
        assert_eq!((&data["mode"], &data["bridge"]), (&json!(word), &json!(true)), "{data}");
        reach(mode == IpvlanMode::L2);
    }
    for (flag, word) in [(IpvlanFlag::Private, "private"), (IpvlanFlag::Vepa, "vepa")] {
        for id in ["a", "b"] {
            let Kind::Ipvlan(ipvlan) = &mut edit(&mut state, &sandbox(id), "iv0").kind else { panic!() };
            ipvlan.flag = Some(flag);
        }
        let plan = node.converge(&state);
        assert_eq!(plan.steps.len(), 2, "{plan}");
        let data = shown(&node, 1, "iv0")["linkinfo"]["info_data"].clone();
        assert_eq!(data[word], json!(true), "{data}");
        flush_neighbours(&node);
        assert!(node.sandboxes[0].ping("10.53.0.3").is_err());
        node.sandboxes[0].ping("10.53.0.9").unwrap();
    }
    // The MTU of the parent changes theirs, up and down.
    for mtu in [9000, 1300] {
        edit(&mut state, &Scope::Host, "up0").attrs.mtu = Some(mtu);
        edit(&mut state, &sandbox("a"), "iv0").attrs.mtu = Some(mtu.min(1400));
        survive_change(&node, &state);
        assert_eq!(shown(&node, 0, "iv0")["mtu"], json!(mtu.min(1400)));
    }
    remove_all(&node, &before);
}

#[test]
fn a_vrf_isolates_its_ports() {
    let node = TestNode::new("vrf", &["a", "b"]);
    let before = node.dumps();
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.54.0.1/24");
    add_red(&mut state, "a", "br0", &["10.54.0.2/24", "fd54::2/64"], "10.54.0.3");
    add_veth(&mut state, "b", "br0", &["10.54.0.3/24", "fd54::3/64", "10.77.0.1/32"]);
    survive_creation_and_removal(&node, &state);

    let info = shown(&node, 0, "red");
    assert_eq!(
        (&info["linkinfo"]["info_kind"], &info["linkinfo"]["info_data"]["table"]),
        (&json!("vrf"), &json!(1010))
    );
    assert_eq!(shown(&node, 0, "net1")["master"], "red");
    let pod = &node.sandboxes[0];
    let inside = |to: &str| pod.output("ping", &["-c1", "-i0.2", "-w5", "-I", "red", to]);
    for to in ["10.54.0.3", "fd54::3", "10.77.0.1"] {
        inside(to).unwrap();
    }
    // Outside of the VRF there is no route.
    assert!(pod.ping("10.54.0.3").is_err());
    change_each(&node, &mut state, &sandbox("a"), "red", &common_of_noarp_kinds());

    // A port leaves and rejoins in place, with its addresses and routes.
    let (inside_state, mut outside) = (state.clone(), state.clone());
    edit(&mut outside, &sandbox("a"), "net1").attrs.master = Some(Master::None);
    let route = outside.scope(&sandbox("a")).routes.keys().find(|key| key.metric == 0).unwrap().clone();
    outside.scope(&sandbox("a")).routes.remove(&route);
    let text = survive_change(&node, &outside).to_string();
    assert!(!text.contains("veth net1 "), "{text}");
    flush_neighbours(&node);
    pod.ping("10.54.0.3").unwrap();
    pod.ping("fd54::3").unwrap();
    survive_change(&node, &inside_state);
    inside("fd54::3").unwrap();

    // Another table recreates the VRF; its port stays.
    let mut other = inside_state;
    let Kind::Vrf(vrf) = &mut edit(&mut other, &sandbox("a"), "red").kind else { panic!() };
    vrf.table = 1011;
    let here = other.scope(&sandbox("a"));
    here.routes = std::mem::take(&mut here.routes)
        .into_values()
        .map(|route| knit_model::Route { table: 1011, ..route })
        .map(|route| (route.key(), route))
        .collect();
    let text = survive_change(&node, &other).to_string();
    assert!(
        text.contains("recreated: the kernel cannot make this change of `table` on an existing vrf"),
        "{text}"
    );
    inside("10.77.0.1").unwrap();
    remove_all(&node, &before);
}

fn macvtap_fields(link: &mut Link) -> &mut Macvtap {
    let Kind::Macvtap(macvtap) = &mut link.kind else { panic!("not a macvtap") };
    macvtap
}

/// The header that precedes each frame of a macvtap's character device (`struct virtio_net_hdr`).
const VNET_HEADER: usize = 10;

/// Opens the character device of the macvtap `mt0`, and checks that it is the kernel's.
fn open_tap(node: &TestNode) -> File {
    let show = "mount -t sysfs sysfs /sys && cat /sys/class/net/mt0/tap*/dev";
    let numbers = node.sandboxes[0].output("unshare", &["-m", "sh", "-c", show]).unwrap();
    let path = format!("/dev/tap{}", shown(node, 0, "mt0")["ifindex"]);
    let metadata = std::fs::metadata(&path).unwrap();
    assert!(metadata.file_type().is_char_device(), "{path}");
    let (major, minor) = (libc::major(metadata.rdev()), libc::minor(metadata.rdev()));
    assert_eq!(numbers.trim(), format!("{major}:{minor}"), "{path}");
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path).unwrap()
}

/// The next ARP request for this address.
fn arp_request(tap: &mut File, address: [u8; 4]) -> Vec<u8> {
    let mut found = None;
    eventually("an ARP request arrives at the tap", Duration::from_secs(20), || {
        let mut frame = [0; 2048];
        match tap.read(&mut frame) {
            Ok(length) => {
                let frame = frame[VNET_HEADER..length].to_vec();
                let is_request = frame.len() >= 42 && frame[12..14] == [8, 6] && frame[20..22] == [0, 1];
                found = Some(frame).filter(|frame| is_request && frame[38..42] == address);
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn a_macvtap_exchanges_frames_through_its_character_device() {
    let node = TestNode::new("macvtap", &["a", "b"]);
    let before = node.dumps();
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.55.0.1/24");
    add_veth(&mut state, "a", "br0", &[]);
    add_veth(&mut state, "b", "br0", &["10.55.0.3/24"]);
    let kind = Macvtap { parent: Some(name("net1")), mode: Some(MacvtapMode::Bridge), ..Macvtap::default() };
    add(&mut state, "a", "mt0", Kind::Macvtap(kind.with_defaults()), &[]);
    survive_creation_and_removal(&node, &state);
    let info = shown(&node, 0, "mt0");
    assert_eq!((&info["linkinfo"]["info_kind"], &info["link"]), (&json!("macvtap"), &json!("net1")));
    assert_eq!(info["linkinfo"]["info_data"]["mode"], "bridge");

    change_each(&node, &mut state, &sandbox("a"), "mt0", COMMON);
    let own: &[Edit] = &[
        ("mode", |link| macvtap_fields(link).mode = Some(MacvtapMode::Private)),
        ("mode", |link| macvtap_fields(link).mode = Some(MacvtapMode::Vepa)),
        ("mode", |link| macvtap_fields(link).mode = Some(MacvtapMode::Source)),
        ("sources", |link| macvtap_fields(link).sources = Some(vec![Mac::derived("b/net1")])),
    ];
    change_each(&node, &mut state, &sandbox("a"), "mt0", own);

    // The test is the program behind the tap: it answers for an address. In this mode only frames of `b` arrive.
    let mac = edit(&mut state, &sandbox("a"), "mt0").attrs.mac.unwrap();
    let mut tap = open_tap(&node);
    let address = [10, 55, 0, 9];
    let asks = || drop(node.sandboxes[1].output("ping", &["-c1", "-w1", "10.55.0.9"]));
    std::thread::scope(|scope| {
        scope.spawn(asks);
        let request = arp_request(&mut tap, address);
        assert_eq!(request[6..12], Mac::derived("b/net1").bytes());
        let mut reply = vec![0; VNET_HEADER];
        reply.extend_from_slice(&request[6..12]);
        reply.extend_from_slice(&mac.bytes());
        reply.extend_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
        reply.extend_from_slice(&mac.bytes());
        reply.extend_from_slice(&address);
        reply.extend_from_slice(&request[22..32]);
        assert_eq!(tap.write(&reply).unwrap(), reply.len());
    });
    let learnt = || node.sandboxes[1].ip(&["neigh", "show", "10.55.0.9"]);
    eventually("the answer arrives", Duration::from_secs(20), || learnt().contains(&mac.to_string()));
    drop(tap);

    let back: &[Edit] = &[
        ("sources", |link| macvtap_fields(link).sources = Some(Vec::new())),
        ("mode", |link| macvtap_fields(link).mode = Some(MacvtapMode::Bridge)),
    ];
    change_each(&node, &mut state, &sandbox("a"), "mt0", back);
    let link = edit(&mut state, &sandbox("a"), "mt0");
    macvtap_fields(link).mode = Some(MacvtapMode::Passthru);
    link.attrs.mac = None;
    // Recreated, the link has a link-local address of its last hardware address, not of its first.
    roll_back_every_fault(&node, &node.plan(&state));
    let text = node.converge(&state).to_string();
    assert!(text.contains("recreated: the kernel cannot make this change of `mode`"), "{text}");
    assert_eq!(shown(&node, 0, "mt0")["address"], shown(&node, 0, "net1")["address"]);
    remove_all(&node, &before);
}

fn bond_fields(link: &mut Link) -> &mut Bond {
    let Kind::Bond(bond) = &mut link.kind else { panic!("not a bond") };
    bond
}

/// Adds a veth pair whose end in the sandbox `a` is a member of `bond0`, and whose other end is a port of `br0`.
fn add_member(state: &mut NetState, member: &str) {
    let (scope, outside) = (sandbox("a"), format!("h{member}"));
    let end = |scope: &Scope, peer: (&Scope, &str), own: &str, master: &str| {
        let peer = VethPeer { scope: peer.0.clone(), name: name(peer.1) };
        let kind = Kind::Veth(Veth { peer: Some(peer) });
        let mut end = crate::support::states::link(scope, own, kind);
        end.attrs.master = Some(Master::Link(name(master)));
        end
    };
    let near = end(&scope, (&Scope::Host, &outside), member, "bond0");
    let mut far = end(&Scope::Host, (&scope, member), &outside, "br0");
    far.owner.clone_from(&near.owner);
    state.scope(&scope).add_link(near);
    state.scope(&Scope::Host).add_link(far);
}

#[test]
fn a_bond_survives_the_failure_of_a_member() {
    let node = TestNode::new("bond", &["a", "b"]);
    let before = node.dumps();
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.56.0.1/24");
    add_veth(&mut state, "b", "br0", &["10.56.0.3/24", "fd56::3/64"]);
    let kind = Bond { mode: Some(BondMode::ActiveBackup), miimon: Some(100), ..Bond::default() };
    add(&mut state, "a", "bond0", Kind::Bond(kind.with_defaults()), &["10.56.0.2/24", "fd56::2/64"]);
    add_member(&mut state, "m1");
    add_member(&mut state, "m2");
    survive_every_fault_fast(&node, &node.plan(&state));
    node.converge(&state);
    roll_back_every_fault(&node, &node.plan(&NetState::default()));

    let info = &shown(&node, 0, "bond0")["linkinfo"];
    assert_eq!((&info["info_kind"], &info["info_data"]["mode"]), (&json!("bond"), &json!("active-backup")));
    for member in ["m1", "m2"] {
        assert_eq!(shown(&node, 0, member)["master"], "bond0");
    }
    let pod = &node.sandboxes[0];
    let reach = || {
        flush_neighbours(&node);
        ["10.56.0.3", "fd56::3"].iter().all(|address| pod.ping(address).is_ok())
    };
    let active = || shown(&node, 0, "bond0")["linkinfo"]["info_data"]["active_slave"].clone();
    eventually("the bond works", Duration::from_secs(20), reach);
    // Each member fails in turn: the other one takes over.
    for (failing, other) in [("m1", "m2"), ("m2", "m1")] {
        node.host.ip(&["link", "set", &format!("h{failing}"), "down"]);
        eventually("the other member is active", Duration::from_secs(20), || active() == json!(other));
        eventually("the bond works", Duration::from_secs(20), reach);
        node.host.ip(&["link", "set", &format!("h{failing}"), "up"]);
        let carrier = || shown(&node, 0, failing)["linkinfo"]["info_slave_data"]["mii_status"] == json!("UP");
        eventually("the member is back", Duration::from_secs(20), carrier);
    }

    change_each(&node, &mut state, &sandbox("a"), "bond0", COMMON);
    assert_eq!(shown(&node, 0, "m1")["mtu"], json!(1280));
    let own: &[Edit] = &[
        ("updelay", |link| bond_fields(link).updelay = Some(200)),
        ("downdelay", |link| bond_fields(link).downdelay = Some(100)),
        ("miimon", |link| bond_fields(link).miimon = Some(50)),
        ("xmit_hash_policy", |link| bond_fields(link).xmit_hash_policy = Some(XmitHashPolicy::Layer34)),
        ("min_links", |link| bond_fields(link).min_links = Some(1)),
    ];
    change_each(&node, &mut state, &sandbox("a"), "bond0", own);
    eventually("the bond works", Duration::from_secs(20), reach);

    // Another mode recreates the bond, and its members with it.
    bond_fields(edit(&mut state, &sandbox("a"), "bond0")).mode = Some(BondMode::BalanceXor);
    roll_back_every_fault(&node, &node.plan(&state));
    let text = node.converge(&state).to_string();
    assert!(text.contains("recreated: the kernel cannot make this change of `mode`"), "{text}");
    assert!(text.contains("recreated: a port joins or leaves bond0 only when it is created"), "{text}");
    eventually("the bond works", Duration::from_secs(20), reach);

    // A member leaves, and is an interface with its own hardware address again.
    let own_mac = Mac::derived("a/m2");
    let member = edit(&mut state, &sandbox("a"), "m2");
    (member.attrs.master, member.attrs.mac) = (Some(Master::None), Some(own_mac));
    node.converge(&state);
    let member = shown(&node, 0, "m2");
    assert_eq!((&member["master"], &member["address"]), (&Value::Null, &json!(own_mac.to_string())));
    eventually("the bond works", Duration::from_secs(20), reach);
    remove_all(&node, &before);
}
