//! The sysctls that a tenant may set in a pod: those about routing that the pod's own network namespace has to itself.
//! Whatever could reach beyond the pod, fill a log, or take away what Knit or others gave is not on the list.

use knit_model::intent::SysctlIntent;

/// A name and the smallest and largest value.
type Safe = (&'static str, i64, i64);

/// `net.ipv4.conf.<interface or all>.<name>`.
const IPV4: &[Safe] = &[
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
const IPV6: &[Safe] = &[
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

/// Of the whole pod, by their full names.
const POD: &[Safe] = &[
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

/// Whether a tenant may set a sysctl, by its name such as `net.ipv4.conf.net1.rp_filter`, to this value; or why not.
pub fn check(name: &str, value: &str) -> Result<(), String> {
    read(name, value).map(drop)
}

/// A sysctl by its name, such as `net.ipv4.conf.net1.rp_filter`, with its value; or why it is refused.
pub(crate) fn read(name: &str, value: &str) -> Result<SysctlIntent, String> {
    if name == "net.ipv4.conf.all.forwarding" {
        return Err("forwarding of the whole pod is `net.ipv4.ip_forward`".to_owned());
    }
    let (link, key, (_, smallest, largest)) = find(name)?;
    let number: i64 =
        value.parse().ok().filter(|number| (smallest..=largest).contains(number)).ok_or_else(|| {
            format!("`{}` is no value of it: a number from {smallest} to {largest}", value.escape_debug())
        })?;
    let link = link
        .map(|link| link.parse())
        .transpose()
        .map_err(|why: knit_model::name::NameError| why.to_string())?;
    Ok(SysctlIntent { link, key, value: number.to_string() })
}

fn find(name: &str) -> Result<(Option<&str>, String, Safe), String> {
    if let Some(safe) = POD.iter().find(|(safe, ..)| *safe == name) {
        return Ok((None, name.replace('.', "/"), *safe));
    }
    for (family, list) in [("ipv4", IPV4), ("ipv6", IPV6)] {
        let of_family = name.strip_prefix("net.").and_then(|rest| rest.strip_prefix(family));
        // An interface's name may have dots, a sysctl's has none.
        let Some((link, last)) = of_family.and_then(|rest| rest.strip_prefix(".conf.")?.rsplit_once('.'))
        else {
            continue;
        };
        if link == "default" {
            return Err("it would change interfaces that come later, whoever makes them: name the interface, or `all`".to_owned());
        }
        if let Some(safe) = list.iter().find(|(safe, ..)| *safe == last) {
            return Ok(match link {
                "all" => (None, format!("net/{family}/conf/all/{last}"), *safe),
                link => (Some(link), format!("{family}/{last}"), *safe),
            });
        }
    }
    Err("it is not on the list of sysctls that are safe in a pod, see docs/kinds/podroute.md".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sysctl_of_the_list_is_read() {
        let path = |name: &str| read(name, "1").map(|sysctl| sysctl.path());
        assert_eq!(path("net.ipv4.ip_forward").unwrap(), "net/ipv4/ip_forward");
        assert_eq!(path("net.ipv4.conf.net1.7.rp_filter").unwrap(), "net/ipv4/conf/net1.7/rp_filter");
        assert_eq!(path("net.ipv6.conf.all.forwarding").unwrap(), "net/ipv6/conf/all/forwarding");
    }

    #[test]
    fn what_is_not_on_the_list_is_refused_in_words() {
        for name in [
            "kernel.core_pattern",
            "net.core.somaxconn",
            "net.ipv4.conf.net1.route_localnet",
            "net.ipv4.conf.rp_filter",
            "",
        ] {
            assert!(read(name, "1").unwrap_err().contains("not on the list"), "{name}");
        }
        assert!(read("net.ipv4.conf.a/../b.rp_filter", "1").is_err());
        assert!(read("net.ipv4.conf.default.rp_filter", "1").unwrap_err().contains("come later"));
        assert_eq!(
            read("net.ipv4.conf.all.forwarding", "1").unwrap_err(),
            "forwarding of the whole pod is `net.ipv4.ip_forward`"
        );
        assert_eq!(
            read("net.ipv4.ip_forward", "on").unwrap_err(),
            "`on` is no value of it: a number from 0 to 1"
        );
        assert_eq!(
            read("net.ipv4.ip_forward", "2").unwrap_err(),
            "`2` is no value of it: a number from 0 to 1"
        );
    }

    #[test]
    fn the_page_has_the_list() {
        let page = include_str!("../../../docs/kinds/podroute.md");
        for (name, ..) in [IPV4, IPV6, POD].concat() {
            assert!(page.contains(&format!("`{name}`")), "{name}");
        }
    }
}
