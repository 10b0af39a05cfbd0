//! The loop: one message after the other, and what follows from each.

mod cluster;
mod extensions;
mod fed;
mod jobs;
mod notices;
mod told;
mod work;

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use knit_engine::blocks::Order;
use knit_engine::{Answer, CallId, Event, Record};
use knit_kernel::fault::Observer;
use knit_model::problem::{Problem, Reason};
use tokio::sync::{broadcast, mpsc, watch};

use super::feed::{self, Change};
use super::folder::Folder;
use super::outgoing::Callers;
use super::pool::{self, Pool};
use super::{Incoming, Message, Options, Reply};
use crate::error::{Error, Result};
use crate::forward::LastFilter;
use crate::hands::Task;
use crate::metrics::Metrics;
use crate::node::{Heard, Node};
use crate::sockets;
use told::Told;

/// Cut-off links are deleted this long after the first of them, all together: meanwhile nobody changes any network, which takes the
/// kernel some 20 ms each time.
const REAP_AFTER: Duration = Duration::from_millis(500);
/// A node whose journal failed is opened anew after this long.
const OPEN_AGAIN: Duration = Duration::from_secs(1);
/// Whoever waits when the agent ends is waited for this long.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// After the kernel failed to answer, everything is compared again this soon.
const SOON: Duration = Duration::from_secs(1);
/// The folder of objects is looked at this often.
const FOLDER: Duration = Duration::from_millis(500);
/// While something is being made, strays wait this long before they are looked for again.
const SWEEP_AGAIN: Duration = Duration::from_millis(200);

/// What connects the loop with everyone else.
pub(super) struct Ends {
    pub(super) incoming: Incoming,
    pub(super) sender: Sender<Message>,
    pub(super) changes: broadcast::Sender<Arc<Change>>,
    pub(super) repairs: broadcast::Sender<feed::Repaired>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) callers: Callers,
    pub(super) sockets: sockets::Desk,
    pub(super) version: watch::Sender<u64>,
    pub(super) orders: mpsc::UnboundedSender<Order>,
}

struct Waiter {
    done: Reply,
    since: Instant,
    what: &'static str,
}

/// Why the loop ends.
enum End {
    Stop,
    Failed(Error),
}

struct Turn<'a> {
    node: Node,
    life: u64,
    ends: &'a Ends,
    options: &'a mut Options,
    pool: &'a mut Pool,
    folder: Option<Folder>,
    pending: VecDeque<Message>,
    waiters: BTreeMap<CallId, Waiter>,
    works: Vec<work::UnderWay>,
    /// How many jobs are under way that delete what was cut off.
    reaping: usize,
    /// What people are told of repairs and problems.
    told: Told,
    reap_at: Option<Instant>,
    census_at: Instant,
    resync_at: Instant,
    /// When strays are to be looked for, after everything was compared.
    sweep_at: Option<Instant>,
    folder_at: Instant,
    stopping: Option<Instant>,
    /// Whether something is another since the last message.
    is_news: bool,
}

/// Lives as long as the daemon; one node after the other, if the journal fails.
pub(super) fn run(
    mut options: Options,
    faults: Option<Box<dyn Observer + Send>>,
    ends: Ends,
    ready: &Sender<Result<()>>,
) {
    let mut pool: Option<Pool> = None;
    let mut faults = faults;
    // The pool's hands stay, whatever becomes of a node.
    let filter = LastFilter::default();
    for life in 0.. {
        let opened = open(&options, filter.clone(), faults.take()).and_then(|node| {
            if pool.is_none() {
                let hands = (0..options.hands).map(|_| node.spare_hands()).collect::<Result<Vec<_>>>()?;
                pool = Some(Pool::start(hands, &ends.sender)?);
                notices::start(&ends)?;
            }
            Ok(node)
        });
        let failure = match (opened, &mut pool) {
            (Ok(node), Some(pool)) => {
                let _ = ready.send(Ok(()));
                match Turn::new(node, life, &ends, &mut options, pool).run() {
                    End::Stop => return,
                    End::Failed(why) => why,
                }
            }
            (Ok(_), None) => Error::Ended,
            (Err(why), _) if life == 0 => {
                let _ = ready.send(Err(why));
                return;
            }
            (Err(why), _) => why,
        };
        tracing::error!(why = %failure, "the node's state cannot be used: it is opened anew");
        ends.metrics.failed(Reason::KernelRefused);
        if refuse_for_a_while(&ends, pool.as_mut(), &failure) {
            return;
        }
    }
}

