//! One node: the engine's state as the agent holds it, an in-memory kernel, and the state of the agent's adapters.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use knit_engine::pods::{Pod as ApiPod, PodEvent};
use knit_engine::pools::PodRanges;
use knit_engine::state::BridgeKey;
use knit_engine::{CallId, ObserveRequest, State, Unit, tenant_ranges};
use knit_ipam::{Capacity, Time};
use knit_model::filter::{ElementData, ElementKey, FilterStep};
use knit_model::link::{Attrs, Dummy, Kind, Link};
use knit_model::report::{AppliedReport, BridgeReport, PodState};
use knit_model::state::Address;
use knit_model::{IfName, NetState, Plan, SandboxId, Scope, ScopeState, Step};

use crate::cluster::NodeExtensions;
use crate::kernel::FakeKernel;
use crate::kernel::filter::{FilterRequest, restrict};
use crate::queue::{MILLIS, SimTime};
use crate::scenario::{Audience, node_address, node_name, uplink};

/// The start of every node's clock, in milliseconds since 1970.
pub(crate) const EPOCH: i64 = 1_700_000_000_000;

/// A pod by namespace and name.
pub(crate) type Name = (String, String);

/// A pending call of the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Add(u32),
    Del(u32),
}

/// What a node receives from the API server.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// Everything.
    pub(crate) is_full: bool,
    /// Otherwise the changes for these, in order: of the tenants that may run on the node.
    pub(crate) audiences: Arc<[Audience]>,
}

impl View {
    /// Whether it receives changes for this audience.
    pub(crate) fn receives(&self, audience: Audience) -> bool {
        self.is_full || self.audiences.binary_search(&audience).is_ok()
    }
}

pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) view: View,
    pub(crate) state: State,
    pub(crate) kernel: FakeKernel,
    /// The state replayed from the journal so far; kept for some nodes.
    pub(crate) shadow: Option<Box<State>>,
    /// Pods that the API server lists for this node, by uid, as far as the agent's watch has delivered them.
    pub(crate) api_pods: BTreeMap<String, ApiPod>,
    pub(crate) pending_pod_events: Vec<PodEvent>,
    /// Whether the agent has to list pods: it restarted.
    pub(crate) must_list_pods: bool,
    /// Existing network namespaces, each with its pod.
    pub(crate) netns: BTreeMap<SandboxId, u32>,
    /// Addresses in each of them.
    pub(crate) addresses: BTreeMap<SandboxId, Vec<IpAddr>>,
    pub(crate) calls: BTreeMap<CallId, Call>,
    /// Plans being applied.
    pub(crate) applying: BTreeMap<Unit, Arc<Plan>>,
    /// The ranges of the cluster network that the agent has applied.
    pub(crate) network: Option<PodRanges>,
    pub(crate) extensions: NodeExtensions,
    /// Attempts of requests in flight. Each request is retried on its own, whatever its object.
    pub(crate) requests_in_flight: BTreeSet<u64>,
    /// Number of requests in backoff.
    pub(crate) requests_in_backoff: usize,
    /// The version that the watch has delivered; `None` before the list.
    pub(crate) watch_version: Option<usize>,
    /// Published status, per pod and of the node.
    pub(crate) published: BTreeMap<Name, PodState>,
    pub(crate) published_node: Option<NodeReport>,
    pub(crate) scheduled: ScheduledFlags,
    /// Incarnation of the agent: events of an earlier one are ignored.
    pub(crate) incarnation: u32,
    /// Whether the agent runs.
    pub(crate) is_up: bool,
    /// Whether the API server is unreachable.
    pub(crate) is_partitioned: bool,
    /// Whether the node was removed from the cluster.
    pub(crate) is_removed: bool,
    /// Clock skew in milliseconds.
    pub(crate) skew: i64,
}

/// Status of a node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeReport {
    pub(crate) bridges: Vec<(BridgeKey, BridgeReport)>,
    pub(crate) objects: Vec<AppliedReport>,
    pub(crate) capacity: Vec<Capacity>,
}

/// Events that are scheduled already.
#[derive(Default)]
pub(crate) struct ScheduledFlags {
    pub(crate) watch: bool,
    pub(crate) pod_sync: bool,
    pub(crate) status_write: bool,
    pub(crate) network: bool,
    pub(crate) notification: bool,
}

/// Why a plan was not applied.
#[derive(Debug)]
pub(crate) enum ApplyError {
    /// An injected failure; everything was rolled back.
    Injected,
    /// The netns was deleted meanwhile.
    NetnsGone,
    /// The kernel rejects the plan: the plan is wrong.
    InvalidPlan(String),
}

/// The state with the settings that an agent sets at every start: all ranges are open to tenants.
pub(crate) fn with_settings(mut state: State) -> State {
    state.settings.tenant_ranges = tenant_ranges::all_addresses().to_vec();
    state
}

impl Node {
    pub(crate) fn new(index: usize, has_shadow: bool, view: View) -> Self {
        let mut host = ScopeState::default();
        let mut link = Link::new(uplink(), Kind::Dummy(Dummy::default()));
        link.attrs = Attrs { mtu: Some(1_500), up: Some(true), group: Some(0), ..Attrs::default() };
        host.add_link(link);
        host.add_address(Address { owned: false, ..Address::new(uplink(), node_address(index)) });
        Self {
            name: node_name(index),
            view,
            state: with_settings(State::default()),
            kernel: FakeKernel::with_state(NetState { scopes: [(Scope::Host, host)].into() }),
            shadow: has_shadow.then(Box::default),
            api_pods: BTreeMap::new(),
            pending_pod_events: Vec::new(),
            must_list_pods: false,
            netns: BTreeMap::new(),
            addresses: BTreeMap::new(),
            calls: BTreeMap::new(),
            applying: BTreeMap::new(),
            network: None,
            extensions: NodeExtensions::default(),
            requests_in_flight: BTreeSet::new(),
            requests_in_backoff: 0,
            watch_version: None,
            published: BTreeMap::new(),
            published_node: None,
            scheduled: ScheduledFlags::default(),
            incarnation: 0,
            is_up: true,
            is_partitioned: false,
            is_removed: false,
            skew: 0,
        }
    }

