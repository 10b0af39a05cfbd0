//! The cluster: what is due happens, one thing at a time, and engines hear of it.

mod blocks;
mod ending;
mod hands;
mod kubelet;
mod reports;
mod trouble;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use knit_engine::blocks::{Block, News, Order};
use knit_engine::{Effect, Event, Record, StoredObject, Unit, step};
use knit_model::SandboxId;

use self::hands::Job;
use self::kubelet::Pod;
pub(crate) use self::kubelet::Step;
use crate::api::{Api, Fault};
use crate::controller::Controller;
use crate::counts::Counts;
use crate::dice::Dice;
use crate::node::Node;
use crate::queue::{MILLIS, MINUTE, Moment, Queue, SECOND};
use crate::scenario::{Tenant, cluster_network};
use crate::trace::{About, Trace};
use crate::{Failure, Options};

/// All pods come within this time.
const FILL: Moment = 3 * MINUTE;
/// Everything is compared with the kernel this often, as an agent does it.
const RESYNC: Moment = MINUTE;
/// Of so many nodes one has its journal read again and again; of a small cluster, all.
const SHADOWS: usize = 8;
/// A cluster of so few nodes is small.
const SMALL: usize = 200;
/// So many lines of what happened are told with a failure.
const LINES: usize = 60;

/// What is going to happen. What belongs to an agent has the number of its life.
pub(crate) enum Due {
    /// Hands are done.
    Job(usize, u32, Box<Job>),
    /// The watch of blocks tells what is new.
    Watch(usize, u32),
    /// A list of blocks arrives, as of this version.
    Listed(usize, u32, Arc<Vec<Arc<Block>>>, usize),
    /// The agent looks at pods and sandboxes.
    Feed(usize, u32),
    /// The agent writes what differs.
    Write(usize, u32),
    /// The agent looks for empty blocks.
    Review(usize, u32),
    /// The agent compares everything with the kernel.
    Resync(usize, u32),
    /// An order of an agent arrives at the API server; the last is the number of the try.
    Arrive(usize, u32, Box<Order>, u64),
    /// The answer arrives at the agent.
    Reply(usize, u32, Box<News>, u64),
    /// Nobody waits for the answer any longer.
    Late(usize, u32, Box<Order>, u64),
    /// It is tried again.
    Again(usize, u32, Box<Order>),
    /// The kubelet begins a pod, calls ADD or DEL for it, or is told to end it.
    Start(u32),
    Add(u32, u64),
    Del(u32),
    Stop(u32),
    /// An agent that was killed begins anew.
    Begin(usize),
    /// The API server can be reached again.
    Heal(usize),
    /// A pod is replaced.
    Churn,
    /// Something goes wrong.
    Trouble,
    /// The controller looks.
    Look,
    /// A second, and a minute, have passed.
    Second,
    Minute,
}

/// How far the simulation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Pods come, then come and go, and things go wrong.
    Busy,
    /// Nothing goes wrong any more, and no pod comes or goes.
    Calm {
        since: Moment,
    },
    /// All pods go.
    Drain {
        since: Moment,
    },
    Done,
}

pub(crate) struct Cluster {
    pub(crate) options: Options,
    pub(crate) dice: Dice,
    pub(crate) queue: Queue<Due>,
    pub(crate) api: Api,
    pub(crate) nodes: Vec<Node>,
    pub(crate) tenants: Vec<Tenant>,
    pub(crate) pods: Vec<Pod>,
    /// Pods that there are, in no order.
    pub(crate) live: Vec<u32>,
    pub(crate) controller: Controller,
    /// Who has an address in its kernel.
    pub(crate) holders: HashMap<IpAddr, (usize, SandboxId)>,
    pub(crate) counts: Counts,
    pub(crate) trace: Trace,
    pub(crate) phase: Phase,
    pub(crate) tries: u64,
    /// What the API server told others already.
    pub(crate) spread: usize,
    failure: Option<Failure>,
}

