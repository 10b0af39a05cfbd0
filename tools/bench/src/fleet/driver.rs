//! A measured child process of the benchmark: what it uses, and the fleet process's messages.

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufReader;
use std::process::{Child, ChildStdin, Command as Program, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::protocol::{self, Command, FleetPod, Reply};
use crate::cleanup::Cleanup;
use crate::scale::received::ByteCounter;
use knit_dev::process;
use knit_soak::harness::KnitCluster;
use knit_soak::harness::programs;

/// How long a command may take.
const TIMEOUT: Duration = Duration::from_secs(240);
/// A process is idle if it used less than this in each of two samples. Less is periodic work.
const SAMPLE: Duration = Duration::from_secs(1);
const BUSY: Duration = Duration::from_millis(100);
/// Periodic work of one agent in a sample.
const BUSY_PER_AGENT: Duration = Duration::from_millis(4);
/// How long a process may take to become idle.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(180);

/// What a process has used so far.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// When this was read.
    pub at: Instant,
    /// CPU time.
    pub cpu: Duration,
    /// Bytes from the API server.
    pub received: u64,
    /// Bytes to the API server.
    pub sent: u64,
    /// Anonymous memory in MiB.
    pub memory: f64,
}

/// A child process that uses the API server.
pub struct Measured {
    child: Arc<Mutex<Child>>,
    pid: i32,
    api: String,
    received: ByteCounter,
    sent: ByteCounter,
}

impl Measured {
    /// Starts a program. It ends with this, and on a signal.
    pub fn start(program: &mut Program, knit: &KnitCluster, cleanup: &Cleanup) -> Result<Self> {
        let child = program.spawn().with_context(|| format!("cannot start `{}`", process::line(program)))?;
        let pid = child.id().cast_signed();
        let child = Arc::new(Mutex::new(child));
        let to_kill = Arc::clone(&child);
        cleanup.defer(move || end(&to_kill));
        let api = format!("{}:6443", knit.cluster().addresses().control_plane());
        Ok(Self { child, pid, api, received: ByteCounter::received(), sent: ByteCounter::sent() })
    }

    /// The process itself.
    pub fn child(&self) -> &Mutex<Child> {
        &self.child
    }

    /// What it has used so far. Connections are counted whenever this is called: one that lives shorter is missed.
    pub fn usage(&mut self) -> Result<Usage> {
        let mut ss = Program::new("ss");
        let output = process::output(ss.args(["-HtinpO", "state", "established", "dst", &self.api]))?;
        self.received.update(&output, self.pid);
        self.sent.update(&output, self.pid);
        let at = Instant::now();
        let program = programs::Program { role: "child".to_owned(), instance: String::new(), pid: self.pid };
        let usage = programs::usage(&program)?;
        let (received, sent) = (self.received.total(), self.sent.total());
        Ok(Usage { at, cpu: usage.cpu, received, sent, memory: usage.anonymous })
    }

    /// Waits until it is idle, with the periodic work of this many agents. Returns what it has used then.
    pub fn settle(&mut self, agents: usize) -> Result<Usage> {
        let busy = BUSY + BUSY_PER_AGENT * u32::try_from(agents).unwrap_or(u32::MAX);
        let (deadline, mut last, mut idle) = (Instant::now() + SETTLE_TIMEOUT, self.usage()?, 0);
        while idle < 2 {
            std::thread::sleep(SAMPLE);
            let now = self.usage()?;
            idle = if now.cpu - last.cpu < busy { idle + 1 } else { 0 };
            last = now;
            if Instant::now() > deadline {
                bail!("the process is not idle after {} s", SETTLE_TIMEOUT.as_secs());
            }
        }
        Ok(last)
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        end(&self.child);
    }
}

fn end(child: &Mutex<Child>) {
    let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
    // It may have ended already.
    let _ = child.kill();
    let _ = child.wait();
}

/// The fleet process.
pub struct Fleet {
    /// The process.
    pub process: Measured,
    commands: ChildStdin,
    replies: Receiver<Result<Reply>>,
    /// When plans of pods were applied, by uid; in the order of their messages.
    applied: BTreeMap<String, Vec<u64>>,
}

