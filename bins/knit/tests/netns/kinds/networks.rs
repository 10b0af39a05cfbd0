//! Bridge, VirtualNetwork.

use super::{assert_configured, ifindex, object};
use crate::support::machine::{Machine, addresses, assert_all_reach, has_link, link};

#[test]
fn bridge() {
    let machine = Machine::new("bridge");
    let a = machine.pod("a", 180);
    let before = machine.snapshot(&[&a]);
    machine.add("a", &a, &["podnetwork.opdev.io/veth=net"]);
    let base = "name: lab0, cidr: '10.4.0.0/24,fd00:4::/64'";
    assert_configured(&machine, "Bridge", "lab", base);
    assert_eq!(addresses(&machine.host, "lab0"), ["10.4.0.1/24", "fd00:4::1/64"]);
    let born = ifindex(&machine.host, "lab0");
    machine
        .apply(&object("Veth", "net", "interfaceName: net1, master: lab0, cidr: '10.4.0.0/24,fd00:4::/64'"))
        .ok();
    a.ping("10.4.0.1").unwrap();
    a.ping("fd00:4::1").unwrap();

    let mut spec = base.to_owned();
    for (field, path, value) in [
        ("mtu: 1400", "/mtu", 1400.into()),
        ("address: '02:00:00:00:00:44'", "/address", "02:00:00:00:00:44".into()),
        ("txqueuelen: 300", "/txqlen", 300.into()),
        ("alias: the lab", "/ifalias", "the lab".into()),
        ("promisc: true", "/promiscuity", 1.into()),
        ("forwardDelay: 4", "/linkinfo/info_data/forward_delay", 400.into()),
        ("ageing: 60", "/linkinfo/info_data/ageing_time", 6000.into()),
        ("priority: 4096", "/linkinfo/info_data/priority", 4096.into()),
        ("multicastSnooping: false", "/linkinfo/info_data/mcast_snooping", 0.into()),
        ("stp: true", "/linkinfo/info_data/stp_state", 1.into()),
    ] {
        spec = format!("{spec}, {field}");
        assert_configured(&machine, "Bridge", "lab", &spec);
        let shown = link(&machine.host, "lab0");
        assert_eq!(shown.pointer(path), Some(&value), "{field}: {shown}");
    }
    assert_configured(&machine, "Bridge", "lab", base);
    assert_eq!(ifindex(&machine.host, "lab0"), born);
    a.ping("10.4.0.1").unwrap();
    let printed = machine.apply(&object("Bridge", "lab", "name: other0")).error();
    assert!(printed.contains("spec.name: name is immutable"), "{printed}");

    // It is kept while an interface uses it, with the range of the interface.
    machine.knit(&["delete", "bridge", "lab"]).ok();
    a.ping("10.4.0.1").unwrap();
    machine.knit(&["delete", "veth", "net"]).ok();
    before.assert_unchanged();
}

#[test]
fn a_bridge_with_foreign_ports_is_kept_with_a_reason() {
    let machine = Machine::new("inuse");
    let before = machine.snapshot(&[]);
    assert_configured(&machine, "Bridge", "lab", "name: lab0, cidr: 10.4.0.0/24");
    machine.host.ip(&["link", "add", "theirs", "type", "veth", "peer", "name", "theirs2"]);
    machine.host.enslave("theirs", "lab0");
    machine.knit(&["delete", "bridge", "lab"]);
    assert!(has_link(&machine.host, "lab0"), "someone else's port is on it");
    assert_eq!(machine.knit(&["status"]).code, Some(1));
    machine.host.ip(&["link", "del", "theirs"]);
    // The next change removes it.
    machine.apply(&object("Bridge", "lab2", "name: lab1")).ok();
    machine.knit(&["delete", "bridge", "lab2"]).ok();
    before.assert_unchanged();
    machine.assert_no_drift();
}

#[test]
fn virtual_network_by_its_name() {
    let machine = Machine::new("vnet");
    let (a, b) = (machine.pod("a", 180), machine.pod("b", 181));
    let before = machine.snapshot(&[&a, &b]);
    machine.add("a", &a, &["podnetwork.opdev.io/veth=net"]);
    machine.add("b", &b, &["podnetwork.opdev.io/veth=net"]);
    // An interface may be applied before its network; its status names the network that it waits for.
    let printed = machine.apply(&object("Veth", "net", "interfaceName: net1, network: blue")).error();
    assert!(printed.contains("there is no VirtualNetwork blue in namespace default"), "{printed}");
    let base = "subnets: [10.20.0.0/16, 'fd00:20::/64']";
    machine.apply(&object("VirtualNetwork", "blue", base)).ok();
    machine.assert_no_drift();
    assert_eq!(addresses(&a, "net1"), ["10.20.0.2/16", "fd00:20::2/64"]);
    assert_eq!(addresses(&machine.host, "vn-blue"), ["10.20.0.1/16", "fd00:20::1/64"]);
    assert_all_reach(&[(&machine.host, "10.20.0.1"), (&a, "10.20.0.2"), (&b, "10.20.0.3")]);
    let born = ifindex(&a, "net1");
    assert_configured(&machine, "VirtualNetwork", "blue", &format!("{base}, mtu: 1380"));
    assert_eq!(link(&a, "net1")["mtu"], 1380);
    assert_configured(&machine, "VirtualNetwork", "blue", &format!("{base}, isolation: isolated"));
    assert_eq!(addresses(&machine.host, "vn-blue"), Vec::<String>::new());
    a.ping("10.20.0.3").unwrap();
    assert!(a.ping("10.20.0.1").is_err(), "the node is not on an isolated network");
    assert_configured(&machine, "VirtualNetwork", "blue", base);
    a.ping("10.20.0.1").unwrap();
    assert_eq!(ifindex(&a, "net1"), born);
    machine.knit(&["delete", "virtualnetwork", "blue"]).ok();
    let printed = machine.knit(&["status"]);
    assert!(printed.out.contains("there is no VirtualNetwork blue"), "{printed:?}");
    machine.knit(&["delete", "veth", "net"]).ok();
    before.assert_unchanged();
    machine.assert_no_drift();
}
