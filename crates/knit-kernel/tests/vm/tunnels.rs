//! Tunnels: created in a running sandbox, observed, used across a router, changed in place, and removed without a
//! trace; with a fault at every step of every plan.

use std::net::IpAddr;

use knit_kernel::fault::{Fault, FaultAt, NoFaults};
use knit_kernel::{DeleteMode, Rollback};
use knit_model::link::{
    Geneve, GeneveDf, Gre, GreForm, INHERIT_TOS, InnerProtocol, IpTunnel, IpTunnelForm, Kind, Link,
    NumberOrNone, TunnelFields,
};
use knit_model::{Address, NetState, Plan};
use knit_testbed::Dump;
use nix::errno::Errno;
use serde_json::Value;

use crate::support::edits::{Edit, change_each};
use crate::support::node::{TestNode, sandbox};
use crate::support::states::{link, name, net};

/// The endpoints of the tunnels, in each family.
const ENDS4: [&str; 2] = ["10.50.0.2", "10.51.0.2"];
const ENDS6: [&str; 2] = ["fd50::2", "fd51::2"];

const FAIL: Fault = Fault::Fail(Errno::EIO);

/// Two sandboxes in separate networks; the host routes between them.
fn over_a_router(test: &str) -> TestNode {
    let node = TestNode::new(test, &["a", "b"]);
    for (index, pod) in node.sandboxes.iter().enumerate() {
        let (near, number) = (format!("h{index}"), 50 + index);
        node.host.ip(&["link", "add", &near, "type", "veth", "peer", "name", "eth0", "netns", pod.name()]);
        let ends = [(&node.host, near.as_str(), 1), (pod, "eth0", 2)];
        for (namespace, link, host) in ends {
            namespace.ip(&["addr", "add", &format!("10.{number}.0.{host}/24"), "dev", link]);
            namespace.ip(&["addr", "add", &format!("fd{number}::{host}/64"), "dev", link, "nodad"]);
            namespace.ip(&["link", "set", link, "up"]);
        }
        pod.ip(&["route", "add", "default", "via", &format!("10.{number}.0.1")]);
        pod.ip(&["-6", "route", "add", "default", "via", &format!("fd{number}::1")]);
    }
    node.host.set_sysctl("net/ipv4/ip_forward", "1");
    node.host.set_sysctl("net/ipv6/conf/all/forwarding", "1");
    node
}

