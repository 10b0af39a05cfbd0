//! The socket of the agent: blocking I/O, one connection per call.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use knit_kni::frame::{self, HEADER_LEN};
use knit_kni::{MAX_MESSAGE, v1};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::time::{ClockId, clock_gettime};
use prost::Message;

use crate::commands::AgentTransport;
use crate::error::{CniError, INTERNAL, IO_FAILURE, TRY_AGAIN_LATER};

/// The file beside the agent's socket with the time of the last STATUS that succeeded. It is gone after a reboot, with the socket.
const LAST_READY_FILE: &str = "cni-ready";

/// The interval between two connection attempts while the agent's backlog is full.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The socket of an agent.
#[derive(Debug, Default)]
pub struct AgentSocket;

/// The monotonic time since boot in nanoseconds.
pub fn boot_time_nanos() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

impl AgentTransport for AgentSocket {
    fn call(
        &mut self,
        socket: &Path,
        timeout: Duration,
        call: v1::FramedCall,
    ) -> Result<v1::FramedReply, CniError> {
        let deadline = Instant::now() + timeout;
        let failed = |error: std::io::Error| connection_error(socket, timeout, &error);
        let mut stream = open(socket, deadline).map_err(failed)?;
        let mut exchange = || -> std::io::Result<Vec<u8>> {
            set_timeouts(&stream, deadline)?;
            stream.write_all(&frame::encode(&call))?;
            let mut header = [0; HEADER_LEN];
            read(&mut stream, &mut header, deadline)?;
            let Some(length) = frame::payload_len(header, MAX_MESSAGE) else {
                return Err(ErrorKind::InvalidData.into());
            };
            let mut bytes = vec![0; length];
            read(&mut stream, &mut bytes, deadline)?;
            Ok(bytes)
        };
        let bytes = exchange().map_err(failed)?;
        v1::FramedReply::decode(bytes.as_slice()).map_err(|error| {
            CniError::new(INTERNAL, format!("cannot decode the response of the agent: {error}"))
        })
    }

    fn last_ready(&mut self, socket: &Path) -> Option<u64> {
        std::fs::read_to_string(socket.with_file_name(LAST_READY_FILE)).ok()?.trim().parse().ok()
    }

    fn set_last_ready(&mut self, socket: &Path, at: u64) {
        // Without it STATUS fails earlier when the agent is unavailable. Replaced as a whole: another STATUS may read it.
        let new = socket.with_file_name(format!("{LAST_READY_FILE}.{}", std::process::id()));
        if std::fs::write(&new, at.to_string()).is_ok() {
            let _ = std::fs::rename(&new, socket.with_file_name(LAST_READY_FILE));
        }
    }
}

/// Connects. A blocking connect would wait without a timeout while the backlog is full.
fn open(path: &Path, deadline: Instant) -> std::io::Result<UnixStream> {
    let address = UnixAddr::new(path)?;
    loop {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        match connect(fd.as_raw_fd(), &address) {
            Ok(()) => {
                let stream = UnixStream::from(fd);
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(Errno::EAGAIN) if Instant::now() < deadline => std::thread::sleep(RETRY_INTERVAL),
            Err(Errno::EAGAIN) => return Err(ErrorKind::TimedOut.into()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn set_timeouts(stream: &UnixStream, deadline: Instant) -> std::io::Result<()> {
    let remaining = deadline.saturating_duration_since(Instant::now());
    if remaining.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    stream.set_write_timeout(Some(remaining))?;
    stream.set_read_timeout(Some(remaining))
}

/// Fills the buffer before the deadline, also if the agent sends byte by byte.
fn read(stream: &mut UnixStream, mut buffer: &mut [u8], deadline: Instant) -> std::io::Result<()> {
    while !buffer.is_empty() {
        set_timeouts(stream, deadline)?;
        match stream.read(buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => buffer = &mut buffer[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn connection_error(socket: &Path, timeout: Duration, error: &std::io::Error) -> CniError {
    let (code, reason) = match error.kind() {
        ErrorKind::NotFound => {
            (TRY_AGAIN_LATER, "the socket does not exist: is `knit agent` running?".to_owned())
        }
        ErrorKind::ConnectionRefused => {
            (TRY_AGAIN_LATER, "connection refused: the agent is not running".to_owned())
        }
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            (TRY_AGAIN_LATER, format!("no response within {} s", timeout.as_secs()))
        }
        ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
            (TRY_AGAIN_LATER, "the agent closed the connection during the call".to_owned())
        }
        ErrorKind::InvalidData => (INTERNAL, "the response is too large".to_owned()),
        _ => (IO_FAILURE, error.to_string()),
    };
    CniError::new(code, format!("cannot reach the agent on {}: {reason}", socket.display()))
}
