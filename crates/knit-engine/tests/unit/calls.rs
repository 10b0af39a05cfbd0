//! Overlapping attach, detach and GC calls, one event at a time, against an in-memory kernel.

use std::collections::VecDeque;

use knit_engine::call::{
    AttachmentMetadata, DetachRequest, DetachScope, GcRequest, InterfaceRequest, ManagedNetns, SandboxRequest,
};
use knit_engine::{AttachRequest, CallId, CallResult, Effect, Event, Record, State, step};
use knit_ipam::Time;
use knit_model::intent::RateIntent;
use knit_model::problem::{Problem, Reason};
use knit_model::provenance::Dialect;
use knit_model::{SandboxId, Scope};

use crate::support::executor::{cluster_network, execute, inspect_netns, new_sandboxes};
use crate::support::kernel::FakeKernel;
use crate::support::node::scope;
use crate::support::with_settings;

/// A node whose effects run only when the test runs them.
struct SteppedNode {
    state: State,
    kernel: FakeKernel,
    journal: Vec<Record>,
    pending: VecDeque<Effect>,
    results: Vec<(String, CallResult)>,
    /// Plans fail.
    plans_fail: bool,
}

impl SteppedNode {
    /// A node with the cluster network, idle.
    fn new() -> Self {
        let mut node = Self {
            state: with_settings(State::default()),
            kernel: FakeKernel::with_state(new_sandboxes(&[
                "s", "a", "b", "c", "s0", "s1", "s2", "s3", "s4", "last",
            ])),
            journal: Vec::new(),
            pending: VecDeque::new(),
            results: Vec::new(),
            plans_fail: false,
        };
        node.handle(Event::ObjectApplied(cluster_network("10.75.0.0/29")));
        node.run_until_idle();
        node
    }

    fn handle(&mut self, event: Event) {
        for effect in step(&mut self.state, event, Time(1)) {
            match effect {
                Effect::Journal(record) => {
                    let text = serde_json::to_string(&record).unwrap();
                    self.journal.push(serde_json::from_str(&text).unwrap());
                }
                Effect::Respond { call, result: answer } => self.results.push((call.0, answer)),
                Effect::ObjectsChanged(_)
                | Effect::UpdateFastPath(_)
                | Effect::RerouteConnections(_)
                | Effect::EndConnections(_) => {}
                effect => self.pending.push_back(effect),
            }
        }
    }

    /// Runs the oldest pending effect; false when there is none.
    fn run_next(&mut self) -> bool {
        let Some(effect) = self.pending.pop_front() else { return false };
        let done = execute(&mut self.kernel, effect, self.plans_fail);
        let event = done.unwrap_or_else(|other| panic!("unexpected effect {other:?}"));
        self.handle(event);
        true
    }

    fn run_at_most(&mut self, effects: usize) {
        for _ in 0..effects {
            self.run_next();
        }
    }

    /// Runs effects until none is pending.
    fn run_until_idle(&mut self) {
        for _ in 0..1_000 {
            if !self.run_next() {
                return;
            }
        }
        panic!("the engine does not become idle");
    }

    fn take_result(&mut self, call: &str) -> CallResult {
        let at = self
            .results
            .iter()
            .position(|(of, _)| of == call)
            .unwrap_or_else(|| panic!("{call} has no result"));
        self.results.remove(at).1
    }

    fn take_error(&mut self, call: &str) -> Problem {
        match self.take_result(call) {
            CallResult::Failed(problem) => problem,
            other => panic!("{call} did not fail: {other:?}"),
        }
    }

