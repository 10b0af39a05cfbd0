//! System calls that `nix` does not wrap. All unsafe code of the crate is here.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{c_int, c_void, socklen_t};

/// Sets a socket option whose value is a C int.
pub fn set_option(socket: BorrowedFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: `value` lives on this stack frame for the whole call, and the length given is its own.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast::<c_void>(),
            size_of::<c_int>() as socklen_t,
        )
    };
    check(done).map(drop)
}

/// The cookie of a socket's network namespace (`SO_NETNS_COOKIE`, Linux 5.14).
pub fn netns_cookie(socket: BorrowedFd) -> io::Result<u64> {
    let mut cookie = 0u64;
    let mut length = size_of::<u64>() as socklen_t;
    // SAFETY: both pointers are to locals that outlive the call, and `length` is the size of what `cookie` points to.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast::<c_void>(),
            &raw mut length,
        )
    };
    check(done).map(|_| cookie)
}

/// The index of a link in a socket's network namespace (`SIOCGIFINDEX`). It takes no lock, but the kernel tries to
/// load a module of that name if there is no such link: use it for links that should exist.
pub fn link_index(socket: BorrowedFd, name: &str) -> io::Result<c_int> {
    // SAFETY: all bytes zero are a request: it is made of integers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: `request` is what this ioctl reads and writes, and outlives the call; its name ends with a zero.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFINDEX as _, &raw mut request) })?;
    // SAFETY: the call has just written this field of the union.
    Ok(unsafe { request.ifr_ifru.ifru_ifindex })
}

/// The name of a link by index in a socket's network namespace (`SIOCGIFNAME`): its bytes, without the terminating
/// zero.
pub fn link_name(socket: BorrowedFd, index: c_int) -> io::Result<Vec<u8>> {
    // SAFETY: all bytes zero are a request: it is made of integers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_ifru.ifru_ifindex = index;
    // SAFETY: `request` is what this ioctl reads and writes, and outlives the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFNAME as _, &raw mut request) })?;
    Ok(request.ifr_name.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8).collect())
}

/// Opens a raw socket by family and protocol number; `nix` has only some protocols.
pub fn raw_socket(family: c_int, protocol: c_int) -> io::Result<OwnedFd> {
    // SAFETY: socket takes three integers and touches no memory of ours.
    let fd = check(unsafe { libc::socket(family, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol) })?;
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Binds a packet socket to one EtherType of one interface.
pub fn bind_packet(socket: BorrowedFd, ethertype: u16, index: c_int) -> io::Result<()> {
    // SAFETY: all bytes zero are an address of a link: it is made of integers.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = ethertype.to_be();
    address.sll_ifindex = index;
    // SAFETY: `address` outlives the call, and the length given is its own.
    let done = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast::<libc::sockaddr>(),
            size_of::<libc::sockaddr_ll>() as socklen_t,
        )
    };
    check(done).map(drop)
}

/// The MAC address of the link that a packet socket is bound to; `None` if it is not Ethernet.
pub fn hardware_address(socket: BorrowedFd) -> io::Result<Option<[u8; 6]>> {
    // SAFETY: all bytes zero are an address of a link: it is made of integers.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_ll>() as socklen_t;
    // SAFETY: both pointers are to locals that outlive the call, and `length` is the size of what `address` points to.
    let done = unsafe {
        libc::getsockname(socket.as_raw_fd(), (&raw mut address).cast::<libc::sockaddr>(), &raw mut length)
    };
    check(done)?;
    let [a, b, c, d, e, f, ..] = address.sll_addr;
    let is_ethernet = address.sll_hatype == libc::ARPHRD_ETHER && address.sll_halen == 6;
    Ok(is_ethernet.then_some([a, b, c, d, e, f]))
}

/// The type of a namespace as its `CLONE_NEW*` flag (`NS_GET_NSTYPE`, Linux 4.11).
pub fn namespace_type(namespace: BorrowedFd) -> io::Result<c_int> {
    // SAFETY: this ioctl takes no argument and writes to no memory of ours.
    check(unsafe { libc::ioctl(namespace.as_raw_fd(), libc::NS_GET_NSTYPE as _) })
}

