//! Shows by packets which verdict is in force: UDP datagrams from one pod to another, as fast as they are answered by their arrival.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use knit_kernel::Netns;

/// How long a verdict may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long a datagram is awaited that is expected to be dropped: the resolution.
const DROPPED_AFTER: Duration = Duration::from_micros(200);
/// How long a datagram is awaited that is expected to arrive.
const ARRIVES_WITHIN: Duration = Duration::from_millis(20);
/// The pause between datagrams that arrive.
const PAUSE: Duration = Duration::from_micros(200);

/// A path of datagrams between two pods.
pub struct Probe {
    sender: UdpSocket,
    receiver: UdpSocket,
    destination: SocketAddr,
    sequence: std::cell::Cell<u32>,
}

impl Probe {
    /// A path to a port of the server. A socket belongs to the namespace it was created in, whichever thread uses it.
    pub fn new(client: &Netns, [from, to]: [IpAddr; 2], server: &Netns, port: u16) -> Result<Self> {
        let destination = SocketAddr::from((to, port));
        let receiver = server.enter(|| UdpSocket::bind(destination))?;
        let receiver = receiver.with_context(|| format!("cannot bind {destination}"))?;
        let sender = client.enter(|| UdpSocket::bind((from, 0)))?.context("cannot bind a socket")?;
        Ok(Self { sender, receiver, destination, sequence: std::cell::Cell::new(0) })
    }

    /// Sends datagrams until one has the verdict. Returns when the first one that arrives was received, or when the first one that is
    /// dropped was sent.
    pub fn wait(&self, is_allowed: bool) -> Result<Instant> {
        let start = Instant::now();
        loop {
            let sent = Instant::now();
            let timeout = if is_allowed { DROPPED_AFTER } else { ARRIVES_WITHIN };
            match self.passes(timeout)? {
                true if is_allowed => return Ok(Instant::now()),
                false if !is_allowed => return Ok(sent),
                true => std::thread::sleep(PAUSE),
                false => {}
            }
            if sent - start > TIMEOUT {
                let verdict = if is_allowed { "dropped" } else { "accepted" };
                bail!("datagrams to {} are still {verdict} after {} s", self.destination, TIMEOUT.as_secs());
            }
        }
    }

    /// Whether the next datagram arrives in time.
    fn passes(&self, timeout: Duration) -> Result<bool> {
        let sequence = self.sequence.get().wrapping_add(1);
        self.sequence.set(sequence);
        self.sender.send_to(&sequence.to_be_bytes(), self.destination).context("cannot send")?;
        let deadline = Instant::now() + timeout;
        self.receiver.set_read_timeout(Some(timeout))?;
        loop {
            let mut received = [0; 4];
            match self.receiver.recv(&mut received) {
                // An earlier one may have been late.
                Ok(_) if u32::from_be_bytes(received) == sequence => return Ok(true),
                Ok(_) if Instant::now() < deadline => {}
                Ok(_) => return Ok(false),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Ok(false);
                }
                Err(error) => return Err(error).context("cannot receive"),
            }
        }
    }
}