    /// Nothing of any sandbox is left, in memory and after replaying the journal.
    fn assert_nothing_left(&mut self) {
        self.run_until_idle();
        assert!(self.state.sandboxes.is_empty(), "{:?}", self.state.sandboxes);
        assert_eq!(self.state.attachments.all().count(), 0);
        assert_eq!(self.state.leases.iter().filter(|(_, _, lease)| lease.is_live()).count(), 0);
        let links: Vec<_> = self.kernel.observe().scopes[&Scope::Host].links.keys().cloned().collect();
        assert_eq!(links, ["knit0".parse().unwrap()]);
        assert!(self.results.is_empty(), "{:?}", self.results);
        let mut replayed = State::default();
        self.journal.iter().for_each(|record| replayed.record(record));
        let attachments = |state: State| state.attachments;
        assert_eq!(attachments(replayed.persistent()), self.state.attachments);
        assert_eq!(replayed.sandboxes, self.state.sandboxes);
    }
}

fn attach(call: &str, id: &str, path: &str, interfaces: &[&str]) -> Event {
    let options =
        |name: &&str| InterfaceRequest { default_route: *name == "eth0", ..InterfaceRequest::default() };
    let interfaces =
        interfaces.iter().map(|name| (name.parse().unwrap(), String::new(), options(name))).collect();
    Event::AttachRequested(Box::new(AttachRequest {
        call: CallId(call.to_owned()),
        dialect: Dialect::Kni,
        sandbox: SandboxRequest { id: id.to_owned(), netns: path.to_owned(), ..SandboxRequest::default() },
        interfaces,
        metadata: AttachmentMetadata::default(),
        fail_if_present: false,
        ticket: 7,
        started_at: 0,
    }))
}

fn detach(call: &str, id: &str, which: DetachScope) -> Event {
    let (call, sandbox) = (CallId(call.to_owned()), SandboxId(id.to_owned()));
    Event::DetachRequested(DetachRequest {
        call,
        sandbox,
        netns: String::new(),
        scope: which,
        forget_sandbox: false,
        started_at: 0,
    })
}

fn addresses(answer: CallResult) -> Vec<String> {
    let CallResult::Attached { interfaces, .. } = answer else { panic!("not attached: {answer:?}") };
    interfaces.iter().flat_map(|(_, report)| &report.addresses).map(ToString::to_string).collect()
}

#[test]
fn attach_is_answered_once_configured_and_is_idempotent() {
    let mut node = SteppedNode::new();
    node.handle(attach("1", "s", "/s", &["eth0"]));
    assert!(node.results.is_empty(), "no result before the plan was applied");
    node.run_until_idle();
    assert_eq!(addresses(node.take_result("1")), ["10.75.0.2/29"]);
    node.handle(attach("2", "s", "/s", &["eth0"]));
    node.run_until_idle();
    assert_eq!(addresses(node.take_result("2")), ["10.75.0.2/29"]);
    node.handle(detach("3", "s", DetachScope::All));
    node.run_until_idle();
    assert_eq!(node.take_result("3"), CallResult::Detached);
    node.assert_nothing_left();
}

/// An attach of `eth0` with an egress rate limit.
fn limited(call: &str, bits: u64) -> Event {
    let Event::AttachRequested(mut attach) = attach(call, "s", "/s", &["eth0"]) else { unreachable!() };
    attach.interfaces[0].2.limits.egress = Some(RateIntent { bits, burst: None });
    Event::AttachRequested(attach)
}

