//! Executors carry out the engine's effects: they observe and change the kernel, one work item at a time, and decide nothing.
//!
//! A command has one executor. A daemon has several, each on its own thread that enters the namespaces of sandboxes itself; so different
//! units change concurrently, up to the kernel's own lock. Work carries everything that it needs, and its completion everything that
//! follows.
//!
//! [`KernelExecutor`] is the executor of every agent. [`Executor`] is a trait because developer tools run many nodes in one process,
//! without a kernel.

mod work;

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use knit_engine::call::{NetnsInfo, NetnsOutcome};
use knit_engine::packet_filter::{FastPathChange, Rerouted};
use knit_engine::services::{ServiceEvent, StaleConnections};
use knit_engine::{
    ApplyFailure, Effect, Event, ObserveRequest, PlanResult, PublicKeys, Unit, UnsupportedKind,
};
use knit_kernel::apply::{AppliedPlan, ApplyError, DeleteMode, Rollback};
use knit_kernel::fault::{Fault, FaultInjector};
use knit_kernel::netlink::Protocol;
use knit_kernel::nft::{FilterQuery, TableOwner};
use knit_kernel::observe::{LinkFilter, ScopeQuery, StateQuery};
use knit_kernel::redirect::{DatapathMode, Redirect};
use knit_kernel::{Kernel, Netns, SandboxNamespaces, Socket, memory};
use knit_model::filter::TableFamily;
use knit_model::plan::PlannedStep;
use knit_model::problem::{Problem, Reason};
use knit_model::sandbox::SandboxInstance;
use knit_model::{IfName, KeyRef, NetState, Plan, Sandbox, Scope, ScopeState, Step};

pub use work::{Completion, Work};

use crate::error::{Error, Result};
use crate::keys::KeyDir;
use crate::{announce, fast_path, plugin_chain};

/// Fault points that all executors of a node share.
pub type Faults = Arc<Mutex<Box<dyn FaultInjector + Send>>>;

/// Queries the shared fault points before each step, and locks them only for that.
struct SharedFaults(Faults);

impl FaultInjector for SharedFaults {
    fn before_step(&mut self, step: usize, planned: &PlannedStep) -> Option<Fault> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).before_step(step, planned)
    }

    fn at_point(&mut self, what: &'static str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).at_point(what);
    }
}

/// Carries out work for one thread of a node.
pub trait Executor: Send {
    /// Carries out work.
    fn execute(&mut self, work: &mut Work) -> Result<Completion>;

    /// Another executor of the same node, for another thread.
    fn another(&self) -> Result<Box<dyn Executor>>;

    /// Observes the whole host.
    fn observe_host(&mut self) -> Result<ScopeState>;

    /// Whether a sandbox's namespace still exists and was not replaced. A virtual machine has no namespace: it is alive until it is removed
    /// or the node reboots.
    fn is_alive(&mut self, sandbox: &Sandbox) -> bool;

    /// Rolls back the applied part of a plan. Returns what could not be rolled back, and the scopes of the plan.
    fn roll_back(&mut self, plan: &Plan, sandboxes: &[Sandbox]) -> (Vec<String>, BTreeSet<Scope>);

    /// Executes a plan that removes strays of the host. Returns the scopes with links whose deletion was deferred.
    fn remove_strays(&mut self, plan: &Plan) -> Result<BTreeSet<Scope>>;

    /// Takes over Knit's tables of the host's packet filter that earlier processes left: only this node can change them then. False:
    /// it owns no tables, or the kernel has no owners of tables.
    fn claim_tables(&mut self) -> Result<bool> {
        Ok(true)
    }

    /// Sets the eBPF redirect to manage.
    fn set_redirect(&mut self, _redirect: Arc<Redirect>) {}

    /// The data path between pods of this node.
    fn datapath_mode(&self) -> DatapathMode {
        DatapathMode::Bridge
    }

    /// Updates the eBPF fast path, if it is managed.
    fn update_fast_path(&self, _change: &FastPathChange) {}
}

