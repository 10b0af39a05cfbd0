//! Veth, Macvlan, Vxlan: one link for each pod.

use super::{assert_configured, ifindex, object};
use crate::support::machine::{Machine, addresses, assert_all_reach, has_link, link};

#[test]
fn veth() {
    let machine = Machine::new("veth");
    let (a, b) = (machine.pod("a", 180), machine.pod("b", 181));
    let before = machine.snapshot(&[&a, &b]);
    machine.add("a", &a, &["podnetwork.opdev.io/veth=net"]);
    machine.add("b", &b, &["podnetwork.opdev.io/veth=net"]);
    let base = "interfaceName: net1, master: br1, cidr: '10.1.0.0/24,fd00:1::/64'";
    assert_configured(&machine, "Veth", "net", base);
    assert_eq!(addresses(&a, "net1"), ["10.1.0.2/24", "fd00:1::2/64"]);
    assert_all_reach(&[(&machine.host, "10.1.0.1"), (&a, "10.1.0.2"), (&b, "10.1.0.3")]);
    assert_all_reach(&[(&machine.host, "fd00:1::1"), (&a, "fd00:1::2"), (&b, "fd00:1::3")]);
    let born = ifindex(&a, "net1");

    // One more field at a time; the link is not recreated.
    let mut spec = base.to_owned();
    for (field, shown, value) in [
        ("mtu: 1400", "mtu", serde_json::Value::from(1400)),
        ("txQLen: 500", "txqlen", 500.into()),
        ("alias: to the lab", "ifalias", "to the lab".into()),
        ("group: 7", "group", "7".into()),
        ("promisc: true", "promiscuity", 1.into()),
        ("allMulticast: true", "allmulti", 1.into()),
    ] {
        spec = format!("{spec}, {field}");
        assert_configured(&machine, "Veth", "net", &spec);
        assert_eq!(link(&a, "net1")[shown], value, "{field}");
    }
    spec += ", hardwareAddr: '02:00:00:00:00:0a', selector: {matchExpressions: [{key: podnetwork.opdev.io/veth, operator: Exists}]}";
    machine.knit(&["sandbox", "label", "b", "podnetwork.opdev.io/veth-"]).ok();
    assert_configured(&machine, "Veth", "net", &spec);
    assert_eq!(link(&a, "net1")["address"], "02:00:00:00:00:0a");
    spec += ", routes: [{to: 10.50.0.0/16, via: 10.1.0.1, metric: 5, table: 100}, {to: 10.60.0.0/16, type: blackhole}]";
    spec += ", rules: [{priority: 900, from: 10.1.0.0/24, table: 100}], gateways: ['fd00:1::1']";
    spec += ", proxyArp: true, sysctls: {ipv4/rp_filter: '2'}";
    assert_configured(&machine, "Veth", "net", &spec);
    assert!(
        a.ip(&["route", "show", "table", "100"])
            .contains("10.50.0.0/16 via 10.1.0.1 dev net1 proto 75 metric 5")
    );
    assert!(a.ip(&["route"]).contains("blackhole 10.60.0.0/16"));
    assert!(a.ip(&["rule"]).contains("900:\tfrom 10.1.0.0/24 lookup 100"));
    assert!(a.ip(&["-6", "route"]).contains("default via fd00:1::1 dev net1"));
    assert_eq!(a.sysctl("net.ipv4.conf.net1.proxy_arp").unwrap(), "1");
    assert_eq!(a.sysctl("net.ipv4.conf.net1.rp_filter").unwrap(), "2");
    // Another bridge moves the port and keeps the interface; static addresses are added.
    assert_configured(
        &machine,
        "Veth",
        "net",
        &spec.replace("br1", "br2").replace("cidr:", "addresses: ['10.1.0.77/24'], cidr:"),
    );
    assert!(!has_link(&machine.host, "br1"));
    assert_eq!(ifindex(&a, "net1"), born);
    assert!(addresses(&a, "net1").contains(&"10.1.0.77/24".to_owned()));
    a.ping("10.1.0.1").unwrap();

    // Fields that are removed from the object are restored.
    assert_configured(&machine, "Veth", "net", base);
    assert_eq!(ifindex(&a, "net1"), born);
    let shown = link(&a, "net1");
    assert_eq!(
        (&shown["mtu"], &shown["promiscuity"], &shown["group"]),
        (&1500.into(), &0.into(), &"default".into())
    );
    assert!(!a.ip(&["rule"]).contains("900:") && !a.ip(&["route"]).contains("blackhole"));
    machine.delete(&object("Veth", "net", base)).ok();
    before.assert_unchanged();
}

