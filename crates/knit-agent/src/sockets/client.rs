//! One client of a listener: authenticates it, reads its request and passes the descriptor.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use knit_engine::sockets::SocketListener;
use knit_kernel::Netns;
use knit_model::intent::Socket;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// Timeout of reading the request and of sending the reply.
pub(super) const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest name of a socket, with the line feed.
const MAX_LINE: usize = 64;

/// Serves a client, or sends it an error.
pub(super) async fn serve(stream: UnixStream, listener: &SocketListener, netns: Netns) {
    let pod = listener.sandbox.title();
    let result = timeout(CLIENT_TIMEOUT, ask(&stream, listener, netns)).await;
    let (line, descriptor) = match result {
        Ok(Ok((name, descriptor))) => {
            tracing::info!(pod, object = %listener.object, socket = name, "passed a socket");
            (format!("ok {name}\n"), Some(descriptor))
        }
        Ok(Err(why)) => {
            tracing::warn!(pod, object = %listener.object, why, "rejected a request for a socket");
            (format!("refused: {why}\n"), None)
        }
        Err(_) => ("refused: timed out waiting for the name of a socket\n".to_owned(), None),
    };
    // The client may be gone.
    let _ = timeout(CLIENT_TIMEOUT, answer(&stream, &line, descriptor.as_ref())).await;
}

/// Authenticates the client and opens the requested socket.
async fn ask(
    stream: &UnixStream,
    listener: &SocketListener,
    netns: Netns,
) -> Result<(String, OwnedFd), String> {
    let peer = stream.peer_cred().map_err(|why| format!("cannot read the peer's credentials: {why}"))?;
    // A process that is invisible to the agent has pid 0.
    let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0);
    let pid = pid.ok_or("the pid of the client is unknown")?;
    let name = read_name(stream).await?;
    let Some(socket_spec) = listener.sockets.iter().find(|socket_spec| socket_spec.name == name) else {
        let names: Vec<&str> = listener.sockets.iter().map(|socket_spec| socket_spec.name.as_str()).collect();
        let object = &listener.object;
        return Err(format!("{object} has no socket `{}`, only {}", name.escape_debug(), names.join(", ")));
    };
    if socket_spec.uid.is_some_and(|uid| uid != peer.uid()) {
        return Err(format!("user {} may not open {name}", peer.uid()));
    }
    let socket = socket_spec.socket.clone();
    let opened = spawn_blocking(move || open(&netns, pid, &socket)).await;
    let descriptor = opened.map_err(|_| "the agent is stopping".to_owned())??;
    Ok((name, descriptor))
}

/// Opens the socket for a process in the pod's network namespace. The connection was made in that namespace, but its descriptor may have
/// been passed to a process in another one.
fn open(netns: &Netns, pid: u32, socket: &Socket) -> Result<OwnedFd, String> {
    let theirs = Netns::of_process(pid).map_err(|why| why.to_string())?;
    if !theirs.is_same(netns).map_err(|why| why.to_string())? {
        return Err(format!("process {pid} is not in the network namespace of this pod"));
    }
    knit_kernel::sockets::open(netns, socket).map_err(|why| match why.errno() {
        Some(Errno::ENODEV | Errno::ENXIO) => format!("{socket}: no such interface in the pod"),
        Some(Errno::EADDRINUSE) => {
            format!("{socket}: address in use by an earlier client")
        }
        Some(Errno::EADDRNOTAVAIL) => format!("{socket}: no such address in the pod"),
        _ => why.to_string(),
    })
}

/// Reads one line.
async fn read_name(stream: &UnixStream) -> Result<String, String> {
    let mut line = Vec::new();
    loop {
        let mut bytes = [0; MAX_LINE];
        stream.readable().await.map_err(|why| why.to_string())?;
        match stream.try_read(&mut bytes) {
            Ok(0) => return Err("unexpected end of the line with the name of a socket".to_owned()),
            Ok(count) => line.extend_from_slice(&bytes[..count]),
            Err(why) if why.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(why) => return Err(why.to_string()),
        }
        if let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
        }
        if line.len() >= MAX_LINE {
            return Err(format!("the name of a socket has at most {} bytes", MAX_LINE - 1));
        }
    }
}

/// Sends one line, with the descriptor if there is one.
async fn answer(stream: &UnixStream, line: &str, descriptor: Option<&OwnedFd>) -> std::io::Result<()> {
    let descriptors: Vec<_> = descriptor.iter().map(|descriptor| descriptor.as_raw_fd()).collect();
    let control = [ControlMessage::ScmRights(&descriptors)];
    let control = if descriptors.is_empty() { &[][..] } else { &control[..] };
    loop {
        stream.writable().await?;
        let sent = stream.try_io(Interest::WRITABLE, || {
            let to = stream.as_fd().as_raw_fd();
            let text = [IoSlice::new(line.as_bytes())];
            Ok(sendmsg::<()>(to, &text, control, MsgFlags::MSG_NOSIGNAL, None)?)
        });
        match sent {
            Err(why) if why.kind() == std::io::ErrorKind::WouldBlock => {}
            sent => return sent.map(drop),
        }
    }
}
