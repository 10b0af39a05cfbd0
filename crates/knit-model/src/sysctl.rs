//! Paths of network sysctls below `/proc/sys`.

use crate::name::IfName;

/// The path of an interface's sysctl by its family and name: `ipv6/accept_ra` of `net1` is
/// `net/ipv6/conf/net1/accept_ra`. The family of a key without one is `ipv4`.
pub fn link_path(link: &IfName, key: &str) -> String {
    let (family, name) = key.split_once('/').unwrap_or(("ipv4", key));
    format!("net/{family}/conf/{link}/{name}")
}

/// The interface that a path belongs to; `None` for `all`, `default` and sysctls of the whole namespace.
pub fn link_of(path: &str) -> Option<&str> {
    let mut parts = path.split('/').skip(2);
    let is_per_link = matches!(parts.next(), Some("conf" | "neigh"));
    parts.next().filter(|link| is_per_link && !matches!(*link, "all" | "default"))
}

/// The `default` sysctl that new interfaces inherit from, for the path of an interface's sysctl. It exists iff the
/// kernel supports the sysctl.
pub fn default_path(path: &str) -> Option<String> {
    let parts: Vec<&str> = path.split('/').collect();
    match parts[..] {
        ["net", family, "conf", _, name] => Some(format!("net/{family}/conf/default/{name}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sysctl_of_a_link_contains_its_name() {
        let link = "a.b".parse().unwrap();
        assert_eq!(link_path(&link, "ipv6/accept_ra"), "net/ipv6/conf/a.b/accept_ra");
        assert_eq!(link_path(&link, "rp_filter"), "net/ipv4/conf/a.b/rp_filter");
        assert_eq!(link_of("net/ipv6/conf/a.b/accept_ra"), Some("a.b"));
        assert_eq!(link_of("net/ipv4/neigh/net1/locktime"), Some("net1"));
        for path in ["net/ipv4/conf/all/rp_filter", "net/ipv6/conf/default/mtu", "net/ipv4/ip_forward", "net"]
        {
            assert_eq!(link_of(path), None, "{path}");
        }
    }

    #[test]
    fn a_new_interface_inherits_the_default_sysctl() {
        let default = default_path("net/ipv6/conf/a.b/accept_ra");
        assert_eq!(default.as_deref(), Some("net/ipv6/conf/default/accept_ra"));
        assert_eq!(default_path("net/ipv4/ip_forward"), None);
    }
}
