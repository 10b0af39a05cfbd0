//! Work for executors, and its completion.

use std::collections::BTreeSet;
use std::fmt;

use knit_engine::{Effect, Event, State, Unit};
use knit_kernel::SandboxNamespaces;
use knit_model::{Sandbox, Scope};

use super::scopes_of;

/// Work for an executor: an effect of the engine with the state that it needs, or housekeeping of the node.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all work is an effect")]
pub enum Work {
    /// An effect on the kernel.
    Effect {
        /// The effect.
        effect: Effect,
        /// The sandboxes whose namespaces it may have to enter.
        sandboxes: Vec<Sandbox>,
        /// Namespaces that are already open.
        namespaces: SandboxNamespaces,
        /// Whether missing keys are generated. Not in a dry run.
        generate_keys: bool,
    },
    /// Execute the deferred deletions in these scopes.
    DeferredDelete {
        /// Where links wait to be deleted.
        scopes: BTreeSet<Scope>,
        /// The sandboxes of these scopes.
        sandboxes: Vec<Sandbox>,
    },
    /// Find the sandboxes among these whose namespace is gone.
    CheckSandboxes(Vec<Sandbox>),
}

/// The result of completed work.
#[derive(Debug, Default)]
pub struct Completion {
    /// The events for the engine.
    pub events: Vec<Event>,
    /// The unit of the work, with the namespaces that are open for its next effect.
    pub namespaces: Option<(Unit, SandboxNamespaces)>,
    /// Scopes with links whose deletion was deferred.
    pub deferred_deletes: BTreeSet<Scope>,
}

impl Work {
    /// An effect, with the sandboxes of the state that it is about.
    pub fn effect(effect: Effect, state: &State, namespaces: SandboxNamespaces, generate_keys: bool) -> Self {
        let scopes: BTreeSet<Scope> = match &effect {
            Effect::Observe { request: look, .. } => {
                look.sandbox.iter().cloned().map(Scope::Sandbox).collect()
            }
            Effect::Apply { plan, .. } => scopes_of(plan),
            _ => BTreeSet::new(),
        };
        let sandboxes = sandboxes_of(&scopes, state);
        Self::Effect { effect, sandboxes, namespaces, generate_keys }
    }

    /// The deferred deletions in these scopes.
    pub(crate) fn deferred_delete(scopes: BTreeSet<Scope>, state: &State) -> Self {
        let sandboxes = sandboxes_of(&scopes, state);
        Self::DeferredDelete { scopes, sandboxes }
    }

    /// The unit that is observed or changed.
    pub(crate) fn unit(&self) -> Option<&Unit> {
        match self {
            Self::Effect { effect: Effect::Observe { unit, .. } | Effect::Apply { unit, .. }, .. } => {
                Some(unit)
            }
            _ => None,
        }
    }
}

fn sandboxes_of(scopes: &BTreeSet<Scope>, state: &State) -> Vec<Sandbox> {
    let sandboxes = scopes.iter().filter_map(|scope| match scope {
        Scope::Sandbox(id) => state.sandboxes.get(id).cloned(),
        Scope::Host => None,
    });
    sandboxes.collect()
}

impl fmt::Display for Work {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Effect { effect, .. } => match effect {
                Effect::Observe { unit, .. } => write!(out, "observe {unit}"),
                Effect::Apply { unit, .. } => write!(out, "apply {unit}"),
                Effect::InspectNetns { path, .. } => write!(out, "inspect namespace {path}"),
                Effect::CreateNetns { path, .. } => write!(out, "create namespace {path}"),
                Effect::RemoveNetns { path, .. } => write!(out, "delete namespace {path}"),
                Effect::RerouteConnections(_) => out.write_str("reroute connections"),
                Effect::EndConnections(_) => out.write_str("end connections"),
                Effect::RunPluginChain { .. } => out.write_str("run CNI plugins"),
                other => write!(out, "{other:?}"),
            },
            Self::DeferredDelete { .. } => out.write_str("delete links"),
            Self::CheckSandboxes(_) => out.write_str("check sandboxes"),
        }
    }
}

impl Completion {
    /// A completion with one event.
    pub(super) fn with(event: Event) -> Self {
        Self { events: vec![event], ..Self::default() }
    }
}
