//! Encodes VXLAN links and their forwarding entries.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use knit_model::link::Vxlan;
use knit_model::{IfName, Mac};
use nix::errno::Errno;
use serde::de::DeserializeOwned;

use super::{FieldSelection, LinkContext, RelatedLinks, WireKind};
use crate::error::{Error, Result};
use crate::features::Probe;
use crate::kernel::LinkSelector;
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
    const PROBES: &'static [Probe] = &[Probe::tunnel("vxlan", "VXLAN", Self::CONFIG, |scratch| {
        scratch.link("vxlan", |data| {
            data.put_u32(ID, 4242).put_be16(PORT, 4789);
        })
    })
    .module("vxlan")
    .needed_for("networks that span nodes")];
    /// The kernel rejects a second link with the same VNI and port, even while the first is down.
    const ALLOWS_DEFERRED_DELETE: bool = false;

    fn conflicting_link(&self) -> Option<String> {
        Some(format!("another vxlan with VNI {} and the same port", self.vni))
    }

    fn encode(&self, selection: FieldSelection<'_>, related: &RelatedLinks<'_>, data: &mut Message) {
        if let Some(vni) = selection.select("vni", Some(self.vni)) {
            data.put_u32(ID, vni);
        }
        // At creation an unset address is omitted: it would still fix the address family.
        let is_written =
            |address: &IpAddr| matches!(selection, FieldSelection::Changed(_)) || !address.is_unspecified();
        if let Some(remote) = selection.select("remote", self.remote).filter(is_written) {
            data.put_address(if remote.is_ipv4() { GROUP } else { GROUP6 }, remote);
        }
        if let Some(local) = selection.select("local", self.local).filter(is_written) {
            data.put_address(if local.is_ipv4() { LOCAL } else { LOCAL6 }, local);
        }
        if let Some(port) = selection.select("port", self.port) {
            data.put_be16(PORT, port);
        }
        if let Some(parent) = selection.select("parent", related.parent) {
            data.put_u32(LINK, parent);
        }
        if let Some(ttl) = selection.select("ttl", self.ttl) {
            data.put_u8(TTL, ttl);
        }
        if let Some(learning) = selection.select("learning", self.learning) {
            data.put_u8(LEARNING, learning.into());
        }
        if let Some(seconds) = selection.select("fdb_ageing", self.fdb_ageing) {
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
        let endpoint =
            |ipv4, ipv6| data.first(ipv4).or_else(|| data.first(ipv6)).and_then(|address| address.address());
        let (remote, local) = (endpoint(GROUP, GROUP6), endpoint(LOCAL, LOCAL6));
        // The kernel omits an unset address. An explicit unspecified address lets a change set one on an existing
        // link.
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

    /// The parent is among the kind's attributes.
    fn parent_index(data: Attributes<'_>, _link: Option<u32>) -> Option<u32> {
        data.first(LINK).and_then(|link| link.u32()).filter(|index| *index != 0)
    }

    const CONFIGURED_FIELDS: &'static [&'static str] = &["fdb", "flood"];

    /// Sends only the differences, so that traffic to unchanged destinations is not interrupted.
    fn configure(&self, selection: FieldSelection<'_>, link: &mut LinkContext<'_, '_>) -> Result<()> {
        let mut messages = Vec::new();
        if let Some(entries) = selection.select("fdb", self.fdb.as_ref()) {
            let before: Entries = before(selection, "fdb", link)?;
            let index = index_of(link)?;
            let gone = before.iter().filter(|(mac, _)| !entries.contains_key(mac));
            messages.extend(gone.map(|(mac, to)| {
                let context =
                    format!("remove the forwarding entry {mac} of vxlan {} on {}", link.name, link.scope);
                entry(Message::new(RTM_DELNEIGH, 0, context), index, mac.bytes(), *to)
            }));
            let new = entries.iter().filter(|(mac, to)| before.get(mac) != Some(to));
            messages.extend(new.map(|(mac, to)| {
                let context = format!(
                    "add the forwarding entry {mac} to {to} to vxlan {} on {}",
                    link.name, link.scope
                );
                let message = Message::new(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, context);
                entry(message, index, mac.bytes(), *to)
            }));
        }
        if let Some(destinations) = selection.select("flood", self.flood.as_ref()) {
            let before: BTreeSet<IpAddr> = before(selection, "flood", link)?;
            let index = index_of(link)?;
            messages.extend(before.difference(destinations).map(|to| {
                let context =
                    format!("remove the flood destination {to} of vxlan {} on {}", link.name, link.scope);
                entry(Message::new(RTM_DELNEIGH, 0, context), index, ALL_ZERO_MAC, *to)
            }));
            messages.extend(destinations.difference(&before).map(|to| {
                let context =
                    format!("add the flood destination {to} to vxlan {} on {}", link.name, link.scope);
                let message = Message::new(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_APPEND, context);
                entry(message, index, ALL_ZERO_MAC, *to)
            }));
        }
        if messages.is_empty() {
            return Ok(());
        }
        let socket = link.session.socket(link.scope)?;
        messages.into_iter().try_for_each(|message| match socket.request(message) {
            // It was removed meanwhile.
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(()),
            sent => sent,
        })
    }

    fn read_config(&mut self, link: &mut LinkContext<'_, '_>) -> Result<()> {
        // Learned entries are not managed; a link with a remote address floods there.
        let (is_managed, floods) =
            (self.learning == Some(false), self.remote.is_some_and(|to| to.is_unspecified()));
        if !is_managed && !floods {
            return Ok(());
        }
        let index = index_of(link)?;
        let context = format!("list the forwarding entries of vxlan {} on {}", link.name, link.scope);
        let mut message = Message::new(RTM_GETNEIGH, 0, context);
        message.header(&NeighbourHeader { family: AF_BRIDGE, index: index as i32, ..Default::default() });
        let read = |_, body: &[u8]| {
            let (header, attributes) = NeighbourHeader::split(body)?;
            let is_fixed = header.state & (NUD_PERMANENT | NUD_NOARP) != 0;
            let mac = Mac::from_bytes(attributes.first(NDA_LLADDR)?.mac()?);
            let to = attributes.first(NDA_DST)?.address()?;
            (is_fixed && header.index as u32 == index).then_some((mac, to))
        };
        let all = link.session.socket(link.scope)?.dump(message, read)?;
        // With a remote address, the all-zero entry is the field `remote`.
        let (flood, known): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(mac, _)| mac.bytes() == ALL_ZERO_MAC);
        self.fdb = is_managed.then(|| known.into_iter().collect());
        self.flood = floods.then(|| flood.into_iter().map(|(_, to)| to).collect());
        Ok(())
    }
}

type Entries = BTreeMap<Mac, IpAddr>;

/// The MAC address of flood entries: broadcast, unknown unicast and multicast.
const ALL_ZERO_MAC: [u8; 6] = [0; 6];

/// The value before a change; empty for a new link.
fn before<T: Default + DeserializeOwned>(
    selection: FieldSelection<'_>,
    field: &str,
    link: &LinkContext<'_, '_>,
) -> Result<T> {
    match selection.old_value(field).filter(|before| !before.is_null()) {
        None => Ok(T::default()),
        Some(before) => serde_json::from_value(before.clone()).map_err(|error| Error::InvalidValue {
            context: format!("set the forwarding entries of vxlan {} on {}", link.name, link.scope).into(),
            reason: error.to_string(),
        }),
    }
}

fn index_of(link: &mut LinkContext<'_, '_>) -> Result<u32> {
    let body = link.session.link_body(link.scope, LinkSelector::Name(link.name.as_str()))?;
    let header = body.and_then(|body| LinkHeader::decode(&body));
    header.map(|header| header.index as u32).ok_or_else(|| Error::Rejected {
        context: format!("find vxlan {} on {}", link.name, link.scope).into(),
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
