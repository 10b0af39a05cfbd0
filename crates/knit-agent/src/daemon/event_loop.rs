//! The event loop: handles one message after the other, with everything that follows from it.

mod cluster_network;
mod completions;
mod extensions;
mod notifications;
mod pending_changes;
mod service_retries;
mod unit_log;

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use knit_engine::policies::PolicyEvent;
use knit_engine::{CallId, CallResult, Effect, Event, Record, Unit};
use knit_kernel::fault::FaultInjector;
use knit_kernel::memory;
use knit_kernel::nft::TableOwner;
use knit_model::problem::{Problem, Reason};
use tokio::sync::{broadcast, mpsc, watch};

use super::change_feed::{self, PodChange};
use super::executor_pool::{self, ExecutorPool};
use super::extension_calls::ExtensionCaller;
use super::manifest_dir::ManifestDir;
use super::{Incoming, Message, Options, Reply};
use crate::error::{Error, Result};
use crate::metrics::Metrics;
use crate::node::{ApiRequest, Node, StepResult};
use crate::recorder::Recorder;
use crate::sockets;
use unit_log::UnitLog;

/// Links are deleted together, this long after the first deferred deletion: each deletion blocks all network changes in the kernel for
/// some 20 ms.
const DEFERRED_DELETE_DELAY: Duration = Duration::from_millis(500);
/// Delay before a node whose journal failed is opened again.
const REOPEN_DELAY: Duration = Duration::from_secs(1);
/// How long a stopping agent waits for calls in flight.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay of a full comparison after the kernel failed to answer.
const EARLY_RESYNC_DELAY: Duration = Duration::from_secs(1);
/// Everything is compared after one resync interval for each of this many other nodes, at least after one.
const NODES_PER_INTERVAL: usize = 500;
/// Everything is compared after at most this many resync intervals.
const MAX_INTERVALS: usize = 10;
/// How long after a full comparison its memory is returned.
const TRIM_DELAY: Duration = Duration::from_secs(10);
/// How often the directory of objects is checked.
const MANIFEST_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Delay of the next check for strays while changes are in flight.
const STRAY_RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Channels between the loop and the rest of the agent.
pub(super) struct Channels {
    pub(super) incoming: Incoming,
    pub(super) sender: Sender<Message>,
    pub(super) changes: broadcast::Sender<Arc<PodChange>>,
    pub(super) repairs: broadcast::Sender<change_feed::RepairNotice>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) extensions: ExtensionCaller,
    pub(super) sockets: sockets::SocketServer,
    pub(super) version: watch::Sender<u64>,
    pub(super) reopened: watch::Sender<u64>,
    pub(super) api_requests: mpsc::UnboundedSender<ApiRequest>,
}

struct Waiter {
    reply: Reply,
    since: Instant,
    what: &'static str,
}

/// Why the loop ends.
enum End {
    Stop,
    Failed(Error),
}

struct EventLoop<'a> {
    node: Node,
    incarnation: u64,
    channels: &'a Channels,
    options: &'a mut Options,
    pool: &'a mut ExecutorPool,
    manifests: Option<ManifestDir>,
    pending: VecDeque<Message>,
    waiters: BTreeMap<CallId, Waiter>,
    pending_changes: Vec<pending_changes::PendingChange>,
    /// Deferred deletions in flight.
    deletes_in_flight: usize,
    /// Logged repairs and problems of units.
    unit_log: UnitLog,
    deferred_delete_at: Option<Instant>,
    sandbox_check_at: Instant,
    resync_at: Instant,
    /// When to compare routes to other nodes, too, and look for strays: see [`EventLoop::whole_resync_interval`].
    whole_resync_at: Instant,
    /// When to return memory that a full comparison used.
    trim_at: Option<Instant>,
    /// When to look for strays, after a full comparison.
    stray_check_at: Option<Instant>,
    manifests_at: Instant,
    stopping: Option<Instant>,
    /// Whether the state has changed since the last message.
    has_changed: bool,
}

