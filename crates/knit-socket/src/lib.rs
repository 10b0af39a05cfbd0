//! For programs in pods: asks Knit for a socket that a PodSocket offers to this pod.
//!
//! Knit listens at an abstract unix socket of the pod's own network, `@knit/sockets/<name of the PodSocket>`. A client says
//! the name of a socket in one line, and gets one line back: `ok <name>` with the descriptor, or `refused: <why>`.
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

/// What abstract names begin with; the object's name follows.
pub const PREFIX: &str = "knit/sockets/";
/// An answer is one line of at most this many bytes.
const LONGEST: usize = 1024;
/// Knit answers sooner than this.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often [`wait_for`] tries.
const PAUSE: Duration = Duration::from_millis(200);

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens: there is no such PodSocket for this pod, or no agent runs on its node for the moment.
    #[error("nobody offers sockets at @{PREFIX}{object}: is there a PodSocket {object} for this pod?")]
    NotOffered {
        /// The PodSocket.
        object: String,
    },
    /// Knit said no.
    #[error("PodSocket {object} gives no socket {name}: {why}")]
    Refused {
        /// The PodSocket.
        object: String,
        /// The socket.
        name: String,
        /// Knit's words.
        why: String,
    },
    /// The way to Knit failed.
    #[error("PodSocket {object}: {source}")]
    Io {
        /// The PodSocket.
        object: String,
        /// Why.
        source: io::Error,
    },
}

/// Asks once.
pub fn request(object: &str, name: &str) -> Result<OwnedFd, Error> {
    let refused = |why: String| Error::Refused { object: object.to_owned(), name: name.to_owned(), why };
    let (line, descriptor) = ask(object, name).map_err(|source| match source.kind() {
        io::ErrorKind::ConnectionRefused => Error::NotOffered { object: object.to_owned() },
        _ => Error::Io { object: object.to_owned(), source },
    })?;
    match (line.strip_prefix("refused: "), descriptor) {
        (None, Some(descriptor)) => Ok(descriptor),
        (Some(why), _) => Err(refused(why.trim_end().to_owned())),
        (None, None) => Err(refused("the answer came without a socket".to_owned())),
    }
}

/// Asks again and again while nobody offers any sockets: the object, or the agent, may come in a moment.
pub fn wait_for(object: &str, name: &str, at_most: Duration) -> Result<OwnedFd, Error> {
    let end = Instant::now() + at_most;
    loop {
        match request(object, name) {
            Err(Error::NotOffered { .. }) if Instant::now() < end => sleep(PAUSE),
            answer => return answer,
        }
    }
}

fn ask(object: &str, name: &str) -> io::Result<(String, Option<OwnedFd>)> {
    let address = SocketAddr::from_abstract_name(format!("{PREFIX}{object}"))?;
    let mut stream = UnixStream::connect_addr(&address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(format!("{name}\n").as_bytes())?;
    let mut line = Vec::new();
    let mut descriptor = None;
    while line.len() < LONGEST && !line.ends_with(b"\n") {
        let mut text = [0; LONGEST];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut text)];
        let received = recvmsg(&stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(io::Error::other("the answer has more than one descriptor"));
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
    fn where_nobody_listens_the_object_is_named() {
        let why = request("no-such-object-of-this-test", "x").unwrap_err();
        assert!(matches!(&why, Error::NotOffered { .. }), "{why}");
        assert!(why.to_string().contains("@knit/sockets/no-such-object-of-this-test"), "{why}");
    }
}
