//! A netlink socket: opened in the thread's own namespace or in another, with every reporting option set.

use std::cell::Cell;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;
use std::{io, mem};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, connect, recv, send, setsockopt,
    socket, sockopt,
};
use nix::sys::time::TimeVal;

use super::frame::Frames;
use crate::error::{Context, Error, Result};
use crate::netns::{Netns, hopper};
use crate::sys;

/// How much the kernel may queue for this socket before it drops messages.
const RECEIVE_BUFFER: usize = 4 << 20;
/// How much fits into the send buffer that every socket has.
const SEND_BUFFER: usize = 64 << 10;
/// How long to wait for an answer. The kernel works while it holds its network lock, which others may hold for long.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Holds every acknowledgement: the kernel does not repeat the request in them.
const SMALL: usize = 8 << 10;
/// Holds whatever a dump puts into one datagram (at most 32 KiB) and every single answer.
const LARGE: usize = 64 << 10;

/// Which part of the kernel a socket talks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Links, addresses, routes, rules, neighbours.
    Route,
    /// Families that are found by name, such as WireGuard's.
    Generic,
    /// nftables.
    Netfilter,
}

/// A netlink socket. It belongs to one network namespace for as long as it lives, and keeps that namespace alive.
///
/// Calls wait for the kernel's answer, so they take the socket exclusively. A socket that subscribed to notices is for
/// notices only: calls on it would drop those that arrive meanwhile.
pub struct Socket {
    fd: OwnedFd,
    next_sequence: u32,
    buffer: Vec<u8>,
}

thread_local! {
    /// The buffer of the socket that was closed last: the next one need not clear another.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl Drop for Socket {
    fn drop(&mut self) {
        // A thread that ends has no next socket.
        let _ = SPARE.try_with(|spare| spare.set(mem::take(&mut self.buffer)));
    }
}

impl Socket {
    /// Opens a socket in the calling thread's network namespace.
    pub fn open(protocol: Protocol) -> Result<Self> {
        raw(protocol).and_then(Self::prepare).map_err(cannot_open)
    }

    /// Opens a socket in another network namespace, without moving the calling thread.
    pub fn open_in(netns: &Netns, protocol: Protocol) -> Result<Self> {
        Self::prepare(hopper::open(netns, protocol)?).map_err(cannot_open)
    }

    fn prepare(fd: OwnedFd) -> io::Result<Self> {
        for option in [libc::NETLINK_EXT_ACK, libc::NETLINK_CAP_ACK, libc::NETLINK_GET_STRICT_CHK] {
            sys::set_option(fd.as_fd(), libc::SOL_NETLINK, option, 1)?;
        }
        // Forcing needs a privilege over the first user namespace; without it the administrator's limit applies.
        if setsockopt(&fd, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
            setsockopt(&fd, sockopt::RcvBuf, &RECEIVE_BUFFER)?;
        }
        setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::new(TIMEOUT.as_secs() as i64, 0))?;
        // Connected to the kernel, the socket gets no message from any other program, and a port number of its own.
        connect(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        let mut buffer = SPARE.take();
        if buffer.len() < SMALL {
            buffer.resize(SMALL, 0);
        }
        Ok(Self { fd, next_sequence: 1, buffer })
    }

    /// The cookie of the socket's network namespace: never used again on this boot, unlike an inode number.
    pub fn netns_cookie(&self) -> Result<u64> {
        sys::netns_cookie(self.fd.as_fd())
            .map_err(|error| Error::system("netlink socket", "read the namespace cookie", error))
    }

    /// The number of a link that should be there; `None` if it is not. Cheaper than any netlink message.
    pub fn link_index(&self, name: &str) -> Result<Option<u32>> {
        match sys::link_index(self.fd.as_fd(), name) {
            Ok(index) => Ok(Some(index as u32)),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(Error::system(format!("link {name}"), "find it", error)),
        }
    }

    /// The name of the link with this number; `None` if there is none. Cheaper than any netlink message.
    pub fn link_name(&self, index: u32) -> Result<Option<String>> {
        match sys::link_name(self.fd.as_fd(), index as i32) {
            Ok(name) => Ok(String::from_utf8(name).ok()),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(Error::system(format!("link number {index}"), "find its name", error)),
        }
    }

    /// Asks for the notices of a group (`RTNLGRP_*`). They are read with [`Socket::recv_event`].
    pub fn subscribe(&self, group: u32) -> Result<()> {
        let option = libc::NETLINK_ADD_MEMBERSHIP;
        sys::set_option(self.fd.as_fd(), libc::SOL_NETLINK, option, group as i32)
            .map_err(|error| Error::system("netlink socket", "subscribe to the kernel's notices", error))
    }

    /// Waits for notices and hands each to `visit`, by message kind and body. False: none came in time.
    ///
    /// [`Error::Overrun`] means that notices are lost: observe everything anew, then go on reading.
    pub fn recv_event(&mut self, wait: Duration, mut visit: impl FnMut(u16, &[u8])) -> Result<bool> {
        let context = Context::Borrowed("kernel notices");
        let timeout = PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) | Err(Errno::EINTR) => return Ok(false),
            Ok(_) => {}
            Err(errno) => return Err(Error::system(context, "wait for the kernel", errno)),
        }
        self.make_room();
        let datagram = self.receive(&context)?;
        for frame in Frames::new(datagram) {
            visit(frame.kind, frame.body);
        }
        Ok(true)
    }

    /// Reserves this many sequence numbers and returns the first. Zero is the kernel's own, for notices.
    pub(super) fn reserve_sequence(&mut self, count: u32) -> u32 {
        if self.next_sequence.checked_add(count).is_none() {
            self.next_sequence = 1;
        }
        let first = self.next_sequence;
        self.next_sequence += count;
        first
    }

    /// Makes room for answers that carry data.
    pub(super) fn make_room(&mut self) {
        if self.buffer.len() < LARGE {
            self.buffer.resize(LARGE, 0);
        }
    }

    /// Makes sure that a datagram of this many bytes can be sent.
    pub(super) fn hold(&self, bytes: usize) -> Result<()> {
        if bytes <= SEND_BUFFER || setsockopt(&self.fd, sockopt::SndBufForce, &bytes).is_ok() {
            return Ok(());
        }
        // Without a privilege over the first user namespace the administrator's limit applies.
        setsockopt(&self.fd, sockopt::SndBuf, &bytes)
            .map_err(|errno| Error::system("netlink socket", "make room for a long message", errno))
    }

    /// Sends one datagram. rtnetlink works through it before this returns.
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
                        what: "longer than any netlink answer",
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

/// Without its buffer: the kernel's last answer may hold a secret key.
impl fmt::Debug for Socket {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Socket").field("fd", &self.fd).finish_non_exhaustive()
    }
}

/// The bare descriptor, in the calling thread's namespace.
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
