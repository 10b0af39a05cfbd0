//! A node with extensions, in memory: effects and extension calls run only when the test runs them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use knit_engine::call::{AttachmentMetadata, DetachRequest, DetachScope, InterfaceRequest, SandboxRequest};
use knit_engine::event::ChangeEnded;
use knit_engine::extension::{
    ExtensionProtocol, ExtensionSpec, FailPolicy, HookPhase, Invocation, InvocationError,
};
use knit_engine::extensions::{ExtensionRegistration, ExtensionRemoval};
use knit_engine::plugin_chain::{ChainedInterface, CniCommand, PluginChain};
use knit_engine::{AttachRequest, CallId, CallResult, Effect, Event, Record, State, step};
use knit_ipam::Time;
use knit_model::SandboxId;
use knit_model::problem::{Problem, Reason};
use knit_model::provenance::Dialect;

use super::executor::{cluster_network, execute, new_sandboxes};
use super::kernel::FakeKernel;
use super::with_settings;

/// All pods.
pub const PODS: [&str; 3] = ["a", "b", "c"];

/// The network of CNI plugins.
const LEGACY: &str = "legacy";

/// How an extension responds to a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Behavior {
    /// It succeeds.
    #[default]
    Succeed,
    /// It does its work and dies before it responds.
    Die,
    /// It fails without doing anything.
    Fail,
    /// It cannot be reached.
    Unreachable,
}

/// An extension: its behavior, the interfaces (netns cookie and name) it has configured, and the calls it
/// received.
#[derive(Clone, Debug, Default)]
pub struct FakeExtension {
    pub behavior: Behavior,
    pub configured: BTreeSet<(u64, String)>,
    pub invocations: Vec<Invocation>,
}

/// The node.
pub struct ExtensionNode {
    pub state: State,
    pub journal: Vec<Record>,
    pub pending: VecDeque<Effect>,
    pub results: Vec<(String, CallResult)>,
    pub extensions: BTreeMap<String, FakeExtension>,
    /// Interfaces that CNI plugins made, by sandbox and name.
    pub plugin_interfaces: BTreeSet<(String, String)>,
    pub plans_fail: bool,
    pub clock: u64,
    kernel: FakeKernel,
    ticket: u64,
}

impl ExtensionNode {
    pub fn new() -> Self {
        let mut node = Self {
            state: with_settings(State::default()),
            journal: Vec::new(),
            pending: VecDeque::new(),
            results: Vec::new(),
            extensions: BTreeMap::new(),
            plugin_interfaces: BTreeSet::new(),
            plans_fail: false,
            clock: 1_000,
            kernel: FakeKernel::with_state(new_sandboxes(&PODS)),
            ticket: 0,
        };
        node.handle(Event::ObjectApplied(cluster_network("10.75.0.0/24")));
        let chain = PluginChain { conflist: "{}".to_owned(), ..PluginChain::default() };
        node.handle(Event::PluginChainsConfigured(BTreeMap::from([(LEGACY.to_owned(), chain)])));
        node.run_until_idle();
        node
    }

    pub fn handle(&mut self, event: Event) {
        self.clock += 1;
        for effect in step(&mut self.state, event, Time(self.clock)) {
            match effect {
                Effect::Journal(record) => {
                    let text = serde_json::to_string(&record).unwrap();
                    self.journal.push(serde_json::from_str(&text).unwrap());
                }
                Effect::Respond { call, result: answer } => {
                    self.check_attach_result(&answer);
                    self.check_chained_result(&call, &answer);
                    self.results.push((call.0, answer));
                }
                Effect::ObjectsChanged(_)
                | Effect::UpdateFastPath(_)
                | Effect::RerouteConnections(_)
                | Effect::EndConnections(_) => {}
                Effect::InvokeExtension(invocation) => {
                    let name = &invocation.to.name;
                    assert!(self.state.extensions.get(name).is_some(), "{name} is called but not registered");
                    self.pending.push_back(Effect::InvokeExtension(invocation));
                }
                effect => self.pending.push_back(effect),
            }
        }
    }

