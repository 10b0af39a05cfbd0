//! CEL rules over several fields of an object, shared by kinds.
//!
//! Each rule has an equivalent check in the translation. The API server estimates the cost of a rule for the longest
//! value in the longest list, so rules avoid nested loops over long lists.

use crate::fields::Rule;

/// CEL: an address is multicast. CEL has no function for it.
macro_rules! multicast {
    ($field:literal) => {
        concat!($field, ".matches('^(22[4-9]|23[0-9])[.]|^[fF][fF][0-9a-fA-F]{2}:')")
    };
}

/// A link other than a veth has its master and its VRF in the pod, and can be a port of one only.
pub(crate) const MASTER_OR_VRF: Rule<'_> =
    ("!has(self.vrf) || !has(self.master)", "master and vrf must not both be set");

/// For a point-to-point tunnel.
pub(crate) const UNICAST_REMOTE: Rule<'_> =
    (concat!("!has(self.remote) || !", multicast!("self.remote")), "remote must be a unicast address");

/// For a VXLAN, whose remote may be a multicast group.
pub(crate) const MULTICAST_NEEDS_PARENT: Rule<'_> = (
    concat!("!has(self.remote) || has(self.parent) || !", multicast!("self.remote")),
    "parent must be set if remote is a multicast group",
);

/// For a list entry of type vxlan, with `parent`, and for lists where `master` is the lower link.
pub(crate) const LISTED_MULTICAST: [Rule<'_>; 2] = [
    (
        concat!(
            "!has(self.linkType) || self.linkType != 'vxlan' || has(self.parent) || !has(self.remote) || !",
            multicast!("self.remote")
        ),
        "parent must be set if remote is a multicast group",
    ),
    (
        concat!(
            "!has(self.linkType) || self.linkType != 'vxlan' || has(self.master) || !has(self.remote) || !",
            multicast!("self.remote")
        ),
        "master must be set if remote is a multicast group",
    ),
];

/// For a list entry: tunnels over one address family only.
pub(crate) const LISTED_FAMILIES: [Rule<'_>; 2] = [
    (
        "!has(self.linkType) || !(self.linkType in ['ipip', 'sit']) \
         || ((!has(self.remote) || !isIP(self.remote) || ip(self.remote).family() == 4) \
         && (!has(self.local) || !isIP(self.local) || ip(self.local).family() == 4))",
        "remote and local must be IPv4 addresses for ipip and sit",
    ),
    (
        "!has(self.linkType) || self.linkType != 'ip6tnl' \
         || ((!has(self.remote) || !isIP(self.remote) || ip(self.remote).family() == 6) \
         && (!has(self.local) || !isIP(self.local) || ip(self.local).family() == 6))",
        "remote and local must be IPv6 addresses for ip6tnl",
    ),
];

/// At most one gateway of each address family.
pub(crate) const GATEWAYS: [Rule<'_>; 2] = [
    (
        "self.filter(g, isIP(g) && ip(g).family() == 4).size() <= 1",
        "gateways must contain at most one IPv4 address: use routes with metrics or nextHops",
    ),
    (
        "self.filter(g, isIP(g) && ip(g).family() == 6).size() <= 1",
        "gateways must contain at most one IPv6 address: use routes with metrics or nextHops",
    ),
];

/// For a next hop, and for a route with one.
pub(crate) const ONLINK: Rule<'_> =
    ("!has(self.onlink) || !self.onlink || has(self.via)", "via must be set if onlink is true");

/// For a route with one next hop.
pub(crate) const SAME_FAMILY_ROUTE: Rule<'_> = (
    "!has(self.via) || !isIP(self.via) || !isCIDR(self.to) || ip(self.via).family() == cidr(self.to).ip().family()",
    "via and to must be of the same address family",
);

/// For a policy rule.
pub(crate) const POLICY: [Rule<'_>; 2] = [
    ("!has(self.fwmask) || has(self.fwmark)", "fwmark must be set if fwmask is set"),
    (
        "!has(self.from) || !has(self.to) || !isCIDR(self.from) || !isCIDR(self.to) \
         || cidr(self.from).ip().family() == cidr(self.to).ip().family()",
        "from and to must be of the same address family",
    ),
];

/// For routes without a default interface.
pub(crate) const STANDALONE_ROUTES: [Rule<'_>; 5] = [
    (
        "self.all(r, (has(r.type) && r.type != 'forward') || has(r.dev) || has(r.via) \
         || (has(r.nextHops) && size(r.nextHops) > 0 && r.nextHops.all(h, has(h.via) || has(h.dev))))",
        "via or dev must be set",
    ),
    (
        "self.all(r, has(r.dev) || !has(r.via) || !isIP(r.via) || ip(r.via).family() == 4 \
         || !ip(r.via).isLinkLocalUnicast())",
        "dev must be set if via is link-local",
    ),
    (
        "self.all(r, has(r.dev) || !has(r.via) || !has(r.onlink) || !r.onlink)",
        "dev must be set if onlink is true",
    ),
    (
        "self.all(r, !has(r.nextHops) || r.nextHops.all(a, r.nextHops.exists_one(b, \
         (has(a.via) ? a.via : '') == (has(b.via) ? b.via : '') && (has(a.dev) ? a.dev : '') == (has(b.dev) ? b.dev : ''))))",
        "nextHops must not contain duplicates: set weight instead",
    ),
    ("self.all(r, !has(r.table) || r.table != 255)", "table must not be 255, the table of local addresses"),
];

/// For the VLAN interfaces of a PodConfig: lower links, bridges and names.
pub(crate) const POD_CONFIG: [Rule<'_>; 5] = [
    (
        "(has(self.networkAttachments) ? size(self.networkAttachments) : 0) + (has(self.vlans) ? size(self.vlans) : 0) <= 32",
        "networkAttachments and vlans must have at most 32 entries together",
    ),
    (
        "!has(self.vlans) || self.vlans.all(a, self.vlans.all(b, \
         a.parentInterfaceName != b.parentInterfaceName || a.bridgeName == b.bridgeName))",
        "bridgeName must be the same for all vlans with the same parentInterfaceName",
    ),
    (
        "!has(self.vlans) || self.vlans.all(a, self.vlans.exists_one(b, \
         has(a.name) ? (has(b.name) && a.name == b.name) : (!has(b.name) && a.vlanID == b.vlanID)))",
        "name must be unique in vlans; it defaults to `v` and the VLAN ID",
    ),
    (
        "!has(self.vlans) || !has(self.networkAttachments) || self.vlans.all(v, self.networkAttachments.all(a, \
         a.name != v.parentInterfaceName || !has(a.linkType) || a.linkType == 'veth'))",
        "parentInterfaceName must be the name of a veth",
    ),
    (
        "!has(self.vlans) || !has(self.networkAttachments) || self.vlans.all(v, self.networkAttachments.all(a, \
         a.name != v.parentInterfaceName || !has(a.master) || a.master == v.bridgeName))",
        "bridgeName must be the master of the interface parentInterfaceName",
    ),
];