fn open(options: &Options, filter: LastFilter, faults: Option<Box<dyn Observer + Send>>) -> Result<Node> {
    let (mut node, notes) = Node::open_with(&options.state_dir, options.secrets.clone())?;
    for note in notes {
        tracing::warn!("{note}");
    }
    node.set_redirect(Arc::clone(&options.redirect));
    node.set_filter(filter);
    if let Some(faults) = faults {
        node.set_faults(faults);
    }
    Ok(node)
}

/// Answers everyone that the state cannot be used, until it is worth another try and no job is under way. Says whether the
/// daemon is to end.
fn refuse_for_a_while(ends: &Ends, mut pool: Option<&mut Pool>, why: &Error) -> bool {
    let until = Instant::now() + OPEN_AGAIN;
    loop {
        let busy = pool.as_ref().is_some_and(|pool| pool.under_way > 0);
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() && !busy {
            return false;
        }
        match ends.incoming.recv_timeout(left.max(Duration::from_millis(10))) {
            Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => return true,
            Ok(Message::Done(_)) => {
                if let Some(pool) = &mut pool {
                    pool.under_way = pool.under_way.saturating_sub(1);
                }
            }
            // Dropping what whoever asks waits for tells them.
            Ok(Message::Cluster(_, answer)) => {
                let _ = answer.send(Err(why.to_string()));
            }
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

impl<'a> Turn<'a> {
    fn new(node: Node, life: u64, ends: &'a Ends, options: &'a mut Options, pool: &'a mut Pool) -> Self {
        let now = Instant::now();
        let folder = options.objects.clone().map(|path: PathBuf| Folder::new(path));
        Self {
            told: Told::of(node.state()),
            node,
            life,
            ends,
            folder,
            pending: VecDeque::new(),
            waiters: BTreeMap::new(),
            works: Vec::new(),
            reaping: 0,
            reap_at: Some(now + REAP_AFTER),
            census_at: now + options.census,
            // What changed while no agent ran is repaired first.
            resync_at: now,
            sweep_at: None,
            folder_at: now,
            stopping: None,
            is_news: false,
            options,
            pool,
        }
    }

    fn run(mut self) -> End {
        let cluster = self.options.cluster.clone();
        let chains = self.options.chains.clone();
        let mut outcome =
            self.begin_cluster(cluster).and_then(|()| self.hear(Event::ChainsConfigured(chains)));
        loop {
            if let Err(why) = outcome {
                return End::Failed(why);
            }
            if self.is_over() {
                if let Err(why) = self.node.sync() {
                    tracing::error!(%why, "what was written down last may be lost");
                }
                return End::Stop;
            }
            outcome = match self.next() {
                Some(message) => self.take(message),
                None => self.on_time(),
            };
            self.end_works();
            self.node.go_direct();
            if std::mem::take(&mut self.is_news) {
                self.ends.version.send_modify(|version| *version += 1);
            }
        }
    }

    fn is_over(&self) -> bool {
        let idle = self.waiters.is_empty() && self.works.is_empty() && self.pool.under_way == 0;
        self.stopping.is_some_and(|until| idle || Instant::now() >= until)
    }

    /// The next message; `None` when something is due first.
    fn next(&mut self) -> Option<Message> {
        let mut until = self.census_at.min(self.resync_at);
        let others = self.reap_at.into_iter().chain(self.sweep_at);
        until = others.chain(self.owed_at().filter(|_| self.stopping.is_none())).fold(until, Instant::min);
        if self.folder.is_some() {
            until = until.min(self.folder_at);
        }
        if self.stopping.is_some() {
            until = until.min(Instant::now() + Duration::from_millis(20));
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        self.pending.pop_front().or_else(|| self.ends.incoming.recv_timeout(left).ok())
    }

    fn take(&mut self, message: Message) -> Result<()> {
        match message {
            Message::Call { call, event, done } => self.call(call, event, done),
            Message::Cancel(call, ticket) => {
                self.waiters.remove(&call);
                self.hear(Event::CallCancelled { call, ticket })
            }
            Message::Ask(question) => {
                question(&mut self.node);
                self.reap_soon();
                Ok(())
            }
            Message::Work(work) => self.work(work),
            Message::Fed(news) => self.fed(news),
            Message::Noticed(notice) => self.noticed(&notice),
            Message::Done(finished) => {
                self.pool.under_way = self.pool.under_way.saturating_sub(1);
                if finished.life == self.life { self.finished(finished) } else { Ok(()) }
            }
            Message::Invoked { life, id, told } if life == self.life => {
                self.hear(Event::Invoked { id, told })
            }
            Message::Invoked { .. } => Ok(()),
            Message::Offered { life, offered } if life == self.life => self.hear(Event::Offered(offered)),
            Message::Offered { .. } => Ok(()),
            Message::Cluster(cluster, answer) => {
                let outcome = self.change_cluster(cluster);
                let told = outcome.as_ref().map(|_| ()).map_err(ToString::to_string);
                let _ = answer.send(told);
                // A refusal is only the asker's; a journal that fails is everyone's.
                outcome.or_else(|why| if matches!(why, Error::InUse { .. }) { Ok(()) } else { Err(why) })
            }
            Message::Stop => {
                self.stopping = Some(Instant::now() + LAST_ANSWERS);
                Ok(())
            }
        }
    }

    fn call(&mut self, call: CallId, event: Event, done: Reply) -> Result<()> {
        let refusal = if self.stopping.is_some() {
            Some((Reason::Busy, "the agent is ending".to_owned()))
        } else if self.waiters.contains_key(&call) {
            Some((Reason::Conflict, format!("a call {call} is under way already")))
        } else {
            None
        };
        if let Some((reason, message)) = refusal {
            done(&self.node, Answer::Failed(Problem { field: String::new(), reason, message }));
            return Ok(());
        }
        let what = match &event {
            Event::AttachRequested(_) => "attach",
            Event::DetachRequested(_) => "detach",
            Event::CollectRequested(_) => "collect",
            Event::ExtensionWanted(_) | Event::ExtensionUnwanted(_) => "extension",
            _ => "domain",
        };
        self.waiters.insert(call, Waiter { done, since: Instant::now(), what });
        self.ends.metrics.calls_waiting(self.waiters.len());
        self.hear(event)
    }

    /// Hears an event and does, or has done, what follows. Alone, the loop's own hands do it.
    fn hear(&mut self, event: Event) -> Result<()> {
        let mut events = VecDeque::from([event]);
        let mut tasks = Vec::new();
        while let Some(event) = events.pop_front() {
            let heard = self.begin(event)?;
            tasks.extend(heard);
            if !events.is_empty() {
                continue;
            }
            while let Ok(message) = self.ends.incoming.try_recv() {
                self.pending.push_back(message);
            }
            let quick = !matches!(tasks.first(), Some(Task::Chain { .. }));
            let alone = quick && tasks.len() == 1 && self.pool.under_way == 0 && self.pending.is_empty();
            for task in tasks.drain(..) {
                let job = self.node.job(task);
                if alone {
                    let node = &mut self.node;
                    let finished = pool::carry_out(self.life, job, |job| node.work(job));
                    events.extend(self.events_of(finished)?);
                } else {
                    self.pool.give(self.life, job);
                }
            }
        }
        Ok(())
    }

    /// Decides, writes down, answers and tells; returns what is to be done.
    fn begin(&mut self, event: Event) -> Result<Vec<Task>> {
        let before = feed::before(&event, &self.node, self.ends.changes.receiver_count());
        let about = work::unit_of(&event);
        let is_done = matches!(&event, Event::Applied(applied) if applied.result.is_ok());
        let heard = self.node.begin(event)?;
        self.follow_works(about.as_ref(), &heard);
        let Heard { tasks, answers, records, invocations, orders, offers, changed } = heard;
        self.call_out(invocations);
        if let Some(offers) = offers {
            self.ends.sockets.offer(self.life, offers);
        }
        for order in orders {
            // Without an API server nobody orders anything.
            let _ = self.ends.orders.send(order);
        }
        self.tell_repairs(about.as_ref(), is_done, &tasks);
        for (seq, record) in &records {
            self.told.hear(record);
            if let Record::SandboxSeen(_) | Record::SandboxGone { .. } | Record::Attached(_) = record {
                tracing::debug!(seq = seq.0, ?record, "written down");
            }
        }
        feed::tell(&self.ends.changes, &self.node, &records, before);
        if !changed.is_empty() || !records.is_empty() {
            // Those who look at all of it are told once whoever waits has an answer.
            self.is_news = true;
        }
        for (call, answer) in answers {
            let Some(waiter) = self.waiters.remove(&call) else { continue };
            self.ends.metrics.answered(waiter.what, &answer, waiter.since.elapsed());
            (waiter.done)(&self.node, answer);
        }
        self.ends.metrics.calls_waiting(self.waiters.len());
        Ok(tasks)
    }

    /// Time has passed: what is due is done.
    fn on_time(&mut self) -> Result<()> {
        let now = Instant::now();
        if self.reap_at.is_some_and(|at| now >= at) {
            self.reap();
            self.node.shorten()?;
        }
        if self.folder.is_some() && now >= self.folder_at {
            self.folder_at = now + FOLDER;
            self.read_folder()?;
        }
        self.tell_owed()?;
        if now >= self.census_at {
            self.census_at = now + self.options.census;
            let job = self.node.job(Task::Census);
            self.pool.give(self.life, job);
        }
        if now >= self.resync_at {
            self.resync_at = now + self.options.resync;
            self.told.compared = self.node.state().at_rest().cloned().collect();
            self.sweep_at = Some(now);
            self.sweep(now)?;
            self.reap_at.get_or_insert(now + REAP_AFTER);
            self.hear(Event::Resync)?;
            self.hear(Event::Reforward)?;
        }
        self.sweep(now)
    }

    /// Has what was cut off deleted.
    fn reap(&mut self) {
        self.reap_at = None;
        let scopes = self.node.take_reaping();
        let job = self.node.job(Task::Reap(scopes));
        self.pool.give(self.life, job);
        self.reaping += 1;
    }

    /// Removes what has Knit's mark and nobody knows, when that is due. What is being made has no unit that holds it yet and
    /// must not be taken for a stray, so it waits until nothing is.
    fn sweep(&mut self, now: Instant) -> Result<()> {
        if self.sweep_at.is_none_or(|at| now < at) {
            return Ok(());
        }
        if !self.node.state().is_idle() || !self.options.heard_all.load(Ordering::Relaxed) {
            self.sweep_at = Some(now + SWEEP_AGAIN);
            return Ok(());
        }
        self.sweep_at = None;
        if let Some(repair) = self.node.repair_strays()? {
            tracing::warn!("{repair}");
            self.ends.metrics.repaired();
            self.reap_at.get_or_insert(now + REAP_AFTER);
        }
        Ok(())
    }

    fn read_folder(&mut self) -> Result<()> {
        let Some(folder) = &mut self.folder else { return Ok(()) };
        let Some(events) = folder.changes(self.node.state()) else { return Ok(()) };
        events.into_iter().try_for_each(|event| self.hear(event))?;
        if self.node.state().problems.is_empty() {
            return Ok(());
        }
        // What waits for something that another object may just have brought.
        self.hear(Event::Resync)
    }
}
