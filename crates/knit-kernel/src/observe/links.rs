//! Observes links: kind-specific fields, ownership marks, and the names of related links.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};

use knit_model::link::{
    Attrs, Bridge, HostDevice, Kind, Link, LinkKind, Master, MovedDevice, OwnerId, PortVlans,
};
use knit_model::{IfName, Mac, Scope, kernel_ids};

use super::{LinkFilter, limits};
use crate::error::Result;
use crate::kernel::{LinkSelector, Session, absent_is_none};
use crate::kinds::{self, LinkContext};
use crate::moved_device_mark;
use crate::netlink::attributes::Table;
use crate::netlink::constants::*;
use crate::netlink::header::{LinkHeader, NamespaceHeader};
use crate::netlink::{Attributes, Header, Message};

/// The number of link attributes that are decoded: all parent_netns_id this.
const ATTRIBUTES: usize = IFLA_ALT_IFNAME as usize + 1;

/// A link, with details that are not part of the model.
#[derive(Debug)]
pub(crate) struct ObservedLink {
    pub(crate) index: u32,
    pub(crate) link: Link,
    /// Whether it has a carrier.
    pub(crate) carrier: bool,
    /// Whether it is a bridge port.
    is_port: bool,
}

/// The observed links by index.
#[derive(Debug, Default)]
pub(crate) struct LinkTable {
    by_index: BTreeMap<u32, ObservedLink>,
}

impl LinkTable {
    /// The name of an observed link.
    pub(crate) fn name(&self, index: u32) -> Option<&IfName> {
        self.by_index.get(&index).map(|observed| &observed.link.name)
    }

    /// Whether a link of this name was observed.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.by_index.values().any(|observed| observed.link.name.as_str() == name)
    }

    /// Whether any link is Knit's: by its mark, or by the group that it was created in.
    pub(crate) fn has_owned(&self) -> bool {
        let mut links = self.by_index.values().map(|observed| &observed.link);
        links.any(|link| link.owner.is_some() || link.attrs.group == Some(kernel_ids::NEW_LINK_GROUP))
    }

    /// The indexes of all links.
    pub(crate) fn indexes(&self) -> impl Iterator<Item = u32> {
        self.by_index.keys().copied()
    }

    /// The indexes of bridges and bridge ports.
    pub(crate) fn with_vlans(&self) -> Vec<u32> {
        let has_vlans =
            |observed: &&ObservedLink| observed.is_port || matches!(observed.link.kind, Kind::Bridge(_));
        self.by_index.values().filter(has_vlans).map(|observed| observed.index).collect()
    }

    /// The indexes of links that can have routes; bridge ports have none.
    pub(crate) fn with_routes(&self) -> Vec<u32> {
        self.by_index.values().filter(|observed| !observed.is_port).map(|observed| observed.index).collect()
    }

    /// Sets the VLANs of bridges and bridge ports.
    pub(crate) fn add_vlans(&mut self, all: BTreeMap<u32, PortVlans>) {
        for (index, vlans) in all {
            if let Some(observed) = self.by_index.get_mut(&index) {
                observed.link.attrs.vlans = Some(vlans);
            }
        }
    }

    pub(crate) fn into_links(self) -> impl Iterator<Item = ObservedLink> {
        self.by_index.into_values()
    }
}

/// Observes links.
pub(crate) fn observe(session: &mut Session<'_>, scope: &Scope, links: &LinkFilter) -> Result<LinkTable> {
    let mut bodies = Vec::new();
    match links {
        LinkFilter::All => {
            let mut message = Message::new(RTM_GETLINK, 0, format!("list links of {scope}"));
            message.header(&LinkHeader::default()).put_u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
            let all = session.socket(scope)?.dump(message, |_, body| Some(body.to_vec()))?;
            bodies.extend(all.into_iter().map(|body| (None, body)));
        }
        LinkFilter::Named(names) => {
            for name in names {
                let body = session.link_body(scope, LinkSelector::Name(name.as_str()))?;
                bodies.extend(body.map(|body| (Some(name.clone()), body)));
            }
        }
    }
    let mut names = Names { scope, same_scope: BTreeMap::new(), host_id: None };
    for (_, body) in &bodies {
        if let Some((index, name)) = index_and_name(body) {
            names.same_scope.insert(index, Some(name));
        }
    }
    let mut found = LinkTable::default();
    for (requested, body) in bodies {
        if let Some(mut observed) = decode(session, &mut names, &body)? {
            // The request may match an alternative name. The link then occupies the requested name.
            observed.link.name = requested.unwrap_or(observed.link.name);
            found.by_index.insert(observed.index, observed);
        }
    }
    Ok(found)
}

/// Index and name only.
fn index_and_name(body: &[u8]) -> Option<(u32, IfName)> {
    let (header, attributes) = LinkHeader::split(body)?;
    let name = IfName::new(attributes.first(IFLA_IFNAME)?.str()?).ok()?;
    Some((header.index as u32, name))
}

