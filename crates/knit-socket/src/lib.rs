//! Client library for programs in pods: requests a socket that a PodSocket offers to this pod.
//!
//! Knit listens on an abstract unix socket in the pod's network namespace, `@knit/sockets/<name of the PodSocket>`. A
//! client sends the name of a socket in one line and receives one line: `ok <name>` with the file descriptor, or
//! `refused: <reason>`.
//!
//! ```no_run
//! let descriptor = knit_socket::request("dhcp", "server")?;
//! let socket = std::net::UdpSocket::from(descriptor);
//! # Ok::<(), knit_socket::Error>(())
//! ```

use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

/// The prefix of the abstract socket address; the name of the PodSocket follows.
pub const PREFIX: &str = "knit/sockets/";
/// The maximum length of a reply line in bytes.
const MAX_REPLY: usize = 1024;
/// The timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval of attempts of [`wait_for`].
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing listens: there is no such PodSocket for this pod, or the agent of its node is not running.
    #[error("no sockets are offered at @{PREFIX}{object}: is there a PodSocket {object} for this pod?")]
    NotOffered {
        /// The PodSocket.
        object: String,
    },
    /// Knit rejected the request.
    #[error("PodSocket {object}: socket {name} was rejected: {why}")]
    Rejected {
        /// The PodSocket.
        object: String,
        /// The socket.
        name: String,
        /// The reason.
        why: String,
    },
    /// Communication with Knit failed.
    #[error("PodSocket {object}: {source}")]
    Io {
        /// The PodSocket.
        object: String,
        /// The cause.
        source: io::Error,
    },
}

/// Requests a socket once.
pub fn request(object: &str, name: &str) -> Result<OwnedFd, Error> {
    let rejected = |why: String| Error::Rejected { object: object.to_owned(), name: name.to_owned(), why };
    let (line, descriptor) = exchange(object, name).map_err(|source| match source.kind() {
        io::ErrorKind::ConnectionRefused => Error::NotOffered { object: object.to_owned() },
        _ => Error::Io { object: object.to_owned(), source },
    })?;
    match (line.strip_prefix("refused: "), descriptor) {
        (None, Some(descriptor)) => Ok(descriptor),
        (Some(why), _) => Err(rejected(why.trim_end().to_owned())),
        (None, None) => Err(rejected("the reply contains no file descriptor".to_owned())),
    }
}

/// Requests a socket, and retries while no sockets are offered: the object or the agent may start later.
pub fn wait_for(object: &str, name: &str, timeout: Duration) -> Result<OwnedFd, Error> {
    let end = Instant::now() + timeout;
    loop {
        match request(object, name) {
            Err(Error::NotOffered { .. }) if Instant::now() < end => sleep(RETRY_INTERVAL),
            result => return result,
        }
    }
}

fn exchange(object: &str, name: &str) -> io::Result<(String, Option<OwnedFd>)> {
    let address = SocketAddr::from_abstract_name(format!("{PREFIX}{object}"))?;
    let mut stream = UnixStream::connect_addr(&address)?;
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    stream.write_all(format!("{name}\n").as_bytes())?;
    let mut line = Vec::new();
    let mut descriptor = None;
    while line.len() < MAX_REPLY && !line.ends_with(b"\n") {
        let mut text = [0; MAX_REPLY];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut text)];
        let received = recvmsg(&stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(io::Error::other("the reply contains more than one file descriptor"));
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                descriptor = descriptor.or(descriptors.last());
            }
        }
        if received.bytes == 0 {
            break;
        }
        line.extend_from_slice(&text[..received.bytes]);
    }
    Ok((String::from_utf8_lossy(&line).into_owned(), descriptor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_without_a_listener_has_the_name_of_the_object() {
        let why = request("no-such-object-of-this-test", "x").unwrap_err();
        assert!(matches!(&why, Error::NotOffered { .. }), "{why}");
        assert!(why.to_string().contains("@knit/sockets/no-such-object-of-this-test"), "{why}");
    }
}
