//! vxlan on the wire.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use knit_model::IfName;
use knit_model::link::Vxlan;

use super::{Around, Wanted, WireKind};
use crate::netlink::{Attributes, Message};

// if_link.h, IFLA_VXLAN_*
const ID: u16 = 1;
const GROUP: u16 = 2;
const LINK: u16 = 3;
const LOCAL: u16 = 4;
const TTL: u16 = 5;
const LEARNING: u16 = 7;
const AGEING: u16 = 8;
const PORT: u16 = 15;
const GROUP6: u16 = 16;
const LOCAL6: u16 = 17;

impl WireKind for Vxlan {
    const CONFIG: &'static str = "CONFIG_VXLAN";
    /// The kernel refuses a second link with the same number and port, even while the first is down.
    const LINGERS: bool = false;

    fn twin(&self) -> Option<String> {
        Some(format!("another vxlan with VNI {} and the same port", self.vni))
    }

    fn encode(&self, wanted: Wanted<'_>, around: &Around<'_>, data: &mut Message) {
        if let Some(vni) = wanted.of("vni", Some(self.vni)) {
            data.put_u32(ID, vni);
        }
        // At birth an address that is not set is best said by silence: it would still fix the family.
        let is_said = |address: &IpAddr| matches!(wanted, Wanted::Changed(_)) || !address.is_unspecified();
        if let Some(remote) = wanted.of("remote", self.remote).filter(is_said) {
            data.put_address(if remote.is_ipv4() { GROUP } else { GROUP6 }, remote);
        }
        if let Some(local) = wanted.of("local", self.local).filter(is_said) {
            data.put_address(if local.is_ipv4() { LOCAL } else { LOCAL6 }, local);
        }
        if let Some(port) = wanted.of("port", self.port) {
            data.put_be16(PORT, port);
        }
        if let Some(parent) = wanted.of("parent", around.parent) {
            data.put_u32(LINK, parent);
        }
        if let Some(ttl) = wanted.of("ttl", self.ttl) {
            data.put_u8(TTL, ttl);
        }
        if let Some(learning) = wanted.of("learning", self.learning) {
            data.put_u8(LEARNING, learning.into());
        }
        if let Some(seconds) = wanted.of("fdb_ageing", self.fdb_ageing) {
            data.put_u32(AGEING, seconds);
        }
    }

    fn decode(data: Attributes<'_>, parent: Option<IfName>) -> Self {
        let Some(vni) = data.first(ID).and_then(|id| id.u32()) else {
            return Self {
                vni: 0,
                remote: None,
                local: None,
                port: None,
                parent,
                ttl: None,
                learning: None,
                fdb_ageing: None,
            };
        };
        let said =
            |ipv4, ipv6| data.first(ipv4).or_else(|| data.first(ipv6)).and_then(|address| address.address());
        let (remote, local) = (said(GROUP, GROUP6), said(LOCAL, LOCAL6));
        // The kernel leaves out an address that is not set. Saying so, in the form in which it can also be told, lets
        // one be added to a living link.
        let unset = match remote.or(local) {
            Some(IpAddr::V6(_)) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        };
        Self {
            vni,
            remote: Some(remote.unwrap_or(unset)),
            local: Some(local.unwrap_or(unset)),
            port: data.first(PORT).and_then(|port| port.be16()),
            parent,
            ttl: data.first(TTL).and_then(|ttl| ttl.u8()),
            learning: data.first(LEARNING).and_then(|learning| learning.u8()).map(|learning| learning != 0),
            fdb_ageing: data.first(AGEING).and_then(|seconds| seconds.u32()),
        }
    }

    /// The kernel tells it among the kind's own fields.
    fn parent_index(data: Attributes<'_>, _link: Option<u32>) -> Option<u32> {
        data.first(LINK).and_then(|link| link.u32()).filter(|index| *index != 0)
    }
}
