//! A DHCP server with one lease in an unprivileged pod: it receives its socket on port 67 from Knit.

mod message;

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;

use message::reply;

/// Clients without an address receive broadcasts.
const CLIENTS: (Ipv4Addr, u16) = (Ipv4Addr::BROADCAST, 68);
/// The largest payload of an Ethernet frame.
const MAX_MESSAGE: usize = 1500;

/// A DHCP server with one lease.
#[derive(Parser)]
struct Arguments {
    /// PodSocket object with the socket.
    object: String,
    /// Name of the socket in the object: a UDP socket on port 67, bound to an interface.
    socket: String,
    /// Address of this server.
    server: Ipv4Addr,
    /// Address to lease.
    lease: Ipv4Addr,
    /// How long to wait for the PodSocket, in seconds.
    #[arg(long, default_value_t = 30)]
    wait: u64,
}

fn main() -> Result<()> {
    let Arguments { object, socket, server, lease, wait } = Arguments::parse();
    let dhcp = UdpSocket::from(knit_socket::wait_for(&object, &socket, Duration::from_secs(wait))?);
    println!("listening on {}", dhcp.local_addr().context("not a UDP socket")?);
    let mut buffer = [0; MAX_MESSAGE];
    loop {
        let length = dhcp.recv(&mut buffer).context("cannot receive")?;
        if let Some(reply) = reply(&buffer[..length], server, lease) {
            dhcp.send_to(&reply, CLIENTS).context("cannot send")?;
            println!("leased {lease}");
        }
    }
}