    /// A successful attach has a receipt of every extension that is registered now.
    fn check_attach_result(&self, answer: &CallResult) {
        let CallResult::Attached { sandbox, interfaces } = answer else { return };
        for one in self.state.extensions.in_order() {
            let spec = &one.spec;
            if !spec.phases.contains(&HookPhase::AfterAttach)
                || !spec.selects(sandbox)
                || spec.fail == FailPolicy::Ignore
            {
                continue;
            }
            for (there, _) in interfaces {
                let pair = (there.interface.clone(), there.ticket);
                let has = self.state.extensions.receipts(&sandbox.id).any(|receipt| {
                    receipt.extension == spec.name
                        && receipt.phase == HookPhase::AfterAttach
                        && receipt.is_done()
                        && receipt.interfaces.contains(&pair)
                });
                assert!(has, "{} has no receipt of {}", sandbox.id, spec.name);
                let configured = (sandbox.instance.cookie, there.interface.to_string());
                assert!(
                    self.extensions[&spec.name].configured.contains(&configured),
                    "{configured:?} is not configured by {}",
                    spec.name
                );
            }
        }
    }

    /// The same for interfaces of CNI plugins.
    fn check_chained_result(&self, call: &CallId, answer: &CallResult) {
        if *answer != CallResult::ChainAttached {
            return;
        }
        let is_of_call = |there: &&ChainedInterface| there.origin.call.as_ref() == Some(&call.0);
        // A repeated attach of an existing interface is answered, too; its call is not stored.
        let Some(there) = self.state.attachments.all_chained().find(is_of_call) else { return };
        assert!(self.plugin_interfaces.contains(&(there.sandbox.0.clone(), there.interface.to_string())));
        let sandbox = &self.state.sandboxes[&there.sandbox];
        for one in self.state.extensions.in_order() {
            if one.spec.fail == FailPolicy::Fail && one.spec.selects(sandbox) {
                let configured = (sandbox.instance.cookie, there.interface.to_string());
                assert!(
                    self.extensions[&one.spec.name].configured.contains(&configured),
                    "{configured:?} is not configured by {}",
                    one.spec.name
                );
            }
        }
    }

    /// Runs the oldest pending effect; false when there is none.
    pub fn run_next(&mut self) -> bool {
        let Some(effect) = self.pending.pop_front() else { return false };
        let event = match execute(&mut self.kernel, effect, self.plans_fail) {
            Ok(event) => event,
            Err(effect) => match *effect {
                Effect::InvokeExtension(invocation) => self.invoke(*invocation),
                Effect::RunPluginChain { command: verb, interface: chained } => {
                    self.run_chain(verb, &chained)
                }
                other => panic!("unexpected effect {other:?}"),
            },
        };
        self.handle(event);
        true
    }

