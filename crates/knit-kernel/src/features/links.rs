//! Probes of link kinds and link options.

use std::net::IpAddr;

use nix::errno::Errno;

use super::probe::{Finding, Probe, ProbeRun::Host as OnHost, ProbeRun::Scratch as InScratch};
use super::scratch::Scratch;
use super::{Area, host};
use crate::netlink::Message;
use crate::netlink::constants::*;

// Attributes that the kinds require at creation, from if_link.h and if_tunnel.h.
const IFLA_BR_VLAN_FILTERING: u16 = 7;
const IFLA_MACVLAN_MODE: u16 = 1;
const MACVLAN_MODE_BRIDGE: u32 = 4;
const IFLA_VLAN_ID: u16 = 1;
const IFLA_VRF_TABLE: u16 = 1;
const IFLA_VXLAN_ID: u16 = 1;
const IFLA_VXLAN_PORT: u16 = 15;
const IFLA_GENEVE_ID: u16 = 1;
const IFLA_GENEVE_REMOTE: u16 = 2;
const IFLA_GRE_LOCAL: u16 = 6;
const IFLA_GRE_REMOTE: u16 = 7;
const IFLA_IPTUN_LOCAL: u16 = 2;
const IFLA_IPTUN_REMOTE: u16 = 3;

/// Documentation addresses (RFC 5737, RFC 3849) as endpoints of probed tunnels.
const LOCAL: [u8; 4] = [192, 0, 2, 1];
const REMOTE: [u8; 4] = [192, 0, 2, 2];
const LOCAL6: [u16; 8] = [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1];
const REMOTE6: [u16; 8] = [0x2001, 0xdb8, 0, 0, 0, 0, 0, 2];

const fn link(
    name: &'static str,
    title: &'static str,
    config: &'static str,
    run: fn(&mut Scratch) -> Finding,
) -> Probe {
    Probe::new(name, title, Area::Links, config, InScratch(run))
}

const fn tunnel(
    name: &'static str,
    title: &'static str,
    config: &'static str,
    run: fn(&mut Scratch) -> Finding,
) -> Probe {
    Probe::new(name, title, Area::Tunnels, config, InScratch(run))
}

pub const PROBES: &[Probe] = &[
    link("veth", "veth pairs", "CONFIG_VETH", |scratch| scratch.link("veth", |_| ()))
        .module("veth")
        .needed_for("every pod's interfaces")
        .required(),
    link("bridge", "bridges", "CONFIG_BRIDGE", |scratch| scratch.link("bridge", |_| ()))
        .module("bridge")
        .needed_for("pods of a network on one node")
        .required(),
    link(
        "bridge-vlan-filtering",
        "VLAN filtering on bridges",
        "CONFIG_BRIDGE_VLAN_FILTERING",
        vlan_filtering,
    )
    .needed_for("VLANs on a bridge's ports"),
    link("alternative-names", "alternative names of links", "CONFIG_NET", alternative_names)
        .needed_for("Knit's ownership mark on every link (Linux 5.5)")
        .required(),
    link("macvlan", "macvlan", "CONFIG_MACVLAN", |scratch| scratch.link_on_parent("macvlan", macvlan_mode))
        .module("macvlan")
        .needed_for("pods with their own MAC address on an uplink"),
    link("macvtap", "macvtap", "CONFIG_MACVTAP", |scratch| scratch.link_on_parent("macvtap", macvlan_mode))
        .module("macvtap")
        .needed_for("virtual machines in pods, on an uplink"),
    link("ipvlan", "ipvlan", "CONFIG_IPVLAN", |scratch| scratch.link_on_parent("ipvlan", |_| ()))
        .module("ipvlan")
        .needed_for("pods that share the MAC address of an uplink"),
    link("vlan", "VLANs", "CONFIG_VLAN_8021Q", |scratch| {
        scratch.link_on_parent("vlan", |data| {
            data.put_u16(IFLA_VLAN_ID, 100);
        })
    })
    .module("8021q")
    .needed_for("tagged networks on an uplink or an interface"),
    link("dummy", "dummy links", "CONFIG_DUMMY", |scratch| scratch.link("dummy", |_| ()))
        .module("dummy")
        .makes_devices()
        .needed_for("addresses that belong to no interface"),
    link("ifb", "ifb links", "CONFIG_IFB", |scratch| scratch.link("ifb", |_| ()))
        .module("ifb")
        .makes_devices()
        .needed_for("shaping ingress traffic"),
    link("vrf", "VRF", "CONFIG_NET_VRF", |scratch| {
        scratch.link("vrf", |data| {
            data.put_u32(IFLA_VRF_TABLE, 4242);
        })
    })
    .module("vrf")
    .needed_for("a routing table per tenant"),
    Probe::new("tun", "tun and tap", Area::Links, "CONFIG_TUN", OnHost(host::tun))
        .module("tun")
        .needed_for("virtual machines in pods, tunnels in user space"),
];

