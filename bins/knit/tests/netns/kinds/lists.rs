//! PodNetworkConfig in both generations, and PrimaryNetwork: many changes of one pod at once.

use super::{assert_configured, ifindex, object};
use crate::support::machine::{Machine, addresses, assert_all_reach, has_link, link};

#[test]
fn pod_network_config_of_the_first_generation() {
    let machine = Machine::new("pncone");
    let (a, b) = (machine.pod("a", 180), machine.pod("b", 181));
    let before = machine.snapshot(&[&a, &b]);
    machine.add("a", &a, &["podNetworkConfig=cnf"]);
    machine.add("b", &b, &["podNetworkConfig=cnf"]);
    let spec = |mtu: u32, link_mtu: u32| {
        format!(
            "eth0: {{mtu: {mtu}}}, links: [{{namePrefix: lk, linkType: veth, master: pnobr0, mtu: {link_mtu}, cidr: 10.5.0.0/24}}]"
        )
    };
    assert_configured(&machine, "PodNetworkConfig", "cnf", &spec(1300, 1400));
    let name = format!("lk{}", a.pid());
    assert_eq!((&link(&a, "eth0")["mtu"], &link(&a, &name)["mtu"]), (&1300.into(), &1400.into()));
    assert_all_reach(&[(&machine.host, "10.5.0.1"), (&a, "10.5.0.2"), (&b, "10.5.0.3")]);
    let shown = machine.get("podnetworkconfig", "cnf");
    let line = format!("{{podVethName:{name} podIPAddr:10.5.0.2/24 peerVethName:h{name} bridge:pnobr0}}");
    let of_a = &shown["status"]["PodNetworkConfigs"][0];
    assert_eq!(of_a["podName"], "a");
    assert!(of_a["configList"].as_array().unwrap().contains(&line.as_str().into()), "{of_a}");
    let born = ifindex(&a, &name);
    assert_configured(&machine, "PodNetworkConfig", "cnf", &spec(1200, 1350));
    assert_eq!((&link(&a, "eth0")["mtu"], &link(&a, &name)["mtu"]), (&1200.into(), &1350.into()));
    assert_eq!(ifindex(&a, &name), born);
    a.ping("10.5.0.3").unwrap();
    machine.knit(&["delete", "podnetworkconfig", "cnf"]).ok();
    before.assert_unchanged();
}

#[test]
fn pod_network_config_of_the_second_generation() {
    let machine = Machine::new("pnctwo");
    let a = machine.pod("a", 180);
    let before = machine.snapshot(&[&a]);
    machine.add("a", &a, &["podNetworkConfig=cnf"]);
    let spec = "additionalNetworks: [{networkName: red, networkDescription: to the core, linkType: veth, master: redbr, \
                mtu: 1400, hardwareAddr: '02:00:00:00:00:51', cidr: '10.6.0.0/24,fd00:6::/64'}, \
                {networkName: abc, linkType: macvlan, master: red}]";
    assert_configured(&machine, "PodNetworkConfig", "cnf", spec);
    let (red, sub) = (format!("red{}", a.pid()), format!("abc{}", a.pid()));
    let shown = link(&a, &red);
    assert_eq!(
        (&shown["ifalias"], &shown["address"], &shown["mtu"]),
        (&"to the core".into(), &"02:00:00:00:00:51".into(), &1400.into())
    );
    assert_eq!(link(&a, &sub)["link"], red.as_str());
    a.ping("10.6.0.1").unwrap();
    a.ping("fd00:6::1").unwrap();
    let born = ifindex(&a, &red);
    assert_configured(
        &machine,
        "PodNetworkConfig",
        "cnf",
        &spec.replace("hardwareAddr", "alias: mine, hardwareAddr"),
    );
    assert_eq!((ifindex(&a, &red), &link(&a, &red)["ifalias"]), (born, &"mine".into()));
    // Links on it follow its MTU, down and up, although their names sort first.
    assert_eq!(link(&a, &sub)["mtu"], 1400);
    for mtu in [1300, 1500] {
        assert_configured(
            &machine,
            "PodNetworkConfig",
            "cnf",
            &spec.replace("mtu: 1400", &format!("mtu: {mtu}")),
        );
        assert_eq!((&link(&a, &red)["mtu"], &link(&a, &sub)["mtu"]), (&mtu.into(), &mtu.into()));
    }
    // A removed entry is deleted, the other is kept.
    assert_configured(
        &machine,
        "PodNetworkConfig",
        "cnf",
        &format!("{}]", &spec[..spec.find(", {networkName: abc").unwrap()]),
    );
    assert!(!has_link(&a, &sub) && ifindex(&a, &red) == born);
    // Another kind recreates the interface under the same name.
    assert_configured(
        &machine,
        "PodNetworkConfig",
        "cnf",
        "additionalNetworks: [{networkName: red, linkType: macvlan, master: eth0}]",
    );
    assert_eq!(link(&a, &red)["linkinfo"]["info_kind"], "macvlan");
    assert!(!has_link(&machine.host, "redbr") && addresses(&a, &red).is_empty());
    machine.knit(&["delete", "podnetworkconfig", "cnf"]).ok();
    before.assert_unchanged();
}

