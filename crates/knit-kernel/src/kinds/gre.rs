//! Encodes gre, gretap, ip6gre and ip6gretap tunnels.

use knit_model::IfName;
use knit_model::link::{Gre, GreForm, LinkKind, NumberOrNone};

use super::tunnel::{Ipv6Fields, Outer, put_end, put_probe_ends, put_probe_ends6};
use super::{FieldSelection, RelatedLinks, WireKind};
use crate::features::Probe;
use crate::netlink::{Attributes, Message};

// if_tunnel.h, IFLA_GRE_*
const LINK: u16 = 1;
const IFLAGS: u16 = 2;
const OFLAGS: u16 = 3;
const IKEY: u16 = 4;
const OKEY: u16 = 5;
const LOCAL: u16 = 6;
const REMOTE: u16 = 7;
const TTL: u16 = 8;
const TOS: u16 = 9;
const PMTUDISC: u16 = 10;
const IGNORE_DF: u16 = 19;
const FWMARK: u16 = 20;
const IPV6: Ipv6Fields = Ipv6Fields { encap_limit: 11, flow_info: 12, flags: 13 };

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
        if let Some(parent) = related.parent {
            data.put_u32(LINK, parent);
        }
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
        put_end(LOCAL, self.local, data);
        put_end(REMOTE, self.remote, data);
        if let Some(ttl) = self.ttl {
            data.put_u8(TTL, ttl);
        }
        if let Some(mark) = self.fwmark {
            data.put_u32(FWMARK, mark);
        }
        if self.form.is_ipv6() {
            let outer = Outer { tos: self.tos, encap_limit: self.encap_limit, flow_label: self.flow_label };
            IPV6.encode(&outer, data);
            return;
        }
        if let Some(tos) = self.tos {
            data.put_u8(TOS, tos);
        }
        if let Some(on) = self.pmtudisc {
            data.put_u8(PMTUDISC, on.into());
        }
        if let Some(on) = self.ignore_df {
            data.put_u8(IGNORE_DF, on.into());
        }
    }

    fn decode(data: Attributes<'_>, parent: Option<IfName>) -> Self {
        Self::decode_as("gre", data, parent)
    }

    fn decode_as(name: &str, data: Attributes<'_>, parent: Option<IfName>) -> Self {
        let form = GreForm::named(name).unwrap_or_default();
        let byte = |kind| data.first(kind).and_then(|value| value.u8());
        let is_on = |kind| byte(kind).map(|on| on != 0).filter(|_| !form.is_ipv6());
        let flags = |kind| data.first(kind).and_then(|flags| flags.be16());
        let key = |flags: Option<u16>, kind| {
            let key = data.first(kind).and_then(|key| key.be32());
            flags.map(|flags| NumberOrNone(key.filter(|_| flags & KEY != 0)))
        };
        let (iflags, oflags) = (flags(IFLAGS), flags(OFLAGS));
        let outer = match form.is_ipv6() {
            true => IPV6.decode(data),
            false => Outer { tos: byte(TOS), ..Outer::default() },
        };
        Self {
            form,
            remote: data.first(REMOTE).and_then(|end| end.address()),
            local: data.first(LOCAL).and_then(|end| end.address()),
            parent,
            ttl: byte(TTL),
            tos: outer.tos,
            ikey: key(iflags, IKEY),
            okey: key(oflags, OKEY),
            seq: oflags.map(|flags| flags & SEQ != 0),
            csum: oflags.map(|flags| flags & CSUM != 0),
            pmtudisc: is_on(PMTUDISC),
            ignore_df: is_on(IGNORE_DF),
            encap_limit: outer.encap_limit,
            flow_label: outer.flow_label,
            fwmark: data.first(FWMARK).and_then(|mark| mark.u32()),
        }
    }

    fn parent_index(data: Attributes<'_>, _link: Option<u32>) -> Option<u32> {
        data.first(LINK).and_then(|link| link.u32()).filter(|index| *index != 0)
    }
}
