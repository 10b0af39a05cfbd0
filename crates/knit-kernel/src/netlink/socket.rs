//! Netlink sockets, opened in the thread's namespace or in another, with all error reporting options set.

use std::cell::Cell;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;
use std::{io, mem};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, connect, getsockname, recv, send,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

use super::frame::Frames;
use crate::error::{Context, Error, Result};
use crate::netns::{Netns, switch};
use crate::sys;

/// The receive buffer: when it is full the kernel drops messages.
const RECEIVE_BUFFER: usize = 4 << 20;
/// The size that fits into the default send buffer.
const SEND_BUFFER: usize = 64 << 10;
/// How long to wait for a reply. The kernel processes requests under the rtnl lock, which others may hold for long.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Fits every acknowledgement: the kernel does not repeat the request in them.
const ACK_BUFFER: usize = 8 << 10;
/// Fits every datagram of a dump (at most 32 KiB) and every single reply.
const DATA_BUFFER: usize = 64 << 10;

/// The netlink protocol of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Links, addresses, routes, rules, neighbours.
    Route,
    /// Generic netlink, such as WireGuard.
    Generic,
    /// nftables.
    Netfilter,
}

/// A netlink socket. It belongs to one network namespace and keeps it alive.
///
/// Calls wait for the kernel's reply, so they take the socket exclusively. A socket with subscriptions is for
/// notifications only: calls on it would drop those that arrive meanwhile.
pub struct Socket {
    fd: OwnedFd,
    next_sequence: u32,
    buffer: Vec<u8>,
}

