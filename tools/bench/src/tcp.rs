//! Request rate and throughput of a TCP connection between two network namespaces.
//!
//! A socket belongs to the namespace it was created in, whichever thread uses it: both ends are threads of this process, and no
//! program has to run in a pod. Both run with real-time priority.

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

/// The metrics of a path, and their units.
pub const METRICS: [(&str, &str, Measure); 2] =
    [("request rate", "requests/s", TcpPath::requests), ("throughput", "MiB/s", TcpPath::throughput)];
/// The duration of one measurement; then another path is measured.
pub const SLICE: Duration = Duration::from_millis(300);

type Measure = fn(&TcpPath, Duration) -> Result<f64>;

/// The timeout of socket operations.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The warm-up of each measurement, which does not count.
const WARM_UP: Duration = Duration::from_millis(50);
/// The size of reads and writes.
const BLOCK_SIZE: usize = 128 << 10;

/// A path from one namespace to another.
pub struct TcpPath {
    client: Netns,
    listener: TcpListener,
    address: SocketAddr,
}

impl TcpPath {
    /// Listens at the server's address, and checks that the client reaches it.
    pub fn new(server: &Netns, client: &Netns, address: IpAddr) -> Result<Self> {
        let listener = server.enter(|| TcpListener::bind((address, 0)))?;
        let listener = listener.with_context(|| format!("cannot listen at {address}"))?;
        let address = listener.local_addr()?;
        Self::through(listener, client, address)
    }

    /// A path to a listener by an address that is translated to its own, or by its own. Checks that the client reaches it.
    pub fn through(listener: TcpListener, client: &Netns, address: SocketAddr) -> Result<Self> {
        let path = Self { client: client.clone(), listener, address };
        path.connect()?;
        Ok(path)
    }

    /// The number of one-byte requests and responses per second. Both ends use the same CPU, so that the result does not depend on
    /// the wake-up latency of another CPU.
    pub fn requests(&self, time: Duration) -> Result<f64> {
        let (mut near, mut far) = self.connect()?;
        std::thread::scope(|scope| {
            let server = scope.spawn(move || {
                pin_to_cpu(0)?;
                let mut byte = [0];
                while far.read(&mut byte)? == 1 {
                    far.write_all(&byte)?;
                }
                anyhow::Ok(())
            });
            let client = scope.spawn(move || {
                pin_to_cpu(0)?;
                let mut exchange = |time: Duration| -> Result<(u32, Duration)> {
                    let (start, mut count) = (Instant::now(), 0);
                    while start.elapsed() < time {
                        near.write_all(&[7])?;
                        near.read_exact(&mut [0])?;
                        count += 1;
                    }
                    Ok((count, start.elapsed()))
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

    /// The throughput in MiB per second, counted at the receiver. Each end has its own CPU if there are two.
    pub fn throughput(&self, time: Duration) -> Result<f64> {
        let (mut near, mut far) = self.connect()?;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                pin_to_cpu(0)?;
                let block = vec![7; BLOCK_SIZE];
                while !stop.load(Ordering::Relaxed) {
                    near.write_all(&block)?;
                }
                drop(near);
                anyhow::Ok(())
            });
            let server = scope.spawn(|| {
                let counted = receive(&mut far, time);
                stop.store(true, Ordering::Relaxed);
                // Data in transit is drained, so that the sender can end.
                std::io::copy(&mut far, &mut std::io::sink())?;
                counted
            });
            let rate = server.join().expect("the server does not panic");
            client.join().expect("the client does not panic")?;
            rate
        })
    }

    fn connect(&self) -> Result<(TcpStream, TcpStream)> {
        let connected = self.client.enter(|| TcpStream::connect_timeout(&self.address, TIMEOUT))?;
        let near = connected.with_context(|| format!("cannot connect to {}", self.address))?;
        let (far, _) = self.listener.accept()?;
        for end in [&near, &far] {
            end.set_nodelay(true)?;
            end.set_read_timeout(Some(TIMEOUT))?;
            end.set_write_timeout(Some(TIMEOUT))?;
        }
        Ok((near, far))
    }
}

fn receive(far: &mut TcpStream, time: Duration) -> Result<f64> {
    pin_to_cpu(1)?;
    let mut block = vec![0; BLOCK_SIZE];
    let mut count = |time: Duration| -> Result<f64> {
        let (start, mut bytes) = (Instant::now(), 0);
        while start.elapsed() < time {
            match far.read(&mut block)? {
                0 => bail!("the sender ended"),
                read => bytes += read,
            }
        }
        Ok(bytes as f64 / f64::from(1 << 20) / start.elapsed().as_secs_f64())
    };
    count(WARM_UP)?;
    count(time)
}

/// The median of rates.
pub fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or_default()
}

/// Pins the calling thread to one of its allowed CPUs with real-time priority, so that other work on the machine is not
/// measured.
pub fn pin_to_cpu(number: usize) -> Result<()> {
    process::output(Command::new("chrt").args(["--rr", "--pid", "1", &gettid().to_string()]))?;
    let this = Pid::from_raw(0);
    let allowed = sched_getaffinity(this).context("cannot read the CPU affinity")?;
    let allowed: Vec<usize> =
        (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false)).collect();
    let mut one = CpuSet::new();
    one.set(allowed[number % allowed.len()])?;
    sched_setaffinity(this, &one).context("cannot set the CPU affinity")
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
