//! PodNetworkConfig in both generations, and PrimaryNetwork: many changes of one pod at once.

use super::support::machine::{Machine, addresses, assert_all_reach, has_link, link};
use super::{number, object, stands};

#[test]
fn pod_network_config_of_the_first_generation() {
    let machine = Machine::new("pncone");
    let (a, b) = (machine.pod("a", 180), machine.pod("b", 181));
    let untouched = machine.untouched(&[&a, &b]);
    machine.add("a", &a, &["podNetworkConfig=cnf"]);
    machine.add("b", &b, &["podNetworkConfig=cnf"]);
    let spec = |mtu: u32, link_mtu: u32| {
        format!(
            "eth0: {{mtu: {mtu}}}, links: [{{namePrefix: lk, linkType: veth, master: pnobr0, mtu: {link_mtu}, cidr: 10.5.0.0/24}}]"
        )
    };
    stands(&machine, "PodNetworkConfig", "cnf", &spec(1300, 1400));
    let name = format!("lk{}", a.pid());
    assert_eq!((&link(&a, "eth0")["mtu"], &link(&a, &name)["mtu"]), (&1300.into(), &1400.into()));
    assert_all_reach(&[(&machine.host, "10.5.0.1"), (&a, "10.5.0.2"), (&b, "10.5.0.3")]);
    let shown = machine.get("podnetworkconfig", "cnf");
    let line = format!("{{podVethName:{name} podIPAddr:10.5.0.2/24 peerVethName:h{name} bridge:pnobr0}}");
    let of_a = &shown["status"]["PodNetworkConfigs"][0];
    assert_eq!(of_a["podName"], "a");
    assert!(of_a["configList"].as_array().unwrap().contains(&line.as_str().into()), "{of_a}");
    let born = number(&a, &name);
    stands(&machine, "PodNetworkConfig", "cnf", &spec(1200, 1350));
    assert_eq!((&link(&a, "eth0")["mtu"], &link(&a, &name)["mtu"]), (&1200.into(), &1350.into()));
    assert_eq!(number(&a, &name), born);
    a.ping("10.5.0.3").unwrap();
    machine.knit(&["delete", "podnetworkconfig", "cnf"]).ok();
    untouched.assert_again();
}

#[test]
fn pod_network_config_of_the_second_generation() {
    let machine = Machine::new("pnctwo");
    let a = machine.pod("a", 180);
    let untouched = machine.untouched(&[&a]);
    machine.add("a", &a, &["podNetworkConfig=cnf"]);
    let spec = "additionalNetworks: [{networkName: red, networkDescription: to the core, linkType: veth, master: redbr, \
                mtu: 1400, hardwareAddr: '02:00:00:00:00:51', cidr: '10.6.0.0/24,fd00:6::/64'}, \
                {networkName: abc, linkType: macvlan, master: red}]";
    stands(&machine, "PodNetworkConfig", "cnf", spec);
    let (red, sub) = (format!("red{}", a.pid()), format!("abc{}", a.pid()));
    let shown = link(&a, &red);
    assert_eq!(
        (&shown["ifalias"], &shown["address"], &shown["mtu"]),
        (&"to the core".into(), &"02:00:00:00:00:51".into(), &1400.into())
    );
    assert_eq!(link(&a, &sub)["link"], red.as_str());
    a.ping("10.6.0.1").unwrap();
    a.ping("fd00:6::1").unwrap();
    let born = number(&a, &red);
    stands(&machine, "PodNetworkConfig", "cnf", &spec.replace("hardwareAddr", "alias: mine, hardwareAddr"));
    assert_eq!((number(&a, &red), &link(&a, &red)["ifalias"]), (born, &"mine".into()));
    // What sits on it follows its size, down and up, although its name comes first.
    assert_eq!(link(&a, &sub)["mtu"], 1400);
    for mtu in [1300, 1500] {
        stands(&machine, "PodNetworkConfig", "cnf", &spec.replace("mtu: 1400", &format!("mtu: {mtu}")));
        assert_eq!((&link(&a, &red)["mtu"], &link(&a, &sub)["mtu"]), (&mtu.into(), &mtu.into()));
    }
    // An entry that is taken out goes, the other stays.
    stands(
        &machine,
        "PodNetworkConfig",
        "cnf",
        &format!("{}]", &spec[..spec.find(", {networkName: abc").unwrap()]),
    );
    assert!(!has_link(&a, &sub) && number(&a, &red) == born);
    // Another kind makes the interface again, under the same name.
    stands(
        &machine,
        "PodNetworkConfig",
        "cnf",
        "additionalNetworks: [{networkName: red, linkType: macvlan, master: eth0}]",
    );
    assert_eq!(link(&a, &red)["linkinfo"]["info_kind"], "macvlan");
    assert!(!has_link(&machine.host, "redbr") && addresses(&a, &red).is_empty());
    machine.knit(&["delete", "podnetworkconfig", "cnf"]).ok();
    untouched.assert_again();
}

