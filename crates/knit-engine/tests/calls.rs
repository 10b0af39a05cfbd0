//! Calls that meet each other, one event at a time, with a kernel made of plain data.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[path = "../../../knit-model/tests/support/kernel.rs"]
    #[allow(dead_code, reason = "shared with the plans' own tests")]
    pub mod kernel;
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod node;
    pub mod tasks;
}

use std::collections::VecDeque;

use knit_engine::call::{Asked, Collect, Detach, Domain, Notes, Which, Wished};
use knit_engine::{Answer, Attach, CallId, Effect, Event, Record, State, step};
use knit_ipam::Time;
use knit_model::intent::RateIntent;
use knit_model::problem::{Problem, Reason};
use knit_model::provenance::Dialect;
use knit_model::{SandboxId, Scope};
use support::kernel::Kernel;
use support::node::scope;
use support::tasks::{carry_out, cluster_network, found, newborn};

/// A node whose kernel answers only when the test says so.
struct Slow {
    state: State,
    kernel: Kernel,
    journal: Vec<Record>,
    tasks: VecDeque<Effect>,
    answers: Vec<(String, Answer)>,
    /// Plans fail.
    broken: bool,
}

impl Slow {
    /// A node with the cluster's network, at rest.
    fn new() -> Self {
        let mut node = Self {
            state: State::default(),
            kernel: Kernel::holding(newborn(&["s", "a", "b", "c", "s0", "s1", "s2", "s3", "s4", "last"])),
            journal: Vec::new(),
            tasks: VecDeque::new(),
            answers: Vec::new(),
            broken: false,
        };
        node.tell(Event::ObjectApplied(cluster_network("10.75.0.0/29")));
        node.rest();
        node
    }

    fn tell(&mut self, event: Event) {
        for effect in step(&mut self.state, event, Time(1)) {
            match effect {
                Effect::Journal(record) => {
                    let text = serde_json::to_string(&record).unwrap();
                    self.journal.push(serde_json::from_str(&text).unwrap());
                }
                Effect::Answer { call, answer } => self.answers.push((call.0, answer)),
                Effect::Changed(_) => {}
                task => self.tasks.push_back(task),
            }
        }
    }

    /// Does the oldest thing that is to be done.
    fn work(&mut self) -> bool {
        let Some(task) = self.tasks.pop_front() else { return false };
        let done = carry_out(&mut self.kernel, task, self.broken);
        let event = done.unwrap_or_else(|other| panic!("{other:?} is nothing to be done"));
        self.tell(event);
        true
    }

    fn work_at_most(&mut self, tasks: usize) {
        for _ in 0..tasks {
            self.work();
        }
    }

    /// Does everything that is to be done.
    fn rest(&mut self) {
        for _ in 0..1_000 {
            if !self.work() {
                return;
            }
        }
        panic!("the engine does not come to rest");
    }

    fn answer(&mut self, call: &str) -> Answer {
        let at = self
            .answers
            .iter()
            .position(|(of, _)| of == call)
            .unwrap_or_else(|| panic!("{call} has no answer"));
        self.answers.remove(at).1
    }

    fn refused(&mut self, call: &str) -> Problem {
        match self.answer(call) {
            Answer::Failed(problem) => problem,
            other => panic!("{call} did not fail: {other:?}"),
        }
    }

    /// Nothing of any sandbox is left, and a restart finds the same.
    fn assert_nothing(&mut self) {
        self.rest();
        assert!(self.state.sandboxes.is_empty(), "{:?}", self.state.sandboxes);
        assert_eq!(self.state.called.all().count(), 0);
        assert_eq!(self.state.leases.iter().filter(|(_, _, lease)| lease.is_live()).count(), 0);
        let links: Vec<_> = self.kernel.observe().scopes[&Scope::Host].links.keys().cloned().collect();
        assert_eq!(links, ["knit0".parse().unwrap()]);
        assert!(self.answers.is_empty(), "{:?}", self.answers);
        let mut replayed = State::default();
        self.journal.iter().for_each(|record| replayed.record(record));
        assert_eq!(replayed.remembered().called, self.state.called);
        assert_eq!(replayed.sandboxes, self.state.sandboxes);
    }
}

fn attach(call: &str, id: &str, path: &str, interfaces: &[&str]) -> Event {
    let asked = |name: &&str| Asked { default_route: *name == "eth0", ..Asked::default() };
    let interfaces =
        interfaces.iter().map(|name| (name.parse().unwrap(), String::new(), asked(name))).collect();
    Event::AttachRequested(Box::new(Attach {
        call: CallId(call.to_owned()),
        dialect: Dialect::Kni,
        sandbox: Wished { id: id.to_owned(), netns: path.to_owned(), ..Wished::default() },
        interfaces,
        notes: Notes::default(),
        fail_if_present: false,
        ticket: 7,
        began: 0,
    }))
}

