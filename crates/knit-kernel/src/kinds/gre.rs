//! Encodes gre, gretap, ip6gre and ip6gretap tunnels.

use knit_model::IfName;
use knit_model::link::{Gre, GreForm, LinkKind, NumberOrNone};

use super::tunnel::{TunnelAttributes, put_probe_ends, put_probe_ends6};
use super::{FieldSelection, RelatedLinks, WireKind};
use crate::features::Probe;
use crate::netlink::{Attributes, Message};

// if_tunnel.h, IFLA_GRE_*
const IFLAGS: u16 = 2;
const OFLAGS: u16 = 3;
const IKEY: u16 = 4;
const OKEY: u16 = 5;
const LOCAL: u16 = 6;
const REMOTE: u16 = 7;
const IGNORE_DF: u16 = 19;
const OUTER: TunnelAttributes = TunnelAttributes {
    link: 1,
    local: LOCAL,
    remote: REMOTE,
    ttl: 8,
    tos: 9,
    pmtudisc: 10,
    encap_limit: 11,
    flow_info: 12,
    flags: 13,
    fwmark: 20,
};

// if_tunnel.h, GRE_*: which options the header has.
const CSUM: u16 = 0x8000;
const KEY: u16 = 0x2000;
const SEQ: u16 = 0x1000;

impl WireKind for Gre {
    const CONFIG: &'static str = "CONFIG_NET_IPGRE";
    const PROBES: &'static [Probe] = &[
        Probe::tunnel("gre", "GRE", Self::CONFIG, |scratch| {
            scratch.link("gre", |data| put_probe_ends(data, LOCAL, REMOTE))
        })
        .module("ip_gre")
        .makes_devices()
        .needed_for("tenant tunnels"),
        Probe::tunnel("gretap", "GRE with Ethernet inside", Self::CONFIG, |scratch| {
            scratch.link("gretap", |data| put_probe_ends(data, LOCAL, REMOTE))
        })
        .module("ip_gre")
        .makes_devices()
        .needed_for("tenant tunnels"),
        Probe::tunnel("ip6gre", "GRE over IPv6", "CONFIG_IPV6_GRE", |scratch| {
            scratch.link("ip6gre", |data| put_probe_ends6(data, LOCAL, REMOTE))
        })
        .module("ip6_gre")
        .makes_devices()
        .needed_for("tenant tunnels"),
        Probe::tunnel("ip6gretap", "GRE over IPv6 with Ethernet inside", "CONFIG_IPV6_GRE", |scratch| {
            scratch.link("ip6gretap", |data| put_probe_ends6(data, LOCAL, REMOTE))
        })
        .module("ip6_gre")
        .makes_devices()
        .needed_for("tenant tunnels"),
    ];
    /// The kernel rejects a second tunnel with the same endpoints and key.
    const ALLOWS_DEFERRED_DELETE: bool = false;
    const RESETS_OMITTED_FIELDS: bool = true;

    fn conflicting_link(&self) -> Option<String> {
        Some(format!("another {} with the same endpoints and key", self.name()))
    }

    fn config(name: &str) -> &'static str {
        if name.starts_with("ip6") { "CONFIG_IPV6_GRE" } else { Self::CONFIG }
    }

    /// Writes all fields, also for a change.
    fn encode(&self, _selection: FieldSelection<'_>, related: &RelatedLinks<'_>, data: &mut Message) {
        OUTER.encode(&self.outer, self.form.is_ipv6(), related, data);
        let options = [(self.csum, CSUM), (self.seq, SEQ)];
        let options =
            options.iter().filter(|(is_on, _)| *is_on == Some(true)).fold(0, |all, (_, bit)| all | bit);
        for (key, flags_kind, key_kind) in [(self.ikey, IFLAGS, IKEY), (self.okey, OFLAGS, OKEY)] {
            let key = key.and_then(|NumberOrNone(key)| key);
            data.put_be16(flags_kind, options | if key.is_some() { KEY } else { 0 });
            if let Some(key) = key {
                data.put_be32(key_kind, key);
            }
        }
        if let Some(on) = self.ignore_df.filter(|_| !self.form.is_ipv6()) {
            data.put_u8(IGNORE_DF, on.into());
        }
    }

    fn decode(data: Attributes<'_>, parent: Option<IfName>) -> Self {
        Self::decode_as("gre", data, parent)
    }

    fn decode_as(name: &str, data: Attributes<'_>, parent: Option<IfName>) -> Self {
        let form = GreForm::named(name).unwrap_or_default();
        let flags = |kind| data.first(kind).and_then(|flags| flags.be16());
        let key = |flags: Option<u16>, kind| {
            let key = data.first(kind).and_then(|key| key.be32());
            flags.map(|flags| NumberOrNone(key.filter(|_| flags & KEY != 0)))
        };
        let (iflags, oflags) = (flags(IFLAGS), flags(OFLAGS));
        Self {
            form,
            outer: OUTER.decode(data, form.is_ipv6(), parent),
            ikey: key(iflags, IKEY),
            okey: key(oflags, OKEY),
            seq: oflags.map(|flags| flags & SEQ != 0),
            csum: oflags.map(|flags| flags & CSUM != 0),
            ignore_df: data
                .first(IGNORE_DF)
                .and_then(|on| on.u8())
                .map(|on| on != 0)
                .filter(|_| !form.is_ipv6()),
        }
    }

    fn parent_index(data: Attributes<'_>, _link: Option<u32>) -> Option<u32> {
        OUTER.parent_index(data)
    }
}
