//! From an object to usable interfaces, observed by the pods' kernels.
//!
//! An interface is usable when it is up, has a carrier and has its address. A netlink socket per pod receives notifications;
//! nothing is polled during the measurement.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use knit_kernel::Socket;
use knit_kernel::netlink::constants::{
    IFF_LOWER_UP, IFF_UP, IFLA_IFNAME, RTM_DELLINK, RTM_NEWADDR, RTM_NEWLINK, RTNLGRP_IPV4_IFADDR,
    RTNLGRP_LINK,
};
use knit_kernel::netlink::header::{AddressHeader, LinkHeader};
use knit_kernel::netlink::{Header as _, Protocol};
use knit_kube::WatchUpdate;
use knit_kube::kube::api::{DeleteParams, DynamicObject, PostParams};
use knit_kube::kube::runtime::watcher;
use serde_json::json;

use super::{KnitCluster, NAMESPACE, Report, RunningPod, label};
use knit_report::Samples;
use knit_soak::harness::parse_object;

/// The name prefix of the benchmark's interfaces.
const PREFIX: &str = "hot";
/// The address of the node on the object's bridge, for the reachability check.
const GATEWAY: &str = "10.77.0.1";
/// How long an object may take until it is realized on all pods.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Rounds that do not count.
const WARM_UP: usize = 5;
/// Fewer rounds with all pods: each gives a hundred samples.
const ROUNDS_WITH_ALL_PODS: usize = 20;
/// The goal for Knit's latency with ten pods, in microseconds.
const MAX_LATENCY_US: f64 = 100_000.0;

/// Observed pods, and objects for them.
pub struct Hotplug<'a> {
    pub knit: &'a KnitCluster,
    pods: Vec<RunningPod>,
    interfaces: Receiver<InterfaceEvent>,
    listeners: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    objects: Receiver<(Instant, ObjectEvent)>,
    watch: tokio::task::JoinHandle<()>,
}

/// An interface of a pod became usable or was removed.
struct InterfaceEvent {
    pod: usize,
    at: Instant,
    is_usable: bool,
}

/// An event of the benchmark's own watch.
#[derive(Debug, PartialEq, Eq)]
enum ObjectEvent {
    Applied { ready_pods: u64 },
    Deleted,
}

impl<'a> Hotplug<'a> {
    /// Starts listening in all pods, and the watch.
    pub fn start(knit: &'a KnitCluster, pods: Vec<RunningPod>) -> Result<Self> {
        let (sender, interfaces) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let mut listeners = Vec::new();
        for (number, pod) in pods.iter().enumerate() {
            let socket = Socket::open_in(&pod.netns, Protocol::Route)?;
            socket.subscribe(RTNLGRP_LINK)?;
            socket.subscribe(RTNLGRP_IPV4_IFADDR)?;
            let (sender, stop) = (sender.clone(), Arc::clone(&stop));
            listeners.push(std::thread::spawn(move || listen(number, socket, &sender, &stop)));
        }
        let (sender, objects) = channel();
        let api = knit.objects("podconfig", NAMESPACE)?;
        let watch = knit.runtime().spawn(async move {
            knit_kube::watch("podconfigs", api, watcher::Config::default(), |event| {
                let event = match event {
                    WatchUpdate::Applied(found) => ObjectEvent::Applied { ready_pods: ready_pods(&found) },
                    WatchUpdate::Deleted(_) => ObjectEvent::Deleted,
                    WatchUpdate::Listed(_) => return,
                };
                // The receiver may have timed out.
                let _ = sender.send((Instant::now(), event));
            })
            .await;
        });
        Ok(Self { knit, pods, interfaces, listeners, stop, objects, watch })
    }

    /// Creates and deletes an object for this many pods repeatedly. Returns the number of attachments.
    pub fn measure(&mut self, report: &mut Report, size: usize, rounds: usize) -> Result<usize> {
        let rounds = if size >= 100 { ROUNDS_WITH_ALL_PODS } else { rounds };
        let [mut watch, mut total, mut after_event, mut last, mut removed] = [const { Samples::new() }; 5];
        for round in 0..rounds + WARM_UP {
            let Times { start, notified, usable } = self.attach(size)?;
            if round == 0 {
                self.check(size)?;
            }
            let removals = self.detach(size)?;
            if round < WARM_UP {
                continue;
            }
            watch.add_warm(notified - start);
            for at in &usable {
                total.add_warm(*at - start);
                after_event.add_warm(at.saturating_duration_since(notified));
            }
            last.add_warm(
                usable.iter().max().map_or(Duration::ZERO, |at| at.saturating_duration_since(notified)),
            );
            removals.iter().for_each(|time| removed.add_warm(*time));
        }
        let pods = if size == 1 { "1 pod".to_owned() } else { format!("{size} pods") };
        let name = |what: &str| format!("{pods}: {what}");
        if size < 100 {
            report.add(&name("API server watch latency"), &watch)?;
        }
        report.add(&name("apply to usable"), &total)?;
        report.add(&name("after the watch event"), &after_event)?;
        if size < 100 {
            report.compare(&name("after the watch event"), &name("API server watch latency"), None)?;
            if size > 1 {
                report.add(&name("after the watch event, last pod"), &last)?;
            }
        }
        if size == 10 {
            report.limit_p99(&name("after the watch event"), MAX_LATENCY_US)?;
            report.limit_p99(&name("after the watch event, last pod"), MAX_LATENCY_US)?;
        }
        report.add(&name("delete to removed"), &removed)?;
        Ok((rounds + WARM_UP) * size)
    }