#[test]
fn changed_rate_limit_updates_the_interface_and_rolls_back_on_failure_or_cancel() {
    let mut node = SteppedNode::new();
    let bits = |node: &SteppedNode| {
        let link = node.kernel.observe().link(&scope("s"), &"eth0".parse().unwrap()).cloned();
        link.unwrap().attrs.limit.unwrap().bucket().map(|rate| rate.bits)
    };
    for (call, rate) in [("1", 8_000), ("2", 16_000)] {
        node.handle(limited(call, rate));
        node.run_until_idle();
        assert_eq!(addresses(node.take_result(call)), ["10.75.0.2/29"]);
        assert_eq!(bits(&node), Some(rate));
    }
    for step in 0..4 {
        node.handle(limited("3", 32_000));
        node.run_at_most(step);
        node.handle(Event::CallCancelled { call: CallId("3".to_owned()), ticket: 0 });
        node.run_until_idle();
        node.results.clear();
        // A change that was answered before the cancel stays; the caller may request the old value again.
        let now = bits(&node);
        assert!(now == Some(16_000) || (step == 3 && now == Some(32_000)), "{step}: {now:?}");
    }
    node.handle(limited("4", 16_000));
    node.run_until_idle();
    node.results.clear();
    node.plans_fail = true;
    node.handle(limited("5", 64_000));
    node.run_until_idle();
    assert_eq!(node.take_error("5").reason, Reason::KernelError);
    node.plans_fail = false;
    node.handle(Event::Resync);
    node.run_until_idle();
    assert_eq!(bits(&node), Some(16_000));
    node.handle(attach("6", "s", "/s", &["eth0"]));
    node.run_until_idle();
    assert_eq!((bits(&node), addresses(node.take_result("6")).len()), (None, 1));
    node.handle(detach("7", "s", DetachScope::All));
    node.run_until_idle();
    assert_eq!(node.take_result("7"), CallResult::Detached);
    node.assert_nothing_left();
}

#[test]
fn attach_cancelled_at_any_step_leaves_nothing() {
    for step in 0..12 {
        let mut node = SteppedNode::new();
        node.handle(attach("1", "s", "/s", &["eth0"]));
        node.run_at_most(step);
        let answered = !node.results.is_empty();
        node.handle(Event::CallCancelled { call: CallId("1".to_owned()), ticket: 7 });
        node.run_until_idle();
        if answered {
            // The result was sent before the cancel arrived.
            assert_eq!(addresses(node.take_result("1")).len(), 1);
        }
        node.assert_nothing_left();
    }
}

#[test]
fn detach_during_an_attach_wins() {
    for step in 0..12 {
        let mut node = SteppedNode::new();
        node.handle(attach("1", "s", "/s", &["eth0"]));
        node.run_at_most(step);
        let answered = !node.results.is_empty();
        node.handle(detach("2", "s", DetachScope::All));
        node.run_until_idle();
        assert_eq!(node.take_result("2"), CallResult::Detached);
        if answered {
            assert_eq!(addresses(node.take_result("1")).len(), 1);
        } else {
            assert_eq!(node.take_error("1").reason, Reason::Superseded, "step {step}");
        }
        node.assert_nothing_left();
    }
}

#[test]
fn failed_call_rolls_back_its_own_interfaces_only() {
    let mut node = SteppedNode::new();
    node.handle(attach("1", "s", "/s", &["eth0"]));
    node.run_until_idle();
    assert_eq!(addresses(node.take_result("1")).len(), 1);
    node.plans_fail = true;
    node.handle(attach("2", "s", "/s", &["net1", "net2"]));
    node.run_until_idle();
    assert_eq!(node.take_error("2").reason, Reason::KernelError);
    node.plans_fail = false;
    node.handle(attach("3", "s", "/s", &["eth0"]));
    node.run_until_idle();
    assert_eq!(addresses(node.take_result("3")), ["10.75.0.2/29"]);
    assert_eq!(node.state.attachments.all().count(), 1);
    assert_eq!(node.state.leases.iter().filter(|(_, _, lease)| lease.is_live()).count(), 1);
    node.handle(detach("4", "s", DetachScope::All));
    node.run_until_idle();
    assert_eq!(node.take_result("4"), CallResult::Detached);
    node.assert_nothing_left();
}

#[test]
fn exhausted_range_fails_the_call_and_keeps_existing_leases() {
    let mut node = SteppedNode::new();
    for number in 0..5 {
        node.handle(attach(&number.to_string(), &format!("s{number}"), &format!("/{number}"), &["eth0"]));
        node.run_until_idle();
        assert_eq!(addresses(node.take_result(&number.to_string())).len(), 1);
    }
    node.handle(attach("last", "last", "/last", &["eth0"]));
    node.run_until_idle();
    assert_eq!(node.take_error("last").reason, Reason::AddressesExhausted);
    assert_eq!(node.state.sandboxes.len(), 5);
    node.handle(detach("detach", "s0", DetachScope::All));
    node.run_until_idle();
    assert_eq!(node.take_result("detach"), CallResult::Detached);
    node.handle(attach("now", "last", "/last", &["eth0"]));
    node.run_until_idle();
    assert_eq!(addresses(node.take_result("now")), ["10.75.0.2/29"]);
}

