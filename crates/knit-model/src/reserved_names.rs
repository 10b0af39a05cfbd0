//! Names of links that programs of the host use: no tenant's bridge may have one.
//!
//! A program that finds a link with its own name takes it for its own: it moves, deletes or sends to it. So such a name is
//! reserved even while it is free.

use crate::name::IfName;

/// Names that begin like this belong to Knit, a container runtime, a CNI plugin or a virtual switch.
const PREFIXES: &[&str] = &[
    "knit",
    "cali",
    "cilium",
    "lxc",
    "veth",
    "kube-",
    "nodelocaldns",
    "ovn",
    "ovs",
    "antrea",
    "weave",
    "virbr",
    "podman",
    "genev_sys",
    "vxlan_sys",
    "gre_sys",
    "br-int",
    "flannel",
    "vxlan.calico",
];
/// Names of this form, followed by nothing but a number, belong to the kernel's defaults, an admin, or a CNI plugin.
const NUMBERED: &[&str] = &[
    "lo", "eth", "wlan", "usb", "ib", "bond", "team", "dummy", "ifb", "teql", "sit", "tunl", "gre", "gretap",
    "erspan", "ip6tnl", "ip6gre", "ip6_vti", "ip_vti", "tun", "tap", "wg", "vxlan", "cni", "docker",
];
/// Predictable names of NICs: the kind of device, then where it is (`eno1`, `enp3s0`, `wlp2s0`, `enx0a1b2c3d4e5f`).
const NIC_KINDS: &[&str] = &["en", "wl", "ww", "sl"];

/// Whether a link of this name on the host would be taken for something else.
pub fn is_reserved(name: &IfName) -> bool {
    let name = name.as_str();
    let is_number =
        |rest: &str| rest.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'_'));
    let is_numbered = NUMBERED.iter().any(|stem| name.strip_prefix(stem).is_some_and(is_number));
    PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || is_numbered || is_nic(name)
}

fn is_nic(name: &str) -> bool {
    let place = NIC_KINDS.iter().find_map(|kind| name.strip_prefix(kind));
    let mut bytes = place.into_iter().flat_map(str::bytes);
    matches!(bytes.next(), Some(b'o' | b'p' | b'P' | b's' | b'x' | b'v' | b'b' | b'd'))
        && bytes.next().is_some_and(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_system_and_of_other_networks_are_reserved() {
        for name in [
            "lo",
            "eth0",
            "eth1.100",
            "eno1",
            "enp3s0f1",
            "ens5",
            "enx0a1b2c3d4e5f",
            "wlp2s0",
            "bond0",
            "tunl0",
            "wg0",
            "docker0",
            "cni0",
            "flannel.1",
            "flannel-v6.1",
            "cali12345",
            "cilium_host",
            "lxc_health",
            "vethabc",
            "knit0",
            "knitwg0",
            "knitvx4",
            "kube-ipvs0",
            "kube-bridge",
            "ovn-k8s-mp0",
            "antrea-gw0",
            "weave",
            "virbr0",
            "br-int",
            "nodelocaldns",
            "vxlan.calico",
            "genev_sys_6081",
            "ip6tnl0",
        ] {
            assert!(is_reserved(&name.parse().unwrap()), "{name}");
        }
        for name in [
            "pnobr0", "pcbr0", "br0", "br-blue", "bondbr0", "wgbr0", "lanbr0", "lab", "entry0", "ethernet",
            "web",
        ] {
            assert!(!is_reserved(&name.parse().unwrap()), "{name}");
        }
    }
}