    /// Creates an object for this many pods, and waits until all of them have their interface.
    pub fn attach(&mut self, size: usize) -> Result<Times> {
        let api = self.knit.objects("podconfig", NAMESPACE)?;
        let manifest = parse_object(json!({
            "apiVersion": "podconfig.opdev.io/v1alpha1",
            "kind": "PodConfig",
            "metadata": {"name": format!("for-{size}"), "namespace": NAMESPACE},
            "spec": {
                "selector": {"matchLabels": {label(size): "yes"}},
                "networkAttachments": [{"name": PREFIX, "master": "hotbr0", "cidr": "10.77.0.0/16"}],
            },
        }))?;
        let start = Instant::now();
        self.knit.block_on(api.create(&PostParams::default(), &manifest))?;
        let usable = self.wait_interfaces(size, true)?;
        let (notified, _) = self.objects.recv_timeout(TIMEOUT).context("no watch event arrives")?;
        Ok(Times { start, notified, usable })
    }

    /// Waits until the object's status counts this many pods. The object was created before.
    pub fn wait_for_status(&mut self, size: usize) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let wait = deadline.saturating_duration_since(Instant::now());
            let (_, event) = self.objects.recv_timeout(wait).context("the status is not updated")?;
            if event == (ObjectEvent::Applied { ready_pods: size as u64 }) {
                return Ok(());
            }
        }
    }

    /// Deletes the object, and waits until pods and API server have nothing of it. Returns how long each pod took.
    pub fn detach(&mut self, size: usize) -> Result<Vec<Duration>> {
        let api = self.knit.objects("podconfig", NAMESPACE)?;
        let start = Instant::now();
        self.knit.block_on(api.delete(&format!("for-{size}"), &DeleteParams::default()))?;
        let removed = self.wait_interfaces(size, false)?;
        loop {
            let (_, event) = self.objects.recv_timeout(TIMEOUT).context("the object is not deleted")?;
            if event == ObjectEvent::Deleted {
                return Ok(removed.into_iter().map(|at| at - start).collect());
            }
        }
    }

    /// When the interface of each pod became usable, or was removed.
    fn wait_interfaces(&self, size: usize, is_usable: bool) -> Result<Vec<Instant>> {
        let deadline = Instant::now() + TIMEOUT;
        let mut times = vec![None; size];
        while times.iter().any(Option::is_none) {
            let wait = deadline.saturating_duration_since(Instant::now());
            let Ok(event) = self.interfaces.recv_timeout(wait) else {
                let missing = times.iter().filter(|time| time.is_none()).count();
                bail!("{missing} of {size} pods did not change within {} s", TIMEOUT.as_secs());
            };
            if let Some(time) = times.get_mut(event.pod).filter(|_| event.is_usable == is_usable) {
                *time = Some(event.at);
            }
        }
        Ok(times.into_iter().flatten().collect())
    }

    /// Checks that usable interfaces carry packets.
    fn check(&self, size: usize) -> Result<()> {
        for pod in self.pods.iter().take(size) {
            let mut ping = std::process::Command::new("ping");
            ping.args(["-c", "1", "-W", "2", GATEWAY]);
            let reached = pod.netns.enter(|| knit_dev::process::output(&mut ping))?;
            reached.with_context(|| format!("{} cannot use its interface", pod.name))?;
        }
        Ok(())
    }
}

impl Drop for Hotplug<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.watch.abort();
        for listener in self.listeners.drain(..) {
            // A listener that panicked has printed why.
            let _ = listener.join();
        }
    }
}

/// The times of one object.
pub struct Times {
    start: Instant,
    notified: Instant,
    usable: Vec<Instant>,
}

fn ready_pods(found: &DynamicObject) -> u64 {
    if found.metadata.deletion_timestamp.is_some() {
        return 0;
    }
    found.data["status"]["readyPods"].as_u64().unwrap_or(0)
}

fn listen(pod: usize, mut socket: Socket, sender: &Sender<InterfaceEvent>, stop: &AtomicBool) {
    let mut link = InterfaceState::default();
    while !stop.load(Ordering::Relaxed) {
        // The flag is checked rarely: a hundred of these threads must not disturb the measurement.
        let received = socket.recv_notification(Duration::from_secs(2), |kind, body| {
            if let Some(is_usable) = link.on_message(kind, body) {
                // The receiver may have ended.
                let _ = sender.send(InterfaceEvent { pod, at: Instant::now(), is_usable });
            }
        });
        if received.is_err() {
            return;
        }
    }
}

/// The interface in one pod.
#[derive(Default)]
struct InterfaceState {
    /// Zero while it does not exist.
    index: i32,
    is_up: bool,
    has_address: bool,
}

impl InterfaceState {
    /// Returns `true` when the interface becomes usable and `false` when it is removed.
    fn on_message(&mut self, kind: u16, body: &[u8]) -> Option<bool> {
        let was_usable = self.is_up && self.has_address;
        match kind {
            RTM_NEWLINK | RTM_DELLINK => {
                let (header, attributes) = LinkHeader::split(body)?;
                let is_named = attributes.first(IFLA_IFNAME)?.str()?.starts_with(PREFIX);
                // A disconnected link is renamed first; its deletion is deferred.
                if (kind == RTM_DELLINK || !is_named) && header.index == self.index {
                    *self = Self::default();
                    return Some(false);
                }
                if kind == RTM_DELLINK || !is_named {
                    return None;
                }
                self.index = header.index;
                self.is_up = header.flags & IFF_UP != 0 && header.flags & IFF_LOWER_UP != 0;
            }
            RTM_NEWADDR => {
                let header = AddressHeader::decode(body)?;
                self.has_address |= i32::try_from(header.index) == Ok(self.index);
            }
            _ => {}
        }
        (!was_usable && self.is_up && self.has_address).then_some(true)
    }
}