/// Runs as long as the daemon. Opens the node again if its journal fails.
pub(super) fn run(
    mut options: Options,
    faults: Option<Box<dyn FaultInjector + Send>>,
    channels: Channels,
    ready: &Sender<Result<()>>,
) {
    let mut pool: Option<ExecutorPool> = None;
    let mut faults = faults;
    // The executors keep the tables of the packet filter while the node is opened again.
    let has_owner = faults.as_ref().is_none_or(|faults| !faults.lacks_table_owner());
    let tables = if has_owner { TableOwner::of_agent() } else { TableOwner::default() };
    for incarnation in 0.. {
        let opened = open(&options, faults.take(), tables.clone()).and_then(|node| {
            if pool.is_none() {
                let executors =
                    (0..options.executors).map(|_| node.another_executor()).collect::<Result<Vec<_>>>()?;
                pool = Some(ExecutorPool::start(executors, &channels.sender)?);
                // Only this machine's kernel notifies.
                if options.executor.is_none() {
                    notifications::start(&channels)?;
                }
            }
            Ok(node)
        });
        let failure = match (opened, &mut pool) {
            (Ok(node), Some(pool)) => {
                let _ = ready.send(Ok(()));
                if incarnation > 0 {
                    channels.reopened.send_replace(incarnation);
                }
                match EventLoop::new(node, incarnation, &channels, &mut options, pool).run() {
                    End::Stop => return,
                    End::Failed(why) => why,
                }
            }
            (Ok(_), None) => Error::ChangeEnded,
            (Err(why), _) if incarnation == 0 => {
                let _ = ready.send(Err(why));
                return;
            }
            (Err(why), _) => why,
        };
        tracing::error!(error = %failure, "cannot use the node's state; opening it again");
        channels.metrics.failed(Reason::KernelError);
        if reject_until_retry(&channels, pool.as_mut(), &failure) {
            return;
        }
    }
}

fn open(
    options: &Options,
    faults: Option<Box<dyn FaultInjector + Send>>,
    tables: TableOwner,
) -> Result<Node> {
    let open_recorder = || {
        let limits = options.recent_recording.limits();
        Recorder::open(options.record.as_deref(), &options.state_dir, limits)
    };
    let (secrets, executor) = (options.secrets.clone(), options.executor.as_ref());
    let ranges = options.tenant_ranges.clone();
    let opened = Node::open_with(&options.state_dir, secrets, open_recorder, executor, ranges, tables);
    let (mut node, notes) = opened?;
    for note in notes {
        tracing::warn!("{note}");
    }
    node.set_redirect(Arc::clone(&options.redirect));
    node.set_allowed_plugins(options.allowed_plugins.clone());
    node.handle(Event::Policies(PolicyEvent::OnInterfaces(options.policies_on_interfaces)))?;
    if let Some(faults) = faults {
        node.set_faults(faults);
    }
    if claim_tables(&mut node) == Some(false) {
        tracing::warn!(
            "this kernel has no owners of nftables tables (Linux 6.9): other programs can change Knit's; changes are \
             repaired when the kernel reports them"
        );
    }
    Ok(node)
}

/// Takes over the tables of the packet filter. False: the kernel has no owners of tables. If it fails the agent works, and each change
/// of the tables tries again.
fn claim_tables(node: &mut Node) -> Option<bool> {
    node.claim_tables()
        .inspect_err(|why| {
            tracing::warn!(error = %why, "cannot take over the packet filter: other programs can change it");
        })
        .ok()
}

