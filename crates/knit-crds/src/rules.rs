//! Rules of an API server that look at several fields of an object at once, shared by kinds.
//!
//! Each says in the schema what the translation says in words. An API server counts the cost of a rule for the longest
//! text in the longest list, so none of them goes over a list inside another that could be long.

use crate::fields::Rule;

/// Addresses of multicast, as text: an API server has no word for them.
macro_rules! multicast {
    ($field:literal) => {
        concat!($field, ".matches('^(22[4-9]|23[0-9])[.]|^[fF][fF][0-9a-fA-F]{2}:')")
    };
}

/// A link other than a pair has both its master and its VRF in the pod.
pub(crate) const PORT_OF_ONE: Rule<'_> = (
    "!has(self.vrf) || !has(self.master)",
    "an interface is a port of one thing: `master` or `vrf`, not both",
);

/// For a tunnel to one far end.
pub(crate) const UNICAST_REMOTE: Rule<'_> =
    (concat!("!has(self.remote) || !", multicast!("self.remote")), "the far end must be a unicast address");

/// For a VXLAN, whose far end may be a group.
pub(crate) const MULTICAST_NEEDS_PARENT: Rule<'_> = (
    concat!("!has(self.remote) || has(self.parent) || !", multicast!("self.remote")),
    "a multicast remote needs a parent to send it on",
);

/// For an entry of a list that may be a VXLAN, with `parent`, and for one where `master` is what it sits on.
pub(crate) const LISTED_MULTICAST: [Rule<'_>; 2] = [
    (
        concat!(
            "!has(self.linkType) || self.linkType != 'vxlan' || has(self.parent) || !has(self.remote) || !",
            multicast!("self.remote")
        ),
        "a multicast remote needs a parent to send it on",
    ),
    (
        concat!(
            "!has(self.linkType) || self.linkType != 'vxlan' || has(self.master) || !has(self.remote) || !",
            multicast!("self.remote")
        ),
        "a multicast remote needs a `master` to send it on",
    ),
];

/// For an entry of a list: modes are those of its kind.
pub(crate) const LISTED_MODES: [Rule<'_>; 2] = [
    (
        "!has(self.mode) || !has(self.linkType) || self.linkType != 'macvlan' \
         || self.mode in ['bridge', 'private', 'vepa', 'passthru']",
        "a macvlan has the modes bridge, private, vepa and passthru",
    ),
    (
        "!has(self.mode) || !has(self.linkType) || self.linkType != 'ipvlan' || self.mode in ['l2', 'l3', 'l3s']",
        "an ipvlan has the modes l2, l3 and l3s",
    ),
];

/// For an entry of a list: kinds of tunnels that go over one family only.
pub(crate) const LISTED_FAMILIES: [Rule<'_>; 2] = [
    (
        "!has(self.linkType) || !(self.linkType in ['ipip', 'sit']) \
         || ((!has(self.remote) || !isIP(self.remote) || ip(self.remote).family() == 4) \
         && (!has(self.local) || !isIP(self.local) || ip(self.local).family() == 4))",
        "ipip and sit go over IPv4",
    ),
    (
        "!has(self.linkType) || self.linkType != 'ip6tnl' \
         || ((!has(self.remote) || !isIP(self.remote) || ip(self.remote).family() == 6) \
         && (!has(self.local) || !isIP(self.local) || ip(self.local).family() == 6))",
        "ip6tnl goes over IPv6",
    ),
];

/// At most one router of each family.
pub(crate) const GATEWAYS: [Rule<'_>; 2] = [
    (
        "self.filter(g, isIP(g) && ip(g).family() == 4).size() <= 1",
        "more than one IPv4 router: use `routes` with metrics or next hops",
    ),
    (
        "self.filter(g, isIP(g) && ip(g).family() == 6).size() <= 1",
        "more than one IPv6 router: use `routes` with metrics or next hops",
    ),
];

