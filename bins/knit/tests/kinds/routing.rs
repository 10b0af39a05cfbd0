//! PodRoute: routes, rules, neighbours and sysctls in pods, with traffic.

use knit_testbed::Pod;

use super::support::machine::{Machine, addresses};
use super::{object, stands};

const LABEL: &str = "podnetwork.opdev.io/podroute=r";

/// A pod with `r`, and two routers that lead to 10.99.0.1, which each has on its loopback. All of them are on the main
/// CNI plugin's network.
fn with_routers(test: &str) -> (Machine, Pod, [Pod; 2]) {
    let machine = Machine::new(test);
    let pod = machine.pod("a", 180);
    let routers = [("r1", 190), ("r2", 191)].map(|(name, number)| {
        let router = machine.pod(name, number);
        router.ip(&["link", "set", "lo", "up"]);
        for address in ["10.99.0.1/32", "fd99::1/128"] {
            router.address("lo", address);
        }
        router.ip(&["address", "add", &format!("fd00:128::{number}/64"), "dev", "eth0", "nodad"]);
        router
    });
    pod.ip(&["address", "add", "fd00:128::180/64", "dev", "eth0", "nodad"]);
    machine.add("a", &pod, &[LABEL]);
    (machine, pod, routers)
}

fn remove(machine: &Machine) {
    machine.knit(&["delete", "podroute", "r"]).ok();
    machine.assert_at_rest();
}

#[test]
fn a_route_leads_somewhere_until_it_goes() {
    let (machine, pod, _routers) = with_routers("route");
    let untouched = machine.untouched(&[&pod]);
    assert!(pod.ping("10.99.0.1").is_err());
    stands(
        &machine,
        "PodRoute",
        "r",
        "routes: [{to: 10.99.0.0/16, via: 10.128.2.190}, {to: 'fd99::/32', via: 'fd00:128::190'}]",
    );
    pod.ping("10.99.0.1").unwrap();
    pod.ping("fd99::1").unwrap();
    let shown = machine.get("PodRoute", "r")["status"]["podConfigurations"].clone();
    assert_eq!(
        shown,
        serde_json::json!([{"podName": "a", "configList": [
            "{route:10.99.0.0/16 via 10.128.2.190 dev eth0}", "{route:fd99::/32 via fd00:128::190 dev eth0}"]}])
    );

    // Field by field, each in place of what was there.
    stands(&machine, "PodRoute", "r", "routes: [{to: 10.99.0.0/16, via: 10.128.2.190}]");
    for (fields, shown) in [
        ("via: 10.128.2.191", "via 10.128.2.191 dev eth0 proto 75"),
        ("via: 10.128.2.191, src: 10.128.2.180", "src 10.128.2.180"),
        ("via: 10.128.2.191, mtu: 1300", "mtu 1300"),
        ("via: 10.200.0.1, dev: eth0, onlink: true", "via 10.200.0.1 dev eth0 proto 75 onlink"),
        ("dev: eth0", "dev eth0 proto 75 scope link"),
        ("type: blackhole", "blackhole 10.99.0.0/16 proto 75"),
        ("type: unreachable", "unreachable 10.99.0.0/16"),
        ("type: prohibit", "prohibit 10.99.0.0/16"),
        ("via: 10.128.2.190", "via 10.128.2.190 dev eth0"),
    ] {
        let yaml = object("PodRoute", "r", &format!("routes: [{{to: 10.99.0.0/16, {fields}}}]"));
        let file = machine.file("change.yaml", &yaml);
        let planned = machine.knit(&["plan", "-f", file.to_str().unwrap()]);
        assert!(planned.out.contains("0 to add, 1 to change, 0 to remove"), "{fields}: {planned:?}");
        machine.knit(&["apply", "-f", file.to_str().unwrap()]).ok();
        machine.assert_at_rest();
        let route = pod.ip(&["route", "show", "10.99.0.0/16"]);
        assert!(route.contains(shown), "{fields}: {route}");
        if shown.contains("blackhole") {
            assert!(pod.ping("10.99.0.1").is_err());
        }
    }
    pod.ping("10.99.0.1").unwrap();

    // IPv6 changes in place as well.
    for (fields, shown) in [
        ("via: 'fd00:128::191'", "via fd00:128::191 dev eth0"),
        ("type: blackhole", "blackhole fd99::/32"),
        ("via: 'fd00:128::190', mtu: 1300", "mtu 1300"),
        (
            "nextHops: [{via: 'fd00:128::190'}, {via: 'fd00:128::191', weight: 3}]",
            "nexthop via fd00:128::191 dev eth0 weight 3",
        ),
        (
            "nextHops: [{via: 'fd00:128::190'}, {via: 'fd00:128::192'}]",
            "nexthop via fd00:128::192 dev eth0 weight 1",
        ),
        ("via: 'fd00:128::190'", "via fd00:128::190 dev eth0"),
    ] {
        stands(&machine, "PodRoute", "r", &format!("routes: [{{to: 'fd99::/32', {fields}}}]"));
        let route = pod.ip(&["-6", "route", "show", "fd99::/32"]);
        assert!(route.contains(shown), "{fields}: {route}");
    }
    pod.ping("fd99::1").unwrap();
    remove(&machine);
    assert!(pod.ping("10.99.0.1").is_err() && pod.ping("fd99::1").is_err());
    untouched.assert_again();
}