thread_local! {
    /// The buffer of the last closed socket: reusing it saves clearing a new one.
    static SPARE_BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl Drop for Socket {
    fn drop(&mut self) {
        // The thread is ending.
        let _ = SPARE_BUFFER.try_with(|spare| spare.set(mem::take(&mut self.buffer)));
    }
}

impl Socket {
    /// Opens a socket in the calling thread's network namespace.
    pub fn open(protocol: Protocol) -> Result<Self> {
        raw(protocol).and_then(Self::prepare).map_err(cannot_open)
    }

    /// Opens a socket in another network namespace; the calling thread stays in its own.
    pub fn open_in(netns: &Netns, protocol: Protocol) -> Result<Self> {
        Self::prepare(switch::open_socket(netns, protocol)?).map_err(cannot_open)
    }

    fn prepare(fd: OwnedFd) -> io::Result<Self> {
        for option in [libc::NETLINK_EXT_ACK, libc::NETLINK_CAP_ACK, libc::NETLINK_GET_STRICT_CHK] {
            sys::set_option(fd.as_fd(), libc::SOL_NETLINK, option, 1)?;
        }
        // Forcing needs a capability in the initial user namespace; otherwise the administrator's limit applies.
        if setsockopt(&fd, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
            setsockopt(&fd, sockopt::RcvBuf, &RECEIVE_BUFFER)?;
        }
        setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::new(TIMEOUT.as_secs() as i64, 0))?;
        // A connected socket receives only from the kernel, and gets a unique port id.
        connect(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        let mut buffer = SPARE_BUFFER.take();
        if buffer.len() < ACK_BUFFER {
            buffer.resize(ACK_BUFFER, 0);
        }
        Ok(Self { fd, next_sequence: 1, buffer })
    }

    /// The cookie of the socket's network namespace: unique for this boot, unlike an inode number.
    pub fn netns_cookie(&self) -> Result<u64> {
        sys::netns_cookie(self.fd.as_fd())
            .map_err(|error| Error::system("netlink socket", "read the namespace cookie", error))
    }

    /// The number that identifies the socket among those of its protocol and namespace.
    pub(crate) fn port_id(&self) -> Result<u32> {
        getsockname::<NetlinkAddr>(self.fd.as_raw_fd())
            .map(|address| address.pid())
            .map_err(|errno| Error::system("netlink socket", "read its port number", errno))
    }

    /// The index of a link that should exist; `None` if it does not. Cheaper than a netlink request.
    pub fn link_index(&self, name: &str) -> Result<Option<u32>> {
        match sys::link_index(self.fd.as_fd(), name) {
            Ok(index) => Ok(Some(index as u32)),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(Error::system(format!("link {name}"), "find it", error)),
        }
    }

    /// The name of the link with this index; `None` if there is none. Cheaper than a netlink request.
    pub fn link_name(&self, index: u32) -> Result<Option<String>> {
        match sys::link_name(self.fd.as_fd(), index as i32) {
            Ok(name) => Ok(String::from_utf8(name).ok()),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(Error::system(format!("link index {index}"), "find its name", error)),
        }
    }

    /// Subscribes to a multicast group (`RTNLGRP_*`). Notifications are read with [`Socket::recv_notification`].
    pub fn subscribe(&self, group: u32) -> Result<()> {
        let option = libc::NETLINK_ADD_MEMBERSHIP;
        sys::set_option(self.fd.as_fd(), libc::SOL_NETLINK, option, group as i32)
            .map_err(|error| Error::system("netlink socket", "subscribe to notifications", error))
    }

    /// Waits for notifications and passes each to `handle`, by message type and body. False: none arrived in time.
    ///
    /// [`Error::Overrun`] means that notifications are lost: observe everything again, then continue reading.
    pub fn recv_notification(&mut self, wait: Duration, mut handle: impl FnMut(u16, &[u8])) -> Result<bool> {
        let context = Context::Borrowed("receive notifications");
        let timeout = PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) | Err(Errno::EINTR) => return Ok(false),
            Ok(_) => {}
            Err(errno) => return Err(Error::system(context, "wait for them", errno)),
        }
        self.grow_buffer();
        let datagram = self.receive(&context)?;
        for frame in Frames::new(datagram) {
            handle(frame.kind, frame.body);
        }
        Ok(true)
    }

    /// Reserves sequence numbers and returns the first. Zero is used by notifications.
    pub(super) fn reserve_sequence(&mut self, count: u32) -> u32 {
        if self.next_sequence.checked_add(count).is_none() {
            self.next_sequence = 1;
        }
        let first = self.next_sequence;
        self.next_sequence += count;
        first
    }

    /// Grows the buffer for replies that carry data.
    pub(super) fn grow_buffer(&mut self) {
        if self.buffer.len() < DATA_BUFFER {
            self.buffer.resize(DATA_BUFFER, 0);
        }
    }

    /// Grows the send buffer for a datagram of this size.
    pub(super) fn reserve_send_buffer(&self, bytes: usize) -> Result<()> {
        if bytes <= SEND_BUFFER || setsockopt(&self.fd, sockopt::SndBufForce, &bytes).is_ok() {
            return Ok(());
        }
        // Without a capability in the initial user namespace the administrator's limit applies.
        setsockopt(&self.fd, sockopt::SndBuf, &bytes)
            .map_err(|errno| Error::system("netlink socket", "grow the send buffer", errno))
    }

    /// Sends one datagram. rtnetlink processes it before this returns.
    pub(super) fn send(&self, datagram: &[u8], context: &Context) -> Result<()> {
        loop {
            match send(self.fd.as_raw_fd(), datagram, MsgFlags::empty()) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(Error::system(context.clone(), "send to the kernel", errno)),
            }
        }
    }

    /// Receives one datagram.
    pub(super) fn receive(&mut self, context: &Context) -> Result<&[u8]> {
        let context = || context.clone();
        loop {
            // With MSG_TRUNC the kernel returns the datagram's real length.
            match recv(self.fd.as_raw_fd(), &mut self.buffer, MsgFlags::MSG_TRUNC) {
                Ok(length) if length > self.buffer.len() => {
                    return Err(Error::Malformed {
                        context: context(),
                        what: "it exceeds the receive buffer",
                    });
                }
                Ok(length) => return Ok(&self.buffer[..length]),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => {
                    return Err(Error::Timeout { context: context(), seconds: TIMEOUT.as_secs() });
                }
                Err(Errno::ENOBUFS) => return Err(Error::Overrun { context: context() }),
                Err(errno) => return Err(Error::system(context(), "receive from the kernel", errno)),
            }
        }
    }
}

/// Omits the buffer: the last reply may contain a private key.
impl fmt::Debug for Socket {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Socket").field("fd", &self.fd).finish_non_exhaustive()
    }
}

/// Opens a bare socket in the calling thread's namespace.
pub(crate) fn raw(protocol: Protocol) -> io::Result<OwnedFd> {
    let protocol = match protocol {
        Protocol::Route => SockProtocol::NetlinkRoute,
        Protocol::Generic => SockProtocol::NetlinkGeneric,
        Protocol::Netfilter => SockProtocol::NetlinkNetFilter,
    };
    Ok(socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?)
}

fn cannot_open(error: io::Error) -> Error {
    Error::system("netlink socket", "open it", error)
}
