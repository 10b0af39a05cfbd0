//! Sockets inside a sandbox's network namespace: those that are handed to its processes, and the one they ask at.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self, UnixListener};

use knit_model::IfName;
use knit_model::intent::{Bound, Socket};
use nix::sys::socket::sockopt::{BindToDevice, Broadcast, ReuseAddr};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket,
};

use crate::error::{Error, Result};
use crate::netns::Netns;
use crate::netns::hopper::visit;
use crate::sys;

/// So many connections of a handed-over TCP socket wait for their owner, at most.
const WAITING: i32 = 128;

/// Listens at an abstract name, which only processes of this namespace see. It does not block.
pub fn listen_at(netns: &Netns, name: &str) -> Result<UnixListener> {
    let at = name.to_owned();
    let opened = visit(netns, move || {
        let listener = UnixListener::bind_addr(&net::SocketAddr::from_abstract_name(&at)?)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    })?;
    opened.map_err(|error| Error::system(format!("unix socket @{name}"), "listen at it", error))
}

/// Opens a socket in a namespace: bound, and listening if it is for TCP.
pub fn open(netns: &Netns, wanted: &Socket) -> Result<OwnedFd> {
    let inside = wanted.clone();
    let opened = visit(netns, move || open_here(&inside))?;
    opened.map_err(|error| Error::system(format!("{wanted} socket"), "open it", error))
}

fn open_here(wanted: &Socket) -> io::Result<OwnedFd> {
    match wanted {
        Socket::Raw { protocol, address, interface } => {
            let opened = sys::raw_socket(family(*address) as i32, i32::from(*protocol))?;
            to_device(&opened, interface.as_ref().map(IfName::as_str))?;
            if !address.is_unspecified() {
                bind_to(&opened, SocketAddr::new(*address, 0))?;
            }
            Ok(opened)
        }
        Socket::Packet { ethertype, interface } => {
            // With a protocol from birth it would hear of every interface until it is bound.
            let opened = sys::raw_socket(libc::AF_PACKET, 0)?;
            let index = sys::link_index(opened.as_fd(), interface.as_str())?;
            sys::bind_packet(opened.as_fd(), *ethertype, index)?;
            Ok(opened)
        }
        Socket::Tcp(bound) => {
            let opened = bound_socket(bound, SockType::Stream)?;
            listen(&opened, Backlog::new(WAITING)?)?;
            Ok(opened)
        }
        Socket::Udp(bound) => bound_socket(bound, SockType::Datagram),
    }
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet }
}

fn bound_socket(bound: &Bound, kind: SockType) -> io::Result<OwnedFd> {
    let opened = socket(family(bound.to.ip()), kind, SockFlag::SOCK_CLOEXEC, None)?;
    if kind == SockType::Stream {
        // A program that begins anew gets the port at once, while connections of the one before it linger.
        setsockopt(&opened, ReuseAddr, &true)?;
    } else {
        setsockopt(&opened, Broadcast, &true)?;
    }
    to_device(&opened, bound.interface.as_ref().map(IfName::as_str))?;
    bind_to(&opened, bound.to)?;
    Ok(opened)
}

fn bind_to(opened: &OwnedFd, to: SocketAddr) -> io::Result<()> {
    Ok(bind(opened.as_raw_fd(), &SockaddrStorage::from(to))?)
}

/// A process without privileges cannot take this back.
fn to_device(opened: &OwnedFd, interface: Option<&str>) -> io::Result<()> {
    match interface {
        Some(name) => Ok(setsockopt(opened, BindToDevice, &name.into())?),
        None => Ok(()),
    }
}