impl Cluster {
    pub(crate) fn new(options: Options) -> Self {
        let small = options.nodes <= SMALL;
        let nodes = (0..options.nodes).map(|node| Node::new(node, small || node % SHADOWS == 0)).collect();
        let tenants = Tenant::all(options.nodes);
        let controller = Controller::new(options.nodes, &tenants);
        Self {
            dice: Dice::new(options.seed),
            queue: Queue::new(),
            api: Api::with(options.fault),
            nodes,
            tenants,
            pods: Vec::new(),
            live: Vec::new(),
            controller,
            holders: HashMap::new(),
            counts: Counts::default(),
            trace: Trace::default(),
            phase: Phase::Busy,
            tries: 0,
            spread: 0,
            failure: None,
            options,
        }
    }

    pub(crate) fn run(mut self, mut tell: impl FnMut(&str)) -> Result<Counts, Failure> {
        self.set_up();
        let mut told = 0;
        while self.phase != Phase::Done {
            let Some(due) = self.queue.next() else { break };
            self.counts.happenings += 1;
            self.happen(due);
            if let Some(failure) = self.failure {
                return Err(failure);
            }
            if self.queue.now() / (30 * SECOND) != told {
                told = self.queue.now() / (30 * SECOND);
                tell(&self.summary());
            }
        }
        Ok(self.result())
    }

