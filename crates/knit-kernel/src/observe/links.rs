//! Links with their kind's fields, their marks, and the names of the links around them.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};

use knit_model::link::{Attrs, Bridge, HostDevice, Kind, Lent, Link, LinkKind, Master, OwnerId, PortVlans};
use knit_model::{IfName, Mac, Scope, marks};

use super::{Links, limits};
use crate::error::Result;
use crate::kernel::{By, Room, absent_is_none};
use crate::kinds::{self, At};
use crate::lent;
use crate::netlink::attributes::Table;
use crate::netlink::constants::*;
use crate::netlink::header::{LinkHeader, NamespaceHeader};
use crate::netlink::{Attributes, Header, Message};

/// Attributes of links that are read have lower numbers than this.
const WANTED: usize = IFLA_ALT_IFNAME as usize + 1;

/// A link, and what the model does not hold of it.
#[derive(Debug)]
pub(crate) struct SeenLink {
    pub(crate) index: u32,
    pub(crate) link: Link,
    /// Whether something is at the other end of the cable.
    pub(crate) carrier: bool,
    /// Whether it is a port of a bridge.
    is_port: bool,
}

/// The links of a look, by their number.
#[derive(Debug, Default)]
pub(crate) struct Found {
    by_index: BTreeMap<u32, SeenLink>,
}

impl Found {
    /// The name of a link that is part of the look.
    pub(crate) fn name(&self, index: u32) -> Option<&IfName> {
        self.by_index.get(&index).map(|seen| &seen.link.name)
    }

    /// Whether a link of this name is part of the look.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.by_index.values().any(|seen| seen.link.name.as_str() == name)
    }

    /// Whether a link of the look has Knit's mark: its name's, or the group that it was born in.
    pub(crate) fn is_marked(&self) -> bool {
        let mut links = self.by_index.values().map(|seen| &seen.link);
        links.any(|link| link.owner.is_some() || link.attrs.group == Some(marks::BIRTH_GROUP))
    }

    /// The numbers of all links of the look.
    pub(crate) fn indexes(&self) -> impl Iterator<Item = u32> {
        self.by_index.keys().copied()
    }

    /// The numbers of bridges and their ports.
    pub(crate) fn with_vlans(&self) -> Vec<u32> {
        let has_vlans = |seen: &&SeenLink| seen.is_port || matches!(seen.link.kind, Kind::Bridge(_));
        self.by_index.values().filter(has_vlans).map(|seen| seen.index).collect()
    }

    /// The numbers of links that packets are routed over: what comes in by a port of a bridge is the bridge's.
    pub(crate) fn with_routes(&self) -> Vec<u32> {
        self.by_index.values().filter(|seen| !seen.is_port).map(|seen| seen.index).collect()
    }

    /// Puts in the VLANs of bridges and their ports.
    pub(crate) fn add_vlans(&mut self, all: BTreeMap<u32, PortVlans>) {
        for (index, vlans) in all {
            if let Some(seen) = self.by_index.get_mut(&index) {
                seen.link.attrs.vlans = Some(vlans);
            }
        }
    }

    pub(crate) fn into_seen(self) -> impl Iterator<Item = SeenLink> {
        self.by_index.into_values()
    }
}

/// Looks at links.
pub(crate) fn look(room: &mut Room<'_>, scope: &Scope, links: &Links) -> Result<Found> {
    let mut bodies = Vec::new();
    match links {
        Links::All => {
            let mut message = Message::new(RTM_GETLINK, 0, format!("list links of {scope}"));
            message.header(&LinkHeader::default()).put_u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
            let all = room.socket(scope)?.dump(message, |_, body| Some(body.to_vec()))?;
            bodies.extend(all.into_iter().map(|body| (None, body)));
        }
        Links::Named(names) => {
            for name in names {
                let body = room.link_body(scope, By::Name(name.as_str()))?;
                bodies.extend(body.map(|body| (Some(name.clone()), body)));
            }
        }
    }
    let mut names = Names { scope, near: BTreeMap::new(), host_id: None };
    for (_, body) in &bodies {
        if let Some((index, name)) = index_and_name(body) {
            names.near.insert(index, Some(name));
        }
    }
    let mut found = Found::default();
    for (asked, body) in bodies {
        if let Some(mut seen) = decode(room, &mut names, &body)? {
            // Asked by an alternative name it is another name's link, which is why the name is taken.
            seen.link.name = asked.unwrap_or(seen.link.name);
            found.by_index.insert(seen.index, seen);
        }
    }
    Ok(found)
}