#[test]
fn a_route_of_others_stays_theirs_and_a_label_takes_only_knits() {
    let (machine, pod, _routers) = with_routers("theirs");
    pod.ip(&["route", "add", "10.97.0.0/16", "via", "10.128.2.190"]);
    pod.ip(&["rule", "add", "from", "10.66.0.0/16", "table", "66", "priority", "600"]);
    pod.ip(&["neigh", "add", "10.128.2.77", "lladdr", "02:00:00:00:00:77", "dev", "eth0"]);
    let untouched = machine.untouched(&[&pod]);
    let said = machine.apply(&object(
        "PodRoute",
        "r",
        "routes: [{to: 10.97.0.0/16, via: 10.128.2.191}, {to: 0.0.0.0/0, via: 10.128.2.191}, {to: 10.99.0.0/16, via: 10.128.2.190}],
         rules: [{priority: 600, from: 10.66.0.0/16, table: 66}],
         neighbours: [{address: 10.128.2.77, dev: eth0, hardwareAddr: '02:00:00:00:00:78'}]",
    ));
    assert_eq!(said.code, Some(1));
    for what in [
        "route 10.97.0.0/16",
        "route 0.0.0.0/0",
        "rule 600: from 10.66.0.0/16 lookup 66",
        "neighbour 10.128.2.77 on eth0",
    ] {
        let sentence = format!("{what} of pod default/a exists, and Knit did not make it");
        assert!(said.err.contains(&sentence), "{sentence}: {said:?}");
    }
    let ready = machine.get("PodRoute", "r")["status"]["conditions"][0].clone();
    assert_eq!((&ready["status"], &ready["reason"]), (&"False".into(), &"NotOwned".into()));
    pod.ping("10.99.0.1").unwrap();
    machine.knit(&["sandbox", "label", "a", "podnetwork.opdev.io/podroute-"]).ok();
    assert!(pod.ping("10.99.0.1").is_err());
    untouched.assert_again();
    machine.knit(&["sandbox", "label", "a", LABEL]);
    pod.ping("10.99.0.1").unwrap();
    machine.knit(&["sandbox", "delete", "a"]).ok();
    untouched.assert_again();
}

