//! A DHCP server for one lease, in a pod without any privilege: its socket on port 67 comes from Knit.

mod message;

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;

use message::answer;

/// Whoever has no address yet hears what is said to all.
const TO_ALL: (Ipv4Addr, u16) = (Ipv4Addr::BROADCAST, 68);
/// An Ethernet frame holds no more.
const LARGEST: usize = 1500;

/// Answers DHCP with one lease.
#[derive(Parser)]
struct Arguments {
    /// The PodSocket that offers the socket.
    object: String,
    /// The socket's name there: a udp socket on port 67, bound to an interface.
    socket: String,
    /// This server's own address.
    server: Ipv4Addr,
    /// The address that it leases.
    lease: Ipv4Addr,
    /// How long the PodSocket is waited for, in seconds.
    #[arg(long, default_value_t = 30)]
    wait: u64,
}

fn main() -> Result<()> {
    let Arguments { object, socket, server, lease, wait } = Arguments::parse();
    let dhcp = UdpSocket::from(knit_socket::wait_for(&object, &socket, Duration::from_secs(wait))?);
    println!("answers on {}", dhcp.local_addr().context("what came is no UDP socket")?);
    let mut buffer = [0; LARGEST];
    loop {
        let length = dhcp.recv(&mut buffer).context("nothing can be heard any more")?;
        if let Some(answer) = answer(&buffer[..length], server, lease) {
            dhcp.send_to(&answer, TO_ALL).context("nothing can be said to the network")?;
            println!("leased {lease}");
        }
    }
}