/// Number and name, without the rest.
fn index_and_name(body: &[u8]) -> Option<(u32, IfName)> {
    let (header, attributes) = LinkHeader::split(body)?;
    let name = IfName::new(attributes.first(IFLA_IFNAME)?.str()?).ok()?;
    Some((header.index as u32, name))
}

/// Reads one link. `None` for what the model cannot name, and for links on their way out.
fn decode(room: &mut Room<'_>, names: &mut Names<'_>, body: &[u8]) -> Result<Option<SeenLink>> {
    let Some((header, attributes)) = LinkHeader::split(body) else { return Ok(None) };
    let index = header.index as u32;
    // What has no name that the model could hold is not in the list.
    let Some(Some(name)) = names.near.get(&index).cloned() else { return Ok(None) };
    let attributes = attributes.table::<WANTED>();
    let group = attributes.first(IFLA_GROUP).and_then(|group| group.u32());
    if group == Some(marks::REAP_GROUP) {
        return Ok(None);
    }
    let info = attributes.first(IFLA_LINKINFO).map(|info| info.nested());
    let kind_name = info.and_then(|info| info.first(IFLA_INFO_KIND)?.str()).unwrap_or_default();
    let data = info.and_then(|info| info.first(IFLA_INFO_DATA)).map(|data| data.nested());
    let data = data.unwrap_or(Attributes::new(&[]));
    let number = |kind| attributes.first(kind).and_then(|value| value.u32());

    // A link that sits on one of another namespace says so by that namespace's number here.
    let below = attributes.first(IFLA_LINK_NETNSID).and_then(|id| id.i32());
    let parent = kinds::parent_index(kind_name, data, number(IFLA_LINK));
    let (parent, born_from) = match (parent, below) {
        (None, _) => (None, None),
        (Some(parent), None) => (names.near(room, parent)?, None),
        (Some(parent), Some(id)) if names.is_host(room, id)? => {
            (name_of(room, &Scope::Host, parent)?, Some(Scope::Host))
        }
        (Some(_), Some(_)) => (None, None),
    };
    let master = match number(IFLA_MASTER) {
        None | Some(0) => Some(Master::Nothing),
        // A master that the model cannot name is not stated.
        Some(master) => names.near(room, master)?.map(Master::Of),
    };
    let is_set = |flag: u32| Some(header.flags & flag != 0);
    let mut attrs = Attrs {
        mtu: number(IFLA_MTU),
        mac: attributes.first(IFLA_ADDRESS).and_then(|mac| mac.mac()).map(Mac::from_bytes),
        txqueuelen: number(IFLA_TXQLEN),
        alias: Some(
            attributes.first(IFLA_IFALIAS).and_then(|alias| alias.str()).unwrap_or_default().to_owned(),
        ),
        group: Some(group.unwrap_or(0)),
        up: is_set(IFF_UP),
        promisc: is_set(IFF_PROMISC),
        allmulticast: is_set(IFF_ALLMULTI),
        multicast: is_set(IFF_MULTICAST),
        arp: is_set(IFF_NOARP).map(|is_off| !is_off),
        master,
        vlans: None,
        hairpin: None,
        limit: None,
    };
    let mut kind: Kind = kinds::decode(kind_name, data, parent);
    let (owner, lent) = mark(&attributes).map_or((None, None), |(owner, lent)| (Some(owner), lent));
    if let Some(lent) = lent {
        kind = Kind::HostDevice(HostDevice(lent));
    }
    // What a stranger's link says beside its message is nobody's business.
    if owner.is_some() || group == Some(marks::BIRTH_GROUP) {
        let asked = kinds::ask(&mut kind, &mut At { room, scope: names.scope, link: &name });
        if absent_is_none(asked)?.is_none() {
            return Ok(None);
        }
        let queue = attributes.first(IFLA_QDISC).and_then(|queue| queue.str());
        attrs.limit = Some(limits::look(room, names.scope, index, queue)?);
    }
    let port_of = info.and_then(|info| info.first(IFLA_INFO_SLAVE_KIND)?.str());
    let is_port = port_of == Some(Bridge::NAME);
    let port = info.filter(|_| is_port).and_then(|info| info.first(IFLA_INFO_SLAVE_DATA));
    attrs.hairpin = port.and_then(|port| port.nested().first(IFLA_BRPORT_MODE)?.u8()).map(|mode| mode != 0);
    let link = Link { name, kind, attrs, born_from, owner };
    let carrier = header.flags & IFF_LOWER_UP != 0;
    Ok(Some(SeenLink { index, link, carrier, is_port }))
}