/// A pidfd, which refers to the same process even if its pid is reused (Linux 5.3).
pub fn pidfd_open(pid: u32) -> io::Result<OwnedFd> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    // SAFETY: pidfd_open takes two integers and touches no memory of ours.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as c_int)?;
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// tun and tap devices, `/dev/net/tun`.
pub mod tun {
    use super::*;

    /// One descriptor per queue.
    pub const MULTI_QUEUE: c_int = libc::IFF_MULTI_QUEUE;
    /// Packets have a virtio header.
    pub const VNET_HDR: c_int = libc::IFF_VNET_HDR;
    /// It exists without an open descriptor.
    pub const PERSISTENT: c_int = libc::IFF_PERSIST;

    /// Creates or opens a tap in the calling thread's namespace. Returns its flags.
    pub fn attach(device: BorrowedFd, name: &str, flags: c_int) -> io::Result<c_int> {
        let mut request = request(name, flags | libc::IFF_TAP | libc::IFF_NO_PI)?;
        // SAFETY: the request is a whole `ifreq` that outlives the call, which reads and writes nothing beyond it.
        check(unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) })?;
        // SAFETY: as above; this one only writes.
        check(unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNGETIFF as _, &raw mut request) })?;
        // SAFETY: the kernel has just filled in the flags of this union.
        Ok(c_int::from(unsafe { request.ifr_ifru.ifru_flags } as u16))
    }

    /// Keeps it when its descriptor is closed.
    pub fn set_persistent(device: BorrowedFd) -> io::Result<()> {
        set(device, libc::TUNSETPERSIST, 1)
    }

    /// Allows a user to open it.
    pub fn set_owner(device: BorrowedFd, user: u32) -> io::Result<()> {
        set(device, libc::TUNSETOWNER, user)
    }

    /// Allows a group to open it.
    pub fn set_group(device: BorrowedFd, group: u32) -> io::Result<()> {
        set(device, libc::TUNSETGROUP, group)
    }

    fn set(device: BorrowedFd, what: libc::Ioctl, value: u32) -> io::Result<()> {
        // SAFETY: these calls take their argument by value and touch no memory of ours.
        check(unsafe { libc::ioctl(device.as_raw_fd(), what as _, libc::c_ulong::from(value)) }).map(drop)
    }

    fn request(name: &str, flags: c_int) -> io::Result<libc::ifreq> {
        // SAFETY: an `ifreq` is plain numbers, for which zero is a value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if name.len() >= request.ifr_name.len() {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *place = byte as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        Ok(request)
    }
}

/// Returns free pages of all arenas to the operating system (`malloc_trim`, glibc).
pub fn trim_heap() {
    // SAFETY: the allocator locks what it walks through; no memory that is in use changes.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Limits the number of arenas that the allocator creates from now on (`mallopt`, glibc), and returns blocks above
/// this size, and free memory above it at the top of an arena, immediately. By default the allocator keeps up to
/// twice the size of the largest block ever freed.
pub fn tune_heap(max_arenas: c_int, threshold: c_int) {
    // SAFETY: it takes two numbers, and changes nothing but a setting.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, max_arenas);
        libc::mallopt(libc::M_MMAP_THRESHOLD, threshold);
        libc::mallopt(libc::M_TRIM_THRESHOLD, threshold);
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = (max_arenas, threshold);
}

fn check(returned: c_int) -> io::Result<c_int> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn an_option_of_the_wrong_level_is_an_error() {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let error = set_option(ours.as_fd(), libc::SOL_NETLINK, libc::NETLINK_EXT_ACK, 1).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP));
    }

    #[test]
    fn a_link_is_found_by_its_exact_name() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(link_index(socket.as_fd(), "lo").unwrap() > 0);
        for name in ["", "exactly15bytes_", "more_than_fifteen_bytes"] {
            assert_eq!(link_index(socket.as_fd(), name).unwrap_err().raw_os_error(), Some(libc::ENODEV));
        }
    }

    #[test]
    fn an_index_resolves_to_its_name() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let index = link_index(socket.as_fd(), "lo").unwrap();
        assert_eq!(link_name(socket.as_fd(), index).unwrap(), b"lo");
        assert_eq!(link_name(socket.as_fd(), i32::MAX).unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn an_invalid_pid_is_rejected() {
        assert_eq!(pidfd_open(u32::MAX).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}
