//! The extensions of each node: registered, called, slow, hanging, unreachable, or replaced. A reply may be lost after
//! the extension has acted.

use std::collections::{BTreeMap, BTreeSet};

use knit_engine::extension::{
    ExtensionProtocol, ExtensionSpec, FailPolicy, HookPhase, Invocation, InvocationError, InvocationResult,
};
use knit_engine::extensions::{ExtensionRegistration, ExtensionRemoval};
use knit_engine::{CallId, Event};
use knit_model::IfName;

use super::{Cluster, ScheduledEvent};
use crate::api_server::PlantedFault;
use crate::queue::{MILLIS, SECOND, SimTime};
use crate::scenario::REQUIRED_EXTENSION;
use crate::trace::TraceSubject;

/// The extension that only observes: its failures are ignored.
pub(crate) const OPTIONAL_EXTENSION: &str = "audit";
/// Lost replies and hanging calls, per mille each.
const LOST_PER_MILLE: u64 = 3;
const HANGING_PER_MILLE: u64 = 2;
/// The timeout of a call.
const DEADLINE: SimTime = 5 * SECOND;

/// The extensions of a node.
#[derive(Default)]
pub(crate) struct NodeExtensions {
    /// What they have configured: extension, cookie of the namespace, interface.
    pub(crate) configured: BTreeSet<(String, u64, IfName)>,
    /// When each was registered.
    pub(crate) registered_at: BTreeMap<&'static str, SimTime>,
    /// Until when calls do not reach them.
    unreachable_until: SimTime,
}

impl Cluster {
    /// Registers all extensions of a node that are not registered. A killed agent is retried.
    pub(crate) fn register_extensions(&mut self, node: usize) {
        if self.nodes[node].is_removed {
            return;
        }
        if !self.nodes[node].is_up {
            return self.queue.schedule(SECOND, ScheduledEvent::RegisterExtensions(node));
        }
        for spec in [required(), optional()] {
            let name = if spec.name == REQUIRED_EXTENSION { REQUIRED_EXTENSION } else { OPTIONAL_EXTENSION };
            if self.nodes[node].state.extensions.get(name).is_some() {
                continue;
            }
            self.record_trace(node, "registers extension", TraceSubject::Name(name.to_owned()));
            self.nodes[node].extensions.registered_at.insert(name, self.queue.now());
            self.attempts += 1;
            let registration = ExtensionRegistration {
                call: CallId(format!("register-{}", self.attempts)),
                spec,
                token_digest: None,
                new_token_digest: format!("token-{name}"),
                admin: false,
            };
            self.handle(node, Event::ExtensionRegistrationRequested(Box::new(registration)));
        }
    }

    /// An admin removes the required extension, which cleans up, and another version registers later.
    pub(crate) fn replace_extension(&mut self, node: usize) {
        if !self.nodes[node].is_up {
            return;
        }
        self.stats.extensions_replaced += 1;
        self.record_trace(node, "removes extension", TraceSubject::Name(REQUIRED_EXTENSION.to_owned()));
        let extensions = &mut self.nodes[node].extensions;
        extensions.configured.retain(|(name, ..)| name != REQUIRED_EXTENSION);
        extensions.registered_at.remove(REQUIRED_EXTENSION);
        self.attempts += 1;
        let removal = ExtensionRemoval {
            call: CallId(format!("remove-{}", self.attempts)),
            name: REQUIRED_EXTENSION.to_owned(),
            token_digest: None,
            admin: true,
        };
        self.handle(node, Event::ExtensionRemovalRequested(removal));
        let delay = self.rng.between(SECOND, 10 * SECOND);
        self.queue.schedule(delay, ScheduledEvent::RegisterExtensions(node));
    }

    /// The extensions of a node stop for a while. What they have configured stays.
    pub(crate) fn stop_extensions(&mut self, node: usize) {
        self.record_trace(node, "extensions stop", TraceSubject::Node);
        let duration = self.rng.between(SECOND, 20 * SECOND);
        self.nodes[node].extensions.unreachable_until = self.queue.now() + duration;
    }