impl Fleet {
    /// Starts the process, without agents.
    pub fn start(knit: &KnitCluster, cleanup: &Cleanup) -> Result<Self> {
        let mut program = Program::new(std::env::current_exe().context("this program has no path")?);
        program.arg("fleet-process").arg("--kubeconfig").arg(knit.cluster().kubeconfig());
        program.stdin(Stdio::piped()).stdout(Stdio::piped());
        let process = Measured::start(&mut program, knit, cleanup)?;
        let (commands, output) = {
            let mut child = process.child.lock().unwrap_or_else(PoisonError::into_inner);
            (child.stdin.take().context("no standard input")?, child.stdout.take().context("no output")?)
        };
        let (sender, replies) = channel();
        std::thread::spawn(move || {
            for reply in protocol::read(BufReader::new(output)) {
                // The benchmark may have ended with an error.
                if sender.send(reply).is_err() {
                    return;
                }
            }
        });
        Ok(Self { process, commands, replies, applied: BTreeMap::new() })
    }

    /// Starts agents and waits until they have synced.
    pub fn start_agents(&mut self, nodes: Vec<String>) -> Result<()> {
        self.send(&Command::Start(nodes))?;
        self.wait("the agents sync", |reply| matches!(reply, Reply::Synced).then_some(()))
    }

    /// Runs pods. Returns their addresses by uid.
    pub fn start_pods(&mut self, pods: Vec<FleetPod>) -> Result<BTreeMap<String, Vec<String>>> {
        let (number, mut started) = (pods.len(), BTreeMap::new());
        self.send(&Command::StartPods(pods))?;
        while started.len() < number {
            let (uid, addresses) = self.wait("pods start", |reply| match reply {
                Reply::PodStarted { uid, addresses } => Some((uid.clone(), addresses.clone())),
                _ => None,
            })?;
            started.insert(uid, addresses);
        }
        Ok(started)
    }

    /// Stops pods by uid.
    pub fn stop_pods(&mut self, uids: Vec<String>) -> Result<()> {
        let mut left: BTreeSet<String> = uids.iter().cloned().collect();
        self.send(&Command::StopPods(uids))?;
        while !left.is_empty() {
            let stopped = self.wait("pods stop", |reply| match reply {
                Reply::PodStopped { uid } => Some(uid.clone()),
                _ => None,
            })?;
            left.remove(&stopped);
        }
        Ok(())
    }

    /// The CPU time of the simulated kernels so far.
    pub fn kernel_time(&mut self) -> Result<Duration> {
        self.send(&Command::ReportKernelTime)?;
        self.wait("the simulated kernels report", |reply| match reply {
            Reply::KernelTime(time) => Some(Duration::from_nanos(*time)),
            _ => None,
        })
    }

    /// Waits until a plan was applied for each of these pods after its start. Returns the time of each.
    pub fn wait_applied(&mut self, starts: &BTreeMap<String, u64>) -> Result<Vec<Duration>> {
        loop {
            let first = |(uid, start): (&String, &u64)| {
                let at = self.applied.get(uid)?.iter().find(|at| *at >= start)?;
                Some(Duration::from_nanos(at - start))
            };
            let times: Vec<Duration> = starts.iter().filter_map(first).collect();
            if times.len() == starts.len() {
                // Later ones belong to what follows.
                self.applied.clear();
                return Ok(times);
            }
            self.wait("plans are applied", |reply| matches!(reply, Reply::Applied { .. }).then_some(()))?;
        }
    }

    fn send(&mut self, command: &Command) -> Result<()> {
        protocol::write(&mut self.commands, command)
    }

    /// Waits for a reply. Applied plans are recorded meanwhile.
    fn wait<T>(&mut self, what: &str, matches: impl Fn(&Reply) -> Option<T>) -> Result<T> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let reply = match self.replies.recv_timeout(left) {
                Ok(reply) => reply?,
                Err(RecvTimeoutError::Timeout) => bail!("{what}: not after {} s", TIMEOUT.as_secs()),
                Err(RecvTimeoutError::Disconnected) => bail!("{what}: the fleet process has ended"),
            };
            match &reply {
                Reply::Failed(why) => bail!("{what}: {why}"),
                Reply::Applied { uid, at } => self.applied.entry(uid.clone()).or_default().push(*at),
                _ => {}
            }
            if let Some(found) = matches(&reply) {
                return Ok(found);
            }
        }
    }
}