/// A link message, split into the parts that its decoding uses.
struct LinkMessage<'a> {
    header: LinkHeader,
    attributes: Table<'a, ATTRIBUTES>,
    info: Option<Attributes<'a>>,
    kind_name: &'a str,
    data: Attributes<'a>,
}

impl<'a> LinkMessage<'a> {
    fn split(body: &'a [u8]) -> Option<Self> {
        let (header, attributes) = LinkHeader::split(body)?;
        let attributes = attributes.table::<ATTRIBUTES>();
        let info = attributes.first(IFLA_LINKINFO).map(|info| info.nested());
        let kind_name = info.and_then(|info| info.first(IFLA_INFO_KIND)?.str()).unwrap_or_default();
        let data = info.and_then(|info| info.first(IFLA_INFO_DATA)).map(|data| data.nested());
        let data = data.unwrap_or(Attributes::new(&[]));
        Some(Self { header, attributes, info, kind_name, data })
    }

    fn index(&self) -> u32 {
        self.header.index as u32
    }

    fn number(&self, kind: u16) -> Option<u32> {
        self.attributes.first(kind)?.u32()
    }

    fn text(&self, kind: u16) -> Option<&'a str> {
        self.attributes.first(kind)?.str()
    }

    /// The index of the parent.
    fn parent_index(&self) -> Option<u32> {
        kinds::parent_index(self.kind_name, self.data, self.number(IFLA_LINK))
    }

    /// The common fields that need no other message.
    fn attrs(&self) -> Attrs {
        let is_set = |flag: u32| Some(self.header.flags & flag != 0);
        let port = self.info.filter(|_| self.is_port()).and_then(|info| info.first(IFLA_INFO_SLAVE_DATA));
        Attrs {
            mtu: self.number(IFLA_MTU),
            mac: self.attributes.first(IFLA_ADDRESS).and_then(|mac| mac.mac()).map(Mac::from_bytes),
            txqueuelen: self.number(IFLA_TXQLEN),
            alias: Some(self.text(IFLA_IFALIAS).unwrap_or_default().to_owned()),
            group: Some(self.number(IFLA_GROUP).unwrap_or(0)),
            up: is_set(IFF_UP),
            promisc: is_set(IFF_PROMISC),
            allmulticast: is_set(IFF_ALLMULTI),
            multicast: is_set(IFF_MULTICAST),
            arp: is_set(IFF_NOARP).map(|is_off| !is_off),
            master: None,
            vlans: None,
            hairpin: port.and_then(|port| port.nested().first(IFLA_BRPORT_MODE)?.u8()).map(|mode| mode != 0),
            limit: None,
        }
    }

    /// The kind, and the owner if the link has Knit's mark.
    fn kind(&self, parent: Option<IfName>) -> (Kind, Option<OwnerId>) {
        match mark(&self.attributes) {
            Some((owner, Some(moved))) => (Kind::HostDevice(HostDevice(moved)), Some(owner)),
            mark => (kinds::decode(self.kind_name, self.data, parent), mark.map(|(owner, _)| owner)),
        }
    }

    /// Whether it is a bridge port.
    fn is_port(&self) -> bool {
        let port_of = self.info.and_then(|info| info.first(IFLA_INFO_SLAVE_KIND)?.str());
        port_of == Some(Bridge::NAME)
    }

    fn has_carrier(&self) -> bool {
        self.header.flags & IFF_LOWER_UP != 0
    }
}

/// Decodes one link. `None` if the model cannot represent its name, and for detached links.
fn decode(session: &mut Session<'_>, names: &mut Names<'_>, body: &[u8]) -> Result<Option<ObservedLink>> {
    let Some(message) = LinkMessage::split(body) else { return Ok(None) };
    let index = message.index();
    // Links whose name the model cannot represent are not in the list.
    let Some(Some(name)) = names.same_scope.get(&index).cloned() else { return Ok(None) };
    let group = message.number(IFLA_GROUP);
    if group == Some(kernel_ids::DEFERRED_DELETE_GROUP) {
        return Ok(None);
    }
    // The namespace of the parent is given as an id relative to this namespace.
    let parent_netns_id = message.attributes.first(IFLA_LINK_NETNSID).and_then(|id| id.i32());
    let (parent, parent_scope) = match (message.parent_index(), parent_netns_id) {
        (None, _) => (None, None),
        (Some(parent), None) => (names.in_same_scope(session, parent)?, None),
        (Some(parent), Some(id)) if names.is_host(session, id)? => {
            (name_of(session, &Scope::Host, parent)?, Some(Scope::Host))
        }
        (Some(_), Some(_)) => (None, None),
    };
    let master = match message.number(IFLA_MASTER) {
        None | Some(0) => Some(Master::None),
        // A master whose name the model cannot represent is left out.
        Some(master) => names.in_same_scope(session, master)?.map(Master::Link),
    };
    let mut attrs = Attrs { master, ..message.attrs() };
    let (mut kind, owner) = message.kind(parent);
    // Configuration outside the link message is read for Knit's links only.
    if owner.is_some() || group == Some(kernel_ids::NEW_LINK_GROUP) {
        let config =
            kinds::read_config(&mut kind, &mut LinkContext { session, scope: names.scope, name: &name });
        if absent_is_none(config)?.is_none() {
            return Ok(None);
        }
        attrs.limit = Some(limits::observe(session, names.scope, index, message.text(IFLA_QDISC))?);
    }
    let link = Link { name, kind, attrs, parent_scope, owner };
    Ok(Some(ObservedLink { index, link, carrier: message.has_carrier(), is_port: message.is_port() }))
}