/// Creates the executor of a node, in place of a [`KernelExecutor`].
#[derive(Clone)]
pub struct ExecutorSource(pub Arc<dyn Fn() -> Box<dyn Executor> + Send + Sync>);

impl fmt::Debug for ExecutorSource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("ExecutorSource")
    }
}

/// Carries out work in the kernel.
pub struct KernelExecutor {
    kernel: Kernel,
    keys: Arc<KeyDir>,
    faults: Faults,
    /// The current boot. A sandbox of another boot is gone, even if a namespace has its cookie.
    boot: String,
    /// The eBPF redirect. `None`: it is not managed.
    redirect: Option<Arc<Redirect>>,
}

impl Executor for KernelExecutor {
    fn execute(&mut self, work: &mut Work) -> Result<Completion> {
        match work {
            Work::Effect { effect, sandboxes, namespaces, generate_keys } => {
                self.execute_effect(effect, sandboxes, std::mem::take(namespaces), *generate_keys)
            }
            Work::DeferredDelete { scopes, sandboxes } => {
                scopes.iter().try_for_each(|scope| self.delete_deferred(scope, sandboxes))?;
                Ok(Completion::default())
            }
            Work::CheckSandboxes(sandboxes) => {
                let gone = sandboxes.iter().filter(|sandbox| !self.is_alive(sandbox));
                let events = gone.map(|sandbox| Event::SandboxRemoved(sandbox.id.clone())).collect();
                // This runs every few seconds, and nothing waits for it.
                memory::trim();
                Ok(Completion { events, ..Completion::default() })
            }
        }
    }

    fn another(&self) -> Result<Box<dyn Executor>> {
        let host = self.kernel.host().clone();
        let (keys, faults) = (Arc::clone(&self.keys), Arc::clone(&self.faults));
        let tables = self.kernel.table_owner().clone();
        let new = Self::new(host, self.boot.clone(), keys, faults, tables)?;
        Ok(Box::new(Self { redirect: self.redirect.clone(), ..new }))
    }

    fn observe_host(&mut self) -> Result<ScopeState> {
        let tables = [TableFamily::Inet.table(), TableFamily::Bridge.table()].into();
        // The elements of Services are compared as a whole by their unit. There may be hundreds of thousands.
        let except_prefix = knit_service::NAME_PREFIX.to_owned();
        let filter = FilterQuery { tables, with_elements: true, except_prefix, ..FilterQuery::default() };
        let host = ScopeQuery { filter, ..ScopeQuery::everything() };
        let query = StateQuery::default().with_scope(Scope::Host, host);
        let mut seen = self.kernel.observe(&query, &mut SandboxNamespaces::new())?;
        Ok(std::mem::take(seen.scope(&Scope::Host)))
    }

    fn is_alive(&mut self, sandbox: &Sandbox) -> bool {
        if !sandbox.isolation.is_netns() {
            return sandbox.instance.boot == self.boot;
        }
        let mut namespaces = SandboxNamespaces::new();
        let scopes = BTreeSet::from([Scope::Sandbox(sandbox.id.clone())]);
        self.open_namespaces(std::slice::from_ref(sandbox), &scopes, &mut namespaces);
        namespaces.contains(&sandbox.id)
    }

    fn roll_back(&mut self, plan: &Plan, sandboxes: &[Sandbox]) -> (Vec<String>, BTreeSet<Scope>) {
        let scopes = scopes_of(plan);
        let mut namespaces = SandboxNamespaces::new();
        self.open_namespaces(sandboxes, &scopes, &mut namespaces);
        (self.kernel.roll_back(plan, &mut namespaces), scopes)
    }

    fn remove_strays(&mut self, plan: &Plan) -> Result<BTreeSet<Scope>> {
        let mut faults = SharedFaults(Arc::clone(&self.faults));
        match self.kernel.apply(plan, DeleteMode::Deferred, &mut SandboxNamespaces::new(), &mut faults) {
            Ok(AppliedPlan { deferred_deletes }) => Ok(deferred_deletes),
            Err(error) if error.rollback == Rollback::Skipped => {
                Err(Error::Stopped { unit: "stray links".to_owned() })
            }
            Err(error) => Err(Error::Stray { why: error.to_string() }),
        }
    }

