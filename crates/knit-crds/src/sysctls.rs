//! Sysctls that a tenant may set in a pod: those about routing that are namespaced to the pod's network namespace.
//! Sysctls that affect the node, fill the log or override settings of Knit are not allowed.

use knit_model::intent::SysctlIntent;

const NOT_ALLOWED: &str = "not an allowed sysctl: see the list of safe sysctls in docs/kinds/podroute.md";

/// A name with the minimum and maximum value.
type AllowedSysctl = (&'static str, i64, i64);

/// `net.ipv4.conf.<interface or all>.<name>`.
const IPV4: &[AllowedSysctl] = &[
    ("accept_local", 0, 1),
    ("accept_redirects", 0, 1),
    ("arp_accept", 0, 2),
    ("arp_announce", 0, 2),
    ("arp_evict_nocarrier", 0, 1),
    ("arp_filter", 0, 1),
    ("arp_ignore", 0, 8),
    ("arp_notify", 0, 1),
    ("bc_forwarding", 0, 1),
    ("drop_gratuitous_arp", 0, 1),
    ("drop_unicast_in_l2_multicast", 0, 1),
    ("forwarding", 0, 1),
    ("ignore_routes_with_linkdown", 0, 1),
    ("promote_secondaries", 0, 1),
    ("proxy_arp", 0, 1),
    ("proxy_arp_pvlan", 0, 1),
    ("rp_filter", 0, 2),
    ("secure_redirects", 0, 1),
    ("send_redirects", 0, 1),
    ("shared_media", 0, 1),
    ("src_valid_mark", 0, 1),
];

/// `net.ipv6.conf.<interface or all>.<name>`.
const IPV6: &[AllowedSysctl] = &[
    ("accept_dad", 0, 2),
    ("accept_ra", 0, 2),
    ("accept_ra_defrtr", 0, 1),
    ("accept_ra_pinfo", 0, 1),
    ("accept_redirects", 0, 1),
    ("accept_untracked_na", 0, 2),
    ("autoconf", 0, 1),
    ("dad_transmits", 0, 10),
    ("drop_unicast_in_l2_multicast", 0, 1),
    ("drop_unsolicited_na", 0, 1),
    ("forwarding", 0, 1),
    ("hop_limit", 1, 255),
    ("ignore_routes_with_linkdown", 0, 1),
    ("keep_addr_on_down", -1, 1),
    ("ndisc_notify", 0, 1),
    ("proxy_ndp", 0, 1),
    ("use_tempaddr", 0, 2),
];

/// `net.mpls.conf.<interface>.<name>`.
const MPLS: &[AllowedSysctl] = &[("input", 0, 1)];

/// All families with sysctls of interfaces.
const FAMILIES: [(&str, &[AllowedSysctl]); 3] = [("ipv4", IPV4), ("ipv6", IPV6), ("mpls", MPLS)];

/// Sysctls of the whole pod, by their full names.
const POD: &[AllowedSysctl] = &[
    ("net.ipv4.fib_multipath_hash_policy", 0, 2),
    ("net.ipv4.fib_multipath_use_neigh", 0, 1),
    ("net.ipv4.fwmark_reflect", 0, 1),
    ("net.ipv4.ip_default_ttl", 1, 255),
    ("net.ipv4.ip_forward", 0, 1),
    ("net.ipv4.ip_nonlocal_bind", 0, 1),
    ("net.ipv4.raw_l3mdev_accept", 0, 1),
    ("net.ipv4.tcp_l3mdev_accept", 0, 1),
    ("net.ipv4.udp_l3mdev_accept", 0, 1),
    ("net.ipv6.fib_multipath_hash_policy", 0, 2),
    ("net.ipv6.fwmark_reflect", 0, 1),
    ("net.ipv6.ip_nonlocal_bind", 0, 1),
];

/// Validates a sysctl of an interface by family and name, such as `ipv4/rp_filter`, and its value.
pub(crate) fn check_of_interface(name: &str, value: &str) -> Result<(), String> {
    let Some((family, last)) = name.split_once('/') else {
        return Err("must be a family and a name, such as `ipv4/rp_filter` or `ipv6/accept_ra`".to_owned());
    };
    let (_, list) = FAMILIES.iter().find(|(known, _)| *known == family).ok_or(NOT_ALLOWED)?;
    let allowed = list.iter().find(|(allowed, ..)| *allowed == last).ok_or(NOT_ALLOWED)?;
    number(value, *allowed).map(drop)
}

/// The sysctls of interfaces by family and name.
pub(crate) fn of_interfaces() -> impl Iterator<Item = String> {
    FAMILIES.iter().flat_map(|(family, list)| list.iter().map(move |(name, ..)| format!("{family}/{name}")))
}

fn number(value: &str, (_, min, max): AllowedSysctl) -> Result<i64, String> {
    let number = value.parse().ok().filter(|number| (min..=max).contains(number));
    number.ok_or_else(|| format!("must be a number between {min} and {max}, got `{}`", value.escape_debug()))
}

/// Parses a sysctl by its name, such as `net.ipv4.conf.net1.rp_filter`, and its value.
pub(crate) fn read(name: &str, value: &str) -> Result<SysctlIntent, String> {
    if name == "net.ipv4.conf.all.forwarding" {
        return Err("use `net.ipv4.ip_forward` for forwarding of the whole pod".to_owned());
    }
    let (link, key, allowed) = find(name)?;
    let number = number(value, allowed)?;
    let link = link
        .map(|link| link.parse())
        .transpose()
        .map_err(|why: knit_model::name::NameError| why.to_string())?;
    Ok(SysctlIntent { link, key, value: number.to_string() })
}

fn find(name: &str) -> Result<(Option<&str>, String, AllowedSysctl), String> {
    if let Some(safe) = POD.iter().find(|(safe, ..)| *safe == name) {
        return Ok((None, name.replace('.', "/"), *safe));
    }
    for (family, list) in FAMILIES {
        let of_family = name.strip_prefix("net.").and_then(|rest| rest.strip_prefix(family));
        // Interface names may contain dots, sysctl names do not.
        let Some((link, last)) = of_family.and_then(|rest| rest.strip_prefix(".conf.")?.rsplit_once('.'))
        else {
            continue;
        };
        if link == "default" {
            return Err("`default` affects interfaces that are created later: use the name of the interface, or `all`".to_owned());
        }
        if let Some(safe) = list.iter().find(|(safe, ..)| *safe == last) {
            return Ok(match link {
                "all" if family == "mpls" => return Err(NOT_ALLOWED.to_owned()),
                "all" => (None, format!("net/{family}/conf/all/{last}"), *safe),
                link => (Some(link), format!("{family}/{last}"), *safe),
            });
        }
    }
    Err(NOT_ALLOWED.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_sysctls_are_parsed() {
        let path = |name: &str| read(name, "1").map(|sysctl| sysctl.path());
        assert_eq!(path("net.ipv4.ip_forward").unwrap(), "net/ipv4/ip_forward");
        assert_eq!(path("net.ipv4.conf.net1.7.rp_filter").unwrap(), "net/ipv4/conf/net1.7/rp_filter");
        assert_eq!(path("net.ipv6.conf.all.forwarding").unwrap(), "net/ipv6/conf/all/forwarding");
    }

    #[test]
    fn other_sysctls_are_rejected() {
        for name in [
            "kernel.core_pattern",
            "net.core.somaxconn",
            "net.ipv4.conf.net1.route_localnet",
            "net.ipv4.conf.rp_filter",
            "",
        ] {
            assert!(read(name, "1").unwrap_err().contains("not an allowed sysctl"), "{name}");
        }
        assert!(read("net.ipv4.conf.a/../b.rp_filter", "1").is_err());
        assert!(read("net.ipv4.conf.default.rp_filter", "1").unwrap_err().contains("created later"));
        assert_eq!(
            read("net.ipv4.conf.all.forwarding", "1").unwrap_err(),
            "use `net.ipv4.ip_forward` for forwarding of the whole pod"
        );
        assert_eq!(
            read("net.ipv4.ip_forward", "on").unwrap_err(),
            "must be a number between 0 and 1, got `on`"
        );
        assert_eq!(
            read("net.ipv4.ip_forward", "2").unwrap_err(),
            "must be a number between 0 and 1, got `2`"
        );
    }

    #[test]
    fn interfaces_have_the_same_list() {
        assert_eq!(check_of_interface("ipv4/rp_filter", "2"), Ok(()));
        assert_eq!(check_of_interface("mpls/input", "1"), Ok(()));
        for name in ["ipv4/route_localnet", "ipv4/log_martians", "ipv6/../x", "core/somaxconn", "ipv4/"] {
            assert_eq!(check_of_interface(name, "1"), Err(NOT_ALLOWED.to_owned()), "{name}");
        }
        assert!(check_of_interface("rp_filter", "1").unwrap_err().contains("a family and a name"));
        assert!(check_of_interface("ipv4/rp_filter", "3").unwrap_err().contains("between 0 and 2"));
        assert!(of_interfaces().all(|name| check_of_interface(&name, "1").is_ok()));
    }

    #[test]
    fn the_documentation_lists_all_allowed_sysctls() {
        let page = include_str!("../../../docs/kinds/podroute.md");
        for (name, ..) in [IPV4, IPV6, MPLS, POD].concat() {
            assert!(page.contains(&format!("`{name}`")), "{name}");
        }
    }
}