    /// Plugins add or delete an interface. A failed ADD leaves the interface behind.
    fn run_chain(&mut self, verb: CniCommand, chained: &ChainedInterface) -> Event {
        let key = chained.key();
        let interface = (key.0.0.clone(), key.1.to_string());
        match verb {
            CniCommand::Add => self.plugin_interfaces.insert(interface),
            CniCommand::Del if self.plans_fail => false,
            CniCommand::Del => self.plugin_interfaces.remove(&interface),
        };
        let result = if self.plans_fail {
            let message = "plugin failed".to_owned();
            Err(Problem::new("", Reason::KernelError, message))
        } else {
            Ok(r#"{"ips":[{"address":"10.9.0.2/24"}]}"#.to_owned())
        };
        Event::PluginChainDone { key, command: verb, result }
    }

    /// The extension handles a call.
    fn invoke(&mut self, invocation: Invocation) -> Event {
        let extension = self.extensions.entry(invocation.to.name.clone()).or_default();
        let id = invocation.id.clone();
        let not_done = |why: &str, reached| Err(InvocationError { message: why.to_owned(), reached });
        let result = match extension.behavior {
            Behavior::Unreachable => not_done("connection refused", false),
            Behavior::Fail => not_done("rejected", true),
            Behavior::Succeed | Behavior::Die => {
                let cookie = invocation.sandbox.instance.cookie;
                for interface in &invocation.interfaces {
                    let configured = (cookie, interface.name.to_string());
                    match invocation.phase {
                        HookPhase::BeforeAttach => {}
                        HookPhase::AfterAttach => drop(extension.configured.insert(configured)),
                        HookPhase::AfterDetach => drop(extension.configured.remove(&configured)),
                    }
                }
                let data = BTreeMap::from([("by".to_owned(), invocation.to.name.clone())]);
                extension.invocations.push(invocation);
                if extension.behavior == Behavior::Die {
                    not_done("connection reset", true)
                } else {
                    Ok(data)
                }
            }
        };
        Event::ExtensionInvoked { id, result }
    }

    /// A removed extension stops: it cleans up by itself and receives none of the pending calls.
    pub fn stop_extension(&mut self, name: &str) {
        if let Some(extension) = self.extensions.get_mut(name) {
            extension.configured.clear();
        }
        let to_it = |task: &Effect| matches!(task, Effect::InvokeExtension(one) if one.to.name == name);
        let (undelivered, others): (Vec<Effect>, Vec<Effect>) =
            std::mem::take(&mut self.pending).into_iter().partition(to_it);
        self.pending = others.into();
        for effect in undelivered {
            let Effect::InvokeExtension(one) = effect else { continue };
            let result = Err(InvocationError { message: "connection refused".to_owned(), reached: false });
            self.handle(Event::ExtensionInvoked { id: one.id, result });
        }
    }

    /// Runs effects until none is pending, advancing the clock while notifications are pending.
    pub fn run_until_idle(&mut self) {
        for _ in 0..10_000 {
            if self.run_next() {
                continue;
            }
            let Some(wait) = self.state.next_notification_in(Time(self.clock)) else { return };
            // A failed DEL is retried on resync, not by waiting.
            let is_stuck = |id: &SandboxId| {
                self.state.attachments.all_chained().any(|chained| chained.sandbox == *id && chained.removing)
            };
            let may_help = self.state.extensions.pending_notifications().any(|owed| {
                let is_well = |extension: &FakeExtension| extension.behavior == Behavior::Succeed;
                self.extensions.get(&owed.extension).is_none_or(is_well) && !is_stuck(&owed.sandbox.id)
            });
            if !may_help {
                return;
            }
            self.clock += wait;
            self.handle(Event::NotificationTimer);
        }
        panic!("the engine does not become idle");
    }

    /// Kills and restarts the agent: only the journal survives.
    pub fn restart(&mut self) {
        self.pending.clear();
        self.results.clear();
        self.state = with_settings(State::default());
        self.journal.iter().for_each(|record| self.state.record(record));
        let unfinished: Vec<_> = self.state.unfinished.keys().cloned().collect();
        for unit in unfinished {
            let at = Time(self.clock);
            let ended =
                ChangeEnded { unit, unit_state: None, problems: Vec::new(), restored: Vec::new(), at };
            let record = Record::ChangeEnded(Box::new(ended));
            self.state.record(&record);
            self.journal.push(record);
        }
        self.handle(Event::Restarted);
        self.handle(Event::Resync);
    }

    pub fn register(&mut self, call: &str, spec: ExtensionSpec, token: &str) {
        self.extensions.entry(spec.name.clone()).or_default();
        let token = (!token.is_empty()).then(|| token.to_owned());
        let (call, fresh) = (CallId(call.to_owned()), format!("token of {call}"));
        self.handle(Event::ExtensionRegistrationRequested(Box::new(ExtensionRegistration {
            call,
            spec,
            token_digest: token,
            new_token_digest: fresh,
            admin: false,
        })));
    }

    pub fn remove(&mut self, call: &str, name: &str, token: &str, admin: bool) {
        let token = (!token.is_empty()).then(|| token.to_owned());
        let (call, name) = (CallId(call.to_owned()), name.to_owned());
        self.handle(Event::ExtensionRemovalRequested(ExtensionRemoval {
            call,
            name,
            token_digest: token,
            admin,
        }));
    }

    pub fn attach(&mut self, call: &str, id: &str, interfaces: &[&str]) {
        self.attach_labelled(call, id, interfaces, &[]);
    }

    /// Attaches to the network of CNI plugins.
    pub fn attach_plugin_chain(&mut self, call: &str, id: &str, interface: &str) {
        self.request_attach(call, id, vec![(interface, LEGACY)], &[]);
    }

    pub fn attach_labelled(&mut self, call: &str, id: &str, interfaces: &[&str], labels: &[(&str, &str)]) {
        self.request_attach(call, id, interfaces.iter().map(|name| (*name, "")).collect(), labels);
    }

    fn request_attach(
        &mut self,
        call: &str,
        id: &str,
        interfaces: Vec<(&str, &str)>,
        labels: &[(&str, &str)],
    ) {
        let options =
            |name: &str| InterfaceRequest { default_route: name == "eth0", ..InterfaceRequest::default() };
        self.ticket += 1;
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let (id, netns) = (id.to_owned(), format!("/{id}"));
        self.handle(Event::AttachRequested(Box::new(AttachRequest {
            call: CallId(call.to_owned()),
            dialect: Dialect::Kni,
            sandbox: SandboxRequest { id, netns, labels, ..SandboxRequest::default() },
            interfaces: interfaces
                .iter()
                .map(|(name, network)| (name.parse().unwrap(), (*network).to_owned(), options(name)))
                .collect(),
            metadata: AttachmentMetadata::default(),
            fail_if_present: false,
            ticket: self.ticket,
            started_at: 0,
        })));
    }

    pub fn detach(&mut self, call: &str, id: &str, which: DetachScope) {
        let (call, sandbox) = (CallId(call.to_owned()), SandboxId(id.to_owned()));
        self.handle(Event::DetachRequested(DetachRequest {
            call,
            sandbox,
            netns: String::new(),
            scope: which,
            forget_sandbox: false,
            started_at: 0,
        }));
    }

    /// Cancels the newest attach.
    pub fn cancel(&mut self, call: &str) {
        self.handle(Event::CallCancelled { call: CallId(call.to_owned()), ticket: self.ticket });
    }

    pub fn take_result(&mut self, call: &str) -> CallResult {
        let found = self.results.iter().position(|(of, _)| of == call);
        let at = found.unwrap_or_else(|| panic!("{call} has no result"));
        self.results.remove(at).1
    }

    pub fn assert_attached(&mut self, call: &str) {
        let answer = self.take_result(call);
        assert!(matches!(answer, CallResult::Attached { .. }), "{call}: {answer:?}");
    }

    pub fn take_error(&mut self, call: &str) -> Problem {
        match self.take_result(call) {
            CallResult::Failed(problem) => problem,
            other => panic!("{call} configured not fail: {other:?}"),
        }
    }

    /// The calls of an extension: phase, sandbox and interfaces.
    pub fn invocations_of(&self, name: &str) -> Vec<String> {
        let calls = self.extensions[name].invocations.iter();
        calls
            .map(|one| {
                let names: Vec<&str> =
                    one.interfaces.iter().map(|interface| interface.name.as_str()).collect();
                format!("{} {} {}", one.phase, one.sandbox.id, names.join(","))
            })
            .collect()
    }

    /// Idle, with all extensions healthy: each extension has configured exactly what its receipts say, no
    /// notification is pending, and replaying the journal gives the same state.
    pub fn assert_consistent(&mut self) {
        for extension in self.extensions.values_mut() {
            extension.behavior = Behavior::Succeed;
        }
        self.run_until_idle();
        let mut replayed = State::default();
        self.journal.iter().for_each(|record| replayed.record(record));
        let remembered = self.state.persistent();
        assert_eq!(replayed.extensions, remembered.extensions);
        let attachments = |state: State| (state.attachments, state.sandboxes);
        assert_eq!(attachments(replayed), attachments(remembered));
        for one in self.state.extensions.in_order() {
            let spec = &one.spec;
            if !spec.phases.contains(&HookPhase::AfterDetach) {
                continue;
            }
            let mut receipts = BTreeSet::new();
            for id in self.state.sandboxes.keys() {
                let cookie = self.state.sandboxes[id].instance.cookie;
                for receipt in self.state.extensions.receipts(id) {
                    let mine = receipt.extension == spec.name && receipt.phase == HookPhase::AfterAttach;
                    if mine {
                        receipts
                            .extend(receipt.interfaces.iter().map(|(name, _)| (cookie, name.to_string())));
                    }
                }
            }
            for configured in &self.extensions[&spec.name].configured {
                assert!(
                    receipts.contains(configured),
                    "{} still has {configured:?} without a receipt",
                    spec.name
                );
            }
            let owed: Vec<_> = self.state.extensions.pending_notifications().collect();
            assert!(owed.is_empty(), "{owed:?}");
        }
        let chained = self.state.attachments.all_chained().map(|there| {
            assert!(there.is_ready(), "{there:?}");
            (there.sandbox.0.clone(), there.interface.to_string())
        });
        assert_eq!(chained.collect::<BTreeSet<_>>(), self.plugin_interfaces);
        let attached: BTreeSet<_> = self.state.attachments.sandboxes().collect();
        assert!(attached.iter().all(|id| self.state.sandboxes.contains_key(*id)));
    }
}

/// An extension for all phases.
pub fn extension_spec(name: &str, order: i32) -> ExtensionSpec {
    ExtensionSpec {
        name: name.to_owned(),
        order,
        socket: format!("/run/{name}.sock"),
        phases: [HookPhase::BeforeAttach, HookPhase::AfterAttach, HookPhase::AfterDetach].into(),
        namespaces: BTreeSet::new(),
        labels: BTreeMap::new(),
        fail: FailPolicy::Fail,
        deadline: 5_000,
        protocol: ExtensionProtocol::Knit,
    }
}
