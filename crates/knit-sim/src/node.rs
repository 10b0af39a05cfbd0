//! One node: the engine's state as the agent has it, a kernel made of plain data, and what the agent's adapters remember.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use knit_engine::pods::{Pod as ApiPod, Pods};
use knit_engine::state::BridgeKey;
use knit_engine::{CallId, Look, State, Unit};
use knit_ipam::{Capacity, Time};
use knit_model::link::{Attrs, Dummy, Kind, Link};
use knit_model::report::{AppliedReport, BridgeReport, PodState};
use knit_model::state::Address;
use knit_model::{IfName, NetState, Plan, SandboxId, Scope, ScopeState, Step};

use crate::kernel::Kernel;
use crate::queue::{MILLIS, Moment};
use crate::scenario::{node_address, node_name, uplink};

/// The clock of every node begins here, in milliseconds since 1970.
pub(crate) const EPOCH: i64 = 1_700_000_000_000;

/// A pod by namespace and name.
pub(crate) type Name = (String, String);

/// What the runtime asked for and waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Add(u32),
    Del(u32),
}

/// News of a pod that the node's watch has not told yet.
pub(crate) enum PodNews {
    Applied(ApiPod),
    Deleted(String),
}

pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) state: State,
    pub(crate) kernel: Kernel,
    /// The state that the journal gives when it is read from the beginning; kept for some nodes.
    pub(crate) shadow: Option<Box<State>>,
    /// What API server and runtime said last.
    pub(crate) pods: Pods,
    pub(crate) pod_news: Vec<PodNews>,
    /// What the API server would list of pods, while an agent that began anew cannot ask.
    pub(crate) unlisted: Option<Pods>,
    /// Namespaces that there are, each with its pod.
    pub(crate) netns: BTreeMap<SandboxId, u32>,
    /// Addresses that the kernel has in each of them.
    pub(crate) addresses: BTreeMap<SandboxId, Vec<IpAddr>>,
    pub(crate) calls: BTreeMap<CallId, Call>,
    /// Plans that hands work on.
    pub(crate) applying: BTreeMap<Unit, Arc<Plan>>,
    /// Tries of orders of blocks that were not answered so far. Each order is tried for itself, whatever its block's name.
    pub(crate) asked: BTreeSet<u64>,
    /// How many orders wait for their next try.
    pub(crate) resting: usize,
    /// The version that the watch of blocks has told; `None` before a list came.
    pub(crate) watched: Option<usize>,
    /// What was written last, of each pod and of the node.
    pub(crate) written: BTreeMap<Name, PodState>,
    pub(crate) written_node: Option<NodeReport>,
    pub(crate) due: DueFlags,
    /// Which life of the agent this is: what belongs to an earlier one is not heard any more.
    pub(crate) life: u32,
    /// Whether the agent runs.
    pub(crate) is_up: bool,
    /// Whether the API server cannot be reached.
    pub(crate) is_cut: bool,
    /// Whether the node left the cluster.
    pub(crate) is_gone: bool,
    /// How far the node's clock is off, in milliseconds.
    pub(crate) skew: i64,
}

/// What there is to say about a node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeReport {
    pub(crate) bridges: Vec<(BridgeKey, BridgeReport)>,
    pub(crate) objects: Vec<AppliedReport>,
    pub(crate) room: Vec<Capacity>,
}

/// What is in the queue already, so that it is not put there twice.
#[derive(Default)]
pub(crate) struct DueFlags {
    pub(crate) watch: bool,
    pub(crate) feed: bool,
    pub(crate) write: bool,
}

/// Why a plan was not carried out.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// It was meant to fail; everything was taken back.
    Planted,
    /// The namespace went meanwhile.
    Gone,
    /// The kernel does not do such a thing: the plan is wrong.
    Wrong(String),
}

impl Node {
    pub(crate) fn new(index: usize, has_shadow: bool) -> Self {
        let mut host = ScopeState::default();
        let mut link = Link::new(uplink(), Kind::Dummy(Dummy::default()));
        link.attrs = Attrs { mtu: Some(1_500), up: Some(true), group: Some(0), ..Attrs::default() };
        host.add_link(link);
        host.add_address(Address { owned: false, ..Address::new(uplink(), node_address(index)) });
        Self {
            name: node_name(index),
            state: State::default(),
            kernel: Kernel::holding(NetState { scopes: [(Scope::Host, host)].into() }),
            shadow: has_shadow.then(Box::default),
            pods: Pods::default(),
            pod_news: Vec::new(),
            unlisted: None,
            netns: BTreeMap::new(),
            addresses: BTreeMap::new(),
            calls: BTreeMap::new(),
            applying: BTreeMap::new(),
            asked: BTreeSet::new(),
            resting: 0,
            watched: None,
            written: BTreeMap::new(),
            written_node: None,
            due: DueFlags::default(),
            life: 0,
            is_up: true,
            is_cut: false,
            is_gone: false,
            skew: 0,
        }
    }

