//! The agent of the measured node: its start, and what it uses while something happens.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::received::ByteCounter;
use crate::primary::node::Node;
use knit_soak::harness::programs::{self, Program};
use knit_soak::harness::{KnitCluster, wait_until};
use knit_testcluster::node_name;

/// The agent's health endpoint, `healthAddr`.
const HEALTH: &str = "127.0.0.1:9476";
/// The kubelet delays the restart of a container that ended repeatedly.
const RESTART_TIMEOUT: Duration = Duration::from_secs(400);
/// How long the agent may take until it is ready, and until it is idle.
const START_TIMEOUT: Duration = Duration::from_secs(300);
/// How often a starting or settling agent is sampled.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);
/// The agent is idle when it used less than 30 % of a core in each sample of this long: less is periodic work.
const IDLE_TIME: Duration = Duration::from_secs(10);
const BUSY: Duration = Duration::from_millis(150);
/// The unit of start times in `/proc`: `USER_HZ`, the same on every machine.
const TICKS_PER_SECOND: f64 = 100.0;

/// The measured node and its cluster.
#[derive(Clone, Copy)]
pub struct Agent<'a> {
    /// The cluster.
    pub knit: &'a KnitCluster,
    /// The only node that runs.
    pub node: &'a Node,
}

/// A start of the agent.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// From the start of the process until it is ready.
    pub ready: Duration,
    /// From the start of the process until it is idle.
    pub idle: Duration,
    /// CPU time until it is idle.
    pub cpu: Duration,
    /// Bytes from the API server until it is idle.
    pub received: u64,
    /// The peak of its resident memory, in MiB.
    pub peak: f64,
}

/// What the agent used during something.
#[derive(Clone, Copy, Debug)]
pub struct Used {
    /// How long it took.
    pub time: Duration,
    /// CPU time of the agent.
    pub cpu: Duration,
    /// Bytes that it received from the API server.
    pub received: u64,
}

impl Used {
    /// CPU time in percent of one core.
    pub fn cpu_percent(self) -> f64 {
        100.0 * self.cpu.as_secs_f64() / self.time.as_secs_f64()
    }
}

impl Agent<'_> {
    /// The running agent.
    fn program(self) -> Result<Option<Program>> {
        let is_agent = |program: &Program| program.role == "agent" && program.instance == node_name(1);
        Ok(programs::find(self.knit.cluster())?.into_iter().find(is_agent))
    }

    fn running(self) -> Result<Program> {
        self.program()?.context("no agent runs on the node")
    }

    /// Kills the agent, which the kubelet starts again, and waits until it is ready and idle.
    pub fn restart(self) -> Result<Start> {
        let before = self.running()?;
        kill(Pid::from_raw(before.pid), Signal::SIGKILL).context("cannot kill the agent")?;
        let ended = || Ok(if self.is_running(&before)? { Err("it runs".to_owned()) } else { Ok(()) });
        wait_until("the agent ends", START_TIMEOUT, ended)?;
        std::thread::scope(|scope| {
            let ready = scope.spawn(|| self.node.run_in(wait_ready));
            let started = wait_until("the kubelet restarts the agent", RESTART_TIMEOUT, || {
                Ok(self.program()?.ok_or_else(|| "there is no agent".to_owned()))
            })?;
            let start = start_of(&started)?;
            let settled = self.watch_until_idle(&started)?;
            let ready = ready.join().expect("the check of readiness does not panic")?;
            Ok(Start { ready: ready - start, idle: settled.idle - start, ..settled.start })
        })
    }

    fn is_running(self, program: &Program) -> Result<bool> {
        Ok(self.program()?.is_some_and(|running| running.pid == program.pid))
    }

    /// Waits until the agent is idle.
    pub fn settle(self) -> Result<()> {
        self.watch_until_idle(&self.running()?).map(drop)
    }

    /// Samples the agent until it is idle.
    fn watch_until_idle(self, agent: &Program) -> Result<Settled> {
        let (mut received, deadline) = (ByteCounter::received(), Instant::now() + START_TIMEOUT);
        let (mut last_cpu, mut busy_until) = (Duration::ZERO, Instant::now());
        loop {
            let usage = programs::usage(agent)?;
            self.count(&mut received, agent)?;
            let now = Instant::now();
            if usage.cpu - last_cpu >= BUSY {
                busy_until = now;
            }
            last_cpu = usage.cpu;
            if now - busy_until >= IDLE_TIME {
                let start = Start {
                    ready: Duration::ZERO,
                    idle: Duration::ZERO,
                    cpu: usage.cpu,
                    received: received.total(),
                    peak: peak_memory(agent)?,
                };
                return Ok(Settled { idle: busy_until, start });
            }
            if now > deadline {
                bail!("the agent is not idle after {} s", START_TIMEOUT.as_secs());
            }
            std::thread::sleep(SAMPLE_INTERVAL);
        }
    }

    /// Runs something and returns what the agent used meanwhile.
    pub fn during<T>(self, work: impl FnOnce() -> Result<T>) -> Result<(T, Used)> {
        let agent = self.running()?;
        let (mut received, start) = (ByteCounter::received(), Instant::now());
        self.count(&mut received, &agent)?;
        let (before, cpu) = (received.total(), programs::usage(&agent)?.cpu);
        let outcome = work()?;
        let (after, time) = (programs::usage(&agent)?.cpu, start.elapsed());
        self.count(&mut received, &agent)?;
        Ok((outcome, Used { time, cpu: after - cpu, received: received.total() - before }))
    }

    /// Anonymous memory of the agent in MiB.
    pub fn memory(self) -> Result<f64> {
        Ok(programs::usage(&self.running()?)?.anonymous)
    }

    fn count(self, received: &mut ByteCounter, agent: &Program) -> Result<()> {
        let api = format!("{}:6443", self.knit.cluster().addresses().control_plane());
        let flags = "-HtinpO";
        let output = self.knit.on_node(1, &["ss", flags, "state", "established", "dst", &api])?;
        received.update(&output, agent.pid);
        Ok(())
    }
}