/// For a next hop, and for a route with one.
pub(crate) const ONLINK: Rule<'_> =
    ("!has(self.onlink) || !self.onlink || has(self.via)", "`onlink` is about a router: name it with `via`");

/// For a route with one next hop.
pub(crate) const SAME_FAMILY_ROUTE: Rule<'_> = (
    "!has(self.via) || !isIP(self.via) || !isCIDR(self.to) || ip(self.via).family() == cidr(self.to).ip().family()",
    "the router and the destination are of the same family",
);

/// For a policy rule.
pub(crate) const POLICY: [Rule<'_>; 2] = [
    ("!has(self.fwmask) || has(self.fwmark)", "a mask needs the mark that it is for: state `fwmark`"),
    (
        "!has(self.from) || !has(self.to) || !isCIDR(self.from) || !isCIDR(self.to) \
         || cidr(self.from).ip().family() == cidr(self.to).ip().family()",
        "`from` and `to` are of the same family",
    ),
];

/// For routes that come with no interface.
pub(crate) const ROUTES_ALONE: [Rule<'_>; 5] = [
    (
        "self.all(r, (has(r.type) && r.type != 'forward') || has(r.dev) || has(r.via) \
         || (has(r.nextHops) && size(r.nextHops) > 0 && r.nextHops.all(h, has(h.via) || has(h.dev))))",
        "where does it go? Name the router with `via`, or the interface with `dev`",
    ),
    (
        "self.all(r, has(r.dev) || !has(r.via) || !isIP(r.via) || ip(r.via).family() == 4 \
         || !ip(r.via).isLinkLocalUnicast())",
        "every interface has a network with a link-local router: name the interface with `dev`",
    ),
    (
        "self.all(r, has(r.dev) || !has(r.via) || !has(r.onlink) || !r.onlink)",
        "with `onlink` no network says where the router is: name the interface with `dev`",
    ),
    (
        "self.all(r, !has(r.nextHops) || r.nextHops.all(a, r.nextHops.exists_one(b, \
         (has(a.via) ? a.via : '') == (has(b.via) ? b.via : '') && (has(a.dev) ? a.dev : '') == (has(b.dev) ? b.dev : ''))))",
        "the same next hop twice: state its share once, with `weight`",
    ),
    (
        "self.all(r, !has(r.table) || r.table != 255)",
        "table 255 is the pod's table of local addresses: take another",
    ),
];

/// For the interfaces of a PodConfig: which of them carries which tag, on which bridge, under which name.
pub(crate) const TAGGED: [Rule<'_>; 5] = [
    (
        "(has(self.networkAttachments) ? size(self.networkAttachments) : 0) + (has(self.vlans) ? size(self.vlans) : 0) <= 32",
        "one object makes at most 32 interfaces in a pod",
    ),
    (
        "!has(self.vlans) || self.vlans.all(a, self.vlans.all(b, \
         a.parentInterfaceName != b.parentInterfaceName || a.bridgeName == b.bridgeName))",
        "an interface that carries tags is a port of one bridge: two entries of `vlans` name different ones",
    ),
    (
        "!has(self.vlans) || self.vlans.all(a, self.vlans.exists_one(b, \
         has(a.name) ? (has(b.name) && a.name == b.name) : (!has(b.name) && a.vlanID == b.vlanID)))",
        "the same interface is asked for twice in `vlans`: without `name` it is called `v` and the VLAN",
    ),
    (
        "!has(self.vlans) || !has(self.networkAttachments) || self.vlans.all(v, self.networkAttachments.all(a, \
         a.name != v.parentInterfaceName || !has(a.linkType) || a.linkType == 'veth'))",
        "only a veth is a port of a bridge of the node: `vlans` names an interface of another kind",
    ),
    (
        "!has(self.vlans) || !has(self.networkAttachments) || self.vlans.all(v, self.networkAttachments.all(a, \
         a.name != v.parentInterfaceName || !has(a.master) || a.master == v.bridgeName))",
        "the interface that carries a tag is a port of its own `master`: `bridgeName` says another",
    ),
];