/// Decodes link messages alone: without the names of links that are in none of them, and without configuration that
/// other messages hold.
pub(crate) fn decode_messages<'a>(bodies: impl IntoIterator<Item = &'a [u8]>) -> LinkTable {
    let mut found = LinkTable::default();
    for body in bodies {
        let (Some((index, name)), Some(message)) = (index_and_name(body), LinkMessage::split(body)) else {
            continue;
        };
        let parent = message.parent_index().and_then(|parent| found.name(parent)).cloned();
        let (kind, owner) = message.kind(parent);
        let link = Link { name, kind, attrs: message.attrs(), parent_scope: None, owner };
        let (carrier, is_port) = (message.has_carrier(), message.is_port());
        found.by_index.insert(index, ObservedLink { index, link, carrier, is_port });
    }
    found
}

/// The owner in Knit's mark, an alternative name. What follows a dot distinguishes the two ends of a pair, or holds
/// the original settings of a moved NIC.
fn mark(attributes: &Table<'_, ATTRIBUTES>) -> Option<(OwnerId, Option<MovedDevice>)> {
    let list = attributes.first(IFLA_PROP_LIST)?.nested();
    let mut names = list.filter(|name| name.kind == IFLA_ALT_IFNAME).filter_map(|name| name.str());
    let id = names.find_map(|name| name.strip_prefix(kernel_ids::ALTNAME_PREFIX))?;
    let (id, rest) = id.split_once('.').unwrap_or((id, ""));
    Some((OwnerId(id.to_owned()), moved_device_mark::parse_mark(rest)))
}

/// Cached names of related links.
struct Names<'a> {
    scope: &'a Scope,
    same_scope: BTreeMap<u32, Option<IfName>>,
    /// The id of the host's namespace relative to this scope, once it is known.
    host_id: Option<i32>,
}

impl Names<'_> {
    /// The name of a link in the same scope.
    fn in_same_scope(&mut self, session: &mut Session<'_>, index: u32) -> Result<Option<IfName>> {
        if let Some(name) = self.same_scope.get(&index) {
            return Ok(name.clone());
        }
        let cached = session.namespaces.names.get(&(self.scope.clone(), index)).cloned();
        let name = if cached.is_some() { cached } else { name_of(session, self.scope, index)? };
        self.same_scope.insert(index, name.clone());
        Ok(name)
    }

    /// Whether this namespace id, relative to this scope, is the host's.
    fn is_host(&mut self, session: &mut Session<'_>, id: i32) -> Result<bool> {
        if let Some(host) = self.host_id {
            return Ok(host == id);
        }
        let mut message = Message::new(
            RTM_GETNSID,
            0,
            format!("get the id of the host's network namespace in {}", self.scope),
        );
        message.header(&NamespaceHeader::default());
        message.put_u32(NETNSA_FD, session.netns(&Scope::Host)?.as_fd().as_raw_fd() as u32);
        let read = |_, body: &[u8]| NamespaceHeader::split(body)?.1.first(NETNSA_NSID)?.i32();
        let host = session.socket(self.scope)?.request_reply(message, read)?;
        self.host_id = Some(host);
        Ok(host == id)
    }
}

fn name_of(session: &mut Session<'_>, scope: &Scope, index: u32) -> Result<Option<IfName>> {
    let name = session.socket(scope)?.link_name(index)?;
    Ok(name.and_then(|name| IfName::new(name).ok()))
}

/// Dumps a table once, or once for each named link.
pub(super) fn dump_each<T>(
    session: &mut Session<'_>,
    scope: &Scope,
    links: &LinkFilter,
    found: &LinkTable,
    request: impl Fn(Option<u32>) -> Message,
    mut decode: impl FnMut(&[u8]) -> Option<T>,
) -> Result<Vec<T>> {
    let indexes: Vec<Option<u32>> = match links {
        LinkFilter::All => vec![None],
        LinkFilter::Named(_) => found.indexes().map(Some).collect(),
    };
    let mut all = Vec::new();
    for index in indexes {
        let part = session.socket(scope)?.dump(request(index), |_, body| decode(body));
        // A link or table that was deleted meanwhile has no entries.
        all.extend(absent_is_none(part)?.unwrap_or_default());
    }
    Ok(all)
}