    /// The node's clock.
    pub(crate) fn clock(&self, now: Moment) -> Time {
        let millis = EPOCH + self.skew + i64::try_from(now / MILLIS).unwrap_or(i64::MAX);
        Time(u64::try_from(millis).unwrap_or_default())
    }

    /// Whether its agent can ask the API server something.
    pub(crate) fn is_reached(&self) -> bool {
        self.is_up && !self.is_cut && !self.is_gone
    }

    /// The runtime makes a namespace, in which there is `lo`.
    pub(crate) fn namespace_made(&mut self, id: &SandboxId, pod: u32) {
        self.netns.insert(id.clone(), pod);
        let name = IfName::new("lo").expect("a short name");
        let mut lo = Link::new(name, Kind::Dummy(Dummy::default()));
        lo.attrs = Attrs { mtu: Some(65_535), up: Some(false), group: Some(0), ..Attrs::default() };
        let mut newborn = ScopeState::default();
        newborn.add_link(lo);
        self.kernel.reborn(&Scope::Sandbox(id.clone()), newborn);
    }

    /// What the kernel shows, or the sandbox that is not there any more.
    pub(crate) fn look(&self, look: &Look) -> Result<NetState, SandboxId> {
        if let Some(id) = &look.sandbox
            && !self.netns.contains_key(id)
        {
            return Err(id.clone());
        }
        let is_looked_at = |scope: &Scope| match scope {
            Scope::Host => true,
            Scope::Sandbox(id) => look.sandbox.as_ref() == Some(id),
        };
        let mut seen = self.kernel.observe_in(is_looked_at);
        for (scope, state) in &mut seen.scopes {
            if look.links_only {
                *state = ScopeState { links: std::mem::take(&mut state.links), ..ScopeState::default() };
            }
            if *scope == Scope::Host && !look.host_rules {
                state.rules.clear();
            }
            state.sysctls.retain(|key, _| look.sysctls.contains(key));
        }
        Ok(seen)
    }

    /// Carries out a plan; if it is to fail, after so many of its steps.
    pub(crate) fn apply(&mut self, plan: &Plan, fails_after: Option<usize>) -> Result<(), Refusal> {
        let is_there = |scope: &Scope| match scope {
            Scope::Host => true,
            Scope::Sandbox(id) => self.netns.contains_key(id),
        };
        let is_gone = plan.steps.iter().any(|planned| {
            let far = match &planned.step {
                Step::CreateLink { peer: Some((scope, _)), .. } => Some(scope),
                _ => None,
            };
            !is_there(&planned.scope) || far.is_some_and(|scope| !is_there(scope))
        });
        if is_gone {
            return Err(Refusal::Gone);
        }
        match fails_after {
            None => self.carry_out(plan).map_err(Refusal::Wrong),
            Some(steps) => {
                self.begin_and_take_back(plan, steps).map_err(Refusal::Wrong)?;
                Err(Refusal::Planted)
            }
        }
    }

    /// Step by step: what was to go and went meanwhile, with a namespace that died, is gone as it should be.
    fn carry_out(&mut self, plan: &Plan) -> Result<(), String> {
        for planned in plan.steps.iter().filter(|planned| !planned.implied) {
            let is_removal = matches!(
                planned.step,
                Step::DeleteLink { .. }
                    | Step::RemoveAddress(_)
                    | Step::RemoveRoute(_)
                    | Step::RemoveRule(_)
                    | Step::RemoveNeighbour(_)
            );
            let one = Plan { steps: vec![planned.clone()], ..Plan::default() };
            match self.kernel.apply(&one) {
                Err(_) if is_removal => {}
                result => result?,
            }
        }
        Ok(())
    }

    /// Carries out the first steps of a plan and takes them back.
    pub(crate) fn begin_and_take_back(&mut self, plan: &Plan, steps: usize) -> Result<(), String> {
        let part = Plan { steps: plan.steps[..steps.min(plan.steps.len())].to_vec(), ..Plan::default() };
        self.kernel.apply(&part)?;
        self.kernel.roll_back(&part)
    }

    /// The addresses inside a sandbox, as the kernel has them.
    pub(crate) fn addresses_in(&self, id: &SandboxId) -> Vec<IpAddr> {
        let seen = self.kernel.observe_in(|scope| matches!(scope, Scope::Sandbox(there) if there == id));
        let inside = seen.scopes.into_values().flat_map(|scope| scope.addresses.into_values());
        inside.map(|address| address.address.addr()).collect()
    }

    /// Links of the host that have Knit's mark.
    pub(crate) fn own_links(&self) -> Vec<String> {
        let seen = self.kernel.observe_in(|scope| *scope == Scope::Host);
        let links = seen.scopes.into_values().flat_map(|scope| scope.links.into_values());
        links.filter(|link| link.owner.is_some()).map(|link| link.name.to_string()).collect()
    }
}
