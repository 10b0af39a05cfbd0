//! The scratch network namespace in which features are tried.

use std::net::IpAddr;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};

use super::probe::{Finding, ROOT};
use crate::error::{Error, Result};
use crate::netlink::constants::*;
use crate::netlink::header::{AddressHeader, Header, LinkHeader};
use crate::netlink::{Message, Protocol, Socket};

/// The number of `lo` in every namespace.
pub const LOOPBACK: i32 = 1;

/// A namespace of its own, entered by the current thread for good.
pub struct Scratch {
    pub route: Socket,
    /// A link that others can be put on, if the kernel has any kind to make one of.
    parent: Option<i32>,
    made: u32,
}

/// Why there is no scratch namespace.
pub struct NoScratch(Errno);

impl NoScratch {
    pub fn finding(&self) -> Finding {
        match self.0 {
            Errno::EPERM => Finding::Untried {
                why: "trying it needs a network namespace, which this user may not make".into(),
                hint: ROOT.into(),
            },
            // Namespaces were left out of the kernel.
            Errno::EINVAL => Finding::Absent,
            errno => Finding::Untried {
                why: format!("no network namespace to try it in: {}", errno.desc().to_lowercase()),
                hint: "see sysctl user.max_net_namespaces".into(),
            },
        }
    }
}

impl Scratch {
    /// Moves the current thread into a new namespace. The thread must end afterwards.
    pub fn enter() -> std::result::Result<Self, NoScratch> {
        unshare(CloneFlags::CLONE_NEWNET).map_err(NoScratch)?;
        let route =
            Socket::open(Protocol::Route).map_err(|error| NoScratch(error.errno().unwrap_or(Errno::EIO)))?;
        let mut scratch = Self { route, parent: None, made: 0 };
        // Without `lo` up, routes cannot be tried; the probes of routes then say so themselves.
        let _ = scratch.set_up(LOOPBACK);
        scratch.parent = scratch.make_parent();
        Ok(scratch)
    }

    /// The link that others can be put on.
    pub fn parent(&self) -> Result<i32, Finding> {
        self.parent.ok_or_else(no_parent)
    }

    /// Tries to make a link of a kind; `data` adds what the kind insists on.
    pub fn link(&mut self, kind: &str, data: impl FnOnce(&mut Message)) -> Finding {
        Finding::of(self.make(kind, data).map(drop), &[Errno::EOPNOTSUPP])
    }

    /// Tries to make a link of a kind that sits on another link: a new one each time, because some kinds want it for
    /// themselves.
    pub fn link_on_parent(&mut self, kind: &str, data: impl FnOnce(&mut Message)) -> Finding {
        let parent = match self.make_parent() {
            Some(parent) => parent,
            None => return no_parent(),
        };
        Finding::of(self.make_on(kind, Some(parent), data).map(drop), &[Errno::EOPNOTSUPP])
    }

    /// A new link that others can be put on, of the first kind that the kernel has.
    fn make_parent(&mut self) -> Option<i32> {
        ["veth", "dummy", "bridge"].iter().find_map(|kind| self.make(kind, |_| ()).ok())
    }

    /// Makes a link and returns its number.
    pub fn make(&mut self, kind: &str, data: impl FnOnce(&mut Message)) -> Result<i32> {
        self.make_on(kind, None, data)
    }

    fn make_on(&mut self, kind: &str, parent: Option<i32>, data: impl FnOnce(&mut Message)) -> Result<i32> {
        self.made += 1;
        let name = format!("probe{}", self.made);
        let mut message =
            Message::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, format!("make a link of kind {kind}"));
        message.header(&LinkHeader::default()).put_str(IFLA_IFNAME, &name);
        if let Some(parent) = parent {
            message.put_u32(IFLA_LINK, parent as u32);
        }
        message.nest(IFLA_LINKINFO, |info| {
            info.put_str(IFLA_INFO_KIND, kind).nest(IFLA_INFO_DATA, data);
        });
        self.route.request(message)?;
        self.get(&name, |header, _| Some(header.index))
    }

    /// Reads a link by name.
    pub fn get<T>(
        &mut self,
        name: &str,
        mut read: impl FnMut(&LinkHeader, crate::netlink::Attributes) -> Option<T>,
    ) -> Result<T> {
        let mut message = Message::new(RTM_GETLINK, 0, format!("read link {name}"));
        message.header(&LinkHeader::default()).put_str(IFLA_IFNAME, name);
        self.route.request_reply(message, |_, body| {
            let (header, attributes) = LinkHeader::split(body)?;
            read(&header, attributes)
        })
    }

    /// The name of the link made last.
    pub fn last_name(&self) -> String {
        format!("probe{}", self.made)
    }

    /// Adds an address to `lo`, with a protocol number to find it by.
    pub fn add_address(&mut self, address: IpAddr, protocol: u8) -> Result<()> {
        let (family, prefix_length) = if address.is_ipv4() { (AF_INET, 32) } else { (AF_INET6, 128) };
        let mut message =
            Message::new(RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, format!("add address {address}"));
        message.header(&AddressHeader {
            family,
            prefix_length,
            index: LOOPBACK as u32,
            ..Default::default()
        });
        message.put_address(IFA_LOCAL, address).put_address(IFA_ADDRESS, address).put_u8(IFA_PROTO, protocol);
        self.route.request(message)
    }

    fn set_up(&mut self, index: i32) -> Result<()> {
        let mut message = Message::new(RTM_NEWLINK, 0, "set lo up");
        message.header(&LinkHeader { index, flags: IFF_UP, change: IFF_UP, ..Default::default() });
        self.route.request(message)
    }
}

fn no_parent() -> Finding {
    Finding::Untried { why: "there is no link to try it on".into(), hint: "veth is needed first".into() }
}

impl From<Error> for Finding {
    fn from(error: Error) -> Self {
        Self::of(Err(error), &[Errno::EOPNOTSUPP])
    }
}
