//! PodRoute: routes, rules, neighbours and sysctls in pods, with traffic.

use knit_testbed::Pod;

use super::{assert_configured, object};
use crate::support::machine::{Machine, addresses};

const LABEL: &str = "podnetwork.opdev.io/podroute=r";

/// A pod with PodRoute `r`, and two routers with 10.99.0.1 on their loopbacks. All are on the network of the primary
/// CNI plugin.
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
    machine.assert_no_drift();
}

#[test]
fn a_route_forwards_traffic_until_it_is_removed() {
    let (machine, pod, _routers) = with_routers("route");
    let before = machine.snapshot(&[&pod]);
    assert!(pod.ping("10.99.0.1").is_err());
    assert_configured(
        &machine,
        "PodRoute",
        "r",
        "routes: [{to: 10.99.0.0/16, via: 10.128.2.190}, {to: 'fd99::/32', via: 'fd00:128::190'}]",
    );
    pod.ping("10.99.0.1").unwrap();
    pod.ping("fd99::1").unwrap();
    let shown = machine.get("PodRoute", "r")["status"]["podConfigurations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pod| serde_json::json!({"podName": pod["podName"], "configList": pod["configList"]}))
        .collect::<serde_json::Value>();
    assert_eq!(
        shown,
        serde_json::json!([{"podName": "a", "configList": [
            "{route:10.99.0.0/16 via 10.128.2.190 dev eth0}", "{route:fd99::/32 via fd00:128::190 dev eth0}"]}])
    );

    // Each field is changed in place.
    assert_configured(&machine, "PodRoute", "r", "routes: [{to: 10.99.0.0/16, via: 10.128.2.190}]");
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
        machine.assert_no_drift();
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
        assert_configured(&machine, "PodRoute", "r", &format!("routes: [{{to: 'fd99::/32', {fields}}}]"));
        let route = pod.ip(&["-6", "route", "show", "fd99::/32"]);
        assert!(route.contains(shown), "{fields}: {route}");
    }
    pod.ping("fd99::1").unwrap();
    remove(&machine);
    assert!(pod.ping("10.99.0.1").is_err() && pod.ping("fd99::1").is_err());
    before.assert_unchanged();
}

#[test]
fn foreign_routes_are_kept_when_a_label_is_removed() {
    let (machine, pod, _routers) = with_routers("theirs");
    pod.ip(&["route", "add", "10.97.0.0/16", "via", "10.128.2.190"]);
    pod.ip(&["rule", "add", "from", "10.66.0.0/16", "table", "66", "priority", "600"]);
    pod.ip(&["neigh", "add", "10.128.2.77", "lladdr", "02:00:00:00:00:77", "dev", "eth0"]);
    let before = machine.snapshot(&[&pod]);
    let printed = machine.apply(&object(
        "PodRoute",
        "r",
        "routes: [{to: 10.97.0.0/16, via: 10.128.2.191}, {to: 0.0.0.0/0, via: 10.128.2.191}, {to: 10.99.0.0/16, via: 10.128.2.190}],
         rules: [{priority: 600, from: 10.66.0.0/16, table: 66}],
         neighbours: [{address: 10.128.2.77, dev: eth0, hardwareAddr: '02:00:00:00:00:78'}]",
    ));
    assert_eq!(printed.code, Some(1));
    for what in [
        "route 10.97.0.0/16",
        "route 0.0.0.0/0",
        "rule 600: from 10.66.0.0/16 lookup 66",
        "neighbour 10.128.2.77 on eth0",
    ] {
        let sentence = format!("{what} of pod default/a exists and is not owned by Knit");
        assert!(printed.err.contains(&sentence), "{sentence}: {printed:?}");
    }
    let ready = machine.get("PodRoute", "r")["status"]["conditions"][0].clone();
    assert_eq!((&ready["status"], &ready["reason"]), (&"False".into(), &"NotOwned".into()));
    pod.ping("10.99.0.1").unwrap();
    machine.knit(&["sandbox", "label", "a", "podnetwork.opdev.io/podroute-"]).ok();
    assert!(pod.ping("10.99.0.1").is_err());
    before.assert_unchanged();
    machine.knit(&["sandbox", "label", "a", LABEL]);
    pod.ping("10.99.0.1").unwrap();
    machine.knit(&["sandbox", "delete", "a"]).ok();
    before.assert_unchanged();
}