fn detach(call: &str, id: &str, which: Which) -> Event {
    let (call, sandbox) = (CallId(call.to_owned()), SandboxId(id.to_owned()));
    Event::DetachRequested(Detach { call, sandbox, netns: String::new(), which, forget: false, began: 0 })
}

fn addresses(answer: Answer) -> Vec<String> {
    let Answer::Attached { interfaces, .. } = answer else { panic!("not attached: {answer:?}") };
    interfaces.iter().flat_map(|(_, report)| &report.addresses).map(ToString::to_string).collect()
}

#[test]
fn an_attach_is_answered_once_it_stands_and_again_with_the_same() {
    let mut node = Slow::new();
    node.tell(attach("1", "s", "/s", &["eth0"]));
    assert!(node.answers.is_empty(), "nothing is answered before the kernel was asked");
    node.rest();
    assert_eq!(addresses(node.answer("1")), ["10.75.0.2/29"]);
    node.tell(attach("2", "s", "/s", &["eth0"]));
    node.rest();
    assert_eq!(addresses(node.answer("2")), ["10.75.0.2/29"]);
    node.tell(detach("3", "s", Which::All));
    node.rest();
    assert_eq!(node.answer("3"), Answer::Detached);
    node.assert_nothing();
}

/// An attach of `eth0` with a limit on what leaves the pod.
fn limited(call: &str, bits: u64) -> Event {
    let Event::AttachRequested(mut attach) = attach(call, "s", "/s", &["eth0"]) else { unreachable!() };
    attach.interfaces[0].2.limits.egress = Some(RateIntent { bits, burst: None });
    Event::AttachRequested(attach)
}

#[test]
fn another_limit_changes_the_living_interface_and_a_change_that_fails_or_is_cancelled_comes_back() {
    let mut node = Slow::new();
    let bits = |node: &Slow| {
        let link = node.kernel.observe().link(&scope("s"), &"eth0".parse().unwrap()).cloned();
        link.unwrap().attrs.limit.unwrap().rate().map(|rate| rate.bits)
    };
    for (call, asked) in [("1", 8_000), ("2", 16_000)] {
        node.tell(limited(call, asked));
        node.rest();
        assert_eq!(addresses(node.answer(call)), ["10.75.0.2/29"]);
        assert_eq!(bits(&node), Some(asked));
    }
    for moment in 0..4 {
        node.tell(limited("3", 32_000));
        node.work_at_most(moment);
        node.tell(Event::CallCancelled { call: CallId("3".to_owned()), ticket: 0 });
        node.rest();
        node.answers.clear();
        // What was answered before nobody listened any more stands: it can be asked for again.
        let now = bits(&node);
        assert!(now == Some(16_000) || (moment == 3 && now == Some(32_000)), "{moment}: {now:?}");
    }
    node.tell(limited("4", 16_000));
    node.rest();
    node.answers.clear();
    node.broken = true;
    node.tell(limited("5", 64_000));
    node.rest();
    assert_eq!(node.refused("5").reason, Reason::KernelRefused);
    node.broken = false;
    node.tell(Event::Resync);
    node.rest();
    assert_eq!(bits(&node), Some(16_000));
    node.tell(attach("6", "s", "/s", &["eth0"]));
    node.rest();
    assert_eq!((bits(&node), addresses(node.answer("6")).len()), (None, 1));
    node.tell(detach("7", "s", Which::All));
    node.rest();
    assert_eq!(node.answer("7"), Answer::Detached);
    node.assert_nothing();
}

#[test]
fn an_attach_that_is_cancelled_at_any_moment_leaves_nothing() {
    for moment in 0..12 {
        let mut node = Slow::new();
        node.tell(attach("1", "s", "/s", &["eth0"]));
        node.work_at_most(moment);
        let answered = !node.answers.is_empty();
        node.tell(Event::CallCancelled { call: CallId("1".to_owned()), ticket: 7 });
        node.rest();
        if answered {
            // The answer was given, and nobody was there to hear it.
            assert_eq!(addresses(node.answer("1")).len(), 1);
        }
        node.assert_nothing();
    }
}

