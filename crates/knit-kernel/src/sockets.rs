//! Sockets inside a sandbox's network namespace: those handed to its processes, and the listener that hands them out.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self, UnixListener};

use knit_model::IfName;
use knit_model::intent::{Socket, SocketBinding};
use nix::sys::socket::sockopt::{BindToDevice, Broadcast, ReuseAddr};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket,
};

use crate::error::{Error, Result};
use crate::netns::Netns;
use crate::netns::switch::run_in;
use crate::sys;

/// Backlog of TCP sockets that are handed to pods.
const TCP_BACKLOG: i32 = 128;

/// Listens on an abstract unix socket, which only processes of this namespace can reach. Non-blocking.
pub fn listen_abstract(netns: &Netns, name: &str) -> Result<UnixListener> {
    let at = name.to_owned();
    let opened = run_in(netns, move || {
        let listener = UnixListener::bind_addr(&net::SocketAddr::from_abstract_name(&at)?)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    })?;
    opened.map_err(|error| Error::system(format!("unix socket @{name}"), "listen on it", error))
}

/// Opens a socket in a namespace: bound, and listening for TCP.
pub fn open(netns: &Netns, spec: &Socket) -> Result<OwnedFd> {
    let requested = spec.clone();
    let opened = run_in(netns, move || open_here(&requested))?;
    opened.map_err(|error| Error::system(format!("{spec} socket"), "open it", error))
}

fn open_here(spec: &Socket) -> io::Result<OwnedFd> {
    match spec {
        Socket::Raw { protocol, address, interface } => {
            let opened = sys::raw_socket(family(*address) as i32, i32::from(*protocol))?;
            bind_to_device(&opened, interface.as_ref().map(IfName::as_str))?;
            if !address.is_unspecified() {
                bind_to(&opened, SocketAddr::new(*address, 0))?;
            }
            Ok(opened)
        }
        Socket::Packet { ethertype, interface } => {
            // Created with a protocol, it would receive from every interface until it is bound.
            let opened = sys::raw_socket(libc::AF_PACKET, 0)?;
            let index = sys::link_index(opened.as_fd(), interface.as_str())?;
            sys::bind_packet(opened.as_fd(), *ethertype, index)?;
            Ok(opened)
        }
        Socket::Tcp(bound) => {
            let opened = bound_socket(bound, SockType::Stream)?;
            listen(&opened, Backlog::new(TCP_BACKLOG)?)?;
            Ok(opened)
        }
        Socket::Udp(bound) => bound_socket(bound, SockType::Datagram),
    }
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet }
}

fn bound_socket(bound: &SocketBinding, kind: SockType) -> io::Result<OwnedFd> {
    let opened = socket(family(bound.to.ip()), kind, SockFlag::SOCK_CLOEXEC, None)?;
    if kind == SockType::Stream {
        // A restarted program gets the port immediately, while old connections are in TIME_WAIT.
        setsockopt(&opened, ReuseAddr, &true)?;
    } else {
        setsockopt(&opened, Broadcast, &true)?;
    }
    bind_to_device(&opened, bound.interface.as_ref().map(IfName::as_str))?;
    bind_to(&opened, bound.to)?;
    Ok(opened)
}

fn bind_to(opened: &OwnedFd, to: SocketAddr) -> io::Result<()> {
    Ok(bind(opened.as_raw_fd(), &SockaddrStorage::from(to))?)
}

/// An unprivileged process cannot revert this.
fn bind_to_device(opened: &OwnedFd, interface: Option<&str>) -> io::Result<()> {
    match interface {
        Some(name) => Ok(setsockopt(opened, BindToDevice, &name.into())?),
        None => Ok(()),
    }
}
