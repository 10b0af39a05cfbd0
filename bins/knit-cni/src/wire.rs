//! The agent's socket, with plain blocking calls: one connection, one call.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use knit_kni::frame::{self, HEADER};
use knit_kni::{MAX_MESSAGE, v1};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::time::{ClockId, clock_gettime};
use prost::Message;

use crate::failure::{Failure, INPUT_OUTPUT, INTERNAL, TRY_AGAIN};
use crate::verbs::Ask;

/// How often an agent that has no room for another connection is tried.
const AGAIN: Duration = Duration::from_millis(20);

/// The socket of an agent.
#[derive(Debug, Default)]
pub struct Socket;

/// Now, in nanoseconds since the machine booted: a clock that nobody sets.
pub fn since_boot() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

impl Ask for Socket {
    fn ask(
        &mut self,
        socket: &Path,
        timeout: Duration,
        call: v1::FramedCall,
    ) -> Result<v1::FramedReply, Failure> {
        let until = Instant::now() + timeout;
        let failed = |why: std::io::Error| away(socket, timeout, &why);
        let mut stream = open(socket, until).map_err(failed)?;
        let mut exchange = || -> std::io::Result<Vec<u8>> {
            wait_until(&stream, until)?;
            stream.write_all(&frame::encode(&call))?;
            let mut header = [0; HEADER];
            read(&mut stream, &mut header, until)?;
            let Some(length) = frame::length(header, MAX_MESSAGE) else {
                return Err(ErrorKind::InvalidData.into());
            };
            let mut bytes = vec![0; length];
            read(&mut stream, &mut bytes, until)?;
            Ok(bytes)
        };
        let bytes = exchange().map_err(failed)?;
        v1::FramedReply::decode(bytes.as_slice())
            .map_err(|why| Failure::new(INTERNAL, format!("the agent's answer cannot be read: {why}")))
    }
}

/// Connects. An agent whose queue is full would let a blocking connection wait for ever.
fn open(path: &Path, until: Instant) -> std::io::Result<UnixStream> {
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
            Err(Errno::EAGAIN) if Instant::now() < until => std::thread::sleep(AGAIN),
            Err(Errno::EAGAIN) => return Err(ErrorKind::TimedOut.into()),
            Err(why) => return Err(why.into()),
        }
    }
}

fn wait_until(stream: &UnixStream, until: Instant) -> std::io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    stream.set_write_timeout(Some(left))?;
    stream.set_read_timeout(Some(left))
}

/// Fills the buffer; also an agent that answers byte by byte has only so long.
fn read(stream: &mut UnixStream, mut buffer: &mut [u8], until: Instant) -> std::io::Result<()> {
    while !buffer.is_empty() {
        wait_until(stream, until)?;
        match stream.read(buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => buffer = &mut buffer[count..],
            Err(why) if why.kind() == ErrorKind::Interrupted => {}
            Err(why) => return Err(why),
        }
    }
    Ok(())
}

fn away(socket: &Path, timeout: Duration, why: &std::io::Error) -> Failure {
    let (code, said) = match why.kind() {
        ErrorKind::NotFound => (TRY_AGAIN, "there is no such socket; is `knit agent` running?".to_owned()),
        ErrorKind::ConnectionRefused => {
            (TRY_AGAIN, "the socket is left over from an agent that is gone".to_owned())
        }
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            (TRY_AGAIN, format!("it did not answer within {} s", timeout.as_secs()))
        }
        ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
            (TRY_AGAIN, "it went away in the middle of the call".to_owned())
        }
        ErrorKind::InvalidData => (INTERNAL, "its answer is too large".to_owned()),
        _ => (INPUT_OUTPUT, why.to_string()),
    };
    Failure::new(code, format!("no agent answers on {}: {said}", socket.display()))
}