    /// Calls an extension. It acts at once, even if the agent is killed before the reply.
    pub(crate) fn invoke_extension(&mut self, node: usize, invocation: &Invocation) {
        let name = &invocation.to.name;
        self.stats.extension_calls += 1;
        if self.nodes[node].state.extensions.get(name).is_none() {
            let what = format!("{} calls extension {name}, which is not registered", self.nodes[node].name);
            return self.fail(&[node], what);
        }
        let failed = |message: &str, reached| Err(InvocationError { message: message.to_owned(), reached });
        let is_busy = self.is_busy();
        let is_unreachable = self.queue.now() < self.nodes[node].extensions.unreachable_until;
        let (delay, acts, result) = if is_unreachable {
            (MILLIS, false, failed("connection refused", false))
        } else if is_busy && self.rng.per_mille(LOST_PER_MILLE) {
            (self.rng.between(MILLIS, 10 * MILLIS), true, failed("connection reset", true))
        } else if is_busy && self.rng.per_mille(HANGING_PER_MILLE) {
            self.stats.extension_timeouts += 1;
            (DEADLINE, self.rng.chance(50), failed("deadline exceeded", true))
        } else {
            (self.rng.between(MILLIS / 2, 10 * MILLIS), true, Ok(BTreeMap::new()))
        };
        if acts && self.options.fault != Some(PlantedFault::SkippedExtensions) {
            self.nodes[node].extensions.act(invocation);
        }
        let incarnation = self.nodes[node].incarnation;
        let reply = Box::new((invocation.id.clone(), result));
        self.queue.schedule(delay, ScheduledEvent::ExtensionReply(node, incarnation, reply));
    }

    /// The reply of an extension arrives, or its deadline has passed.
    pub(crate) fn extension_replied(&mut self, node: usize, (id, result): (String, InvocationResult)) {
        self.handle(node, Event::ExtensionInvoked { id, result });
    }

    /// Schedules the next notification of an extension.
    pub(crate) fn schedule_notifications(&mut self, node: usize) {
        let here = &self.nodes[node];
        if here.scheduled.notification || here.state.extensions.pending_notifications().next().is_none() {
            return;
        }
        let clock = here.clock(self.queue.now());
        if let Some(wait) = here.state.next_notification_in(clock) {
            let incarnation = here.incarnation;
            self.nodes[node].scheduled.notification = true;
            let delay = wait * MILLIS + 1;
            self.queue.schedule(delay, ScheduledEvent::NotificationTimer(node, incarnation));
        }
    }
}

impl NodeExtensions {
    fn act(&mut self, invocation: &Invocation) {
        let cookie = invocation.sandbox.instance.cookie;
        for interface in &invocation.interfaces {
            let configured = (invocation.to.name.clone(), cookie, interface.name.clone());
            match invocation.phase {
                HookPhase::BeforeAttach => {}
                HookPhase::AfterAttach => drop(self.configured.insert(configured)),
                HookPhase::AfterDetach => drop(self.configured.remove(&configured)),
            }
        }
    }
}

fn required() -> ExtensionSpec {
    ExtensionSpec {
        name: REQUIRED_EXTENSION.to_owned(),
        order: 0,
        socket: format!("/run/{REQUIRED_EXTENSION}.sock"),
        phases: [HookPhase::BeforeAttach, HookPhase::AfterAttach, HookPhase::AfterDetach].into(),
        namespaces: BTreeSet::new(),
        labels: BTreeMap::new(),
        fail: FailPolicy::Fail,
        deadline: DEADLINE / MILLIS,
        protocol: ExtensionProtocol::Knit,
    }
}

/// Takes part in attaches of pods without a tenant.
fn optional() -> ExtensionSpec {
    ExtensionSpec {
        name: OPTIONAL_EXTENSION.to_owned(),
        order: 1,
        phases: [HookPhase::AfterAttach, HookPhase::AfterDetach].into(),
        namespaces: BTreeSet::from(["apps".to_owned()]),
        fail: FailPolicy::Ignore,
        ..required()
    }
}
