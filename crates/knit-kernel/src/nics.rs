//! The NICs of the host: what could be opened to tenants.

use std::collections::BTreeSet;

use knit_model::{IfName, Mac};

use crate::error::Result;
use crate::netlink::constants::*;
use crate::netlink::header::LinkHeader;
use crate::netlink::{Header, Message, Protocol, Socket};
use crate::netns::Netns;

/// The kernel's flag of the loopback.
const IFF_LOOPBACK: u32 = 8;
/// Kinds that stand for NICs: several that act as one.
const OF_NICS: [&str; 2] = ["bond", "team"];

/// A NIC of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Its name.
    pub name: IfName,
    /// Its hardware address.
    pub mac: Option<Mac>,
    /// Its MTU.
    pub mtu: u32,
    /// Whether it is switched on and something is at the other end of the cable.
    pub up: bool,
    /// How fast it is, in Mbit/s, if its driver says.
    pub speed: Option<u32>,
}

/// The NICs of a namespace, by name: devices, what several of them are bundled to, and these links whatever they are.
///
/// All links are asked for, so this is not for a hot path.
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
    // A link that software made says of which kind it is; a device says nothing.
    let is_nic = header.flags & IFF_LOOPBACK == 0 && kind.is_none_or(|kind| OF_NICS.contains(&kind));
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

/// What the driver says. A NIC without a cable says -1 or nothing.
fn speed(name: &IfName) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok()?;
    text.trim().parse().ok()
}
