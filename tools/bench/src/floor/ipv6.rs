//! The time until an IPv6 address is usable: until a socket can be bound to it.

use std::net::{Ipv6Addr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use knit_kernel::Socket;
use knit_kernel::netlink::constants::IFA_F_NODAD;

use crate::messages;
use crate::netlink_host::{NetlinkHost, index_of};
use knit_report::{Samples, WARM_UP};

/// Duplicate address detection waits up to a second, probes, and waits another second.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Many concurrent addresses, each with its own random delay: a sequence would take minutes.
pub fn with_detection(host: &mut NetlinkHost, rounds: usize) -> Result<Samples> {
    let rounds = rounds - WARM_UP;
    let (mut socket, index) = link(host, 0)?;
    host.pod(0).clone().enter(|| {
        let mut samples = Samples::new();
        let mut waiting = Vec::new();
        for number in 0..rounds {
            let address = address(1, number);
            let start = Instant::now();
            socket.request(messages::address(index, address.into(), 64, 0))?;
            waiting.push((address, start));
        }
        let deadline = Instant::now() + TIMEOUT;
        while !waiting.is_empty() {
            if Instant::now() > deadline {
                bail!("{} IPv6 addresses not usable after {TIMEOUT:?}", waiting.len());
            }
            waiting.retain(|(address, start)| {
                let usable = is_usable(*address);
                if usable {
                    samples.add_warm(start.elapsed());
                }
                !usable
            });
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(samples)
    })?
}

/// One address after the other, because there is no delay to share.
pub fn without_detection(host: &mut NetlinkHost, rounds: usize) -> Result<Samples> {
    let (mut socket, index) = link(host, 1)?;
    host.pod(1).clone().enter(|| {
        let mut samples = Samples::new();
        for number in 0..rounds {
            let address = address(2, number);
            samples.time(|| -> Result<()> {
                let start = Instant::now();
                socket.request(messages::address(index, address.into(), 64, IFA_F_NODAD))?;
                while !is_usable(address) {
                    if start.elapsed() > TIMEOUT {
                        bail!("IPv6 address {address} not usable after {TIMEOUT:?}");
                    }
                }
                Ok(())
            })?;
        }
        Ok(samples)
    })?
}

/// A pod whose `eth0` has a carrier: without one, duplicate address detection does not start.
fn link(host: &mut NetlinkHost, pod: usize) -> Result<(Socket, i32)> {
    host.attach(pod)?;
    let mut socket = host.pod_socket(pod)?;
    let index = index_of(&mut socket, "eth0")?;
    Ok((socket, index))
}

fn address(subnet: u16, number: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd88, 0, 0, subnet, 0, 0, 0, number as u16 + 1)
}

fn is_usable(address: Ipv6Addr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}
