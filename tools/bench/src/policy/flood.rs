//! A flood of new TCP connections to one port.
//!
//! Each is a socket whose SYN was sent, and that is closed without waiting for a reply.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use knit_kernel::Netns;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket};

use crate::tcp::pin_to_cpu;

/// The aim, in connections per second.
const RATE: f64 = 10_000.0;
/// The pause between bursts.
const PAUSE: Duration = Duration::from_millis(1);
/// The largest burst, after which the thread pauses even if it is late.
const MAX_BURST: u64 = 50;
/// Nothing listens on it, and no policy allows it.
const PORT: u16 = 81;
/// A connection that is not refused within this time is dropped.
const DROPPED_AFTER: Duration = Duration::from_millis(500);

/// A flood from one pod to another.
pub struct Flood {
    client: Netns,
    destination: SocketAddr,
}

impl Flood {
    /// Nothing is sent yet.
    pub fn new(client: &Netns, server: IpAddr) -> Result<Self> {
        Ok(Self { client: client.clone(), destination: SocketAddr::from((server, PORT)) })
    }

    /// Whether connections are dropped, and not refused.
    pub fn is_dropped(&self) -> Result<bool> {
        let connected = self.client.enter(|| TcpStream::connect_timeout(&self.destination, DROPPED_AFTER))?;
        match connected {
            Err(error) if error.kind() == ErrorKind::TimedOut => Ok(true),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(false),
            Err(error) => Err(error).with_context(|| format!("cannot connect to {}", self.destination)),
            Ok(_) => bail!("something listens at {}", self.destination),
        }
    }

    /// Runs during some work. Returns its result, and the number of connections per second.
    pub fn during<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let flood = scope.spawn(|| self.client.enter(|| self.run(&stop))?);
            let result = work();
            stop.store(true, Ordering::Relaxed);
            let rate = flood.join().expect("the flood does not panic")?;
            Ok((result?, rate))
        })
    }

    /// Both ends of the measured traffic have the same CPU and priority, so that the flood's cost shows there.
    fn run(&self, stop: &AtomicBool) -> Result<f64> {
        pin_to_cpu(0)?;
        let (start, mut sent) = (Instant::now(), 0);
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..burst(start.elapsed(), sent) {
                self.open()?;
                sent += 1;
            }
            std::thread::sleep(PAUSE);
        }
        Ok(sent as f64 / start.elapsed().as_secs_f64())
    }

    fn open(&self) -> Result<()> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let one =
            socket(AddressFamily::Inet, SockType::Stream, flags, None).context("cannot open a socket")?;
        match connect(one.as_raw_fd(), &SockaddrStorage::from(self.destination)) {
            // The reply may be there already.
            Ok(()) | Err(Errno::EINPROGRESS | Errno::ECONNREFUSED) => Ok(()),
            Err(errno) => Err(errno).with_context(|| format!("cannot connect to {}", self.destination)),
        }
    }
}

/// How many connections are due.
fn burst(elapsed: Duration, sent: u64) -> u64 {
    let due = (elapsed.as_secs_f64() * RATE) as u64;
    due.saturating_sub(sent).min(MAX_BURST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_add_up_to_the_rate() {
        let mut sent = 0;
        for millisecond in 1..=1_000 {
            sent += burst(Duration::from_millis(millisecond), sent);
        }
        assert_eq!(sent, 10_000);
    }

    #[test]
    fn a_late_flood_does_not_catch_up_at_once() {
        assert_eq!(burst(Duration::from_secs(1), 0), MAX_BURST);
        assert_eq!(burst(Duration::from_secs(1), 10_001), 0);
    }
}