#[test]
fn same_sandbox_id_with_another_netns_is_a_new_sandbox() {
    let mut node = SteppedNode::new();
    node.handle(attach("1", "s", "/s", &["eth0"]));
    node.run_until_idle();
    assert_eq!(addresses(node.take_result("1")).len(), 1);
    // Deleting the old netns deletes the pod's link and its host end.
    node.kernel.replace_namespace(&scope("s"), new_sandboxes(&["s"]).scopes.remove(&scope("s")).unwrap());
    node.handle(attach("2", "s", "/other", &["eth0"]));
    node.run_until_idle();
    assert_eq!(addresses(node.take_result("2")).len(), 1);
    let sandbox = &node.state.sandboxes[&SandboxId("s".to_owned())];
    assert_eq!(sandbox.instance, inspect_netns("/other").instance);
    // A detach that names the old netns does not affect the new sandbox.
    let late = DetachRequest {
        call: CallId("3".to_owned()),
        sandbox: SandboxId("s".to_owned()),
        netns: "/s".to_owned(),
        scope: DetachScope::All,
        forget_sandbox: false,
        started_at: 0,
    };
    node.handle(Event::DetachRequested(late));
    node.run_until_idle();
    assert_eq!(node.take_result("3"), CallResult::Detached);
    assert_eq!(node.state.attachments.all().count(), 1);
}

#[test]
fn late_attach_for_a_deleted_sandbox_is_rejected() {
    let mut node = SteppedNode::new();
    let domain = ManagedNetns {
        path: "/netns".to_owned(),
        pod: "p".to_owned(),
        namespace: "n".to_owned(),
        uid: "u".to_owned(),
    };
    let call = |id: &str| CallId(id.to_owned());
    node.handle(Event::NetnsRequested { call: call("1"), netns: domain.clone() });
    node.run_until_idle();
    assert_eq!(node.take_result("1"), CallResult::Netns(domain.clone()));
    node.handle(attach("2", "s", "/netns", &["eth0"]));
    node.run_until_idle();
    assert_eq!(addresses(node.take_result("2")).len(), 1);
    node.handle(Event::NetnsRemovalRequested { call: call("3"), path: "/netns".to_owned() });
    node.run_until_idle();
    assert_eq!(node.take_result("3"), CallResult::Detached);
    node.handle(attach("4", "s", "/netns", &["eth0"]));
    node.run_until_idle();
    assert_eq!(node.take_error("4").reason, Reason::Superseded);
    // A cancelled creation is rolled back.
    node.handle(Event::NetnsRequested {
        call: call("5"),
        netns: ManagedNetns { path: "/x".to_owned(), ..domain },
    });
    node.handle(Event::CallCancelled { call: call("5"), ticket: 0 });
    node.run_until_idle();
    assert_eq!(node.take_result("5"), CallResult::Detached);
    assert_eq!(node.state.attachments.managed_netns().count(), 0);
    node.assert_nothing_left();
}

#[test]
fn netns_deleted_during_an_attach_fails_the_call() {
    for step in 1..4 {
        let mut node = SteppedNode::new();
        node.handle(attach("1", "s", "/s", &["eth0"]));
        node.run_at_most(step);
        if !matches!(node.pending.front(), Some(Effect::Observe { .. })) {
            continue;
        }
        // The observation finds no netns.
        node.pending.pop_front();
        node.handle(Event::SandboxRemoved(SandboxId("s".to_owned())));
        node.run_until_idle();
        assert_eq!(node.take_error("1").reason, Reason::SandboxGone);
        node.assert_nothing_left();
    }
}

