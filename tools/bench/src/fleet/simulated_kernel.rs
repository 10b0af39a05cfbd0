//! The kernel of a node that does not run: the fake kernel of the model's tests, as an executor of the agent.
//!
//! Everything takes effect at once, deletions too. Its own CPU time is counted, so that it can be distinguished from the agent's.

#[path = "../../../../crates/knit-model/tests/unit/fake_kernel.rs"]
#[allow(dead_code, reason = "shared with the tests of knit-model")]
mod fake_kernel;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fake_kernel::FakeKernel;
use fake_kernel::filter::{FilterRequest, restrict};
use knit_agent::executor::{Completion, Executor, Work};
use knit_engine::call::NetnsInfo;
use knit_engine::{ApplyFailure, Effect, Event, ObserveRequest, PlanResult, PublicKeys, Unit};
use knit_model::filter::FilterStep;
use knit_model::link::{Attrs, Dummy, Kind, Link};
use knit_model::problem::{Problem, Reason};
use knit_model::sandbox::SandboxInstance;
use knit_model::{IfName, NetState, Plan, Sandbox, SandboxId, Scope, ScopeState, Step};
use nix::time::{ClockId, clock_gettime};

/// The boot id of all simulated nodes.
pub const BOOT: &str = "fleet";

/// Called after a plan for a sandbox was applied.
type OnApplied = Box<dyn Fn(&SandboxId) + Send + Sync>;

/// The kernel of one node, shared by its executors.
pub struct SimulatedKernel {
    state: Mutex<KernelState>,
    on_applied: OnApplied,
    cpu_time: Arc<AtomicU64>,
}

struct KernelState {
    kernel: FakeKernel,
    /// The cookies of existing network namespaces.
    namespaces: BTreeMap<SandboxId, u64>,
}

impl SimulatedKernel {
    /// A node with one NIC. Its CPU time in nanoseconds is added to `cpu_time`.
    pub fn new(cpu_time: Arc<AtomicU64>, on_applied: OnApplied) -> Self {
        let host = NetState { scopes: [(Scope::Host, with_link("eth0", 1_500, true))].into() };
        let state = KernelState { kernel: FakeKernel::with_state(host), namespaces: BTreeMap::new() };
        Self { state: Mutex::new(state), on_applied, cpu_time }
    }

    /// Creates the network namespace of a sandbox.
    pub fn create_namespace(&self, id: &SandboxId, cookie: u64) {
        let mut state = self.lock();
        state.namespaces.insert(id.clone(), cookie);
        state.kernel.replace_namespace(&Scope::Sandbox(id.clone()), with_link("lo", 65_535, false));
    }

    /// Deletes it, with its links.
    pub fn delete_namespace(&self, id: &SandboxId) {
        let mut state = self.lock();
        state.namespaces.remove(id);
        state.kernel.delete_namespace(&Scope::Sandbox(id.clone()));
    }

    /// The names of a sandbox's links.
    #[cfg(test)]
    pub fn links(&self, id: &SandboxId) -> Vec<String> {
        let scope = Scope::Sandbox(id.clone());
        let mut observed = self.lock().kernel.observe_in(|one| *one == scope);
        observed.scope(&scope).links.keys().map(ToString::to_string).collect()
    }

    fn lock(&self) -> MutexGuard<'_, KernelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The path of a sandbox's namespace, which no program opens.
pub fn netns_path(id: &SandboxId) -> String {
    format!("/run/fleet/{}", id.0)
}

/// A network namespace with one link.
fn with_link(name: &str, mtu: u32, up: bool) -> ScopeState {
    let name = IfName::new(name).expect("the name is valid");
    let mut link = Link::new(name, Kind::Dummy(Dummy::default()));
    link.attrs = Attrs { mtu: Some(mtu), up: Some(up), group: Some(0), ..Attrs::default() };
    let mut scope = ScopeState::default();
    scope.add_link(link);
    scope
}

impl KernelState {
    /// What a request asks for; the sandbox, if it is gone.
    fn observe(&self, request: &ObserveRequest) -> Result<NetState, SandboxId> {
        if let Some(id) = request.sandbox.as_ref().filter(|id| !self.namespaces.contains_key(*id)) {
            return Err(id.clone());
        }
        let is_requested = |scope: &Scope| match scope {
            Scope::Host => true,
            Scope::Sandbox(id) => request.sandbox.as_ref() == Some(id),
        };
        let mut observed = self.kernel.observe_in(is_requested);
        for (scope, state) in &mut observed.scopes {
            if request.links_only {
                *state = ScopeState { links: std::mem::take(&mut state.links), ..ScopeState::default() };
            }
            if *scope == Scope::Host && !request.host_rules {
                state.rules.clear();
            }
            state.sysctls.retain(|key, _| request.sysctls.contains(key));
            let tables = &request.filter_tables;
            if !request.filter_with_elements {
                let (sets, elements) = (&request.filter_sets, &request.filter_elements);
                restrict(&mut state.filter, &FilterRequest { tables, sets, elements });
            }
        }
        Ok(observed)
    }