    fn claim_tables(&mut self) -> Result<bool> {
        Ok(self.kernel.claim_tables()?)
    }

    fn set_redirect(&mut self, redirect: Arc<Redirect>) {
        self.redirect = Some(redirect);
    }

    fn datapath_mode(&self) -> DatapathMode {
        self.redirect.as_ref().map_or(DatapathMode::Bridge, |redirect| redirect.mode())
    }

    fn update_fast_path(&self, change: &FastPathChange) {
        if let Some(redirect) = &self.redirect {
            fast_path::update(redirect, &self.kernel, change);
        }
    }
}

impl KernelExecutor {
    /// A new executor for the calling thread. `host` is the network namespace that counts as the host's. All executors of a node share
    /// the owner of the tables of the packet filter.
    pub fn new(
        host: Netns,
        boot: String,
        keys: Arc<KeyDir>,
        faults: Faults,
        tables: TableOwner,
    ) -> Result<Self> {
        let kernel = Kernel::open(host)?.with_key_source(keys.clone()).with_table_owner(tables);
        Ok(Self { kernel, keys, faults, boot, redirect: None })
    }

    fn execute_effect(
        &mut self,
        effect: &mut Effect,
        sandboxes: &[Sandbox],
        namespaces: SandboxNamespaces,
        generate_keys: bool,
    ) -> Result<Completion> {
        match effect {
            Effect::Observe { unit, request: look } => {
                let keys = self.find_keys(look, generate_keys);
                self.observe(unit.clone(), look, keys, sandboxes, namespaces)
            }
            Effect::Apply { unit, plan } => self.apply(unit.clone(), plan, sandboxes, namespaces),
            Effect::InspectNetns { call, path } => {
                let found = self.inspect(path);
                Ok(Completion::with(Event::NetnsInspected { call: call.clone(), result: found }))
            }
            Effect::CreateNetns { call, path } => {
                let result = create_netns(path).map_err(|why| invalid("netns_path_prefix", &why));
                let result = result.map(|()| NetnsOutcome::Created);
                Ok(Completion::with(Event::NetnsDone { call: call.clone(), result }))
            }
            Effect::RemoveNetns { call, path } => {
                let instance = self.inspect(path).ok().map(|found| found.instance);
                let removed = Netns::delete(Path::new(path)).map_err(|why| invalid("netns_path", &why));
                let result = removed.map(|()| NetnsOutcome::Removed(instance));
                Ok(Completion::with(Event::NetnsDone { call: call.clone(), result }))
            }
            Effect::RerouteConnections(rerouted) => {
                self.reroute_connections(rerouted);
                Ok(Completion::default())
            }
            Effect::EndConnections(stale) => Ok(self.end_connections(stale)),
            Effect::RunPluginChain { command: verb, interface: chained } => {
                let (verb, result) = (*verb, plugin_chain::run(*verb, chained));
                Ok(Completion::with(Event::PluginChainDone { key: chained.key(), command: verb, result }))
            }
            // The node handles these itself.
            Effect::Journal(_)
            | Effect::ObjectsChanged(_)
            | Effect::Respond { .. }
            | Effect::InvokeExtension(_)
            | Effect::Block(_)
            | Effect::ClaimQuota(_)
            | Effect::UpdateFastPath(_)
            | Effect::OfferSockets(_)
            | Effect::TranslateNetworks(_)
            | Effect::TranslateObjects { .. } => Ok(Completion::default()),
        }
    }

    /// Drops conntrack entries of pods whose egress path changed, so that their next packet takes the new path.
    fn reroute_connections(&mut self, rerouted: &Rerouted) {
        let is_kept = |to: IpAddr| rerouted.kept.iter().any(|range| range.contains(&to));
        match self.kernel.delete_conntrack_entries(&rerouted.pods, is_kept) {
            Ok(count) => tracing::debug!(count, "moved connections to another egress gateway"),
            Err(why) => {
                tracing::warn!(error = %why, "cannot move connections to another egress gateway; they may break")
            }
        }
    }