#[test]
fn a_detach_while_an_attach_is_under_way_is_the_last_word() {
    for moment in 0..12 {
        let mut node = Slow::new();
        node.tell(attach("1", "s", "/s", &["eth0"]));
        node.work_at_most(moment);
        let answered = !node.answers.is_empty();
        node.tell(detach("2", "s", Which::All));
        node.rest();
        assert_eq!(node.answer("2"), Answer::Detached);
        if answered {
            assert_eq!(addresses(node.answer("1")).len(), 1);
        } else {
            assert_eq!(node.refused("1").reason, Reason::Superseded, "moment {moment}");
        }
        node.assert_nothing();
    }
}

#[test]
fn a_call_that_fails_takes_back_its_own_and_not_what_another_was_told_is_there() {
    let mut node = Slow::new();
    node.tell(attach("1", "s", "/s", &["eth0"]));
    node.rest();
    assert_eq!(addresses(node.answer("1")).len(), 1);
    node.broken = true;
    node.tell(attach("2", "s", "/s", &["net1", "net2"]));
    node.rest();
    assert_eq!(node.refused("2").reason, Reason::KernelRefused);
    node.broken = false;
    node.tell(attach("3", "s", "/s", &["eth0"]));
    node.rest();
    assert_eq!(addresses(node.answer("3")), ["10.75.0.2/29"]);
    assert_eq!(node.state.called.all().count(), 1);
    assert_eq!(node.state.leases.iter().filter(|(_, _, lease)| lease.is_live()).count(), 1);
    node.tell(detach("4", "s", Which::All));
    node.rest();
    assert_eq!(node.answer("4"), Answer::Detached);
    node.assert_nothing();
}

#[test]
fn when_no_address_is_left_the_call_fails_and_nobody_loses_theirs() {
    let mut node = Slow::new();
    for number in 0..5 {
        node.tell(attach(&number.to_string(), &format!("s{number}"), &format!("/{number}"), &["eth0"]));
        node.rest();
        assert_eq!(addresses(node.answer(&number.to_string())).len(), 1);
    }
    node.tell(attach("last", "last", "/last", &["eth0"]));
    node.rest();
    assert_eq!(node.refused("last").reason, Reason::AddressesExhausted);
    assert_eq!(node.state.sandboxes.len(), 5);
    node.tell(detach("gone", "s0", Which::All));
    node.rest();
    assert_eq!(node.answer("gone"), Answer::Detached);
    node.tell(attach("now", "last", "/last", &["eth0"]));
    node.rest();
    assert_eq!(addresses(node.answer("now")), ["10.75.0.2/29"]);
}

#[test]
fn the_same_id_with_another_namespace_is_another_life() {
    let mut node = Slow::new();
    node.tell(attach("1", "s", "/s", &["eth0"]));
    node.rest();
    assert_eq!(addresses(node.answer("1")).len(), 1);
    // With the old namespace its link goes, and the end on the host with it.
    node.kernel.reborn(&scope("s"), newborn(&["s"]).scopes.remove(&scope("s")).unwrap());
    node.tell(attach("2", "s", "/other", &["eth0"]));
    node.rest();
    assert_eq!(addresses(node.answer("2")).len(), 1);
    let sandbox = &node.state.sandboxes[&SandboxId("s".to_owned())];
    assert_eq!(sandbox.instance, found("/other").instance);
    // A detach that names the namespace of the old life is not about the new one.
    let late = Detach {
        call: CallId("3".to_owned()),
        sandbox: SandboxId("s".to_owned()),
        netns: "/s".to_owned(),
        which: Which::All,
        forget: false,
        began: 0,
    };
    node.tell(Event::DetachRequested(late));
    node.rest();
    assert_eq!(node.answer("3"), Answer::Detached);
    assert_eq!(node.state.called.all().count(), 1);
}

#[test]
fn what_comes_late_for_a_deleted_sandbox_is_refused() {
    let mut node = Slow::new();
    let domain = Domain {
        path: "/made".to_owned(),
        pod: "p".to_owned(),
        namespace: "n".to_owned(),
        uid: "u".to_owned(),
    };
    let call = |id: &str| CallId(id.to_owned());
    node.tell(Event::DomainRequested { call: call("1"), domain: domain.clone() });
    node.rest();
    assert_eq!(node.answer("1"), Answer::Domain(domain.clone()));
    node.tell(attach("2", "s", "/made", &["eth0"]));
    node.rest();
    assert_eq!(addresses(node.answer("2")).len(), 1);
    node.tell(Event::DomainUnwanted { call: call("3"), path: "/made".to_owned() });
    node.rest();
    assert_eq!(node.answer("3"), Answer::Detached);
    node.tell(attach("4", "s", "/made", &["eth0"]));
    node.rest();
    assert_eq!(node.refused("4").reason, Reason::Superseded);
    // Cancelled while it is made, it goes again.
    node.tell(Event::DomainRequested { call: call("5"), domain: Domain { path: "/x".to_owned(), ..domain } });
    node.tell(Event::CallCancelled { call: call("5"), ticket: 0 });
    node.rest();
    assert_eq!(node.answer("5"), Answer::Detached);
    assert_eq!(node.state.called.domains().count(), 0);
    node.assert_nothing();
}

