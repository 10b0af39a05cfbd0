//! vxlan on the wire.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use knit_model::link::Vxlan;
use knit_model::{IfName, Mac};
use nix::errno::Errno;
use serde::de::DeserializeOwned;

use super::{Around, At, Wanted, WireKind};
use crate::error::{Error, Result};
use crate::kernel::By;
use crate::netlink::constants::*;
use crate::netlink::header::{LinkHeader, NeighbourHeader};
use crate::netlink::{Attributes, Header, Message};

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
                fdb: None,
                flood: None,
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
            fdb: None,
            flood: None,
        }
    }

    /// The kernel tells it among the kind's own fields.
    fn parent_index(data: Attributes<'_>, _link: Option<u32>) -> Option<u32> {
        data.first(LINK).and_then(|link| link.u32()).filter(|index| *index != 0)
    }

    const TOLD: &'static [&'static str] = &["fdb", "flood"];

    /// Only what differs is sent, so that what goes to all others goes on.
    fn tell(&self, wanted: Wanted<'_>, at: &mut At<'_, '_>) -> Result<()> {
        let mut messages = Vec::new();
        if let Some(entries) = wanted.of("fdb", self.fdb.as_ref()) {
            let before: Entries = before(wanted, "fdb", at)?;
            let index = index_of(at)?;
            let gone = before.iter().filter(|(mac, _)| !entries.contains_key(mac));
            messages.extend(gone.map(|(mac, to)| {
                let context = format!("remove the entry {mac} of vxlan {} on {}", at.link, at.scope);
                entry(Message::new(RTM_DELNEIGH, 0, context), index, mac.bytes(), *to)
            }));
            let new = entries.iter().filter(|(mac, to)| before.get(mac) != Some(to));
            messages.extend(new.map(|(mac, to)| {
                let context = format!("send {mac} to {to} by vxlan {} on {}", at.link, at.scope);
                let message = Message::new(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, context);
                entry(message, index, mac.bytes(), *to)
            }));
        }
        if let Some(places) = wanted.of("flood", self.flood.as_ref()) {
            let before: BTreeSet<IpAddr> = before(wanted, "flood", at)?;
            let index = index_of(at)?;
            messages.extend(before.difference(places).map(|to| {
                let context = format!("send nothing more to {to} by vxlan {} on {}", at.link, at.scope);
                entry(Message::new(RTM_DELNEIGH, 0, context), index, EVERYONE, *to)
            }));
            messages.extend(places.difference(&before).map(|to| {
                let context =
                    format!("send what is for everyone to {to} by vxlan {} on {}", at.link, at.scope);
                let message = Message::new(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_APPEND, context);
                entry(message, index, EVERYONE, *to)
            }));
        }
        if messages.is_empty() {
            return Ok(());
        }
        let socket = at.room.socket(at.scope)?;
        messages.into_iter().try_for_each(|message| match socket.request(message) {
            // Someone was faster, and it is gone as it should be.
            Err(why) if why.errno() == Some(Errno::ENOENT) => Ok(()),
            sent => sent,
        })
    }

    fn ask(&mut self, at: &mut At<'_, '_>) -> Result<()> {
        // What a link learns comes and goes by itself; one with a far end sends there what is for everyone.
        let (is_told, floods) =
            (self.learning == Some(false), self.remote.is_some_and(|to| to.is_unspecified()));
        if !is_told && !floods {
            return Ok(());
        }
        let index = index_of(at)?;
        let context = format!("list the entries of vxlan {} on {}", at.link, at.scope);
        let mut message = Message::new(RTM_GETNEIGH, 0, context);
        message.header(&NeighbourHeader { family: AF_BRIDGE, index: index as i32, ..Default::default() });
        let read = |_, body: &[u8]| {
            let (header, attributes) = NeighbourHeader::split(body)?;
            let is_fixed = header.state & (NUD_PERMANENT | NUD_NOARP) != 0;
            let mac = Mac::from_bytes(attributes.first(NDA_LLADDR)?.mac()?);
            let to = attributes.first(NDA_DST)?.address()?;
            (is_fixed && header.index as u32 == index).then_some((mac, to))
        };
        let all = at.room.socket(at.scope)?.dump(message, read)?;
        // Of a link with a far end, the one without an address is the field `remote`.
        let (for_everyone, known): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(mac, _)| mac.bytes() == EVERYONE);
        self.fdb = is_told.then(|| known.into_iter().collect());
        self.flood = floods.then(|| for_everyone.into_iter().map(|(_, to)| to).collect());
        Ok(())
    }
}

type Entries = BTreeMap<Mac, IpAddr>;

/// The hardware address of entries for what has none of its own.
const EVERYONE: [u8; 6] = [0; 6];

/// What a field was before it changes; nothing, for a new link.
fn before<T: Default + DeserializeOwned>(wanted: Wanted<'_>, field: &str, at: &At<'_, '_>) -> Result<T> {
    match wanted.before(field).filter(|before| !before.is_null()) {
        None => Ok(T::default()),
        Some(before) => serde_json::from_value(before.clone()).map_err(|why| Error::Unsayable {
            context: format!("set the entries of vxlan {} on {}", at.link, at.scope).into(),
            why: why.to_string(),
        }),
    }
}

fn index_of(at: &mut At<'_, '_>) -> Result<u32> {
    let body = at.room.link_body(at.scope, By::Name(at.link.as_str()))?;
    let header = body.and_then(|body| LinkHeader::decode(&body));
    header.map(|header| header.index as u32).ok_or_else(|| Error::Refused {
        context: format!("find vxlan {} on {}", at.link, at.scope).into(),
        errno: Errno::ENODEV,
        message: None,
        offset: None,
    })
}

fn entry(mut message: Message, index: u32, mac: [u8; 6], to: IpAddr) -> Message {
    message.header(&NeighbourHeader {
        family: AF_BRIDGE,
        index: index as i32,
        state: NUD_PERMANENT,
        flags: NTF_SELF,
        ..Default::default()
    });
    message.put_bytes(NDA_LLADDR, &mac);
    message.put_address(NDA_DST, to);
    message
}