/// The owner in Knit's mark, an alternative name. What follows a dot tells two ends of one pair apart, or says what a NIC
/// was before it was lent.
fn mark(attributes: &Table<'_, WANTED>) -> Option<(OwnerId, Option<Lent>)> {
    let list = attributes.first(IFLA_PROP_LIST)?.nested();
    let mut names = list.filter(|name| name.kind == IFLA_ALT_IFNAME).filter_map(|name| name.str());
    let id = names.find_map(|name| name.strip_prefix(marks::ALTNAME_PREFIX))?;
    let (id, rest) = id.split_once('.').unwrap_or((id, ""));
    Some((OwnerId(id.to_owned()), lent::of_mark(rest)))
}

/// Names of links around those of a look, asked for at most once.
struct Names<'a> {
    scope: &'a Scope,
    near: BTreeMap<u32, Option<IfName>>,
    /// The host's number in this scope, once it is known.
    host_id: Option<i32>,
}

impl Names<'_> {
    /// The name of a link of the same scope.
    fn near(&mut self, room: &mut Room<'_>, index: u32) -> Result<Option<IfName>> {
        if let Some(name) = self.near.get(&index) {
            return Ok(name.clone());
        }
        let learned = room.places.names.get(&(self.scope.clone(), index)).cloned();
        let name = if learned.is_some() { learned } else { name_of(room, self.scope, index)? };
        self.near.insert(index, name.clone());
        Ok(name)
    }

    /// Whether this number, in this scope, is the host's.
    fn is_host(&mut self, room: &mut Room<'_>, id: i32) -> Result<bool> {
        if let Some(host) = self.host_id {
            return Ok(host == id);
        }
        let mut message = Message::new(RTM_GETNSID, 0, format!("number of the host in {}", self.scope));
        message.header(&NamespaceHeader::default());
        message.put_u32(NETNSA_FD, room.netns(&Scope::Host)?.as_fd().as_raw_fd() as u32);
        let read = |_, body: &[u8]| NamespaceHeader::split(body)?.1.first(NETNSA_NSID)?.i32();
        let host = room.socket(self.scope)?.request_reply(message, read)?;
        self.host_id = Some(host);
        Ok(host == id)
    }
}

fn name_of(room: &mut Room<'_>, scope: &Scope, index: u32) -> Result<Option<IfName>> {
    let name = room.socket(scope)?.link_name(index)?;
    Ok(name.and_then(|name| IfName::new(name).ok()))
}

/// Dumps a table for each link of a look that is named, or once for all.
pub(super) fn dump_each<T>(
    room: &mut Room<'_>,
    scope: &Scope,
    links: &Links,
    found: &Found,
    request: impl Fn(Option<u32>) -> Message,
    mut decode: impl FnMut(&[u8]) -> Option<T>,
) -> Result<Vec<T>> {
    let wanted: Vec<Option<u32>> = match links {
        Links::All => vec![None],
        Links::Named(_) => found.indexes().map(Some).collect(),
    };
    let mut all = Vec::new();
    for index in wanted {
        let part = room.socket(scope)?.dump(request(index), |_, body| decode(body));
        // A link or table that went away meanwhile has nothing.
        all.extend(absent_is_none(part)?.unwrap_or_default());
    }
    Ok(all)
}