    /// Drops conntrack entries of UDP connections through Services whose backend is not chosen any more: a client that keeps its
    /// port would send to it for ever. On failure the engine repeats it.
    fn end_connections(&mut self, stale: &StaleConnections) -> Completion {
        match self.kernel.delete_udp_entries(|to, has_dnat, backend| stale.contains(to, has_dnat, backend)) {
            Ok(count) => {
                tracing::debug!(count, "ended UDP connections to backends that are gone");
                Completion::default()
            }
            Err(why) => {
                tracing::warn!(error = %why, "cannot end UDP connections to backends that are gone; trying again");
                let frontends = stale.frontends.keys().copied().collect();
                Completion::with(Event::Services(ServiceEvent::ConnectionsNotEnded(frontends)))
            }
        }
    }

    /// Opens the namespaces of the sandboxes in these scopes, as far as they still exist, and closes all others. An open namespace cannot
    /// be replaced.
    fn open_namespaces(
        &self,
        sandboxes: &[Sandbox],
        scopes: &BTreeSet<Scope>,
        namespaces: &mut SandboxNamespaces,
    ) {
        namespaces.retain(|id| scopes.contains(&Scope::Sandbox(id.clone())));
        for sandbox in sandboxes {
            let id = &sandbox.id;
            if namespaces.contains(id) || !scopes.contains(&Scope::Sandbox(id.clone())) {
                continue;
            }
            let Ok(netns) = Netns::open_sandbox(Path::new(&sandbox.netns), self.kernel.host()) else {
                continue;
            };
            namespaces.add(id.clone(), netns);
            let is_same = |cookie| sandbox.instance.boot == self.boot && sandbox.instance.cookie == cookie;
            if !matches!(namespaces.cookie(id), Ok(Some(cookie)) if is_same(cookie)) {
                namespaces.retain(|other| other != id);
            }
        }
    }

    /// The public key of each existing key, or why it cannot be used.
    fn find_keys(&self, look: &ObserveRequest, generate: bool) -> PublicKeys {
        let found = look.keys.iter().filter_map(|key| {
            let found = match key {
                KeyRef::Generated { id } if generate => self.keys.generate(id).map(Some),
                key => self.keys.find(key),
            };
            Some((key.clone(), found.transpose()?.map(|found| found.public())))
        });
        found.collect()
    }

    /// Observes what a unit is about. A sandbox whose namespace is gone or replaced is reported as gone.
    fn observe(
        &mut self,
        unit: Unit,
        look: &ObserveRequest,
        keys: PublicKeys,
        sandboxes: &[Sandbox],
        mut namespaces: SandboxNamespaces,
    ) -> Result<Completion> {
        let mut request = StateQuery::default();
        let mut host = ScopeQuery::named(
            look.host_links.iter().chain(&look.lower_links).chain(&look.route_links).cloned(),
        );
        (host.addresses, host.routes) = (!look.links_only, !look.links_only);
        host.rules = look.host_rules;
        host.blackhole_routes = look.unreachable_routes;
        host.neighbours = look.host_neighbours;
        host.vlans = look.vlans;
        host.filter.tables.clone_from(&look.filter_tables);
        host.filter.with_elements = look.filter_with_elements;
        host.filter.sets.clone_from(&look.filter_sets);
        if !look.links_only {
            host.filter.elements.clone_from(&look.filter_elements);
            host.filter.only_if_owned = look.elements_if_owned;
        }
        if look.ports_of.is_some() || !look.moved_devices.is_empty() {
            // The ports of a bridge, or the whereabouts of a moved NIC, are only found among all links. This is rare: a bridge is deleted,
            // or a sandbox with a NIC ends.
            host.links = LinkFilter::All;
        }
        match &look.sandbox {
            None => host.sysctls.clone_from(&look.sysctls),
            Some(id) => {
                let scope = Scope::Sandbox(id.clone());
                self.open_namespaces(sandboxes, &BTreeSet::from([scope.clone()]), &mut namespaces);
                if !namespaces.contains(id) {
                    return Ok(Completion::with(Event::SandboxRemoved(id.clone())));
                }
                let filter = FilterQuery {
                    tables: look.sandbox_tables.clone(),
                    with_elements: true,
                    ..FilterQuery::default()
                };
                let inside = match look.links_only {
                    true => ScopeQuery { links: LinkFilter::All, ..ScopeQuery::nothing() },
                    false => ScopeQuery {
                        sysctls: look.sysctls.clone(),
                        only_if_owned: look.is_new,
                        filter,
                        ..ScopeQuery::everything()
                    },
                };
                request.scopes.insert(scope, inside);
            }
        }
        request.scopes.insert(Scope::Host, host);
        let seen: NetState = self.kernel.observe(&request, &mut namespaces)?;
        let namespaces = Some((unit.clone(), namespaces));
        Ok(Completion { namespaces, ..Completion::with(Event::Observed { unit, observed: seen, keys }) })
    }