#[test]
fn primary_network_restores_what_it_changed() {
    let machine = Machine::new("primary");
    let (a, b) = (machine.pod("a", 180), machine.pod("b", 181));
    let before = machine.snapshot(&[&a, &b]);
    machine.add("a", &a, &["podnetwork.opdev.io/primarynetwork=p"]);
    let base = "mtu: 1300";
    assert_configured(&machine, "PrimaryNetwork", "p", base);
    assert_eq!(link(&a, "eth0")["mtu"], 1300);
    let full = "mtu: 1280, txQLen: 123, hardwareAddr: '02:00:00:00:00:61', sysctls: {ipv4/rp_filter: '2', ipv6/accept_ra: '0'}, \
                routes: [{to: 10.70.0.0/16, via: 10.128.2.181}]";
    assert_configured(&machine, "PrimaryNetwork", "p", full);
    let shown = link(&a, "eth0");
    assert_eq!(
        (&shown["mtu"], &shown["txqlen"], &shown["address"]),
        (&1280.into(), &123.into(), &"02:00:00:00:00:61".into())
    );
    assert_eq!(a.sysctl("net.ipv4.conf.eth0.rp_filter").unwrap(), "2");
    assert!(a.ip(&["route"]).contains("10.70.0.0/16 via 10.128.2.181 dev eth0 proto 75"));
    a.ping("10.128.2.181").unwrap();
    b.ping("10.128.2.180").unwrap();
    // Each field is restored to its first value, not to intermediate ones.
    assert_configured(&machine, "PrimaryNetwork", "p", "txQLen: 123");
    let shown = link(&a, "eth0");
    assert_eq!((&shown["mtu"], &shown["txqlen"]), (&1450.into(), &123.into()));
    assert_ne!(shown["address"], "02:00:00:00:00:61");
    assert!(!a.ip(&["route"]).contains("10.70.0.0/16"));
    // Two objects set the same field: the first applies, the second after it.
    machine.knit(&["sandbox", "label", "a", "also=yes"]).ok();
    let second =
        object("PrimaryNetwork", "q", "selector: {matchLabels: {also: 'yes'}}, txQLen: 50, mtu: 1350");
    let printed = machine.apply(&second).error();
    assert!(printed.contains("txqueuelen of eth0 is changed by another object already"), "{printed}");
    assert_eq!((&link(&a, "eth0")["mtu"], &link(&a, "eth0")["txqlen"]), (&1350.into(), &123.into()));
    machine.knit(&["delete", "primarynetwork", "p"]).ok();
    assert_eq!(link(&a, "eth0")["txqlen"], 50);
    machine.delete(&second).ok();
    before.assert_unchanged();
    machine.assert_no_drift();
    // A missing interface is reported, and nothing is created.
    let printed = machine.apply(&object("PrimaryNetwork", "p", "interfaceName: eth9, mtu: 1300")).error();
    assert!(printed.contains("link eth9 does not exist"), "{printed}");
    before.assert_unchanged();
}
