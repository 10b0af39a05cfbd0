//! Encodes tap links: created by opening `/dev/net/tun` in the namespace, observed by netlink.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use knit_model::IfName;
use knit_model::link::{TAP_NO_OWNER, Tap};
use nix::errno::Errno;

use super::{FieldSelection, LinkContext, RelatedLinks, WireKind};
use crate::error::{Error, Result};
use crate::features::Probe;
use crate::kernel::LinkSelector;
use crate::netlink::constants::{IFLA_INFO_DATA, IFLA_LINKINFO};
use crate::netlink::header::LinkHeader;
use crate::netlink::{Attributes, Header, Message};
use crate::sys::tun;

/// The device that creates taps.
pub(crate) const DEVICE: &str = "/dev/net/tun";

// if_link.h, IFLA_TUN_*
const OWNER: u16 = 1;
const GROUP: u16 = 2;
const TYPE: u16 = 3;
const VNET_HDR: u16 = 5;
const MULTI_QUEUE: u16 = 7;
const TYPE_TAP: u8 = 2;

impl WireKind for Tap {
    const CONFIG: &'static str = "CONFIG_TUN";
    const PROBES: &'static [Probe] =
        &[Probe::host_link("tun", "tun and tap", Self::CONFIG, crate::features::tun)
            .module("tun")
            .needed_for("virtual machines in pods, tunnels in user space")];
    const CONFIGURED_FIELDS: &'static [&'static str] = &["user", "user_group", "multi_queue", "vnet_hdr"];

    fn encode(&self, _selection: FieldSelection<'_>, _related: &RelatedLinks<'_>, _data: &mut Message) {}

    fn decode(data: Attributes<'_>, _parent: Option<IfName>) -> Self {
        // A tun device, which carries no Ethernet, has the same kind name and is ignored.
        let Some(TYPE_TAP) = data.first(TYPE).and_then(|kind| kind.u8()) else { return Self::default() };
        let is_on = |kind| data.first(kind).and_then(|on| on.u8()).map(|on| on != 0);
        let id = |kind| data.first(kind).and_then(|id| id.u32()).unwrap_or(TAP_NO_OWNER);
        Self {
            user: Some(id(OWNER)),
            user_group: Some(id(GROUP)),
            multi_queue: is_on(MULTI_QUEUE),
            vnet_hdr: is_on(VNET_HDR),
        }
    }

    fn parent_index(_data: Attributes<'_>, _link: Option<u32>) -> Option<u32> {
        None
    }

    /// A tap is deleted with its descriptor until it is made persistent: so it never exists without its mark.
    fn create_device(&self, link: &mut LinkContext<'_, '_>) -> Result<Option<OwnedFd>> {
        let context = format!("create tap {} on {}", link.name, link.scope);
        let exists = || Error::Rejected {
            context: context.clone().into(),
            errno: Errno::EEXIST,
            message: None,
            offset: None,
        };
        // The kernel would open an existing tap.
        if link.session.link_body(link.scope, LinkSelector::Name(link.name.as_str()))?.is_some() {
            return Err(exists());
        }
        let (device, flags) = open(self, link, context.clone())?;
        if flags & tun::PERSISTENT != 0 {
            return Err(exists());
        }
        let is_set = |id: &u32| *id != TAP_NO_OWNER;
        let user = self.user.filter(is_set).map_or(Ok(()), |user| tun::set_owner(device.as_fd(), user));
        let group = self.user_group.filter(is_set);
        let group = group.map_or(Ok(()), |group| tun::set_group(device.as_fd(), group));
        user.and(group).map_err(|error| Error::system(context, "set its owner", error))?;
        Ok(Some(device))
    }

    fn persist(&self, device: OwnedFd) -> io::Result<()> {
        tun::set_persistent(device.as_fd())
    }

    /// Only `vnet_hdr` can be changed on an existing tap, by opening it with the new flag.
    fn configure(&self, selection: FieldSelection<'_>, link: &mut LinkContext<'_, '_>) -> Result<()> {
        let (FieldSelection::Changed(_), Some(_)) = (selection, selection.select("vnet_hdr", self.vnet_hdr))
        else {
            return Ok(());
        };
        // A tap can only be opened with the queue mode that it was created with.
        let body = link.session.link_body(link.scope, LinkSelector::Name(link.name.as_str()))?;
        let seen =
            body.as_deref().and_then(info_data).map(|data| Self::decode(data, None)).unwrap_or_default();
        let context = format!("set tap {} on {}", link.name, link.scope);
        open(&Self { multi_queue: seen.multi_queue, ..self.clone() }, link, context).map(drop)
    }
}

/// Opens or creates a tap: its descriptor, and its flags as reported by the kernel.
fn open(tap: &Tap, link: &LinkContext<'_, '_>, context: String) -> Result<(OwnedFd, i32)> {
    let name = link.name.to_string();
    let on = |field: Option<bool>, flag| if field == Some(true) { flag } else { 0 };
    let flags = on(tap.multi_queue, tun::MULTI_QUEUE) | on(tap.vnet_hdr, tun::VNET_HDR);
    let opened = link.session.run_in_netns(link.scope, move || {
        let device = match File::options().read(true).write(true).open(DEVICE) {
            Ok(device) => OwnedFd::from(device),
            Err(error) => return Ok(Err(error)),
        };
        let flags = tun::attach(device.as_fd(), &name, flags)?;
        Ok(Ok((device, flags)))
    })?;
    match opened {
        Ok(Ok(opened)) => Ok(opened),
        Ok(Err(error)) => Err(no_device(context, error)),
        Err(error) => Err(Error::system(context, "open it", error)),
    }
}

/// Explains why the device cannot be opened.
fn no_device(context: String, source: io::Error) -> Error {
    match source.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT | Errno::ENODEV | Errno::ENXIO) => {
            let what = format!("tap ({DEVICE} does not exist; try `modprobe tun`)");
            Error::Unsupported { context: context.into(), what, config: Tap::CONFIG }
        }
        Some(Errno::EPERM | Errno::EACCES) => {
            Error::DeviceDenied { context: context.into(), device: DEVICE, source }
        }
        _ => Error::system(context, "open the device", source),
    }
}

/// The kind's attributes in a link message.
fn info_data(body: &[u8]) -> Option<Attributes<'_>> {
    let (_, attributes) = LinkHeader::split(body)?;
    Some(attributes.first(IFLA_LINKINFO)?.nested().first(IFLA_INFO_DATA)?.nested())
}