    /// Applies and verifies a plan. On failure it is rolled back.
    fn apply(
        &mut self,
        unit: Unit,
        plan: &Plan,
        sandboxes: &[Sandbox],
        mut namespaces: SandboxNamespaces,
    ) -> Result<Completion> {
        let scopes = scopes_of(plan);
        self.open_namespaces(sandboxes, &scopes, &mut namespaces);
        if let Some(redirect) = &self.redirect {
            redirect.forget_links(&host_links(plan));
        }
        let mut faults = SharedFaults(Arc::clone(&self.faults));
        let applied = self.kernel.apply(plan, DeleteMode::Deferred, &mut namespaces, &mut faults);
        let (result, deferred_deletes) = match applied {
            Ok(AppliedPlan { deferred_deletes: to_reap }) => {
                let verified = self.verify(&unit, plan, &mut namespaces);
                if verified.is_ok() && unit == Unit::NodeRoutes {
                    announce::announce_gateways(self.kernel.host(), plan);
                }
                if verified.is_ok() && !plan.announced_addresses.is_empty() {
                    announce::announce_pods(&namespaces, plan);
                }
                (verified, to_reap)
            }
            Err(error) if error.rollback == Rollback::Skipped => {
                return Err(Error::Stopped { unit: unit.to_string() });
            }
            // A rolled back deletion created a new link: the old one still waits to be deleted.
            Err(error) => (Err(failure(&error, plan)), scopes),
        };
        let event = Event::PlanApplied(PlanResult { unit, result });
        Ok(Completion { deferred_deletes, ..Completion::with(event) })
    }

    /// Checks that the kernel shows the result of a plan; otherwise rolls it back.
    fn verify(
        &mut self,
        unit: &Unit,
        plan: &Plan,
        namespaces: &mut SandboxNamespaces,
    ) -> Result<(), ApplyFailure> {
        let missing = match self.kernel.verify(plan, namespaces) {
            Ok(missing) if missing.is_empty() => return Ok(()),
            Ok(missing) => missing.join("; "),
            Err(error) => error.to_string(),
        };
        let left = self.kernel.roll_back(plan, namespaces);
        let message = format!("{unit}: verification failed after apply: {missing}");
        Err(ApplyFailure {
            problem: Problem::new("", Reason::KernelError, message),
            rolled_back: left.is_empty(),
            missing_tables: false,
            unsupported: None,
        })
    }

    /// Executes the deferred deletions in a scope. Those in a sandbox that is gone were deleted with it.
    fn delete_deferred(&mut self, scope: &Scope, sandboxes: &[Sandbox]) -> Result<()> {
        let scopes = BTreeSet::from([scope.clone()]);
        let mut namespaces = SandboxNamespaces::new();
        self.open_namespaces(sandboxes, &scopes, &mut namespaces);
        match self.kernel.delete_deferred(&scopes, &mut namespaces) {
            Err(knit_kernel::Error::NoNamespace { .. }) => Ok(()),
            deleted => Ok(deleted?),
        }
    }