#[test]
fn primary_network_gives_back_what_it_changed() {
    let machine = Machine::new("primary");
    let (a, b) = (machine.pod("a", 180), machine.pod("b", 181));
    let untouched = machine.untouched(&[&a, &b]);
    machine.add("a", &a, &["podnetwork.opdev.io/primarynetwork=p"]);
    let base = "mtu: 1300";
    stands(&machine, "PrimaryNetwork", "p", base);
    assert_eq!(link(&a, "eth0")["mtu"], 1300);
    let full = "mtu: 1280, txQLen: 123, hardwareAddr: '02:00:00:00:00:61', sysctls: {ipv4/rp_filter: '2', ipv6/accept_ra: '0'}, \
                routes: [{to: 10.70.0.0/16, via: 10.128.2.181}]";
    stands(&machine, "PrimaryNetwork", "p", full);
    let shown = link(&a, "eth0");
    assert_eq!(
        (&shown["mtu"], &shown["txqlen"], &shown["address"]),
        (&1280.into(), &123.into(), &"02:00:00:00:00:61".into())
    );
    assert_eq!(a.sysctl("net.ipv4.conf.eth0.rp_filter").unwrap(), "2");
    assert!(a.ip(&["route"]).contains("10.70.0.0/16 via 10.128.2.181 dev eth0 proto 75"));
    a.ping("10.128.2.181").unwrap();
    b.ping("10.128.2.180").unwrap();
    // Field by field they come back: the first values, not those in between.
    stands(&machine, "PrimaryNetwork", "p", "txQLen: 123");
    let shown = link(&a, "eth0");
    assert_eq!((&shown["mtu"], &shown["txqlen"]), (&1450.into(), &123.into()));
    assert_ne!(shown["address"], "02:00:00:00:00:61");
    assert!(!a.ip(&["route"]).contains("10.70.0.0/16"));
    // Two objects want the same field: the first has it, the second gets its turn.
    machine.knit(&["sandbox", "label", "a", "also=yes"]).ok();
    let second =
        object("PrimaryNetwork", "q", "selector: {matchLabels: {also: 'yes'}}, txQLen: 50, mtu: 1350");
    let said = machine.apply(&second).refused();
    assert!(said.contains("txqueuelen of eth0 is changed by another object already"), "{said}");
    assert_eq!((&link(&a, "eth0")["mtu"], &link(&a, "eth0")["txqlen"]), (&1350.into(), &123.into()));
    machine.knit(&["delete", "primarynetwork", "p"]).ok();
    assert_eq!(link(&a, "eth0")["txqlen"], 50);
    machine.delete(&second).ok();
    untouched.assert_again();
    machine.assert_at_rest();
    // An interface that the pod does not have is said, and nothing is made.
    let said = machine.apply(&object("PrimaryNetwork", "p", "interfaceName: eth9, mtu: 1300")).refused();
    assert!(said.contains("there is no link eth9 to change"), "{said}");
    untouched.assert_again();
}