#[test]
fn macvlan_on_an_open_uplink_only() {
    let machine = Machine::new("macvlan");
    // The NIC of the node, and its peer.
    let outside = machine.testbed.namespace("outside");
    machine.testbed.connect(&machine.host, "nic0", &outside, "far0");
    outside.address("far0", "10.2.0.200/24");
    let (a, b) = (machine.pod("a", 180), machine.pod("b", 181));
    let before = machine.snapshot(&[&a, &b]);
    machine.add("a", &a, &["podnetwork.opdev.io/macvlan=mv"]);
    machine.add("b", &b, &["podnetwork.opdev.io/macvlan=mv"]);
    let spec = "interfaceName: mv0, parent: fast, cidr: 10.2.0.0/25";
    let wide = spec.replace("/25", "/24");

    let printed = machine
        .apply(&object("Macvlan", "mv", "interfaceName: mv0, parent: nic0, cidr: 10.2.0.0/24"))
        .error();
    assert!(printed.contains("nic0"), "a host device is not a parent in the pod: {printed}");
    assert!(!has_link(&a, "mv0"));
    machine.apply(&object("Uplink", "fast", "link: nic0, namespaces: [others]")).ok();
    let printed = machine.apply(&object("Macvlan", "mv", &wide)).error();
    assert!(printed.contains("uplink fast is not open to namespace default"), "{printed}");
    let printed =
        machine.apply(&object("Uplink", "fast", "link: nic0, namespaces: [default], kinds: [vxlan]"));
    assert_eq!(printed.code, Some(0), "{printed:?}");
    let printed = machine.knit(&["status"]);
    assert!(
        printed.code == Some(1) && printed.out.contains("uplink fast is not open to macvlan links"),
        "{printed:?}"
    );
    before.assert_unchanged();

    machine.apply(&object("Uplink", "fast", "link: nic0, namespaces: [default]")).ok();
    assert_configured(&machine, "Macvlan", "mv", &wide);
    let own: Vec<String> = [&a, &b].map(|pod| addresses(pod, "mv0")[0].replace("/24", "")).into();
    assert_all_reach(&[(&a, &own[0]), (&b, &own[1]), (&outside, "10.2.0.200")]);
    let born = ifindex(&a, "mv0");
    assert_configured(&machine, "Macvlan", "mv", &format!("{wide}, mtu: 1300, txQLen: 77, alias: x"));
    assert_eq!(link(&a, "mv0")["mtu"], 1300);
    assert_configured(&machine, "Macvlan", "mv", &format!("{wide}, mode: private"));
    assert_eq!(link(&a, "mv0")["linkinfo"]["info_data"]["mode"], "private");
    assert_eq!(ifindex(&a, "mv0"), born);
    a.ping("10.2.0.200").unwrap();
    assert!(a.ping(&own[1]).is_err(), "private macvlans do not see each other");

    assert_configured(&machine, "Macvlan", "mv", &wide);
    let limited = object("Uplink", "fast", "link: nic0, namespaces: [default], maxMtu: 1200");
    machine.apply(&limited).ok();
    assert_eq!(link(&a, "mv0")["mtu"], 1200);
    let printed = machine.apply(&object("Macvlan", "mv", &format!("{wide}, mtu: 1300"))).error();
    assert!(printed.contains("uplink fast allows an MTU of at most 1200"), "{printed}");

    // The uplink is closed while links use it.
    machine.knit(&["delete", "uplink", "fast"]).ok();
    assert!(!has_link(&a, "mv0"), "nothing stays on a NIC that is open no more");
    machine.knit(&["delete", "macvlan", "mv"]).ok();
    before.assert_unchanged();
    machine.assert_no_drift();
}