#[test]
fn a_namespace_that_goes_in_the_middle_is_told_to_whoever_waits() {
    for moment in 1..4 {
        let mut node = Slow::new();
        node.tell(attach("1", "s", "/s", &["eth0"]));
        node.work_at_most(moment);
        if !matches!(node.tasks.front(), Some(Effect::Observe { .. })) {
            continue;
        }
        // The kernel is looked at, and the namespace is not there.
        node.tasks.pop_front();
        node.tell(Event::SandboxGone(SandboxId("s".to_owned())));
        node.rest();
        assert_eq!(node.refused("1").reason, Reason::SandboxGone);
        node.assert_nothing();
    }
}

#[test]
fn collecting_leaves_what_lives_and_what_is_just_coming() {
    let mut node = Slow::new();
    for id in ["a", "b"] {
        node.tell(attach(id, id, &format!("/{id}"), &["eth0"]));
        node.rest();
        assert_eq!(addresses(node.answer(id)).len(), 1);
    }
    node.tell(attach("c", "c", "/c", &["eth0"]));
    node.work();
    let living = [(SandboxId("a".to_owned()), None)].into();
    node.tell(Event::CollectRequested(Collect {
        call: CallId("gc".to_owned()),
        living,
        group: String::new(),
    }));
    node.rest();
    let Answer::Collected(gone) = node.answer("gc") else { panic!("not collected") };
    assert_eq!(gone.iter().map(|one| one.sandbox.0.as_str()).collect::<Vec<_>>(), ["b"]);
    assert_eq!(addresses(node.answer("c")).len(), 1);
    assert_eq!(node.state.sandboxes.keys().map(|id| id.0.as_str()).collect::<Vec<_>>(), ["a", "c"]);
}

#[test]
fn more_calls_than_knit_takes_at_once_are_refused_in_words() {
    let mut node = Slow::new();
    for number in 0..1_100 {
        node.tell(attach(&number.to_string(), &format!("s{number}"), &format!("/{number}"), &["eth0"]));
    }
    let refused = node
        .answers
        .iter()
        .filter(|(_, answer)| matches!(answer, Answer::Failed(problem) if problem.reason == Reason::Busy));
    assert_eq!(refused.count(), 1_100 - 1_024);
}

#[test]
fn an_attach_that_began_before_its_detach_and_comes_after_it_is_refused() {
    let mut node = Slow::new();
    let began = |event: Event, at: u64| match event {
        Event::AttachRequested(attach) => Event::AttachRequested(Box::new(Attach { began: at, ..*attach })),
        Event::DetachRequested(detach) => Event::DetachRequested(Detach { began: at, ..detach }),
        other => other,
    };
    let eth0 = || Which::These(["eth0".parse().unwrap()].into());
    node.tell(began(detach("1", "s", eth0()), 5));
    node.tell(began(attach("2", "s", "/s", &["eth0"]), 4));
    node.rest();
    assert!(matches!(node.answer("2"), Answer::Failed(why) if why.reason == Reason::Superseded));
    // Another interface, another sandbox, one that began later, and one that does not say.
    for (call, id, name, at) in
        [("3", "s", "net1", 4), ("4", "a", "eth0", 4), ("5", "s", "eth0", 6), ("6", "b", "eth0", 0)]
    {
        node.tell(began(attach(call, id, &format!("/{id}"), &[name]), at));
        node.rest();
        assert!(matches!(node.answer(call), Answer::Attached { .. }), "{call}");
    }
}

#[test]
fn a_sandbox_is_forgotten_with_its_last_interface_if_the_detach_says_so() {
    let mut node = Slow::new();
    node.tell(attach("1", "s", "/s", &["eth0", "net1"]));
    node.rest();
    for (call, name, left) in [("2", "eth0", 1), ("3", "net1", 0)] {
        let Event::DetachRequested(asked) = detach(call, "s", Which::These([name.parse().unwrap()].into()))
        else {
            unreachable!("a detach is a detach")
        };
        node.tell(Event::DetachRequested(Detach { forget: true, ..asked }));
        node.rest();
        assert_eq!(node.answer(call), Answer::Detached);
        assert_eq!((node.state.sandboxes.len(), node.state.called.all().count()), (left, left), "{name}");
    }
}
