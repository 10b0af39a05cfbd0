//! tap on the wire: it is made by opening `/dev/net/tun` in its namespace, and told back by netlink.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use knit_model::IfName;
use knit_model::link::{TAP_NOBODY, Tap};
use nix::errno::Errno;

use super::{Around, At, Wanted, WireKind};
use crate::error::{Error, Result};
use crate::kernel::By;
use crate::netlink::constants::{IFLA_INFO_DATA, IFLA_LINKINFO};
use crate::netlink::header::LinkHeader;
use crate::netlink::{Attributes, Header, Message};
use crate::sys::tun;

/// What taps are made with.
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
    const TOLD: &'static [&'static str] = &["user", "user_group", "multi_queue", "vnet_hdr"];

    fn encode(&self, _wanted: Wanted<'_>, _around: &Around<'_>, _data: &mut Message) {}

    fn decode(data: Attributes<'_>, _parent: Option<IfName>) -> Self {
        // A tun, which carries no Ethernet, has the same name: it is nobody's business here.
        let Some(TYPE_TAP) = data.first(TYPE).and_then(|kind| kind.u8()) else { return Self::default() };
        let is_on = |kind| data.first(kind).and_then(|on| on.u8()).map(|on| on != 0);
        let id = |kind| data.first(kind).and_then(|id| id.u32()).unwrap_or(TAP_NOBODY);
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

    /// A tap goes with the descriptor that made it, until it is told to stay: so it is never there without its mark.
    fn make(&self, at: &mut At<'_, '_>) -> Result<Option<OwnedFd>> {
        let context = format!("make tap {} on {}", at.link, at.scope);
        let exists = || Error::Refused {
            context: context.clone().into(),
            errno: Errno::EEXIST,
            message: None,
            offset: None,
        };
        // The kernel would open a tap that is there already.
        if at.room.link_body(at.scope, By::Name(at.link.as_str()))?.is_some() {
            return Err(exists());
        }
        let (device, flags) = open(self, at, context.clone())?;
        if flags & tun::PERSISTENT != 0 {
            return Err(exists());
        }
        let somebody = |id: &u32| *id != TAP_NOBODY;
        let user = self.user.filter(somebody).map_or(Ok(()), |user| tun::set_owner(device.as_fd(), user));
        let group = self.user_group.filter(somebody);
        let group = group.map_or(Ok(()), |group| tun::set_group(device.as_fd(), group));
        user.and(group).map_err(|error| Error::system(context, "say who may open it", error))?;
        Ok(Some(device))
    }

    fn keep(&self, made: OwnedFd) -> io::Result<()> {
        tun::set_persistent(made.as_fd())
    }

    /// Only what packets look like can be told to a tap that is there, by opening it so.
    fn tell(&self, wanted: Wanted<'_>, at: &mut At<'_, '_>) -> Result<()> {
        let (Wanted::Changed(_), Some(_)) = (wanted, wanted.of("vnet_hdr", self.vnet_hdr)) else {
            return Ok(());
        };
        // It opens only with as many queues as it was made for.
        let body = at.room.link_body(at.scope, By::Name(at.link.as_str()))?;
        let seen =
            body.as_deref().and_then(info_data).map(|data| Self::decode(data, None)).unwrap_or_default();
        let context = format!("set tap {} on {}", at.link, at.scope);
        open(&Self { multi_queue: seen.multi_queue, ..self.clone() }, at, context).map(drop)
    }
}

/// Opens a tap, or makes it: its descriptor, and its flags as the kernel has them.
fn open(tap: &Tap, at: &At<'_, '_>, context: String) -> Result<(OwnedFd, i32)> {
    let name = at.link.to_string();
    let on = |field: Option<bool>, flag| if field == Some(true) { flag } else { 0 };
    let flags = on(tap.multi_queue, tun::MULTI_QUEUE) | on(tap.vnet_hdr, tun::VNET_HDR);
    let opened = at.room.visit(at.scope, move || {
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

/// Why there is nothing to make taps with.
fn no_device(context: String, source: io::Error) -> Error {
    match source.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT | Errno::ENODEV | Errno::ENXIO) => {
            let what = format!("tap ({DEVICE} is not there: `modprobe tun` may help)");
            Error::Lacks { context: context.into(), what, config: Tap::CONFIG }
        }
        Some(Errno::EPERM | Errno::EACCES) => {
            Error::Denied { context: context.into(), device: DEVICE, source }
        }
        _ => Error::system(context, "open the device", source),
    }
}

/// The kind's own attributes in what the kernel says about a link.
fn info_data(body: &[u8]) -> Option<Attributes<'_>> {
    let (_, attributes) = LinkHeader::split(body)?;
    Some(attributes.first(IFLA_LINKINFO)?.nested().first(IFLA_INFO_DATA)?.nested())
}
