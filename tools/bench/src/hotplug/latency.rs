//! From an object to interfaces that can be used, as the pods' own kernels tell it.
//!
//! An interface can be used when it is up, has a carrier and has its address. Each pod's namespace is listened to by a socket
//! of its own: nothing is asked while the time runs.

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

use super::{Beside, NAMESPACE, Report, Running, label};
use knit_report::Samples;
use knit_soak::harness::object;

/// What interfaces of this benchmark are called at first.
const PREFIX: &str = "hot";
/// The address of the node on each object's bridge: what a pod can reach.
const GATEWAY: &str = "10.77.0.1";
/// An object has this long to be done on all pods.
const LIMIT: Duration = Duration::from_secs(60);
/// Rounds that are run and forgotten.
const WARM_UP: usize = 5;
/// So many rounds with all pods are enough: each is a hundred samples.
const ROUNDS_OF_ALL: usize = 20;
/// What Knit may take at ten pods, in microseconds.
const GOAL: f64 = 100_000.0;

/// Pods that are listened to, and objects for them.
pub struct Hot<'a> {
    pub beside: &'a Beside,
    pods: Vec<Running>,
    heard: Receiver<Heard>,
    listeners: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    watched: Receiver<(Instant, Watched)>,
    watch: tokio::task::JoinHandle<()>,
}

/// What a pod's kernel tells.
struct Heard {
    pod: usize,
    at: Instant,
    is_there: bool,
}

/// What the benchmark's own watch tells of an object.
#[derive(Debug, PartialEq, Eq)]
enum Watched {
    Seen { ready: u64 },
    Gone,
}

impl<'a> Hot<'a> {
    /// Begins to listen in all pods and to watch.
    pub fn start(beside: &'a Beside, pods: Vec<Running>) -> Result<Self> {
        let (tell, heard) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let mut listeners = Vec::new();
        for (number, pod) in pods.iter().enumerate() {
            let socket = Socket::open_in(&pod.netns, Protocol::Route)?;
            socket.subscribe(RTNLGRP_LINK)?;
            socket.subscribe(RTNLGRP_IPV4_IFADDR)?;
            let (tell, stop) = (tell.clone(), Arc::clone(&stop));
            listeners.push(std::thread::spawn(move || listen(number, socket, &tell, &stop)));
        }
        let (tell, watched) = channel();
        let api = beside.objects("podconfig", NAMESPACE)?;
        let watch = beside.runtime().spawn(async move {
            knit_kube::watch("podconfigs", api, watcher::Config::default(), |seen| {
                let news = match seen {
                    WatchUpdate::Applied(found) => Watched::Seen { ready: ready_pods(&found) },
                    WatchUpdate::Deleted(_) => Watched::Gone,
                    WatchUpdate::Listed(_) => return,
                };
                // Whoever waited for it may have given up.
                let _ = tell.send((Instant::now(), news));
            })
            .await;
        });
        Ok(Self { beside, pods, heard, listeners, stop, watched, watch })
    }

    /// Writes and deletes an object for so many pods, over and over. Returns how many attachments that made.
    pub fn measure(&mut self, report: &mut Report, size: usize, rounds: usize) -> Result<usize> {
        let rounds = if size >= 100 { ROUNDS_OF_ALL } else { rounds };
        let [mut watch, mut whole, mut beyond, mut last, mut gone] = [const { Samples::new() }; 5];
        for round in 0..rounds + WARM_UP {
            let Times { began, told, usable } = self.attach(size)?;
            if round == 0 {
                self.check(size)?;
            }
            let away = self.detach(size)?;
            if round < WARM_UP {
                continue;
            }
            watch.add_warm(told - began);
            for at in &usable {
                whole.add_warm(*at - began);
                beyond.add_warm(at.saturating_duration_since(told));
            }
            last.add_warm(
                usable.iter().max().map_or(Duration::ZERO, |at| at.saturating_duration_since(told)),
            );
            away.iter().for_each(|time| gone.add_warm(*time));
        }
        let pods = if size == 1 { "1 pod".to_owned() } else { format!("{size} pods") };
        let name = |what: &str| format!("{pods}: {what}");
        if size < 100 {
            report.add(&name("the API server's own watch"), &watch)?;
        }
        report.add(&name("apply to usable"), &whole)?;
        report.add(&name("beyond the watch"), &beyond)?;
        if size < 100 {
            report.compare(&name("beyond the watch"), &name("the API server's own watch"), None)?;
            if size > 1 {
                report.add(&name("beyond the watch, the last of them"), &last)?;
            }
        }
        if size == 10 {
            report.limit_p99(&name("beyond the watch"), GOAL)?;
            report.limit_p99(&name("beyond the watch, the last of them"), GOAL)?;
        }
        report.add(&name("delete to gone"), &gone)?;
        Ok((rounds + WARM_UP) * size)
    }

