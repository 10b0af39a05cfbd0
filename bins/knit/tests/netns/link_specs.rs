//! Links, routes and sysctls in an attach request.

use std::time::Duration;

use crate::support::agent::{Machine, attach, netns};
use knit_kni::{Reason, v1};
use knit_testbed::{Dump, eventually};

fn link(name: &str, kind: &str, options: &[(&str, &str)]) -> v1::InterfaceSpec {
    let options = options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let link = v1::LinkSpec { kind: kind.to_owned(), options, ..Default::default() };
    v1::InterfaceSpec {
        name: name.to_owned(),
        to: Some(v1::interface_spec::To::Link(link)),
        ..Default::default()
    }
}

fn set(spec: &mut v1::InterfaceSpec, change: impl FnOnce(&mut v1::LinkSpec)) {
    let Some(v1::interface_spec::To::Link(link)) = &mut spec.to else { unreachable!() };
    change(link);
}

#[test]
fn links_of_all_kinds_are_created_by_a_call_and_removed_completely() {
    let machine = Machine::new("agent-links");
    let pods = ["one", "two"].map(|name| machine.testbed.pod(name));
    let agent = machine.agent();
    let before = (Dump::settled(&machine.host), Dump::settled(pods[0].namespace()));
    for (id, pod) in ["s1", "s2"].into_iter().zip(&pods) {
        let mut pair = link("net1", "veth", &[]);
        set(&mut pair, |link| {
            link.master = "br-call".to_owned();
            link.ranges = vec!["10.9.0.0/24".to_owned()];
        });
        let mut tunnel =
            link("vx0", "vxlan", &[("vni", "77"), ("remote", "10.9.0.1"), ("learning", "false")]);
        set(&mut tunnel, |link| {
            link.parent = "net1".to_owned();
            link.ranges = vec!["10.10.0.0/24".to_owned()];
        });
        let mut tap = link("d0", "tap", &[("alias", "mine"), ("multiQueue", "true")]);
        tap.addresses = vec!["192.0.2.7/32".to_owned()];
        tap.sysctls = [("ipv4/rp_filter".to_owned(), "2".to_owned())].into();
        let plain = v1::InterfaceSpec::default();
        let mut request = attach(id, &netns(pod));
        request.interfaces = vec![plain, pair, tunnel, tap];
        let response = agent.try_attach(request.clone()).unwrap();
        assert_eq!(response.interfaces, ["eth0", "net1", "vx0", "d0"]);
        assert!(!agent.try_attach(request).unwrap().changed, "the same again is the same");
    }
    let shown = agent.pod("s1").unwrap();
    let kinds: Vec<_> = shown.interfaces.iter().map(|one| (one.name.as_str(), one.kind.as_str())).collect();
    for expected in [("eth0", "veth"), ("net1", "veth"), ("vx0", "vxlan"), ("d0", "tun")] {
        assert!(kinds.contains(&expected), "{kinds:?}");
    }
    let d0 = shown.interfaces.iter().find(|one| one.name == "d0").unwrap();
    assert_eq!((d0.addresses[0].address.as_str(), d0.sysctls["ipv4/rp_filter"].as_str()), ("192.0.2.7", "2"));
    assert_eq!(pods[0].namespace().sysctl("net.ipv4.conf.d0.rp_filter").unwrap(), "2");
    pods[1].ping("10.9.0.2").unwrap();
    pods[1].ping("10.9.0.1").unwrap();
    let details = pods[0].ip(&["-d", "link", "show", "vx0"]);
    assert!(
        details.contains("vxlan id 77 remote 10.9.0.1 dev net1") && details.contains("nolearning"),
        "{details}"
    );
    assert!(pods[0].ip(&["link", "show", "d0"]).contains("alias mine"));
    // A restart keeps them, and one can be detached alone.
    agent.crash();
    let agent = machine.agent();
    assert_eq!(agent.pod("s1").unwrap().interfaces.len(), 4);
    agent.detach("s1", &["vx0"]);
    assert!(!pods[0].ip(&["link"]).contains("vx0"));
    assert!(agent.delete("s1") && agent.delete("s2"));
    assert_eq!(agent.used_addresses(), 0);
    eventually("the bridge is removed with its last port", Duration::from_secs(5), || {
        let shown = machine.host.ip(&["link"]) + &pods[0].ip(&["link"]);
        !shown.contains("br-call") && !shown.contains("knitx")
    });
    before.0.assert_unchanged(&machine.host);
    before.1.assert_unchanged(pods[0].namespace());
}

#[test]
fn routes_and_sysctls_are_applied_with_an_interface() {
    let machine = Machine::new("agent-routes");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let mut request = attach("s1", &netns(&pod));
    let route = |destination: &str| v1::Route { destination: destination.to_owned(), ..Default::default() };
    let rich = v1::Route {
        gateway: "10.99.0.1".to_owned(),
        source: "10.75.0.2".to_owned(),
        metric: 77,
        table: 100,
        mtu: 1400,
        onlink: true,
        ..route("10.8.0.0/16")
    };
    let sysctls = [("ipv6/accept_ra".to_owned(), "2".to_owned())];
    request.interfaces = vec![v1::InterfaceSpec {
        routes: vec![route("10.7.0.0/16"), rich.clone()],
        sysctls: sysctls.into(),
        ..Default::default()
    }];
    let response = agent.try_attach(request.clone()).unwrap();
    let plain = pod.ip(&["route", "show", "10.7.0.0/16"]);
    assert!(plain.contains("via 10.75.0.1 dev eth0"), "{plain}");
    let shown = pod.ip(&["route", "show", "table", "100"]);
    for part in ["10.8.0.0/16 via 10.99.0.1 dev eth0", "metric 77", "src 10.75.0.2", "mtu 1400", "onlink"] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    assert_eq!(pod.namespace().sysctl("net.ipv6.conf.eth0.accept_ra").unwrap(), "2");
    let routes = &response.pod.unwrap().interfaces[0].routes;
    assert!(routes.contains(&rich), "{routes:?}");
    // Invalid values are reported with their field, and nothing changes.
    let before = Dump::settled(pod.namespace());
    for (field, change) in [
        ("interfaces[0].routes[1]", v1::Route { gateway: "fd00::1".to_owned(), ..rich.clone() }),
        ("interfaces[0].routes[1].source", v1::Route { source: "x".to_owned(), ..rich.clone() }),
        ("interfaces[0].routes[1].destination", v1::Route { destination: "10.8.0.1/16".to_owned(), ..rich }),
    ] {
        let mut wrong = request.clone();
        wrong.interfaces[0].routes[1] = change;
        let error = agent.try_attach(wrong).unwrap_err();
        assert_eq!(error.reason(), Some(Reason::InvalidValue), "{error}");
        assert!(error.to_string().contains(field), "{error}");
    }
    let mut host = attach("s1", &netns(&pod));
    let mut stolen = link("net1", "macvlan", &[]);
    set(&mut stolen, |link| link.parent = "knit0".to_owned());
    host.interfaces = vec![stolen];
    let error = agent.try_attach(host).unwrap_err();
    assert!(error.to_string().contains("knit0"), "a link of the host cannot be a parent: {error}");
    before.assert_unchanged(pod.namespace());
}