#[test]
fn macvlan_on_another_interface_of_the_pod() {
    let machine = Machine::new("mvinside");
    let a = machine.pod("a", 180);
    let before = machine.snapshot(&[&a]);
    machine.add("a", &a, &["podnetwork.opdev.io/macvlan=mv", "podnetwork.opdev.io/veth=net"]);
    machine.apply(&object("Veth", "net", "namePrefix: net, master: br1, cidr: 10.1.0.0/24")).ok();
    assert_configured(
        &machine,
        "Macvlan",
        "mv",
        "interfaceName: mv0, parent: net, addresses: ['10.1.0.50/24']",
    );
    assert_eq!(link(&a, "mv0")["link"], format!("net{}", a.pid()));
    machine.host.output("ping", &["-c1", "-w5", "-I", "10.1.0.1", "10.1.0.50"]).unwrap();
    // The parent is recreated, and so is the link.
    a.ip(&["link", "del", &format!("net{}", a.pid())]);
    assert_eq!(machine.knit(&["status"]).code, Some(1));
    machine.apply(&object("Veth", "net", "namePrefix: net, master: br1, cidr: 10.1.0.0/24")).ok();
    machine.host.output("ping", &["-c1", "-w5", "-I", "10.1.0.1", "10.1.0.50"]).unwrap();
    machine.knit(&["delete", "veth", "net"]).ok();
    machine.knit(&["delete", "macvlan", "mv"]).ok();
    before.assert_unchanged();
}

#[test]
fn vxlan_between_two_pods() {
    let machine = Machine::new("vxlan");
    let (a, b) = (machine.pod("a", 180), machine.pod("b", 181));
    let before = machine.snapshot(&[&a, &b]);
    machine.add("a", &a, &["podnetwork.opdev.io/vxlan=to-b"]);
    machine.add("b", &b, &["podnetwork.opdev.io/vxlan=to-a"]);
    let spec = |remote: u8, own: u8, rest: &str| {
        format!(
            "interfaceName: vx0, vni: 77, remote: 10.128.2.{remote}, addresses: ['10.77.0.{own}/24', 'fd00:77::{own}/64']{rest}"
        )
    };
    assert_configured(&machine, "Vxlan", "to-b", &spec(181, 1, ""));
    assert_configured(&machine, "Vxlan", "to-a", &spec(180, 2, ""));
    assert_eq!(link(&a, "vx0")["mtu"], 1450, "room for what a tunnel adds");
    assert_all_reach(&[(&a, "10.77.0.1"), (&b, "10.77.0.2")]);
    a.ping("fd00:77::2").unwrap();
    let born = ifindex(&a, "vx0");
    assert_configured(&machine, "Vxlan", "to-b", &spec(181, 1, ", ttl: 9, ageing: 60, mtu: 1300"));
    let shown = link(&a, "vx0");
    let data = &shown["linkinfo"]["info_data"];
    assert_eq!(
        (&shown["mtu"], &data["ttl"], &data["ageing"]),
        (&1300.into(), &9.into(), &60.into()),
        "{shown}"
    );
    assert_eq!(ifindex(&a, "vx0"), born);
    a.ping("10.77.0.2").unwrap();
    // The remote endpoint changes in place.
    assert_configured(&machine, "Vxlan", "to-b", &spec(199, 1, ""));
    assert_eq!(
        (ifindex(&a, "vx0"), link(&a, "vx0")["linkinfo"]["info_data"]["remote"].clone()),
        (born, "10.128.2.199".into())
    );
    // Another VNI requires a new link, and the plan shows this.
    assert_configured(&machine, "Vxlan", "to-b", &spec(181, 1, ""));
    let other = machine.file("other.yaml", &object("Vxlan", "to-b", &spec(181, 1, "").replace("77,", "78,")));
    let planned = machine.knit(&["plan", "-f", other.to_str().unwrap()]);
    assert!(
        planned.code == Some(2)
            && planned.out.contains("recreated: the kernel cannot make this change of `vni`"),
        "{planned:?}"
    );
    machine.knit(&["apply", "-f", other.to_str().unwrap()]).ok();
    assert!(ifindex(&a, "vx0") != born && a.ping("10.77.0.2").is_err());
    machine.knit(&["delete", "vxlan", "to-b"]).ok();
    machine.knit(&["delete", "vxlan", "to-a"]).ok();
    before.assert_unchanged();
}