    /// Writes an object for so many pods, and waits until all of them have their interface.
    pub fn attach(&mut self, size: usize) -> Result<Times> {
        let api = self.beside.objects("podconfig", NAMESPACE)?;
        let manifest = object(json!({
            "apiVersion": "podconfig.opdev.io/v1alpha1",
            "kind": "PodConfig",
            "metadata": {"name": format!("for-{size}"), "namespace": NAMESPACE},
            "spec": {
                "selector": {"matchLabels": {label(size): "yes"}},
                "networkAttachments": [{"name": PREFIX, "master": "hotbr0", "cidr": "10.77.0.0/16"}],
            },
        }))?;
        let began = Instant::now();
        self.beside.wait(api.create(&PostParams::default(), &manifest))?;
        let usable = self.all(size, true)?;
        let (told, _) = self.watched.recv_timeout(LIMIT).context("the watch tells nothing")?;
        Ok(Times { began, told, usable })
    }

    /// Waits until the object's status counts so many pods. The object was written before.
    pub fn wait_for_status(&mut self, size: usize) -> Result<()> {
        let until = Instant::now() + LIMIT;
        loop {
            let wait = until.saturating_duration_since(Instant::now());
            let (_, news) = self.watched.recv_timeout(wait).context("the status does not come")?;
            if news == (Watched::Seen { ready: size as u64 }) {
                return Ok(());
            }
        }
    }

    /// Deletes the object, and waits until pods and the API server have nothing of it. Says how long each pod took.
    pub fn detach(&mut self, size: usize) -> Result<Vec<Duration>> {
        let api = self.beside.objects("podconfig", NAMESPACE)?;
        let began = Instant::now();
        self.beside.wait(api.delete(&format!("for-{size}"), &DeleteParams::default()))?;
        let gone = self.all(size, false)?;
        loop {
            let (_, news) = self.watched.recv_timeout(LIMIT).context("the object does not go")?;
            if news == Watched::Gone {
                return Ok(gone.into_iter().map(|at| at - began).collect());
            }
        }
    }

    /// When each of so many pods had, or had no more, its interface.
    fn all(&self, size: usize, is_there: bool) -> Result<Vec<Instant>> {
        let until = Instant::now() + LIMIT;
        let mut times = vec![None; size];
        while times.iter().any(Option::is_none) {
            let wait = until.saturating_duration_since(Instant::now());
            let Ok(heard) = self.heard.recv_timeout(wait) else {
                let missing = times.iter().filter(|time| time.is_none()).count();
                bail!("{missing} of {size} pods did not change within {} s", LIMIT.as_secs());
            };
            if let Some(time) = times.get_mut(heard.pod).filter(|_| heard.is_there == is_there) {
                *time = Some(heard.at);
            }
        }
        Ok(times.into_iter().flatten().collect())
    }

    /// What can be used is used: a packet goes there and back.
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

impl Drop for Hot<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.watch.abort();
        for listener in self.listeners.drain(..) {
            // One that panicked has said so.
            let _ = listener.join();
        }
    }
}

/// When what happened with one object.
pub struct Times {
    began: Instant,
    told: Instant,
    usable: Vec<Instant>,
}

fn ready_pods(found: &DynamicObject) -> u64 {
    if found.metadata.deletion_timestamp.is_some() {
        return 0;
    }
    found.data["status"]["readyPods"].as_u64().unwrap_or(0)
}

fn listen(pod: usize, mut socket: Socket, tell: &Sender<Heard>, stop: &AtomicBool) {
    let mut link = Link::default();
    while !stop.load(Ordering::Relaxed) {
        // It is looked at the flag once in a while; a hundred of these must not disturb what is measured.
        let heard = socket.recv_notification(Duration::from_secs(2), |kind, body| {
            if let Some(is_there) = link.hear(kind, body) {
                // Whoever listened may have ended.
                let _ = tell.send(Heard { pod, at: Instant::now(), is_there });
            }
        });
        if heard.is_err() {
            return;
        }
    }
}

/// The interface in one pod.
#[derive(Default)]
struct Link {
    /// Zero while there is none.
    index: i32,
    is_up: bool,
    has_address: bool,
}

impl Link {
    /// Says when it can be used, and when it is gone.
    fn hear(&mut self, kind: u16, body: &[u8]) -> Option<bool> {
        let could = self.is_up && self.has_address;
        match kind {
            RTM_NEWLINK | RTM_DELLINK => {
                let (header, attributes) = LinkHeader::split(body)?;
                let is_named = attributes.first(IFLA_IFNAME)?.str()?.starts_with(PREFIX);
                // What is cut off loses its name first, and is deleted a moment later together with others.
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
        (!could && self.is_up && self.has_address).then_some(true)
    }
}
