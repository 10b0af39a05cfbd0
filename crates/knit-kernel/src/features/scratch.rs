//! The scratch network namespace in which features are tested.

use std::net::IpAddr;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};

use super::probe::{Finding, ROOT};
use crate::error::{Error, Result};
use crate::netlink::constants::*;
use crate::netlink::header::{AddressHeader, Header, LinkHeader};
use crate::netlink::{Message, Protocol, Socket};
use crate::netns::{LOOPBACK, bring_up_loopback};

/// A scratch namespace that the current thread has entered for good.
pub struct Scratch {
    pub route: Socket,
    /// A parent for other links, if the kernel supports any suitable kind.
    parent: Option<i32>,
    created: u32,
}

/// The error that prevents a scratch namespace.
pub struct NoScratch(Errno);

impl NoScratch {
    pub fn finding(&self) -> Finding {
        match self.0 {
            Errno::EPERM => Finding::NotTested {
                reason: "testing it needs a network namespace, which this user may not create".into(),
                hint: ROOT.into(),
            },
            // The kernel has no network namespaces.
            Errno::EINVAL => Finding::Absent,
            errno => Finding::NotTested {
                reason: format!("no network namespace to test it in: {}", errno.desc().to_lowercase()),
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
        let mut scratch = Self { route, parent: None, created: 0 };
        // Routes need `lo` up; their probes report the failure.
        let _ = bring_up_loopback(&mut scratch.route);
        scratch.parent = scratch.create_parent();
        Ok(scratch)
    }

    /// The parent for other links.
    pub fn parent(&self) -> Result<i32, Finding> {
        self.parent.ok_or_else(no_parent)
    }

    /// Tests a link kind; `data` adds the attributes that it requires.
    pub fn link(&mut self, kind: &str, data: impl FnOnce(&mut Message)) -> Finding {
        Finding::of(self.create(kind, data).map(drop), &[Errno::EOPNOTSUPP])
    }

    /// Tests a link kind on a parent: a new one each time, because some kinds need it exclusively.
    pub fn link_on_parent(&mut self, kind: &str, data: impl FnOnce(&mut Message)) -> Finding {
        let parent = match self.create_parent() {
            Some(parent) => parent,
            None => return no_parent(),
        };
        Finding::of(self.create_on(kind, Some(parent), data).map(drop), &[Errno::EOPNOTSUPP])
    }

    /// Creates a parent of the first kind that the kernel supports.
    fn create_parent(&mut self) -> Option<i32> {
        ["veth", "dummy", "bridge"].iter().find_map(|kind| self.create(kind, |_| ()).ok())
    }

    /// Creates a link and returns its index.
    pub fn create(&mut self, kind: &str, data: impl FnOnce(&mut Message)) -> Result<i32> {
        self.create_on(kind, None, data)
    }

    fn create_on(&mut self, kind: &str, parent: Option<i32>, data: impl FnOnce(&mut Message)) -> Result<i32> {
        self.created += 1;
        let name = format!("probe{}", self.created);
        let mut message =
            Message::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, format!("create a link of kind {kind}"));
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
        let mut message = Message::new(RTM_GETLINK, 0, format!("get link {name}"));
        message.header(&LinkHeader::default()).put_str(IFLA_IFNAME, name);
        self.route.request_reply(message, |_, body| {
            let (header, attributes) = LinkHeader::split(body)?;
            read(&header, attributes)
        })
    }

    /// The name of the link created last.
    pub fn last_name(&self) -> String {
        format!("probe{}", self.created)
    }

    /// Adds an address to `lo` with a protocol number.
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
}

fn no_parent() -> Finding {
    Finding::NotTested {
        reason: "there is no link to test it on".into(),
        hint: "veth is required first".into(),
    }
}

impl From<Error> for Finding {
    fn from(error: Error) -> Self {
        Self::of(Err(error), &[Errno::EOPNOTSUPP])
    }
}