#[test]
fn gc_keeps_listed_sandboxes_and_attaches_in_flight() {
    let mut node = SteppedNode::new();
    for id in ["a", "b"] {
        node.handle(attach(id, id, &format!("/{id}"), &["eth0"]));
        node.run_until_idle();
        assert_eq!(addresses(node.take_result(id)).len(), 1);
    }
    node.handle(attach("c", "c", "/c", &["eth0"]));
    node.run_next();
    let living = [(SandboxId("a".to_owned()), None)].into();
    node.handle(Event::GcRequested(GcRequest {
        call: CallId("gc".to_owned()),
        alive: living,
        group: String::new(),
    }));
    node.run_until_idle();
    let CallResult::Collected(deleted) = node.take_result("gc") else { panic!("expected a GC result") };
    assert_eq!(deleted.iter().map(|one| one.sandbox.0.as_str()).collect::<Vec<_>>(), ["b"]);
    assert_eq!(addresses(node.take_result("c")).len(), 1);
    assert_eq!(node.state.sandboxes.keys().map(|id| id.0.as_str()).collect::<Vec<_>>(), ["a", "c"]);
}

#[test]
fn calls_beyond_the_limit_are_rejected_as_busy() {
    let mut node = SteppedNode::new();
    for number in 0..1_100 {
        node.handle(attach(&number.to_string(), &format!("s{number}"), &format!("/{number}"), &["eth0"]));
    }
    let rejected = node.results.iter().filter(
        |(_, answer)| matches!(answer, CallResult::Failed(problem) if problem.reason == Reason::Busy),
    );
    assert_eq!(rejected.count(), 1_100 - 1_024);
}

#[test]
fn attach_that_began_before_its_detach_is_rejected() {
    let mut node = SteppedNode::new();
    let began = |event: Event, at: u64| match event {
        Event::AttachRequested(attach) => {
            Event::AttachRequested(Box::new(AttachRequest { started_at: at, ..*attach }))
        }
        Event::DetachRequested(detach) => Event::DetachRequested(DetachRequest { started_at: at, ..detach }),
        other => other,
    };
    let eth0 = || DetachScope::Interfaces(["eth0".parse().unwrap()].into());
    node.handle(began(detach("1", "s", eth0()), 5));
    node.handle(began(attach("2", "s", "/s", &["eth0"]), 4));
    node.run_until_idle();
    assert!(matches!(node.take_result("2"), CallResult::Failed(why) if why.reason == Reason::Superseded));
    // Not affected: another interface, another sandbox, a later attach, and one without a start time.
    for (call, id, name, at) in
        [("3", "s", "net1", 4), ("4", "a", "eth0", 4), ("5", "s", "eth0", 6), ("6", "b", "eth0", 0)]
    {
        node.handle(began(attach(call, id, &format!("/{id}"), &[name]), at));
        node.run_until_idle();
        assert!(matches!(node.take_result(call), CallResult::Attached { .. }), "{call}");
    }
}

#[test]
fn sandbox_is_forgotten_with_its_last_interface_if_requested() {
    let mut node = SteppedNode::new();
    node.handle(attach("1", "s", "/s", &["eth0", "net1"]));
    node.run_until_idle();
    for (call, name, left) in [("2", "eth0", 1), ("3", "net1", 0)] {
        let Event::DetachRequested(request) =
            detach(call, "s", DetachScope::Interfaces([name.parse().unwrap()].into()))
        else {
            unreachable!("detach() returns DetachRequested")
        };
        node.handle(Event::DetachRequested(DetachRequest { forget_sandbox: true, ..request }));
        node.run_until_idle();
        assert_eq!(node.take_result(call), CallResult::Detached);
        assert_eq!(
            (node.state.sandboxes.len(), node.state.attachments.all().count()),
            (left, left),
            "{name}"
        );
    }
}