    /// Identifies the sandbox at a path; without a path, a virtual machine.
    fn inspect(&self, path: &str) -> Result<NetnsInfo, Problem> {
        if path.is_empty() {
            let instance = SandboxInstance { boot: self.boot.clone(), cookie: 0 };
            return Ok(NetnsInfo { instance, number: 0 });
        }
        let open = || -> Result<u64> {
            let netns = Netns::open_sandbox(Path::new(path), self.kernel.host())?;
            Ok(netns.cookie()?)
        };
        let cookie = open().map_err(|why| invalid("isolation.path", &why))?;
        let instance = SandboxInstance { boot: self.boot.clone(), cookie };
        Ok(NetnsInfo { instance, number: number(path, cookie) })
    }
}

/// The process id in the path, or a number derived from the namespace.
fn number(path: &str, cookie: u64) -> u32 {
    let process = path.strip_prefix("/proc/").and_then(|rest| rest.split('/').next()?.parse().ok());
    // An interface name has space for a prefix and seven digits.
    process.unwrap_or_else(|| u32::try_from(cookie % 10_000_000).unwrap_or_default())
}

/// Creates a namespace with `lo` up, unless it exists.
fn create_netns(path: &str) -> Result<()> {
    let path = Path::new(path);
    if Netns::open(path).is_ok() {
        return Ok(());
    }
    // A crash or reboot leaves an empty file.
    Netns::delete(path)?;
    let netns = Netns::create(path)?;
    let up = Socket::open_in(&netns, Protocol::Route)
        .and_then(|mut socket| knit_kernel::netns::bring_up_loopback(&mut socket));
    if let Err(why) = up {
        Netns::delete(path)?;
        return Err(why.into());
    }
    Ok(())
}

fn invalid(field: &str, why: &impl std::fmt::Display) -> Problem {
    Problem::new(field.to_owned(), Reason::InvalidValue, why.to_string())
}

/// The scopes that a plan touches. Nearly every step is in a scope of the step before.
pub(crate) fn scopes_of(plan: &Plan) -> BTreeSet<Scope> {
    let mut scopes = BTreeSet::new();
    let mut add = |scope: &Scope| {
        if !scopes.contains(scope) {
            scopes.insert(scope.clone());
        }
    };
    for planned in &plan.steps {
        add(&planned.scope);
        if let Step::CreateLink { link, peer } | Step::DeleteLink { link, peer } = &planned.step {
            link.parent_scope.iter().for_each(&mut add);
            peer.iter().for_each(|(scope, _)| add(scope));
        }
    }
    scopes
}

/// Host links that a plan creates or deletes.
fn host_links(plan: &Plan) -> BTreeSet<&IfName> {
    let changed = plan.steps.iter().filter_map(|planned| match &planned.step {
        Step::CreateLink { link, peer } | Step::DeleteLink { link, peer } => Some((planned, link, peer)),
        _ => None,
    });
    let ends = changed.flat_map(|(planned, link, peer)| {
        let far = peer.as_ref().map(|(scope, link)| (scope, &link.name));
        [(&planned.scope, &link.name)].into_iter().chain(far)
    });
    ends.filter(|(scope, _)| **scope == Scope::Host).map(|(_, name)| name).collect()
}

fn failure(error: &ApplyError, plan: &Plan) -> ApplyFailure {
    let lack = error.error.unsupported_feature();
    let reason = match &error.error {
        _ if lack.is_some() => Reason::KernelUnsupported,
        other if other.is_not_found() => Reason::NotFound,
        _ => Reason::KernelError,
    };
    let lacks = match (lack, plan.steps.get(error.step).map(|planned| &planned.step)) {
        (Some(words), Some(Step::CreateLink { link, .. })) => {
            Some(UnsupportedKind { kind: link.kind.name().to_owned(), message: words })
        }
        _ => None,
    };
    let problem = Problem::new("", reason, error.to_string());
    let is_filter = matches!(plan.steps[error.step].step, Step::Filter(_));
    let missing_tables = is_filter && error.error.is_not_found();
    let rolled_back = matches!(error.rollback, Rollback::Complete);
    ApplyFailure { problem, rolled_back, missing_tables, unsupported: lacks }
}