    /// The node's clock.
    pub(crate) fn clock(&self, now: SimTime) -> Time {
        let millis = EPOCH + self.skew + i64::try_from(now / MILLIS).unwrap_or(i64::MAX);
        Time(u64::try_from(millis).unwrap_or_default())
    }

    /// Whether its agent can reach the API server.
    pub(crate) fn can_reach_api(&self) -> bool {
        self.is_up && !self.is_partitioned && !self.is_removed
    }

    /// The runtime creates a netns with `lo`.
    pub(crate) fn netns_created(&mut self, id: &SandboxId, pod: u32) {
        self.netns.insert(id.clone(), pod);
        let name = IfName::new("lo").expect("lo is a valid name");
        let mut lo = Link::new(name, Kind::Dummy(Dummy::default()));
        lo.attrs = Attrs { mtu: Some(65_535), up: Some(false), group: Some(0), ..Attrs::default() };
        let mut scope = ScopeState::default();
        scope.add_link(lo);
        self.kernel.replace_namespace(&Scope::Sandbox(id.clone()), scope);
    }

    /// The observed state, or the deleted sandbox.
    pub(crate) fn observe(&self, request: &ObserveRequest) -> Result<NetState, SandboxId> {
        if let Some(id) = &request.sandbox
            && !self.netns.contains_key(id)
        {
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
            let filter = FilterRequest {
                tables: &request.filter_tables,
                sets: &request.filter_sets,
                elements: &request.filter_elements,
            };
            restrict(&mut state.filter, &filter);
        }
        Ok(observed)
    }

    /// Applies a plan; an injected failure occurs after `fails_after` steps.
    pub(crate) fn apply(&mut self, plan: &Plan, fails_after: Option<usize>) -> Result<(), ApplyError> {
        let exists = |scope: &Scope| match scope {
            Scope::Host => true,
            Scope::Sandbox(id) => self.netns.contains_key(id),
        };
        let is_netns_gone = plan.steps.iter().any(|planned| {
            let peer = match &planned.step {
                Step::CreateLink { peer: Some((scope, _)), .. } => Some(scope),
                _ => None,
            };
            !exists(&planned.scope) || peer.is_some_and(|scope| !exists(scope))
        });
        if is_netns_gone {
            return Err(ApplyError::NetnsGone);
        }
        match fails_after {
            None => self.apply_steps(plan).map_err(ApplyError::InvalidPlan),
            Some(steps) => {
                self.apply_and_roll_back(plan, steps).map_err(ApplyError::InvalidPlan)?;
                Err(ApplyError::Injected)
            }
        }
    }

    /// Applies step by step: removing what disappeared is not an error. It went with a deleted netns, or by the plan that
    /// was still applied when the runtime deleted the netns.
    fn apply_steps(&mut self, plan: &Plan) -> Result<(), String> {
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
            let one = Plan { steps: vec![planned.clone()], ..Plan::default() };
            match self.kernel.apply(&one) {
                Err(_) if is_removal => {}
                result => result?,
            }
        }
        Ok(())
    }

    /// Applies the first steps of a plan and rolls them back.
    pub(crate) fn apply_and_roll_back(&mut self, plan: &Plan, steps: usize) -> Result<(), String> {
        let part = Plan { steps: plan.steps[..steps.min(plan.steps.len())].to_vec(), ..Plan::default() };
        self.kernel.apply(&part)?;
        self.kernel.roll_back(&part)
    }

    /// The addresses inside a sandbox.
    pub(crate) fn addresses_in(&self, id: &SandboxId) -> Vec<IpAddr> {
        let observed =
            self.kernel.observe_in(|scope| matches!(scope, Scope::Sandbox(sandbox) if sandbox == id));
        let addresses = observed.scopes.into_values().flat_map(|scope| scope.addresses.into_values());
        addresses.map(|address| address.address.addr()).collect()
    }

    /// Elements of the packet filter, without those of sets of ranges, which belong to the tables as a whole.
    pub(crate) fn elements(&self) -> impl Iterator<Item = (&ElementKey, &ElementData)> {
        let filter = self.kernel.filter(&Scope::Host);
        let is_of_ranges = |key: &ElementKey| filter.tables[&key.table].sets[&key.set].intervals;
        filter.elements.iter().filter(move |(key, _)| !is_of_ranges(key))
    }

    /// Elements of the packet filter that belong to pods.
    pub(crate) fn pod_elements(&self) -> impl Iterator<Item = &ElementKey> {
        let shared = self.state.units.get(&Unit::PacketFilter);
        let is_shared =
            move |key: &ElementKey| shared.is_some_and(|unit_state| unit_state.filter.contains_key(key));
        self.elements().map(|(key, _)| key).filter(move |key| !is_shared(key))
    }

    /// Host links with Knit's mark.
    pub(crate) fn marked_host_links(&self) -> Vec<String> {
        let observed = self.kernel.observe_in(|scope| *scope == Scope::Host);
        let links = observed.scopes.into_values().flat_map(|scope| scope.links.into_values());
        links.filter(|link| link.owner.is_some()).map(|link| link.name.to_string()).collect()
    }
}
