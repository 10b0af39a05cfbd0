//! The NICs of the host: candidates for uplinks that are opened to tenants.

use std::collections::BTreeSet;

use knit_model::{IfName, Mac};

use crate::error::Result;
use crate::netlink::constants::*;
use crate::netlink::header::LinkHeader;
use crate::netlink::{Header, Message, Protocol, Socket};
use crate::netns::Netns;

/// The loopback flag.
const IFF_LOOPBACK: u32 = 8;
/// Link kinds that aggregate several NICs.
const AGGREGATE_KINDS: [&str; 2] = ["bond", "team"];

/// A NIC of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Its name.
    pub name: IfName,
    /// Its MAC address.
    pub mac: Option<Mac>,
    /// Its MTU.
    pub mtu: u32,
    /// Whether it is up and has a carrier.
    pub up: bool,
    /// Its speed in Mbit/s, if the driver reports it.
    pub speed: Option<u32>,
}

/// The NICs of a namespace, by name: physical devices, bonds and teams, and the links in `also` of any kind.
///
/// Dumps all links, so it is not for a hot path.
pub fn nics(host: &Netns, also: &BTreeSet<IfName>) -> Result<Vec<Nic>> {
    let mut socket = Socket::open_in(host, Protocol::Route)?;
    let mut message = Message::new(RTM_GETLINK, 0, "list the host's NICs");
    message.header(&LinkHeader::default()).put_u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
    let mut all = socket.dump(message, |_, body| read(body, also))?;
    all.sort_by(|one, other| one.name.cmp(&other.name));
    for nic in &mut all {
        nic.speed = speed(&nic.name);
    }
    Ok(all)
}

fn read(body: &[u8], also: &BTreeSet<IfName>) -> Option<Nic> {
    let (header, attributes) = LinkHeader::split(body)?;
    let name = IfName::new(attributes.first(IFLA_IFNAME)?.str()?).ok()?;
    let info = attributes.first(IFLA_LINKINFO).map(|info| info.nested());
    let kind = info.and_then(|info| info.first(IFLA_INFO_KIND)?.str());
    // Virtual links have a kind; physical devices have none.
    let is_nic = header.flags & IFF_LOOPBACK == 0 && kind.is_none_or(|kind| AGGREGATE_KINDS.contains(&kind));
    if !is_nic && !also.contains(&name) {
        return None;
    }
    Some(Nic {
        mac: attributes.first(IFLA_ADDRESS).and_then(|mac| mac.mac()).map(Mac::from_bytes),
        mtu: attributes.first(IFLA_MTU).and_then(|mtu| mtu.u32()).unwrap_or_default(),
        up: header.flags & IFF_UP != 0 && header.flags & IFF_LOWER_UP != 0,
        speed: None,
        name,
    })
}

/// The speed that the driver reports: -1 or nothing without a carrier.
fn speed(name: &IfName) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok()?;
    text.trim().parse().ok()
}