/// A test case for one kind of tunnel.
struct Case {
    /// Its kernel name.
    form: &'static str,
    /// The kind with these endpoints.
    kind: fn(local: IpAddr, remote: IpAddr) -> Kind,
    ends: [&'static str; 2],
    /// The inner addresses, and the one to reach.
    inner: [&'static str; 2],
    reach: &'static str,
    /// Fields as `ip -d -j link` shows them.
    shown: &'static [(&'static str, &'static str)],
    /// Changes in place, which end with the fields that the far end has.
    edits: &'static [&'static [Edit]],
    /// A change that recreates both ends, and the note in the plan.
    again: (&'static str, fn(&mut Link)),
}

impl Case {
    fn state(&self) -> NetState {
        let mut state = NetState::default();
        let [a, b] = self.ends.map(|end| end.parse().unwrap());
        for (id, local, remote, inner) in [("a", a, b, self.inner[0]), ("b", b, a, self.inner[1])] {
            let scope = sandbox(id);
            let mut tunnel = link(&scope, "t0", (self.kind)(local, remote).with_defaults());
            tunnel.attrs.mtu = Some(1400);
            state.scope(&scope).add_link(tunnel);
            state.scope(&scope).add_address(Address::new(name("t0"), net(inner)));
        }
        state
    }

    fn run(&self) {
        let node = over_a_router(self.form);
        let before = node.dumps();
        let mut state = self.state();
        let plan = node.plan(&state);
        survive_every_fault(&node, &plan, &[FAIL, Fault::Crash]);
        node.converge(&state);
        self.assert_shown(&node);
        node.sandboxes[0].ping(self.reach).unwrap();

        change_each(&node, &mut state, &sandbox("a"), "t0", COMMON);
        for edits in self.edits {
            change_each(&node, &mut state, &sandbox("a"), "t0", edits);
        }
        node.sandboxes[0].ping(self.reach).unwrap();

        let (why, edit) = self.again;
        for id in ["a", "b"] {
            edit(state.scope(&sandbox(id)).links.get_mut(&name("t0")).unwrap());
        }
        let plan = node.plan(&state);
        assert!(plan.to_string().contains(why), "{why} is not in\n{plan}");
        survive_every_fault(&node, &plan, &[FAIL]);
        node.converge(&state);
        node.sandboxes[0].ping(self.reach).unwrap();

        let plan = node.plan(&NetState::default());
        survive_every_fault(&node, &plan, &[Fault::Crash]);
        node.converge(&NetState::default());
        node.assert_unchanged(&before, "after removal");
    }

    fn assert_shown(&self, node: &TestNode) {
        let shown = node.sandboxes[0].ip_json(&["-d", "link", "show", "t0"]);
        let info = &shown[0]["linkinfo"];
        assert_eq!(info["info_kind"], self.form, "{shown}");
        for (field, value) in self.shown {
            let observed = match &info["info_data"][field] {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            assert_eq!(observed, *value, "{field} of {shown}");
        }
    }
}

/// Fails or crashes at every step of the plan in sandbox `a`; the state must be unchanged.
#[track_caller]
fn survive_every_fault(node: &TestNode, plan: &Plan, faults: &[Fault]) {
    let pod = &node.sandboxes[0];
    let (before, dump) = (without_random_addresses(node.observe()), Dump::take(pod));
    let steps = plan.steps.iter().enumerate().filter(|(_, planned)| planned.scope == sandbox("a"));
    for ((step, planned), fault) in steps.flat_map(|step| faults.iter().map(move |fault| (step, *fault))) {
        let error = node.apply_with(plan, DeleteMode::Immediate, &mut FaultAt { step, fault }).unwrap_err();
        if let Fault::Crash = fault {
            let left = node.kernel().roll_back(plan, &mut node.namespaces());
            assert!(left.is_empty(), "{left:?}\n{plan}");
        } else {
            assert_eq!((error.step, &error.rollback), (step, &Rollback::Complete), "{error}\n{plan}");
        }
        assert_eq!(without_random_addresses(node.observe()), before, "after {fault:?} at {}", planned.step);
    }
    let difference = dump.difference(&Dump::take(pod));
    let is_random = |line: &&str| line.contains("permaddr") || line.contains("fe80::");
    let differs = |line: &&str| line.starts_with("  - ") || line.starts_with("  + ");
    assert!(
        !difference.lines().filter(differs).any(|line| !is_random(&line)),
        "after all faults:\n{difference}"
    );
}

/// Without link-local addresses: a tunnel over IPv6 gets a random one each time it is created.
fn without_random_addresses(mut state: NetState) -> NetState {
    let link_local = net("fe80::/10");
    for scope in state.scopes.values_mut() {
        scope.addresses.retain(|_, address| !link_local.contains(&address.address));
        scope.routes.retain(|key, _| !link_local.contains(&key.to));
    }
    state
}

/// Common fields that can be changed on every tunnel.
const COMMON: &[Edit] = &[
    ("mtu", |link| link.attrs.mtu = Some(1390)),
    ("txqueuelen", |link| link.attrs.txqueuelen = Some(77)),
    ("alias", |link| link.attrs.alias = Some("of a test".to_owned())),
    ("mtu", |link| link.attrs.mtu = Some(1400)),
];

fn geneve(link: &mut Link) -> &mut Geneve {
    let Kind::Geneve(geneve) = &mut link.kind else { panic!("not a geneve") };
    geneve
}

fn gre(link: &mut Link) -> &mut Gre {
    let Kind::Gre(gre) = &mut link.kind else { panic!("not a gre") };
    gre
}

fn ip_tunnel(link: &mut Link) -> &mut IpTunnel {
    let Kind::IpTunnel(tunnel) = &mut link.kind else { panic!("not an IP tunnel") };
    tunnel
}

fn geneve_with(_local: IpAddr, remote: IpAddr) -> Kind {
    Kind::Geneve(Geneve { vni: 77, remote: Some(remote), ..Geneve::default() })
}

fn over_eth0(local: IpAddr, remote: IpAddr) -> TunnelFields {
    TunnelFields { parent: Some(name("eth0")), ..TunnelFields::between(Some(local), Some(remote)) }
}

fn gre_with(form: GreForm, local: IpAddr, remote: IpAddr) -> Kind {
    Kind::Gre(Gre { form, outer: over_eth0(local, remote), ..Gre::default() })
}

fn ip_tunnel_with(form: IpTunnelForm, local: IpAddr, remote: IpAddr) -> Kind {
    Kind::IpTunnel(IpTunnel { form, inner: None, outer: over_eth0(local, remote) })
}

/// Fields that can be changed on GRE over either family.
const GRE: &[Edit] = &[
    ("ttl", |link| gre(link).outer.ttl = Some(33)),
    ("tos", |link| gre(link).outer.tos = Some(INHERIT_TOS)),
    ("tos", |link| gre(link).outer.tos = Some(0x28)),
    ("ikey", |link| gre(link).ikey = Some(NumberOrNone(Some(9)))),
    ("okey", |link| gre(link).okey = Some(NumberOrNone(Some(0xff00_0001)))),
    ("okey", |link| gre(link).okey = Some(NumberOrNone(None))),
    ("ikey", |link| gre(link).ikey = Some(NumberOrNone(None))),
    ("seq", |link| gre(link).seq = Some(true)),
    ("seq", |link| gre(link).seq = Some(false)),
    ("csum", |link| gre(link).csum = Some(true)),
    ("csum", |link| gre(link).csum = Some(false)),
    ("fwmark", |link| gre(link).outer.fwmark = Some(5)),
    ("fwmark", |link| gre(link).outer.fwmark = Some(0)),
];
const GRE4: &[Edit] = &[
    ("pmtudisc", |link| gre(link).outer.pmtudisc = Some(false)),
    ("remote", |link| gre(link).outer.remote = Some([10, 51, 0, 9].into())),
    ("local", |link| gre(link).outer.local = Some([10, 50, 0, 9].into())),
    ("local", |link| gre(link).outer.local = Some([10, 50, 0, 2].into())),
    ("remote", |link| gre(link).outer.remote = Some([10, 51, 0, 2].into())),
];
const GRE6: &[Edit] = &[
    ("encap_limit", |link| gre(link).outer.encap_limit = Some(NumberOrNone(Some(4)))),
    ("flow_label", |link| gre(link).outer.flow_label = Some(0x4_2042)),
    ("encap_limit", |link| gre(link).outer.encap_limit = Some(NumberOrNone(None))),
    ("remote", |link| gre(link).outer.remote = Some("fd51::9".parse().unwrap())),
    ("remote", |link| gre(link).outer.remote = Some("fd51::2".parse().unwrap())),
];
const IP4: &[Edit] = &[
    ("ttl", |link| ip_tunnel(link).outer.ttl = Some(33)),
    ("tos", |link| ip_tunnel(link).outer.tos = Some(INHERIT_TOS)),
    ("ttl", |link| ip_tunnel(link).outer.ttl = Some(0)),
    ("pmtudisc", |link| ip_tunnel(link).outer.pmtudisc = Some(false)),
    ("remote", |link| ip_tunnel(link).outer.remote = Some([10, 51, 0, 9].into())),
    ("remote", |link| ip_tunnel(link).outer.remote = Some([10, 51, 0, 2].into())),
    ("local", |link| ip_tunnel(link).outer.local = Some([10, 50, 0, 9].into())),
    ("local", |link| ip_tunnel(link).outer.local = Some([10, 50, 0, 2].into())),
    ("fwmark", |link| ip_tunnel(link).outer.fwmark = Some(5)),
    ("fwmark", |link| ip_tunnel(link).outer.fwmark = Some(0)),
];
const IP6: &[Edit] = &[
    ("ttl", |link| ip_tunnel(link).outer.ttl = Some(33)),
    ("tos", |link| ip_tunnel(link).outer.tos = Some(INHERIT_TOS)),
    ("tos", |link| ip_tunnel(link).outer.tos = Some(0x28)),
    ("encap_limit", |link| ip_tunnel(link).outer.encap_limit = Some(NumberOrNone(Some(4)))),
    ("flow_label", |link| ip_tunnel(link).outer.flow_label = Some(0x4_2042)),
    ("encap_limit", |link| ip_tunnel(link).outer.encap_limit = Some(NumberOrNone(None))),
    ("remote", |link| ip_tunnel(link).outer.remote = Some("fd51::9".parse().unwrap())),
    ("remote", |link| ip_tunnel(link).outer.remote = Some("fd51::2".parse().unwrap())),
    ("fwmark", |link| ip_tunnel(link).outer.fwmark = Some(5)),
    ("fwmark", |link| ip_tunnel(link).outer.fwmark = Some(0)),
];

const INNER4: [&str; 2] = ["10.52.0.2/24", "10.52.0.3/24"];
const INNER6: [&str; 2] = ["fd52::2/64", "fd52::3/64"];

fn without_parent(link: &mut Link) {
    match &mut link.kind {
        Kind::Gre(gre) => gre.outer.parent = None,
        Kind::IpTunnel(tunnel) => tunnel.outer.parent = None,
        other => panic!("{other:?} has no parent"),
    }
}

#[test]
fn a_geneve() {
    Case {
        form: "geneve",
        kind: geneve_with,
        ends: ENDS4,
        inner: INNER4,
        reach: "10.52.0.3",
        shown: &[("id", "77"), ("remote", "10.51.0.2"), ("port", "6081"), ("udp_csum", "true")],
        edits: &[&[
            ("ttl", |link| geneve(link).ttl = Some(33)),
            ("tos", |link| geneve(link).tos = Some(0x28)),
            ("df", |link| geneve(link).df = Some(GeneveDf::Set)),
            ("df", |link| geneve(link).df = Some(GeneveDf::Inherit)),
            ("ttl", |link| geneve(link).ttl = Some(0)),
            ("ttl_inherit", |link| geneve(link).ttl_inherit = Some(true)),
            ("ttl_inherit", |link| geneve(link).ttl_inherit = Some(false)),
            ("remote", |link| geneve(link).remote = Some([10, 51, 0, 9].into())),
            ("remote", |link| geneve(link).remote = Some([10, 51, 0, 2].into())),
        ]],
        again: ("the kernel cannot make this change of `vni`", |link| geneve(link).vni = 78),
    }
    .run();
}

#[test]
fn a_geneve_over_ipv6() {
    Case {
        form: "geneve",
        kind: geneve_with,
        ends: ENDS6,
        inner: INNER4,
        reach: "10.52.0.3",
        shown: &[("remote6", "fd51::2"), ("udp_zero_csum6_tx", "false"), ("udp_zero_csum6_rx", "false")],
        edits: &[&[
            ("flow_label", |link| geneve(link).flow_label = Some(0x4_2042)),
            ("remote", |link| geneve(link).remote = Some("fd51::9".parse().unwrap())),
            ("remote", |link| geneve(link).remote = Some("fd51::2".parse().unwrap())),
        ]],
        again: ("the kernel cannot make this change of `udp_csum`", |link| {
            geneve(link).udp_csum = Some(false);
        }),
    }
    .run();
}

#[test]
fn a_geneve_is_recreated_over_the_other_family() {
    let node = over_a_router("family");
    let mut state = NetState::default();
    let tunnel = geneve_with(ENDS4[0].parse().unwrap(), ENDS4[1].parse().unwrap()).with_defaults();
    state.scope(&sandbox("a")).add_link(link(&sandbox("a"), "t0", tunnel));
    node.converge(&state);
    geneve(state.scope(&sandbox("a")).links.get_mut(&name("t0")).unwrap()).remote = ENDS6[1].parse().ok();
    let plan = node.converge(&state);
    assert!(plan.to_string().contains("cannot make this change of `remote`"), "{plan}");
}

#[test]
fn a_gre() {
    Case {
        form: "gre",
        kind: |local, remote| gre_with(GreForm::Gre, local, remote),
        ends: ENDS4,
        inner: INNER4,
        reach: "10.52.0.3",
        shown: &[("remote", "10.51.0.2"), ("local", "10.50.0.2"), ("ttl", "64"), ("pmtudisc", "true")],
        edits: &[GRE, GRE4],
        again: ("the kernel cannot make this change of `parent`", without_parent),
    }
    .run();
}

#[test]
fn a_gretap() {
    Case {
        form: "gretap",
        kind: |local, remote| gre_with(GreForm::Gretap, local, remote),
        ends: ENDS4,
        inner: INNER4,
        reach: "10.52.0.3",
        shown: &[("remote", "10.51.0.2"), ("link", "eth0")],
        edits: &[GRE, GRE4],
        again: ("the kernel cannot make this change of `ignore_df`", |link| {
            gre(link).ignore_df = Some(true);
            gre(link).outer.pmtudisc = Some(false);
        }),
    }
    .run();
}

#[test]
fn an_ip6gre() {
    Case {
        form: "ip6gre",
        kind: |local, remote| gre_with(GreForm::Ip6gre, local, remote),
        ends: ENDS6,
        inner: INNER4,
        reach: "10.52.0.3",
        shown: &[("remote", "fd51::2"), ("local", "fd50::2")],
        edits: &[GRE, GRE6],
        again: ("the kernel cannot make this change of `parent`", without_parent),
    }
    .run();
}

#[test]
fn an_ip6gretap() {
    Case {
        form: "ip6gretap",
        kind: |local, remote| gre_with(GreForm::Ip6gretap, local, remote),
        ends: ENDS6,
        inner: INNER4,
        reach: "10.52.0.3",
        shown: &[("remote", "fd51::2"), ("local", "fd50::2")],
        edits: &[GRE, GRE6],
        again: ("the kernel cannot make this change of `parent`", without_parent),
    }
    .run();
}

#[test]
fn an_ipip() {
    Case {
        form: "ipip",
        kind: |local, remote| ip_tunnel_with(IpTunnelForm::Ipip, local, remote),
        ends: ENDS4,
        inner: INNER4,
        reach: "10.52.0.3",
        shown: &[("remote", "10.51.0.2"), ("local", "10.50.0.2"), ("proto", "ipip"), ("ttl", "64")],
        edits: &[IP4],
        again: ("the kernel cannot make this change of `inner`", |link| {
            ip_tunnel(link).inner = Some(InnerProtocol::Any);
        }),
    }
    .run();
}

#[test]
fn a_sit() {
    Case {
        form: "sit",
        kind: |local, remote| ip_tunnel_with(IpTunnelForm::Sit, local, remote),
        ends: ENDS4,
        inner: INNER6,
        reach: "fd52::3",
        shown: &[("remote", "10.51.0.2"), ("local", "10.50.0.2"), ("proto", "ip6ip")],
        edits: &[IP4],
        again: ("the kernel cannot make this change of `inner`", |link| {
            ip_tunnel(link).inner = Some(InnerProtocol::Any);
        }),
    }
    .run();
}

#[test]
fn an_ip6tnl() {
    Case {
        form: "ip6tnl",
        kind: |local, remote| ip_tunnel_with(IpTunnelForm::Ip6tnl, local, remote),
        ends: ENDS6,
        inner: INNER4,
        reach: "10.52.0.3",
        shown: &[("remote", "fd51::2"), ("local", "fd50::2"), ("proto", "any")],
        edits: &[IP6],
        again: ("the kernel cannot make this change of `inner`", |link| {
            ip_tunnel(link).inner = Some(InnerProtocol::Ipv4);
        }),
    }
    .run();
}

#[test]
fn a_failed_change_leaves_the_other_fields_unchanged() {
    let node = over_a_router("retold");
    let case_kind = |remote: [u8; 4]| {
        let mut full = Gre::full_for_tests(GreForm::Gre);
        let (parent, remote) = (Some(name("eth0")), Some(remote.into()));
        full.outer = TunnelFields { parent, remote, local: None, ..full.outer };
        Kind::Gre(full)
    };
    let mut state = NetState::default();
    let tunnel = link(&sandbox("a"), "t0", case_kind([10, 51, 0, 2]));
    state.scope(&sandbox("a")).add_link(tunnel);
    node.converge(&state);
    let pod = state.scope(&sandbox("a")).links.get_mut(&name("t0")).unwrap();
    gre(pod).outer.ttl = Some(77);
    gre(pod).okey = Some(NumberOrNone(Some(12)));
    pod.attrs.alias = Some("also".to_owned());
    let plan = node.plan(&state);
    survive_every_fault(&node, &plan, &[FAIL, Fault::Crash]);
    node.converge(&state);
    // A remote address is set at creation or not at all.
    gre(state.scope(&sandbox("a")).links.get_mut(&name("t0")).unwrap()).outer.remote =
        Some([0, 0, 0, 0].into());
    let plan = node.converge(&state);
    assert!(plan.to_string().contains("cannot make this change of `remote`"), "{plan}");
}

#[test]
fn a_second_tunnel_with_the_same_endpoints_is_rejected() {
    let node = over_a_router("twice");
    let [near, far] = ENDS4.map(|end| end.parse().unwrap());
    let mut state = NetState::default();
    for text in ["t0", "t1"] {
        let tunnel = link(&sandbox("a"), text, ip_tunnel_with(IpTunnelForm::Ipip, near, far));
        state.scope(&sandbox("a")).add_link(tunnel);
    }
    let plan = node.plan(&state);
    let error = node.apply_with(&plan, DeleteMode::Immediate, &mut NoFaults).unwrap_err().to_string();
    assert!(error.contains("another ipip with the same endpoints, already exists"), "{error}");
}