    fn set_up(&mut self) {
        let objects: Vec<StoredObject> = self.tenants.iter().map(Tenant::stored).collect();
        for node in 0..self.nodes.len() {
            self.hear(node, Event::ObjectApplied(cluster_network(node)));
            for object in &objects {
                self.hear(node, Event::ObjectApplied(object.clone()));
            }
            self.list(node);
            let first = self.dice.below(5 * SECOND);
            self.queue.after(first, Due::Review(node, 0));
            let first = self.dice.below(RESYNC);
            self.queue.after(first, Due::Resync(node, 0));
        }
        for _ in 0..self.options.pods {
            let at = self.dice.below(FILL);
            let pod = self.new_pod();
            self.queue.after(at, Due::Start(pod));
        }
        self.queue.after(FILL, Due::Churn);
        self.queue.after(FILL / 2, Due::Trouble);
        self.queue.after(MINUTE, Due::Minute);
        self.queue.after(SECOND, Due::Second);
        self.queue.after(MILLIS, Due::Look);
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::Job(node, life, job) if self.lives(node, life) => self.job_done(node, *job),
            Due::Watch(node, life) if self.lives(node, life) => self.watch(node),
            Due::Listed(node, life, all, version) if self.lives(node, life) => {
                self.listed(node, &all, version);
            }
            Due::Feed(node, life) if self.lives(node, life) => self.feed(node),
            Due::Write(node, life) if self.lives(node, life) => self.write(node),
            Due::Review(node, life) if self.lives(node, life) => self.review(node),
            Due::Resync(node, life) if self.lives(node, life) => {
                self.queue.after(RESYNC, Due::Resync(node, life));
                self.hear(node, Event::Resync);
            }
            // What was sent arrives, whoever waits for the answer.
            Due::Arrive(node, life, order, attempt) => self.arrive(node, life, *order, attempt),
            Due::Reply(node, life, news, attempt) if self.lives(node, life) => {
                self.reply(node, *news, attempt);
            }
            Due::Late(node, life, order, attempt) if self.lives(node, life) => {
                self.late(node, *order, attempt);
            }
            Due::Again(node, life, order) if self.lives(node, life) => self.again(node, *order),
            Due::Start(pod) => self.start(pod),
            Due::Add(pod, sandbox) => self.add(pod, sandbox),
            Due::Del(pod) => self.del(pod),
            Due::Stop(pod) => self.stop(pod),
            Due::Begin(node) => self.begin(node),
            Due::Heal(node) => self.heal(node),
            Due::Churn => self.churn(),
            Due::Trouble => self.trouble(),
            Due::Look => self.controller_looks(),
            Due::Second => self.second(),
            Due::Minute => {
                self.check();
                self.queue.after(MINUTE, Due::Minute);
            }
            // Of a life that is over.
            _ => {}
        }
    }

    fn lives(&self, node: usize, life: u32) -> bool {
        let node = &self.nodes[node];
        node.life == life && node.is_up && !node.is_gone
    }

    /// Whether things may go wrong.
    pub(crate) fn is_busy(&self) -> bool {
        self.phase == Phase::Busy
    }

    /// The node's engine hears an event, and what follows from it is begun.
    pub(crate) fn hear(&mut self, node: usize, event: Event) {
        self.counts.steps += 1;
        let now = self.nodes[node].clock(self.queue.now());
        let effects = step(&mut self.nodes[node].state, event, now);
        let has_effects = !effects.is_empty();
        let mut answers = Vec::new();
        for effect in effects {
            match effect {
                Effect::Journal(record) => self.journal(node, &record),
                Effect::Observe { unit, look } => self.work(node, Job::Observe(unit, look)),
                Effect::Apply { unit, plan } => {
                    self.nodes[node].applying.insert(unit.clone(), Arc::clone(&plan));
                    self.work(node, Job::Apply(unit, plan));
                }
                Effect::Inspect { call, path } => self.work(node, Job::Inspect(call, path)),
                Effect::Forward(_) => self.work(node, Job::Forward),
                Effect::Changed(_) => {}
                Effect::Block(order) => self.send(node, order),
                Effect::Answer { call, answer } => answers.push((call, answer)),
                other => self.fail(&[node], format!("nobody asked for {other:?}")),
            }
        }
        for (call, answer) in answers {
            self.answered(node, &call, answer);
        }
        if has_effects {
            self.write_soon(node);
        }
    }

    /// Writes a record down. On some nodes it is read at once, as after a restart; that it comes back from a disk as it was
    /// is held by the engine's own tests.
    pub(crate) fn journal(&mut self, node: usize, record: &Record) {
        if let Record::Ended(ended) = record
            && let Unit::Sandbox(id) = &ended.unit
            && ended.made.as_ref().is_some_and(|made| made.interfaces.len() > 1)
        {
            self.has_second(node, id);
        }
        let is_lost = self.options.fault == Some(Fault::LosesBlockGone);
        if is_lost && matches!(record, Record::BlockGone { .. }) {
            return;
        }
        if let Some(shadow) = &mut self.nodes[node].shadow {
            shadow.record(record);
        }
    }

    pub(crate) fn note(&mut self, node: usize, what: &'static str, about: About) {
        self.trace.add(self.queue.now(), node, what, about);
    }

    /// Something is wrong that has to do with these nodes. The first thing counts.
    pub(crate) fn fail(&mut self, nodes: &[usize], what: String) {
        if self.failure.is_none() {
            let last = self.trace.last(nodes, LINES);
            self.failure = Some(Failure { seed: self.options.seed, what, last });
        }
    }

    fn summary(&self) -> String {
        let seconds = self.queue.now() / SECOND;
        format!(
            "{:>3}:{:02}  {} pods, {} blocks, {} requests, {} steps, {} waiting",
            seconds / 60,
            seconds % 60,
            self.live.len(),
            self.api.blocks().count(),
            self.api.requests.values().sum::<u64>(),
            self.counts.steps,
            self.queue.len(),
        )
    }

    fn result(mut self) -> Counts {
        self.counts.requests = std::mem::take(&mut self.api.requests);
        self.counts.claimed = self.api.claimed;
        self.counts.conflicts = self.api.conflicts;
        self.counts.given_back = self.api.given_back;
        self.counts.most_waiting = self.queue.most() as u64;
        self.counts.clock = self.queue.now();
        self.counts
    }
}
