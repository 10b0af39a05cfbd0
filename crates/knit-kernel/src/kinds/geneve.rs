//! Encodes Geneve links.

use std::net::IpAddr;

use knit_model::IfName;
use knit_model::link::{Geneve, GeneveDf};

use super::tunnel::PROBE_ENDS;
use super::{FieldSelection, RelatedLinks, WireKind};
use crate::features::Probe;
use crate::netlink::{Attributes, Message};

// if_link.h, IFLA_GENEVE_*
const ID: u16 = 1;
const REMOTE: u16 = 2;
const TTL: u16 = 3;
const TOS: u16 = 4;
const PORT: u16 = 5;
const REMOTE6: u16 = 7;
const UDP_CSUM: u16 = 8;
const UDP_ZERO_CSUM6_TX: u16 = 9;
const UDP_ZERO_CSUM6_RX: u16 = 10;
const LABEL: u16 = 11;
const TTL_INHERIT: u16 = 12;
const DF: u16 = 13;

/// The kernel's numbers for `df`.
const DF_NUMBERS: [(GeneveDf, u8); 3] = [(GeneveDf::Unset, 0), (GeneveDf::Set, 1), (GeneveDf::Inherit, 2)];

impl WireKind for Geneve {
    const CONFIG: &'static str = "CONFIG_GENEVE";
    const PROBES: &'static [Probe] = &[Probe::tunnel("geneve", "Geneve", Self::CONFIG, |scratch| {
        scratch.link("geneve", |data| {
            data.put_u32(ID, 4242).put_address(REMOTE, PROBE_ENDS[1].into());
        })
    })
    .module("geneve")
    .needed_for("tenant tunnels")];
    /// The kernel rejects a second link with the same VNI, remote address and port.
    const ALLOWS_DEFERRED_DELETE: bool = false;
    /// With another remote address the kernel recomputes the MTU.
    const RESETS_OMITTED_FIELDS: bool = true;

    fn conflicting_link(&self) -> Option<String> {
        Some(format!("another geneve with VNI {} and the same remote address and port", self.vni))
    }

    fn encode(&self, selection: FieldSelection<'_>, _related: &RelatedLinks<'_>, data: &mut Message) {
        if let Some(vni) = selection.select("vni", Some(self.vni)) {
            data.put_u32(ID, vni);
        }
        if let Some(remote) = selection.select("remote", self.remote) {
            data.put_address(if remote.is_ipv4() { REMOTE } else { REMOTE6 }, remote);
        }
        if let Some(port) = selection.select("port", self.port) {
            data.put_be16(PORT, port);
        }
        // The kernel accepts one of the two: inherit the TTL, or a value, which ends inheritance.
        let ttl = selection.select("ttl", self.ttl);
        match selection.select("ttl_inherit", self.ttl_inherit) {
            Some(true) => {
                data.put_u8(TTL_INHERIT, 1);
            }
            Some(false) => {
                data.put_u8(TTL, self.ttl.unwrap_or(0));
            }
            None => {
                ttl.map(|ttl| data.put_u8(TTL, ttl));
            }
        }
        if let Some(tos) = selection.select("tos", self.tos) {
            data.put_u8(TOS, tos);
        }
        let df = selection.select("df", self.df);
        if let Some((_, number)) = DF_NUMBERS.iter().find(|(name, _)| Some(*name) == df) {
            data.put_u8(DF, *number);
        }
        if let Some(label) = selection.select("flow_label", self.flow_label) {
            data.put_be32(LABEL, label);
        }
        match (selection.select("udp_csum", self.udp_csum), self.remote) {
            (Some(on), Some(IpAddr::V6(_))) => {
                data.put_u8(UDP_ZERO_CSUM6_TX, (!on).into()).put_u8(UDP_ZERO_CSUM6_RX, (!on).into());
            }
            (Some(on), _) => {
                data.put_u8(UDP_CSUM, on.into());
            }
            (None, _) => {}
        }
    }

    fn decode(data: Attributes<'_>, _parent: Option<IfName>) -> Self {
        let byte = |kind| data.first(kind).and_then(|value| value.u8());
        let is_on = |kind| byte(kind).map(|on| on != 0);
        let remote = data.first(REMOTE).or_else(|| data.first(REMOTE6)).and_then(|end| end.address());
        let csum = match remote {
            Some(IpAddr::V6(_)) => is_on(UDP_ZERO_CSUM6_TX).map(|zero| !zero),
            _ => is_on(UDP_CSUM),
        };
        // An inherited TTL has no value.
        let ttl_inherit = is_on(TTL_INHERIT).or_else(|| byte(TTL).map(|_| false));
        let df = byte(DF);
        Self {
            vni: data.first(ID).and_then(|id| id.u32()).unwrap_or(0),
            remote,
            port: data.first(PORT).and_then(|port| port.be16()),
            ttl: if ttl_inherit == Some(true) { Some(0) } else { byte(TTL) },
            ttl_inherit,
            tos: byte(TOS),
            df: DF_NUMBERS.iter().find(|(_, number)| Some(*number) == df).map(|(df, _)| *df),
            flow_label: data.first(LABEL).and_then(|label| label.be32()),
            udp_csum: csum,
        }
    }

    /// It has no parent.
    fn parent_index(_data: Attributes<'_>, _link: Option<u32>) -> Option<u32> {
        None
    }
}