    /// Applies a plan step by step. What went with a deleted namespace need not be removed any more.
    fn apply(&mut self, plan: &Plan) -> Result<(), String> {
        for planned in plan.steps.iter().filter(|planned| !planned.implied) {
            let is_removal = matches!(
                planned.step,
                Step::DeleteLink { .. }
                    | Step::RemoveAddress(_)
                    | Step::RemoveRoute(_)
                    | Step::RemoveRule(_)
                    | Step::RemoveNeighbour(_)
                    | Step::Filter(FilterStep::RemoveElement(..))
            );
            let step = Plan { steps: vec![planned.clone()], ..Plan::default() };
            match self.kernel.apply(&step) {
                Err(_) if is_removal => {}
                result => result?,
            }
        }
        Ok(())
    }

    fn is_alive(&self, sandbox: &Sandbox) -> bool {
        self.namespaces.get(&sandbox.id) == Some(&sandbox.instance.cookie)
    }

    fn inspect(&self, path: &str) -> Result<NetnsInfo, Problem> {
        let id = SandboxId(path.rsplit('/').next().unwrap_or_default().to_owned());
        let cookie = self.namespaces.get(&id).copied().ok_or_else(|| {
            Problem::new("isolation.path", Reason::SandboxGone, format!("{path} is not a network namespace"))
        })?;
        let instance = SandboxInstance { boot: BOOT.to_owned(), cookie };
        Ok(NetnsInfo { instance, number: u32::try_from(cookie).unwrap_or(u32::MAX) })
    }
}

/// An executor of a simulated node.
pub struct SimulatedExecutor(pub Arc<SimulatedKernel>);

impl SimulatedExecutor {
    fn execute_effect(&self, effect: &Effect) -> Vec<Event> {
        match effect {
            Effect::Observe { unit, request } => vec![match self.0.lock().observe(request) {
                Ok(observed) => Event::Observed { unit: unit.clone(), observed, keys: PublicKeys::new() },
                Err(gone) => Event::SandboxRemoved(gone),
            }],
            Effect::Apply { unit, plan } => {
                let applied = self.0.lock().apply(plan);
                if let (Unit::Sandbox(id), Ok(())) = (unit, &applied) {
                    (self.0.on_applied)(id);
                }
                vec![Event::PlanApplied(PlanResult { unit: unit.clone(), result: applied.map_err(failure) })]
            }
            Effect::InspectNetns { call, path } => {
                let result = self.0.lock().inspect(path);
                vec![Event::NetnsInspected { call: call.clone(), result }]
            }
            // The fleet has no calls for namespaces and no CNI plugins, and the node handles the others.
            _ => Vec::new(),
        }
    }
}

fn failure(why: String) -> ApplyFailure {
    let problem = Problem::new("", Reason::KernelError, why);
    ApplyFailure { problem, rolled_back: false, missing_tables: false, unsupported: None }
}

impl Executor for SimulatedExecutor {
    fn execute(&mut self, work: &mut Work) -> knit_agent::Result<Completion> {
        let start = thread_cpu_time();
        let events = match work {
            Work::Effect { effect, .. } => self.execute_effect(effect),
            // Nothing is deferred.
            Work::DeferredDelete { .. } => Vec::new(),
            Work::CheckSandboxes(sandboxes) => {
                let kernel = self.0.lock();
                let gone = sandboxes.iter().filter(|sandbox| !kernel.is_alive(sandbox));
                gone.map(|sandbox| Event::SandboxRemoved(sandbox.id.clone())).collect()
            }
        };
        self.0.cpu_time.fetch_add(thread_cpu_time().saturating_sub(start), Ordering::Relaxed);
        Ok(Completion { events, ..Completion::default() })
    }

    fn another(&self) -> knit_agent::Result<Box<dyn Executor>> {
        Ok(Box::new(Self(Arc::clone(&self.0))))
    }

    fn observe_host(&mut self) -> knit_agent::Result<ScopeState> {
        let mut observed = self.0.lock().kernel.observe_in(|scope| *scope == Scope::Host);
        Ok(std::mem::take(observed.scope(&Scope::Host)))
    }

    fn is_alive(&mut self, sandbox: &Sandbox) -> bool {
        self.0.lock().is_alive(sandbox)
    }

    fn roll_back(&mut self, plan: &Plan, _: &[Sandbox]) -> (Vec<String>, BTreeSet<Scope>) {
        (self.0.lock().kernel.roll_back(plan).err().into_iter().collect(), BTreeSet::new())
    }

    fn remove_strays(&mut self, plan: &Plan) -> knit_agent::Result<BTreeSet<Scope>> {
        self.0.lock().apply(plan).map_err(|why| knit_agent::Error::Stray { why })?;
        Ok(BTreeSet::new())
    }
}

/// The CPU time of the calling thread, in nanoseconds.
fn thread_cpu_time() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(std::time::Duration::from);
    time.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}