#[test]
fn several_next_hops_share_the_load_and_rules_choose_the_table() {
    let (machine, pod, routers) = with_routers("multipath");
    let untouched = machine.untouched(&[&pod]);
    for (number, router) in routers.iter().enumerate() {
        router.address("lo", &format!("10.98.0.{number}/32"));
        for last in 10..40 {
            router.address("lo", &format!("10.98.1.{last}/32"));
        }
    }
    stands(
        &machine,
        "PodRoute",
        "r",
        "routes: [{to: 10.98.0.0/16, nextHops: [{via: 10.128.2.190, weight: 1}, {via: 10.128.2.191, weight: 2}]},
                  {to: 10.99.0.0/16, via: 10.128.2.191, table: 77}],
         rules: [{priority: 700, to: 10.99.0.0/16, table: 77}],
         sysctls: {net.ipv4.fib_multipath_hash_policy: '0'}",
    );
    let route = pod.ip(&["route", "show", "10.98.0.0/16"]);
    assert!(route.contains("nexthop via 10.128.2.191 dev eth0 weight 2"), "{route}");
    let ways: Vec<String> =
        (10..40).map(|last| pod.ip(&["route", "get", &format!("10.98.1.{last}")])).collect();
    for router in ["10.128.2.190", "10.128.2.191"] {
        assert!(ways.iter().any(|way| way.contains(&format!("via {router} "))), "{router}: {ways:?}");
    }
    for last in 10..40 {
        pod.ping(format!("10.98.1.{last}")).unwrap();
    }

    // The rule leads into the table; without the rule nobody looks there.
    pod.ping("10.99.0.1").unwrap();
    stands(&machine, "PodRoute", "r", "routes: [{to: 10.99.0.0/16, via: 10.128.2.191, table: 77}]");
    assert!(pod.ping("10.99.0.1").is_err());
    assert!(pod.ip(&["route", "show", "table", "77"]).contains("10.99.0.0/16 via 10.128.2.191"));
    remove(&machine);
    for (number, router) in routers.iter().enumerate() {
        router.ip(&["address", "del", &format!("10.98.0.{number}/32"), "dev", "lo"]);
    }
    untouched.assert_again();
}

#[test]
fn neighbours_and_sysctls_change_what_the_pod_does() {
    let (machine, pod, routers) = with_routers("neigh");
    let untouched = machine.untouched(&[&pod]);
    let mac =
        |router: &Pod| router.ip_json(&["link", "show", "eth0"])[0]["address"].as_str().unwrap().to_owned();
    let neighbour =
        |mac: &str| format!("neighbours: [{{address: 10.128.2.190, dev: eth0, hardwareAddr: '{mac}'}}]");
    stands(&machine, "PodRoute", "r", &neighbour("02:00:00:00:00:66"));
    assert!(pod.ping("10.128.2.190").is_err(), "packets go to nobody");
    stands(&machine, "PodRoute", "r", &neighbour(&mac(&routers[0])));
    pod.ping("10.128.2.190").unwrap();
    let shown = pod.ip(&["neigh", "show", "10.128.2.190"]);
    assert!(shown.contains("PERMANENT proto 75"), "{shown}");

    // The pod answers for an address that is not its own.
    let proxy = "neighbours: [{address: 10.128.2.250, dev: eth0, proxy: true}, {address: 'fd00:128::250', dev: eth0, proxy: true}]";
    stands(
        &machine,
        "PodRoute",
        "r",
        &format!(
            "{proxy}, sysctls: {{net.ipv6.conf.eth0.proxy_ndp: '1', net.ipv6.conf.all.forwarding: '1'}}"
        ),
    );
    assert!(pod.ip(&["neigh", "show", "proxy"]).contains("10.128.2.250 dev eth0"));
    assert!(pod.ip(&["-6", "neigh", "show", "proxy"]).contains("fd00:128::250 dev eth0"));
    stands(&machine, "PodRoute", "r", proxy);
    assert_eq!(pod.sysctl("net.ipv6.conf.eth0.proxy_ndp").unwrap(), "0");
    assert_eq!(pod.sysctl("net.ipv6.conf.all.forwarding").unwrap(), "0");

    // A pod that is a router: its forwarding is what lets others through.
    let cut_through = || {
        routers[0].ip(&["route", "replace", "10.99.0.9", "via", "10.128.2.180"]);
        routers[0].output("ping", &["-n", "-c", "1", "-i", "0.2", "-w", "3", "10.99.0.9"]).is_ok()
    };
    routers[1].address("lo", "10.99.0.9/32");
    stands(&machine, "PodRoute", "r", "routes: [{to: 10.99.0.9/32, via: 10.128.2.191}]");
    assert!(!cut_through());
    stands(
        &machine,
        "PodRoute",
        "r",
        "routes: [{to: 10.99.0.9/32, via: 10.128.2.191}],
         sysctls: {net.ipv4.ip_forward: '1', net.ipv4.conf.eth0.send_redirects: '0', net.ipv4.conf.all.send_redirects: '0'}",
    );
    assert!(cut_through());
    machine.knit(&["delete", "podroute", "r"]).ok();
    assert!(!cut_through());
    assert_eq!(pod.sysctl("net.ipv4.ip_forward").unwrap(), "0");
    untouched.assert_again();
}

