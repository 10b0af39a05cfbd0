//! How long until an IPv6 address can be used: until a socket can be bound to it.

use std::net::{Ipv6Addr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use knit_kernel::Socket;
use knit_kernel::netlink::constants::IFA_F_NODAD;

use crate::ground::{Ground, index_of};
use crate::messages;
use knit_report::{Samples, WARM_UP};

/// Duplicate detection waits up to a second, asks, and waits a second more.
const LIMIT: Duration = Duration::from_secs(10);

/// Many addresses at once, each with its own random delay: one after the other would take minutes.
pub fn with_detection(ground: &mut Ground, rounds: usize) -> Result<Samples> {
    let rounds = rounds - WARM_UP;
    let (mut socket, index) = link(ground, 0)?;
    ground.pod(0).clone().enter(|| {
        let mut samples = Samples::new();
        let mut waiting = Vec::new();
        for number in 0..rounds {
            let address = address(1, number);
            let began = Instant::now();
            socket.request(messages::address(index, address.into(), 64, 0))?;
            waiting.push((address, began));
        }
        let limit = Instant::now() + LIMIT;
        while !waiting.is_empty() {
            if Instant::now() > limit {
                bail!("{} IPv6 addresses were still not usable after {LIMIT:?}", waiting.len());
            }
            waiting.retain(|(address, began)| {
                let usable = is_usable(*address);
                if usable {
                    samples.add_warm(began.elapsed());
                }
                !usable
            });
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(samples)
    })?
}

/// One address after the other: there is no wait to share.
pub fn without_detection(ground: &mut Ground, rounds: usize) -> Result<Samples> {
    let (mut socket, index) = link(ground, 1)?;
    ground.pod(1).clone().enter(|| {
        let mut samples = Samples::new();
        for number in 0..rounds {
            let address = address(2, number);
            samples.time(|| -> Result<()> {
                let began = Instant::now();
                socket.request(messages::address(index, address.into(), 64, IFA_F_NODAD))?;
                while !is_usable(address) {
                    if began.elapsed() > LIMIT {
                        bail!("the IPv6 address {address} was still not usable after {LIMIT:?}");
                    }
                }
                Ok(())
            })?;
        }
        Ok(samples)
    })?
}

/// A pod whose `eth0` has a carrier: without one, duplicate detection does not even begin.
fn link(ground: &mut Ground, pod: usize) -> Result<(Socket, i32)> {
    ground.attach(pod)?;
    let mut socket = ground.pod_socket(pod)?;
    let index = index_of(&mut socket, "eth0")?;
    Ok((socket, index))
}

fn address(subnet: u16, number: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd88, 0, 0, subnet, 0, 0, 0, number as u16 + 1)
}

fn is_usable(address: Ipv6Addr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}