#[test]
fn multipath_routes_balance_and_rules_select_the_table() {
    let (machine, pod, routers) = with_routers("multipath");
    let before = machine.snapshot(&[&pod]);
    for (number, router) in routers.iter().enumerate() {
        router.address("lo", &format!("10.98.0.{number}/32"));
        for last in 10..40 {
            router.address("lo", &format!("10.98.1.{last}/32"));
        }
    }
    assert_configured(
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
    let hops: Vec<String> =
        (10..40).map(|last| pod.ip(&["route", "get", &format!("10.98.1.{last}")])).collect();
    for router in ["10.128.2.190", "10.128.2.191"] {
        assert!(hops.iter().any(|hop| hop.contains(&format!("via {router} "))), "{router}: {hops:?}");
    }
    for last in 10..40 {
        pod.ping(format!("10.98.1.{last}")).unwrap();
    }

    // The rule selects the table; without it the table is not used.
    pod.ping("10.99.0.1").unwrap();
    assert_configured(
        &machine,
        "PodRoute",
        "r",
        "routes: [{to: 10.99.0.0/16, via: 10.128.2.191, table: 77}]",
    );
    assert!(pod.ping("10.99.0.1").is_err());
    assert!(pod.ip(&["route", "show", "table", "77"]).contains("10.99.0.0/16 via 10.128.2.191"));
    remove(&machine);
    for (number, router) in routers.iter().enumerate() {
        router.ip(&["address", "del", &format!("10.98.0.{number}/32"), "dev", "lo"]);
    }
    before.assert_unchanged();
}

#[test]
fn neighbours_and_sysctls_take_effect() {
    let (machine, pod, routers) = with_routers("neigh");
    let before = machine.snapshot(&[&pod]);
    let mac =
        |router: &Pod| router.ip_json(&["link", "show", "eth0"])[0]["address"].as_str().unwrap().to_owned();
    let neighbour =
        |mac: &str| format!("neighbours: [{{address: 10.128.2.190, dev: eth0, hardwareAddr: '{mac}'}}]");
    assert_configured(&machine, "PodRoute", "r", &neighbour("02:00:00:00:00:66"));
    assert!(pod.ping("10.128.2.190").is_err(), "the neighbour entry is wrong");
    assert_configured(&machine, "PodRoute", "r", &neighbour(&mac(&routers[0])));
    pod.ping("10.128.2.190").unwrap();
    let shown = pod.ip(&["neigh", "show", "10.128.2.190"]);
    assert!(shown.contains("PERMANENT proto 75"), "{shown}");

    // The pod is an ARP and NDP proxy for another address.
    let proxy = "neighbours: [{address: 10.128.2.250, dev: eth0, proxy: true}, {address: 'fd00:128::250', dev: eth0, proxy: true}]";
    assert_configured(
        &machine,
        "PodRoute",
        "r",
        &format!(
            "{proxy}, sysctls: {{net.ipv6.conf.eth0.proxy_ndp: '1', net.ipv6.conf.all.forwarding: '1'}}"
        ),
    );
    assert!(pod.ip(&["neigh", "show", "proxy"]).contains("10.128.2.250 dev eth0"));
    assert!(pod.ip(&["-6", "neigh", "show", "proxy"]).contains("fd00:128::250 dev eth0"));
    assert_configured(&machine, "PodRoute", "r", proxy);
    assert_eq!(pod.sysctl("net.ipv6.conf.eth0.proxy_ndp").unwrap(), "0");
    assert_eq!(pod.sysctl("net.ipv6.conf.all.forwarding").unwrap(), "0");

    // The pod is a router: the forwarding sysctls take effect.
    let cut_through = || {
        routers[0].ip(&["route", "replace", "10.99.0.9", "via", "10.128.2.180"]);
        routers[0].output("ping", &["-n", "-c", "1", "-i", "0.2", "-w", "3", "10.99.0.9"]).is_ok()
    };
    routers[1].address("lo", "10.99.0.9/32");
    assert_configured(&machine, "PodRoute", "r", "routes: [{to: 10.99.0.9/32, via: 10.128.2.191}]");
    assert!(!cut_through());
    assert_configured(
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
    before.assert_unchanged();
}

#[test]
fn routes_follow_the_interface_that_they_need() {
    let (machine, pod, _routers) = with_routers("waits");
    let before = machine.snapshot(&[&pod]);
    machine.knit(&["sandbox", "label", "a", LABEL, "podnetwork.opdev.io/veth=net"]).ok();
    let spec = "routes: [{to: 10.77.0.0/16, via: 10.1.0.1, dev: net}, {to: 10.78.0.0/16, via: 10.1.0.9}],
                neighbours: [{address: 10.1.0.9, dev: net, hardwareAddr: '02:00:00:00:00:09'}],
                sysctls: {net.ipv4.conf.net.rp_filter: '2'}";
    let printed = machine.apply(&object("PodRoute", "r", spec)).error();
    assert!(printed.contains("pod default/a waits for interface net, which does not exist"), "{printed}");
    assert!(
        printed.contains("pod default/a waits for an interface whose subnet contains the gateway 10.1.0.9"),
        "{printed}"
    );
    let veth = object("Veth", "net", "namePrefix: net, master: br1, cidr: 10.1.0.0/24");
    machine.apply(&veth).ok();
    machine.assert_no_drift();
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
    // The interface is deleted by hand; the next apply recreates it with everything that depends on it.
    pod.ip(&["link", "del", &name]);
    assert_eq!(machine.knit(&["status"]).code, Some(1));
    machine.apply(&veth).ok();
    assert!(all_there());
    machine.assert_no_drift();

    // The interface is removed: the route waits and is restored with the interface.
    machine.knit(&["delete", "veth", "net"]);
    assert!(!pod.ip(&["route"]).contains("10.77"));
    let shown = machine.get("PodRoute", "r");
    assert_eq!(shown["status"]["phase"], "configuring", "{shown}");
    machine.apply(&veth).ok();
    assert!(all_there());

    // A second object with the same route reports the conflict, and applies when the first is deleted.
    let second = object(
        "PodRoute",
        "s",
        "selector: {matchLabels: {'podnetwork.opdev.io/podroute': r}}, routes: [{to: 10.77.0.0/16, type: blackhole}]",
    );
    let printed = machine.apply(&second).error();
    assert!(printed.contains("is already requested by podroute/r in default, which is older"), "{printed}");
    machine.knit(&["delete", "podroute", "r"]).ok();
    assert!(pod.ip(&["route"]).contains("blackhole 10.77.0.0/16"));
    assert_ne!(pod.sysctl(&filter).unwrap(), "2", "the interface of Knit's has its first value again");
    machine.assert_no_drift();
    machine.delete(&second).ok();
    machine.delete(&veth).ok();
    before.assert_unchanged();
}

#[test]
fn a_removed_sysctl_is_restored() {
    let machine = Machine::new("sysback");
    let pod = machine.pod("a", 180);
    machine.add("a", &pod, &["podnetwork.opdev.io/veth=net"]);
    pod.output("sysctl", &["-w", "net.ipv4.conf.default.rp_filter=2"]).unwrap();
    let base = "interfaceName: net1, master: br1, cidr: 10.1.0.0/24";
    let value = || pod.sysctl("net.ipv4.conf.net1.rp_filter").unwrap();
    assert_configured(&machine, "Veth", "net", &format!("{base}, sysctls: {{ipv4/rp_filter: '1'}}"));
    assert_eq!(value(), "1");
    assert_configured(&machine, "Veth", "net", &format!("{base}, sysctls: {{ipv4/rp_filter: '0'}}"));
    assert_configured(&machine, "Veth", "net", base);
    assert_eq!(value(), "2");
}
