//! Sends one ICMP echo request from an unprivileged pod: it receives its raw socket from Knit.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;

const ECHO_REQUEST: u8 = 8;
const ECHO_REPLY: u8 = 0;
/// Identifies the reply to this program's request.
const PAYLOAD: &[u8] = b"knit-icmp-ping";
const TIMEOUT: Duration = Duration::from_secs(3);

/// Sends one ICMP echo request and prints the reply.
#[derive(Parser)]
struct Arguments {
    /// PodSocket object with the socket.
    object: String,
    /// Name of the socket in the object: a raw socket for ICMP.
    socket: String,
    /// Address to ping.
    to: Ipv4Addr,
    /// How long to wait for the PodSocket, in seconds.
    #[arg(long, default_value_t = 30)]
    wait: u64,
}

fn main() -> Result<()> {
    let Arguments { object, socket, to, wait } = Arguments::parse();
    // A raw socket is read and written like any other datagram socket.
    let raw = UdpSocket::from(knit_socket::wait_for(&object, &socket, Duration::from_secs(wait))?);
    raw.set_read_timeout(Some(TIMEOUT)).context("cannot set a timeout")?;
    raw.send_to(&echo_request(), (to, 0)).context("cannot send")?;
    let (end, mut packet) = (Instant::now() + TIMEOUT, [0; 1500]);
    while Instant::now() < end {
        let length = raw.recv(&mut packet).with_context(|| format!("no reply from {to}"))?;
        if let Some(from) = replied(&packet[..length]) {
            println!("reply from {from}");
            return Ok(());
        }
    }
    bail!("no reply from {to}")
}

fn echo_request() -> Vec<u8> {
    let mut message = vec![ECHO_REQUEST, 0, 0, 0, 0, 1, 0, 1];
    message.extend(PAYLOAD);
    let checksum = checksum(&message);
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    message
}

/// The internet checksum (RFC 1071) of a message of even length.
fn checksum(message: &[u8]) -> u16 {
    let words = message.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum = words.sum::<u32>();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

/// The sender of an IPv4 packet that is the reply to the request.
fn replied(packet: &[u8]) -> Option<Ipv4Addr> {
    let header = usize::from(packet.first()? & 0x0f) * 4;
    let message = packet.get(header..)?;
    let is_reply = *message.first()? == ECHO_REPLY && message.get(8..)? == PAYLOAD;
    let source: [u8; 4] = packet.get(12..16)?.try_into().ok()?;
    is_reply.then(|| source.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_a_message_with_its_checksum_is_zero() {
        assert_eq!(checksum(&echo_request()), 0);
    }

    #[test]
    fn only_a_reply_to_the_request_counts() {
        let mut packet = vec![0; 20];
        packet[0] = 0x45;
        packet[12..16].copy_from_slice(&[192, 0, 2, 7]);
        let mut message = echo_request();
        packet.extend(&message);
        assert_eq!(replied(&packet), None, "a request");
        message[0] = ECHO_REPLY;
        packet.truncate(20);
        packet.extend(&message);
        assert_eq!(replied(&packet), Some(Ipv4Addr::new(192, 0, 2, 7)));
        assert_eq!(replied(&packet[..25]), None);
    }
}
