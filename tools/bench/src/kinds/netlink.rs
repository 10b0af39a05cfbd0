//! The counterpart by bare netlink: a pod with an `eth0`, and the messages of each kind.
//!
//! The result is the same as with Knit: the link has an alternative name that identifies its owner, an MTU and an address, is
//! up, and ignores router advertisements. The pod is opened by its path; nothing is observed before or after, nothing is
//! journalled, and nothing is rolled back.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use anyhow::{Context, Result};
use knit_kernel::netlink::Protocol;
use knit_kernel::netlink::constants::*;
use knit_kernel::netlink::header::LinkHeader;
use knit_kernel::{Message, Netns, Socket};
use nix::sched::{CloneFlags, setns};

use super::{Case, Data, is_unsupported};
use crate::messages;
use crate::netlink_host::index_of;

/// The MTU that a link is created with.
pub const MTU: u32 = 1400;
/// The MTU that it is changed to.
pub const OTHER_MTU: u32 = 1300;
/// The name of the link in the pod.
pub const LINK: &str = "link0";
/// The name of a veth's end on the host.
const HOST_END: &str = "host0";
/// The alternative name of either end.
const ALTNAME: &str = "bench-link0";
/// The link's address.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2));

/// A host with a bridge, and a pod. A socket in the pod is opened for each operation, as in Knit.
pub struct NetlinkPod {
    netns: Netns,
    host: Socket,
    bridge: i32,
    /// Keeps the pod's namespace alive.
    _pod: Netns,
    /// The path of the pod's namespace.
    path: String,
    /// The namespace of the calling thread.
    home: Netns,
}

impl NetlinkPod {
    pub fn new() -> Result<Self> {
        let netns = Netns::unnamed().context("cannot create a network namespace")?;
        let mut host = Socket::open_in(&netns, Protocol::Route)?;
        host.batch(&[messages::up("lo"), messages::bridge("bench0")])?;
        let bridge = index_of(&mut host, "bench0")?;
        let pod = pod()?;
        let path = path_of(&pod);
        Ok(Self { netns, host, bridge, _pod: pod, path, home: Netns::current()? })
    }

    /// Whether this kernel supports a kind: whether a link of it can be created.
    pub fn supports(&mut self, case: &Case) -> Result<bool> {
        match self.create(case) {
            Ok(()) => self.remove(case).map(|()| true),
            Err(error) if error.downcast_ref().is_some_and(is_unsupported) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Creates a link with an alternative name, an MTU and an address, and sets it up.
    pub fn create(&mut self, case: &Case) -> Result<()> {
        let pod = self.pod()?;
        if case.name == "veth" {
            let mut veth = messages::veth(HOST_END, LINK, Some(&pod), messages::Queues::One);
            veth.put_u32(IFLA_MTU, MTU);
            self.host.request(veth)?;
            self.host.batch(&[
                messages::add_altname(HOST_END, ALTNAME),
                messages::enslave(HOST_END, self.bridge),
            ])?;
        }
        let mut socket = Socket::open_in(&pod, Protocol::Route)?;
        if case.name != "veth" {
            let parent = if case.on_eth0 { Some(index_of(&mut socket, "eth0")?) } else { None };
            socket.request(create_link(case, parent))?;
        }
        self.ignore_router_advertisements(&pod)?;
        let index = index_of(&mut socket, LINK)?;
        let mut rest = vec![messages::add_altname(LINK, ALTNAME), messages::address(index, ADDRESS, 24, 0)];
        if case.name == "veth" {
            rest.push(mtu(LINK, MTU));
        }
        rest.push(messages::up(LINK));
        Ok(socket.batch(&rest)?)
    }

    /// Changes the MTU, at both ends of a pair.
    pub fn change(&mut self, case: &Case) -> Result<()> {
        let pod = self.pod()?;
        if case.name == "veth" {
            self.host.request(mtu(HOST_END, OTHER_MTU))?;
        }
        Ok(Socket::open_in(&pod, Protocol::Route)?.request(mtu(LINK, OTHER_MTU))?)
    }

    pub fn remove(&mut self, case: &Case) -> Result<()> {
        if case.name == "veth" {
            return Ok(self.host.request(messages::delete(HOST_END))?);
        }
        Ok(Socket::open_in(&self.pod()?, Protocol::Route)?.request(messages::delete(LINK))?)
    }

    /// Opens the pod's namespace by its path.
    fn pod(&self) -> Result<Netns> {
        Ok(Netns::open_sandbox(Path::new(&self.path), &self.netns)?)
    }

    fn ignore_router_advertisements(&self, pod: &Netns) -> Result<()> {
        setns(pod, CloneFlags::CLONE_NEWNET)?;
        let written = std::fs::write(format!("/proc/sys/net/ipv6/conf/{LINK}/accept_ra"), "0");
        setns(&self.home, CloneFlags::CLONE_NEWNET)?;
        Ok(written?)
    }
}

/// The path of a namespace's descriptor in /proc, which needs no mount.
pub fn path_of(netns: &Netns) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), netns.as_fd().as_raw_fd())
}

/// A namespace with `lo` and a foreign `eth0`.
pub fn pod() -> Result<Netns> {
    let pod = Netns::unnamed()?;
    let mut socket = Socket::open_in(&pod, Protocol::Route)?;
    socket.batch(&[
        messages::up("lo"),
        messages::veth("eth0", "cable", None, messages::Queues::One),
        messages::up("eth0"),
        messages::up("cable"),
    ])?;
    let eth0 = index_of(&mut socket, "eth0")?;
    let ip = IpAddr::V4(Ipv4Addr::new(10, 5, 0, 2));
    socket.request(messages::address(eth0, ip, 24, 0))?;
    Ok(pod)
}

/// The message that creates a link in the namespace of its socket.
fn create_link(case: &Case, parent: Option<i32>) -> Message {
    let mut message = Message::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, format!("add {}", case.name));
    message.header(&LinkHeader::default()).put_str(IFLA_IFNAME, LINK).put_u32(IFLA_MTU, MTU);
    if let Some(parent) = parent {
        message.put_u32(IFLA_LINK, parent as u32);
    }
    message.nest(IFLA_LINKINFO, |info| {
        info.put_str(IFLA_INFO_KIND, case.name);
        if case.data.is_empty() {
            return;
        }
        info.nest(IFLA_INFO_DATA, |data| {
            for (kind, value) in case.data {
                match value {
                    Data::U8(value) => data.put_u8(*kind, *value),
                    Data::U16(value) => data.put_bytes(*kind, &value.to_ne_bytes()),
                    Data::U32(value) => data.put_u32(*kind, *value),
                    Data::Port(value) => data.put_bytes(*kind, &value.to_be_bytes()),
                    Data::Ip(value) => data.put_bytes(*kind, value),
                };
            }
        });
    });
    message
}

fn mtu(name: &str, mtu: u32) -> Message {
    let mut message = Message::new(RTM_NEWLINK, 0, format!("set the MTU of {name}"));
    message.header(&LinkHeader::default()).put_str(IFLA_IFNAME, name).put_u32(IFLA_MTU, mtu);
    message
}
