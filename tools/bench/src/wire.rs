//! A TCP connection between two network namespaces, and how much goes over it.
//!
//! A socket belongs to the namespace it was made in, wherever the thread is that uses it: both ends are threads of this
//! program, and no program has to run in a pod. They are the first to run on their CPU while it lasts.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use knit_kernel::Netns;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::{Pid, gettid};

use knit_dev::process;

/// What is measured on a way, and its unit.
pub const KINDS: [(&str, &str, Measure); 2] =
    [("request rate", "requests/s", Wire::requests), ("throughput", "MiB/s", Wire::throughput)];
/// So long is measured at once; then comes the turn of another.
pub const SLICE: Duration = Duration::from_millis(300);

type Measure = fn(&Wire, Duration) -> Result<f64>;

/// Nothing takes this long.
const LIMIT: Duration = Duration::from_secs(10);
/// What is not counted at the beginning.
const WARM_UP: Duration = Duration::from_millis(50);
/// What is written and read at once.
const BLOCK: usize = 128 << 10;

/// A way from one namespace to another.
pub struct Wire {
    client: Netns,
    listener: TcpListener,
    address: SocketAddr,
}

impl Wire {
    /// Listens at the far end's address, and makes sure that the near end reaches it.
    pub fn new(server: &Netns, client: &Netns, address: IpAddr) -> Result<Self> {
        let listener = server.enter(|| TcpListener::bind((address, 0)))?;
        let listener = listener.with_context(|| format!("cannot listen at {address}"))?;
        let address = listener.local_addr()?;
        let wire = Self { client: client.clone(), listener, address };
        wire.connect()?;
        Ok(wire)
    }

    /// One byte there and one back, over and over: how often a second. Both ends are on one CPU, so that what differs is
    /// the way and not how soon another CPU wakes up.
    pub fn requests(&self, time: Duration) -> Result<f64> {
        let (mut near, mut far) = self.connect()?;
        std::thread::scope(|scope| {
            let server = scope.spawn(move || {
                prefer(0)?;
                let mut byte = [0];
                while far.read(&mut byte)? == 1 {
                    far.write_all(&byte)?;
                }
                anyhow::Ok(())
            });
            let client = scope.spawn(move || {
                prefer(0)?;
                let mut exchange = |time: Duration| -> Result<(u32, Duration)> {
                    let (began, mut count) = (Instant::now(), 0);
                    while began.elapsed() < time {
                        near.write_all(&[7])?;
                        near.read_exact(&mut [0])?;
                        count += 1;
                    }
                    Ok((count, began.elapsed()))
                };
                exchange(WARM_UP)?;
                let (count, took) = exchange(time)?;
                Ok(f64::from(count) / took.as_secs_f64())
            });
            let rate = client.join().expect("the client does not panic");
            server.join().expect("the server does not panic")?;
            rate
        })
    }

    /// As much as goes: in MiB a second, as counted where it arrives. Each end has a CPU of its own, where there are two.
    pub fn throughput(&self, time: Duration) -> Result<f64> {
        let (mut near, mut far) = self.connect()?;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                prefer(0)?;
                let block = vec![7; BLOCK];
                while !stop.load(Ordering::Relaxed) {
                    near.write_all(&block)?;
                }
                drop(near);
                anyhow::Ok(())
            });
            let server = scope.spawn(|| {
                let counted = receive(&mut far, time);
                stop.store(true, Ordering::Relaxed);
                // What is under way is let in, so that the other end can end.
                std::io::copy(&mut far, &mut std::io::sink())?;
                counted
            });
            let rate = server.join().expect("the server does not panic");
            client.join().expect("the client does not panic")?;
            rate
        })
    }

    fn connect(&self) -> Result<(TcpStream, TcpStream)> {
        let connected = self.client.enter(|| TcpStream::connect_timeout(&self.address, LIMIT))?;
        let near = connected.with_context(|| format!("{} is not reached", self.address))?;
        let (far, _) = self.listener.accept()?;
        for end in [&near, &far] {
            end.set_nodelay(true)?;
            end.set_read_timeout(Some(LIMIT))?;
            end.set_write_timeout(Some(LIMIT))?;
        }
        Ok((near, far))
    }
}

fn receive(far: &mut TcpStream, time: Duration) -> Result<f64> {
    prefer(1)?;
    let mut block = vec![0; BLOCK];
    let mut count = |time: Duration| -> Result<f64> {
        let (began, mut bytes) = (Instant::now(), 0);
        while began.elapsed() < time {
            match far.read(&mut block)? {
                0 => bail!("the sender ended"),
                read => bytes += read,
            }
        }
        Ok(bytes as f64 / f64::from(1 << 20) / began.elapsed().as_secs_f64())
    };
    count(WARM_UP)?;
    count(time)
}

/// Of some rates the one that half of them do not exceed.
pub fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or_default()
}

/// Keeps the calling thread on a CPU of those that it may use, and lets it run before all else that is there: other work on
/// the machine would be measured otherwise.
fn prefer(wanted: usize) -> Result<()> {
    process::output(Command::new("chrt").args(["--rr", "--pid", "1", &gettid().to_string()]))?;
    let this = Pid::from_raw(0);
    let allowed = sched_getaffinity(this).context("cannot ask for CPUs")?;
    let allowed: Vec<usize> =
        (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false)).collect();
    let mut one = CpuSet::new();
    one.set(allowed[wanted % allowed.len()])?;
    sched_setaffinity(this, &one).context("cannot stay on one CPU")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_slice_does_not_move_the_median() {
        assert_eq!(median(vec![50.0, 1.0, 49.0, 51.0, 52.0]), 50.0);
        assert_eq!(median(Vec::new()), 0.0);
    }
}