/// A start without its times, and when the agent became idle.
struct Settled {
    idle: Instant,
    start: Start,
}

/// Waits until the agent reports that it is ready. The calling thread is in the node's network namespace.
fn wait_ready() -> Result<Instant> {
    let deadline = Instant::now() + RESTART_TIMEOUT + START_TIMEOUT;
    loop {
        let response = readiness().unwrap_or_else(|why| why.to_string());
        let now = Instant::now();
        if response.starts_with("HTTP/1.1 200") {
            return Ok(now);
        }
        if now > deadline {
            bail!("the agent is not ready: {response}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn readiness() -> std::io::Result<String> {
    let mut connection = TcpStream::connect(HEALTH)?;
    connection.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut response = String::new();
    connection.read_to_string(&mut response)?;
    Ok(response)
}

/// When a process was started.
fn start_of(program: &Program) -> Result<Instant> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", program.pid)).context("the agent has ended")?;
    let uptime = fs::read_to_string("/proc/uptime")?;
    let now = Instant::now();
    let age = age(&stat, &uptime).context("cannot read the agent's start time")?;
    now.checked_sub(age).context("the agent is older than the machine")
}

/// The age of a process. Its name may contain anything; the start time is field 22 of its `stat`.
fn age(stat: &str, uptime: &str) -> Option<Duration> {
    let started: f64 = stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()?;
    let uptime: f64 = uptime.split(' ').next()?.parse().ok()?;
    Some(Duration::from_secs_f64((uptime - started / TICKS_PER_SECOND).max(0.0)))
}

fn peak_memory(program: &Program) -> Result<f64> {
    let status =
        fs::read_to_string(format!("/proc/{}/status", program.pid)).context("the agent has ended")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = peak.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    Ok(kibibytes.context("the agent has no VmHWM")? / 1_024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_follows_from_the_start_time() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4 5 6 7 8 9 10 11 12 20 0 1 0 4242 1 2";
        assert_eq!(age(stat, "50.42 3.1\n"), Some(Duration::from_secs(8)));
        assert_eq!(age(stat, "42.00 3.1\n"), Some(Duration::ZERO));
    }
}