/// Rejects all calls until it is time for another try and no work is in flight. Returns whether the daemon is to stop.
fn reject_until_retry(channels: &Channels, mut pool: Option<&mut ExecutorPool>, why: &Error) -> bool {
    let until = Instant::now() + REOPEN_DELAY;
    loop {
        let busy = pool.as_ref().is_some_and(|pool| pool.in_flight > 0);
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() && !busy {
            return false;
        }
        match channels.incoming.recv_timeout(left.max(Duration::from_millis(10))) {
            Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => return true,
            Ok(Message::Completed { .. }) => {
                if let Some(pool) = &mut pool {
                    pool.in_flight = pool.in_flight.saturating_sub(1);
                }
            }
            // Dropping a reply channel rejects its caller.
            Ok(Message::SetClusterNetwork(_, answer) | Message::SetTenantRanges(_, answer)) => {
                let _ = answer.send(Err(why.to_string()));
            }
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

impl<'a> EventLoop<'a> {
    fn new(
        node: Node,
        incarnation: u64,
        channels: &'a Channels,
        options: &'a mut Options,
        pool: &'a mut ExecutorPool,
    ) -> Self {
        let now = Instant::now();
        let manifests = options.objects.clone().map(|path: PathBuf| ManifestDir::new(path));
        Self {
            unit_log: UnitLog::of(node.state()),
            node,
            incarnation,
            channels,
            manifests,
            pending: VecDeque::new(),
            waiters: BTreeMap::new(),
            pending_changes: Vec::new(),
            deletes_in_flight: 0,
            deferred_delete_at: Some(now + DEFERRED_DELETE_DELAY),
            sandbox_check_at: now + options.sandbox_check_interval,
            // Drift from the time without an agent is repaired first.
            resync_at: now,
            whole_resync_at: now,
            trim_at: None,
            stray_check_at: None,
            manifests_at: now,
            stopping: None,
            has_changed: false,
            options,
            pool,
        }
    }

    fn run(mut self) -> End {
        let cluster = self.options.cluster.clone();
        let chains = self.options.chains.clone();
        let mut outcome = self
            .restore_cluster_network(cluster)
            .and_then(|()| self.handle(Event::PluginChainsConfigured(chains)));
        loop {
            if let Err(why) = outcome {
                return End::Failed(why);
            }
            if self.is_over() {
                if let Err(why) = self.node.sync() {
                    tracing::error!(error = %why, "cannot sync the journal; the last records may be lost");
                }
                return End::Stop;
            }
            outcome = match self.next() {
                Some(message) => self.dispatch(message),
                None => self.run_timers(),
            };
            self.finish_pending_changes();
            self.node.update_fast_path();
            if std::mem::take(&mut self.has_changed) {
                self.channels.version.send_modify(|version| *version += 1);
            }
        }
    }

    fn is_over(&self) -> bool {
        let idle = self.waiters.is_empty() && self.pending_changes.is_empty() && self.pool.in_flight == 0;
        self.stopping.is_some_and(|until| idle || Instant::now() >= until)
    }

    /// The next message; `None` when a timer is due first.
    fn next(&mut self) -> Option<Message> {
        let mut until = self.sandbox_check_at.min(self.resync_at);
        let others = self.deferred_delete_at.into_iter().chain(self.stray_check_at).chain(self.trim_at);
        until = others
            .chain(self.next_notification_at().filter(|_| self.stopping.is_none()))
            .chain(self.next_service_retry_at())
            .fold(until, Instant::min);
        if self.manifests.is_some() {
            until = until.min(self.manifests_at);
        }
        if self.stopping.is_some() {
            until = until.min(Instant::now() + Duration::from_millis(20));
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        self.pending.pop_front().or_else(|| {
            self.node.flush_recording();
            self.channels.incoming.recv_timeout(left).ok()
        })
    }

    fn dispatch(&mut self, message: Message) -> Result<()> {
        match message {
            Message::Call { call, event, reply } => self.call(call, event, reply),
            Message::Cancel(call, ticket) => {
                self.waiters.remove(&call);
                self.handle(Event::CallCancelled { call, ticket })
            }
            Message::Query(query) => {
                query(&mut self.node);
                self.schedule_deferred_delete();
                Ok(())
            }
            Message::Change(request) => self.change(request),
            Message::Event(event) => self.handle(*event),
            Message::Synced => {
                self.options.has_synced.store(true, Ordering::Relaxed);
                Ok(())
            }
            Message::Kernel(notice) => self.kernel_notification(&notice),
            Message::FilterChanged => self.filter_changed(),
            Message::Completed { incarnation, work, result, took } => {
                self.pool.in_flight = self.pool.in_flight.saturating_sub(1);
                if incarnation == self.incarnation { self.completed(&work, result, took) } else { Ok(()) }
            }
            Message::ExtensionReplied { incarnation, id, result } if incarnation == self.incarnation => {
                self.handle(Event::ExtensionInvoked { id, result })
            }
            Message::ExtensionReplied { .. } => Ok(()),
            Message::SocketsOffered { incarnation, offered } if incarnation == self.incarnation => {
                self.handle(Event::SocketsOffered(offered))
            }
            Message::SocketsOffered { .. } => Ok(()),
            Message::SetClusterNetwork(cluster, answer) => {
                let outcome = self.change_cluster_network(cluster);
                let reply = outcome.as_ref().map(|_| ()).map_err(ToString::to_string);
                let _ = answer.send(reply);
                // A rejected change concerns only the caller; a failed journal the whole loop.
                outcome.or_else(|why| if matches!(why, Error::InUse { .. }) { Ok(()) } else { Err(why) })
            }
            Message::SetTenantRanges(ranges, answer) => {
                self.options.tenant_ranges.clone_from(&ranges);
                let _ = answer.send(Ok(()));
                self.handle(Event::SettingsChanged(self.node.settings_with(ranges)))
            }
            Message::Stop => {
                self.stopping = Some(Instant::now() + STOP_TIMEOUT);
                Ok(())
            }
        }
    }

    fn call(&mut self, call: CallId, event: Event, reply: Reply) -> Result<()> {
        let rejection = if self.stopping.is_some() {
            Some((Reason::Busy, "the agent is stopping".to_owned()))
        } else if self.waiters.contains_key(&call) {
            Some((Reason::Conflict, format!("call {call} is already in flight")))
        } else {
            None
        };
        if let Some((reason, message)) = rejection {
            reply(&self.node, CallResult::Failed(Problem::new("", reason, message)));
            return Ok(());
        }
        let what = match &event {
            Event::AttachRequested(_) => "attach",
            Event::DetachRequested(_) => "detach",
            Event::GcRequested(_) => "collect_garbage",
            Event::PodStarting(_) => "pod_start",
            Event::ExtensionRegistrationRequested(_) | Event::ExtensionRemovalRequested(_) => "extension",
            _ => "netns",
        };
        self.waiters.insert(call, Waiter { reply, since: Instant::now(), what });
        self.channels.metrics.calls_waiting(self.waiters.len());
        self.handle(event)
    }

    /// Handles an event and executes what follows: itself if nothing else is in flight, otherwise through the pool.
    fn handle(&mut self, event: Event) -> Result<()> {
        let mut events = VecDeque::from([event]);
        let mut effects = Vec::new();
        while let Some(event) = events.pop_front() {
            effects.extend(self.step(event)?);
            if !events.is_empty() {
                continue;
            }
            while let Ok(message) = self.channels.incoming.try_recv() {
                self.pending.push_back(message);
            }
            // CNI plugins may take seconds: they never run on the loop's thread.
            let is_quick = !matches!(effects.first(), Some(Effect::RunPluginChain { .. }));
            let is_idle = self.pool.in_flight == 0 && self.pending.is_empty();
            let runs_here = is_quick && is_idle && effects.len() == 1;
            for effect in effects.drain(..) {
                let mut work = self.node.prepare(effect);
                if runs_here {
                    let node = &mut self.node;
                    let (result, took) = executor_pool::run(&mut work, |work| node.execute(work));
                    events.extend(self.events_of(&work, result, took)?);
                } else {
                    self.pool.submit(self.incarnation, work);
                }
            }
        }
        Ok(())
    }

    /// Decides, journals, replies and publishes. Returns the work for executors.
    fn step(&mut self, event: Event) -> Result<Vec<Effect>> {
        let before =
            change_feed::sandboxes_before(&event, &self.node, self.channels.changes.receiver_count());
        let about = pending_changes::unit_of(&event);
        let is_done = matches!(&event, Event::PlanApplied(applied) if applied.result.is_ok());
        let result = self.node.step(event)?;
        self.track_pending_changes(about.as_ref(), &result);
        let StepResult { effects, answers, records, invocations, api_requests, offers, changed } = result;
        self.call_extensions(invocations);
        if let Some(offers) = offers {
            self.channels.sockets.offer(self.incarnation, offers);
        }
        for request in api_requests {
            // Without an API server there is no receiver.
            let _ = self.channels.api_requests.send(request);
        }
        self.report_repairs(about.as_ref(), is_done, &effects);
        for (seq, record) in &records {
            self.unit_log.record(record);
            if let Record::SandboxUpdated(_) | Record::SandboxRemoved { .. } | Record::Attached(_) = record {
                tracing::debug!(seq = seq.0, ?record, "journalled");
            }
        }
        change_feed::publish(&self.channels.changes, &self.node, &records, before);
        if !changed.is_empty() || !records.is_empty() {
            // Followers of the state are notified after callers have their replies.
            self.has_changed = true;
        }
        for (call, answer) in answers {
            let Some(waiter) = self.waiters.remove(&call) else { continue };
            self.channels.metrics.call_completed(waiter.what, &answer, waiter.since.elapsed());
            (waiter.reply)(&self.node, answer);
        }
        self.channels.metrics.calls_waiting(self.waiters.len());
        Ok(effects)
    }

    /// Runs everything whose time has come.
    fn run_timers(&mut self) -> Result<()> {
        let now = Instant::now();
        self.node.rotate_recording(now);
        if self.deferred_delete_at.is_some_and(|at| now >= at) {
            self.delete_deferred();
            self.node.compact()?;
        }
        if self.manifests.is_some() && now >= self.manifests_at {
            self.manifests_at = now + MANIFEST_POLL_INTERVAL;
            self.read_manifests()?;
        }
        self.send_due_notifications()?;
        self.retry_services()?;
        if now >= self.sandbox_check_at {
            self.sandbox_check_at = now + self.options.sandbox_check_interval;
            let work = self.node.prepare_sandbox_check();
            self.pool.submit(self.incarnation, work);
        }
        if self.trim_at.is_some_and(|at| now >= at) {
            self.trim_at = None;
            memory::trim();
        }
        if now >= self.resync_at {
            self.resync_at = now + self.options.resync_interval;
            claim_tables(&mut self.node);
            self.unit_log.compared = self.node.state().settled().cloned().collect();
            self.deferred_delete_at.get_or_insert(now + DEFERRED_DELETE_DELAY);
            if now < self.whole_resync_at {
                self.unit_log.compared.remove(&Unit::NodeRoutes);
                self.handle(Event::ResyncWithoutNodeRoutes)?;
            } else {
                self.whole_resync_at = now + self.whole_resync_interval();
                self.trim_at = Some(now + TRIM_DELAY);
                self.stray_check_at = Some(now);
                self.remove_strays(now)?;
                self.handle(Event::Resync)?;
            }
        }
        self.remove_strays(now)
    }

    /// How often everything is compared. Each node adds several routes, neighbours and forwarding entries of the host, which
    /// strays are searched among: with thousands of nodes a comparison takes hundreds of milliseconds.
    fn whole_resync_interval(&self) -> Duration {
        self.options.resync_interval * intervals(self.node.state().peers.len())
    }

    /// Compares everything soon: a notification was lost, or a request failed.
    fn resync_soon(&mut self) {
        let now = Instant::now();
        self.resync_at = self.resync_at.min(now + EARLY_RESYNC_DELAY);
        self.whole_resync_at = now;
    }

    /// Executes the deferred deletions.
    fn delete_deferred(&mut self) {
        self.deferred_delete_at = None;
        let work = self.node.prepare_deferred_delete();
        self.pool.submit(self.incarnation, work);
        self.deletes_in_flight += 1;
    }

    /// Removes strays: links with Knit's mark that no unit owns. Links that are being created are not owned yet, so this waits until no
    /// change is in flight.
    fn remove_strays(&mut self, now: Instant) -> Result<()> {
        if self.stray_check_at.is_none_or(|at| now < at) {
            return Ok(());
        }
        if !self.node.state().is_idle() || !self.options.has_synced.load(Ordering::Relaxed) {
            self.stray_check_at = Some(now + STRAY_RETRY_INTERVAL);
            return Ok(());
        }
        self.stray_check_at = None;
        if let Some(repair) = self.node.repair_strays()? {
            tracing::warn!("{repair}");
            self.channels.metrics.repaired();
            self.deferred_delete_at.get_or_insert(now + DEFERRED_DELETE_DELAY);
        }
        match self.node.changed_settings() {
            Some(settings) => self.handle(Event::SettingsChanged(settings)),
            None => Ok(()),
        }
    }

    fn read_manifests(&mut self) -> Result<()> {
        let Some(manifests) = &mut self.manifests else { return Ok(()) };
        let Some(events) = manifests.changes(self.node.state()) else { return Ok(()) };
        events.into_iter().try_for_each(|event| self.handle(event))
    }
}

/// After how many intervals everything is compared, with this many other nodes.
fn intervals(nodes: usize) -> u32 {
    (nodes / NODES_PER_INTERVAL).clamp(1, MAX_INTERVALS) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_clusters_are_compared_less_often_but_always() {
        let all = [0, 999, 1_000, 2_600, 5_000, 100_000].map(intervals);
        assert_eq!(all, [1, 1, 2, 5, 10, 10]);
    }
}