pub const TUNNELS: &[Probe] = &[
    tunnel("vxlan", "VXLAN", "CONFIG_VXLAN", |scratch| {
        scratch.link("vxlan", |data| {
            data.put_u32(IFLA_VXLAN_ID, 4242).put_be16(IFLA_VXLAN_PORT, 4789);
        })
    })
    .module("vxlan")
    .needed_for("networks that span nodes"),
    tunnel("geneve", "Geneve", "CONFIG_GENEVE", |scratch| {
        scratch.link("geneve", |data| {
            data.put_u32(IFLA_GENEVE_ID, 4242).put_bytes(IFLA_GENEVE_REMOTE, &REMOTE);
        })
    })
    .module("geneve")
    .needed_for("tenant tunnels"),
    tunnel("gre", "GRE", "CONFIG_NET_IPGRE", |scratch| scratch.link("gre", gre_ends))
        .module("ip_gre")
        .makes_devices()
        .needed_for("tenant tunnels"),
    tunnel("gretap", "GRE with Ethernet inside", "CONFIG_NET_IPGRE", |scratch| {
        scratch.link("gretap", gre_ends)
    })
    .module("ip_gre")
    .makes_devices()
    .needed_for("tenant tunnels"),
    tunnel("ip6gre", "GRE over IPv6", "CONFIG_IPV6_GRE", |scratch| scratch.link("ip6gre", gre6_ends))
        .module("ip6_gre")
        .makes_devices()
        .needed_for("tenant tunnels"),
    tunnel("ip6gretap", "GRE over IPv6 with Ethernet inside", "CONFIG_IPV6_GRE", |scratch| {
        scratch.link("ip6gretap", gre6_ends)
    })
    .module("ip6_gre")
    .makes_devices()
    .needed_for("tenant tunnels"),
    tunnel("ipip", "IP in IP", "CONFIG_NET_IPIP", |scratch| scratch.link("ipip", ip_tunnel_ends))
        .module("ipip")
        .makes_devices()
        .needed_for("tenant tunnels"),
    tunnel("sit", "IPv6 in IPv4 (sit)", "CONFIG_IPV6_SIT", |scratch| scratch.link("sit", ip_tunnel_ends))
        .module("sit")
        .makes_devices()
        .needed_for("tenant tunnels"),
    tunnel("ip6tnl", "IP in IPv6 (ip6tnl)", "CONFIG_IPV6_TUNNEL", |scratch| {
        scratch.link("ip6tnl", |data| {
            data.put_address(IFLA_IPTUN_LOCAL, IpAddr::from(LOCAL6))
                .put_address(IFLA_IPTUN_REMOTE, IpAddr::from(REMOTE6));
        })
    })
    .module("ip6_tunnel")
    .makes_devices()
    .needed_for("tenant tunnels"),
    tunnel("wireguard", "WireGuard", "CONFIG_WIREGUARD", |scratch| scratch.link("wireguard", |_| ()))
        .module("wireguard")
        .needed_for("encryption between nodes and pods"),
];

fn macvlan_mode(data: &mut Message) {
    data.put_u32(IFLA_MACVLAN_MODE, MACVLAN_MODE_BRIDGE);
}

fn gre_ends(data: &mut Message) {
    data.put_bytes(IFLA_GRE_LOCAL, &LOCAL).put_bytes(IFLA_GRE_REMOTE, &REMOTE);
}

fn gre6_ends(data: &mut Message) {
    data.put_address(IFLA_GRE_LOCAL, IpAddr::from(LOCAL6))
        .put_address(IFLA_GRE_REMOTE, IpAddr::from(REMOTE6));
}

fn ip_tunnel_ends(data: &mut Message) {
    data.put_bytes(IFLA_IPTUN_LOCAL, &LOCAL).put_bytes(IFLA_IPTUN_REMOTE, &REMOTE);
}

/// A kernel without VLAN filtering ignores the attribute, so the bridge is read back.
fn vlan_filtering(scratch: &mut Scratch) -> Finding {
    let created = scratch.create("bridge", |data| {
        data.put_u8(IFLA_BR_VLAN_FILTERING, 1);
    });
    if let Err(error) = created {
        return error.into();
    }
    let name = scratch.last_name();
    let filtering = scratch.get(&name, |_, attributes| {
        let data = attributes.first(IFLA_LINKINFO)?.nested().first(IFLA_INFO_DATA)?.nested();
        Some(data.first(IFLA_BR_VLAN_FILTERING).and_then(|value| value.u8()))
    });
    match filtering {
        Ok(Some(1)) => Finding::Present,
        Ok(_) => Finding::Absent,
        Err(error) => error.into(),
    }
}

fn alternative_names(scratch: &mut Scratch) -> Finding {
    let index = match scratch.parent() {
        Ok(index) => index,
        Err(finding) => return finding,
    };
    let flags = NLM_F_CREATE | NLM_F_EXCL | NLM_F_APPEND;
    let mut message = Message::new(RTM_NEWLINKPROP, flags, "add an alternative name to a link");
    message.header(&crate::netlink::header::LinkHeader { index, ..Default::default() });
    message.nest(IFLA_PROP_LIST, |list| {
        list.put_str(IFLA_ALT_IFNAME, "knit-alternative-name-probe");
    });
    Finding::of(scratch.route.request(message), &[Errno::EOPNOTSUPP])
}