#[test]
fn what_waits_for_an_interface_comes_and_goes_with_it() {
    let (machine, pod, _routers) = with_routers("waits");
    let untouched = machine.untouched(&[&pod]);
    machine.knit(&["sandbox", "label", "a", LABEL, "podnetwork.opdev.io/veth=net"]).ok();
    let spec = "routes: [{to: 10.77.0.0/16, via: 10.1.0.1, dev: net}, {to: 10.78.0.0/16, via: 10.1.0.9}],
                neighbours: [{address: 10.1.0.9, dev: net, hardwareAddr: '02:00:00:00:00:09'}],
                sysctls: {net.ipv4.conf.net.rp_filter: '2'}";
    let said = machine.apply(&object("PodRoute", "r", spec)).refused();
    assert!(said.contains("pod default/a waits for interface net, which is not there"), "{said}");
    assert!(
        said.contains("pod default/a waits for an interface whose network has the router 10.1.0.9"),
        "{said}"
    );
    let veth = object("Veth", "net", "namePrefix: net, master: br1, cidr: 10.1.0.0/24");
    machine.apply(&veth).ok();
    machine.assert_at_rest();
    let name = format!("net{}", pod.pid());
    assert_eq!(addresses(&pod, &name), ["10.1.0.2/24"]);
    let filter = format!("net.ipv4.conf.{name}.rp_filter");
    let all_there = || {
        let routes = pod.ip(&["route"]);
        routes.contains(&format!("10.77.0.0/16 via 10.1.0.1 dev {name}"))
            && routes.contains(&format!("10.78.0.0/16 via 10.1.0.9 dev {name}"))
            && pod.ip(&["neigh", "show", "nud", "permanent"]).contains("10.1.0.9")
            && pod.sysctl(&filter).unwrap() == "2"
    };
    assert!(all_there());
    let shown = machine.get("PodRoute", "r");
    assert_eq!(shown["status"]["phase"], "configured", "{shown}");
    // Someone deletes it; the next apply makes it again, with all that hangs on it.
    pod.ip(&["link", "del", &name]);
    assert_eq!(machine.knit(&["status"]).code, Some(1));
    machine.apply(&veth).ok();
    assert!(all_there());
    machine.assert_at_rest();

    // The interface goes; what needs it waits again, and comes back.
    machine.knit(&["delete", "veth", "net"]);
    assert!(!pod.ip(&["route"]).contains("10.77"));
    let shown = machine.get("PodRoute", "r");
    assert_eq!(shown["status"]["phase"], "configuring", "{shown}");
    machine.apply(&veth).ok();
    assert!(all_there());

    // A second object that wants the same route is told, and gets it when the first goes.
    let second = object(
        "PodRoute",
        "s",
        "selector: {matchLabels: {'podnetwork.opdev.io/podroute': r}}, routes: [{to: 10.77.0.0/16, type: blackhole}]",
    );
    let said = machine.apply(&second).refused();
    assert!(said.contains("is asked for already by podroute/r in default, which was first"), "{said}");
    machine.knit(&["delete", "podroute", "r"]).ok();
    assert!(pod.ip(&["route"]).contains("blackhole 10.77.0.0/16"));
    assert_ne!(pod.sysctl(&filter).unwrap(), "2", "the interface of Knit's has its first value again");
    machine.assert_at_rest();
    machine.delete(&second).ok();
    machine.delete(&veth).ok();
    untouched.assert_again();
}

#[test]
fn a_sysctl_that_is_taken_out_of_an_interface_goes_back() {
    let machine = Machine::new("sysback");
    let pod = machine.pod("a", 180);
    machine.add("a", &pod, &["podnetwork.opdev.io/veth=net"]);
    pod.output("sysctl", &["-w", "net.ipv4.conf.default.rp_filter=2"]).unwrap();
    let base = "interfaceName: net1, master: br1, cidr: 10.1.0.0/24";
    let value = || pod.sysctl("net.ipv4.conf.net1.rp_filter").unwrap();
    stands(&machine, "Veth", "net", &format!("{base}, sysctls: {{ipv4/rp_filter: '1'}}"));
    assert_eq!(value(), "1");
    stands(&machine, "Veth", "net", &format!("{base}, sysctls: {{ipv4/rp_filter: '0'}}"));
    stands(&machine, "Veth", "net", base);
    assert_eq!(value(), "2");
}
