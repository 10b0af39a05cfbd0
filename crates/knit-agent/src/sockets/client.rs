//! One client of a listener: who it is, what it asks for, and the descriptor that it gets.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use knit_engine::sockets::Listener;
use knit_kernel::Netns;
use knit_model::intent::Socket;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// A client that says nothing, or takes nothing, is waited for this long.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// A name is not longer than this, with its line's end.
const LONGEST: usize = 64;

/// Serves a client, or tells it in words why not.
pub(super) async fn serve(stream: UnixStream, listener: &Listener, netns: Netns) {
    let pod = listener.sandbox.title();
    let asked = timeout(PATIENCE, ask(&stream, listener, netns)).await;
    let (line, descriptor) = match asked {
        Ok(Ok((name, descriptor))) => {
            tracing::info!(pod, object = %listener.object, socket = name, "a socket is handed over");
            (format!("ok {name}\n"), Some(descriptor))
        }
        Ok(Err(why)) => {
            tracing::warn!(pod, object = %listener.object, why, "a client is refused a socket");
            (format!("refused: {why}\n"), None)
        }
        Err(_) => ("refused: no name of a socket came in time\n".to_owned(), None),
    };
    // One who does not listen to the answer asked for nothing.
    let _ = timeout(PATIENCE, answer(&stream, &line, descriptor.as_ref())).await;
}

/// Who asks, and the socket that is asked for.
async fn ask(stream: &UnixStream, listener: &Listener, netns: Netns) -> Result<(String, OwnedFd), String> {
    let peer = stream.peer_cred().map_err(|why| format!("who asks cannot be told: {why}"))?;
    // A process that the agent cannot see has no number here.
    let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0);
    let pid = pid.ok_or("the process that asks cannot be seen by the agent")?;
    let name = read_name(stream).await?;
    let Some(want) = listener.sockets.iter().find(|want| want.name == name) else {
        let names: Vec<&str> = listener.sockets.iter().map(|want| want.name.as_str()).collect();
        let object = &listener.object;
        return Err(format!("{object} has no socket `{}`, it has {}", name.escape_debug(), names.join(", ")));
    };
    if want.uid.is_some_and(|uid| uid != peer.uid()) {
        return Err(format!("{name} is not for user {}", peer.uid()));
    }
    let socket = want.socket.clone();
    let opened = spawn_blocking(move || open(&netns, pid, &socket)).await;
    let descriptor = opened.map_err(|_| "the agent is ending".to_owned())??;
    Ok((name, descriptor))
}

/// Opens the socket for a process that is in the pod's network itself. Its end of the connection was born there, but it may
/// have been carried elsewhere.
fn open(netns: &Netns, pid: u32, socket: &Socket) -> Result<OwnedFd, String> {
    let theirs = Netns::of_process(pid).map_err(|why| why.to_string())?;
    if !theirs.is_same(netns).map_err(|why| why.to_string())? {
        return Err(format!("process {pid} is not in this pod's network"));
    }
    knit_kernel::sockets::open(netns, socket).map_err(|why| match why.errno() {
        Some(Errno::ENODEV | Errno::ENXIO) => format!("{socket}: the pod has no such interface"),
        Some(Errno::EADDRINUSE) => {
            format!("{socket}: it is in use: whoever got it before has to close it first")
        }
        Some(Errno::EADDRNOTAVAIL) => format!("{socket}: the pod has no such address"),
        _ => why.to_string(),
    })
}

/// One line.
async fn read_name(stream: &UnixStream) -> Result<String, String> {
    let mut line = Vec::new();
    loop {
        let mut bytes = [0; LONGEST];
        stream.readable().await.map_err(|why| why.to_string())?;
        match stream.try_read(&mut bytes) {
            Ok(0) => return Err("the line with the name of a socket has no end".to_owned()),
            Ok(count) => line.extend_from_slice(&bytes[..count]),
            Err(why) if why.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(why) => return Err(why.to_string()),
        }
        if let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
        }
        if line.len() >= LONGEST {
            return Err(format!("the name of a socket has at most {} bytes", LONGEST - 1));
        }
    }
}

/// One line, and with it the descriptor if there is one.
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
