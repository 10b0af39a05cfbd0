//! A node with extensions, all made of plain data: the kernel and the extensions answer only when the test says so.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use knit_engine::call::{Asked, Detach, Notes, Which, Wished};
use knit_engine::chain::{Chain, Chained, Verb};
use knit_engine::event::Ended;
use knit_engine::extension::{ExtensionSpec, FailPolicy, Invocation, NotDone, Phase, Speaks};
use knit_engine::extensions::{Registration, Removal};
use knit_engine::{Answer, Attach, CallId, Effect, Event, Record, State, step};
use knit_ipam::Time;
use knit_model::SandboxId;
use knit_model::problem::{Problem, Reason};
use knit_model::provenance::Dialect;

use super::kernel::Kernel;
use super::tasks::{carry_out, cluster_network, newborn};

/// The pods that there can be.
pub const PODS: [&str; 3] = ["a", "b", "c"];

/// The network that CNI plugins make.
const LEGACY: &str = "legacy";

/// How an extension behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mood {
    /// It does its part.
    #[default]
    Well,
    /// It does its part and dies before it answers.
    Dies,
    /// It refuses before it does anything.
    Refuses,
    /// It is not there.
    Away,
}

/// An extension's own world: for which interface of which namespace it has done something.
#[derive(Clone, Debug, Default)]
pub struct World {
    pub mood: Mood,
    pub has: BTreeSet<(u64, String)>,
    pub called: Vec<Invocation>,
}

/// The node.
pub struct Meshed {
    pub state: State,
    pub journal: Vec<Record>,
    pub tasks: VecDeque<Effect>,
    pub answers: Vec<(String, Answer)>,
    pub worlds: BTreeMap<String, World>,
    /// Interfaces that CNI plugins made, by sandbox and name.
    pub plugged: BTreeSet<(String, String)>,
    pub broken: bool,
    pub clock: u64,
    kernel: Kernel,
    ticket: u64,
}

impl Meshed {
    pub fn new() -> Self {
        let mut node = Self {
            state: State::default(),
            journal: Vec::new(),
            tasks: VecDeque::new(),
            answers: Vec::new(),
            worlds: BTreeMap::new(),
            plugged: BTreeSet::new(),
            broken: false,
            clock: 1_000,
            kernel: Kernel::holding(newborn(&PODS)),
            ticket: 0,
        };
        node.tell(Event::ObjectApplied(cluster_network("10.75.0.0/24")));
        let chain = Chain { conflist: "{}".to_owned(), ..Chain::default() };
        node.tell(Event::ChainsConfigured(BTreeMap::from([(LEGACY.to_owned(), chain)])));
        node.rest();
        node
    }

    pub fn tell(&mut self, event: Event) {
        self.clock += 1;
        for effect in step(&mut self.state, event, Time(self.clock)) {
            match effect {
                Effect::Journal(record) => {
                    let text = serde_json::to_string(&record).unwrap();
                    self.journal.push(serde_json::from_str(&text).unwrap());
                }
                Effect::Answer { call, answer } => {
                    self.check_answer(&answer);
                    self.check_plugged(&call, &answer);
                    self.answers.push((call.0, answer));
                }
                Effect::Changed(_) => {}
                Effect::Invoke(invocation) => {
                    let name = &invocation.to.name;
                    assert!(self.state.extensions.get(name).is_some(), "{name} is called and not registered");
                    self.tasks.push_back(Effect::Invoke(invocation));
                }
                task => self.tasks.push_back(task),
            }
        }
    }

    /// Whoever is told that interfaces are attached has them from every extension that is registered now.
    fn check_answer(&self, answer: &Answer) {
        let Answer::Attached { sandbox, interfaces } = answer else { return };
        for one in self.state.extensions.in_order() {
            let spec = &one.spec;
            if !spec.phases.contains(&Phase::AfterAttach)
                || !spec.means(sandbox)
                || spec.fail == FailPolicy::Ignore
            {
                continue;
            }
            for (there, _) in interfaces {
                let pair = (there.interface.clone(), there.ticket);
                let has = self.state.extensions.receipts(&sandbox.id).any(|receipt| {
                    receipt.extension == spec.name
                        && receipt.phase == Phase::AfterAttach
                        && receipt.is_done()
                        && receipt.interfaces.contains(&pair)
                });
                assert!(has, "{} has no receipt of {}", sandbox.id, spec.name);
                let did = (sandbox.instance.cookie, there.interface.to_string());
                assert!(self.worlds[&spec.name].has.contains(&did), "{did:?} is not {}'s", spec.name);
            }
        }
    }

    /// The same for what plugins made.
    fn check_plugged(&self, call: &CallId, answer: &Answer) {
        if *answer != Answer::Chained {
            return;
        }
        let asked = |there: &&Chained| there.why.call.as_ref() == Some(&call.0);
        // Who asks again for what is there is answered, too; it is not known by its call.
        let Some(there) = self.state.called.all_chained().find(asked) else { return };
        assert!(self.plugged.contains(&(there.sandbox.0.clone(), there.interface.to_string())));
        let sandbox = &self.state.sandboxes[&there.sandbox];
        for one in self.state.extensions.in_order() {
            if one.spec.fail == FailPolicy::Fail && one.spec.means(sandbox) {
                let did = (sandbox.instance.cookie, there.interface.to_string());
                assert!(self.worlds[&one.spec.name].has.contains(&did), "{did:?} is not {}'s", one.spec.name);
            }
        }
    }

    /// Does the oldest thing that is to be done.
    pub fn work(&mut self) -> bool {
        let Some(task) = self.tasks.pop_front() else { return false };
        let event = match carry_out(&mut self.kernel, task, self.broken) {
            Ok(event) => event,
            Err(task) => match *task {
                Effect::Invoke(invocation) => self.invoke(*invocation),
                Effect::RunChain { verb, chained } => self.run(verb, &chained),
                other => panic!("{other:?} is nothing to be done"),
            },
        };
        self.tell(event);
        true
    }

    /// Plugins make an interface, or take it away. Those that fail have done half of it.
    fn run(&mut self, verb: Verb, chained: &Chained) -> Event {
        let key = chained.key();
        let made = (key.0.0.clone(), key.1.to_string());
        match verb {
            Verb::Add => self.plugged.insert(made),
            Verb::Del if self.broken => false,
            Verb::Del => self.plugged.remove(&made),
        };
        let result = if self.broken {
            let message = "the plugin is broken".to_owned();
            Err(Problem { field: String::new(), reason: Reason::KernelRefused, message })
        } else {
            Ok(r#"{"ips":[{"address":"10.9.0.2/24"}]}"#.to_owned())
        };
        Event::ChainDone { key, verb, result }
    }

    /// The extension does, or does not, what it is called for.
    fn invoke(&mut self, invocation: Invocation) -> Event {
        let world = self.worlds.entry(invocation.to.name.clone()).or_default();
        let id = invocation.id.clone();
        let not = |why: &str, reached| Err(NotDone { why: why.to_owned(), reached });
        let told = match world.mood {
            Mood::Away => not("nobody listens", false),
            Mood::Refuses => not("it will not", true),
            Mood::Well | Mood::Dies => {
                let cookie = invocation.sandbox.instance.cookie;
                for went in &invocation.interfaces {
                    let did = (cookie, went.name.to_string());
                    match invocation.phase {
                        Phase::BeforeAttach => {}
                        Phase::AfterAttach => drop(world.has.insert(did)),
                        Phase::AfterDetach => drop(world.has.remove(&did)),
                    }
                }
                let said = BTreeMap::from([("by".to_owned(), invocation.to.name.clone())]);
                world.called.push(invocation);
                if world.mood == Mood::Dies { not("it died", true) } else { Ok(said) }
            }
        };
        Event::Invoked { id, told }
    }

    /// An extension that was removed ends: it cleans up by itself, and hears no call that is still on its way.
    pub fn ends(&mut self, name: &str) {
        if let Some(world) = self.worlds.get_mut(name) {
            world.has.clear();
        }
        let to_it = |task: &Effect| matches!(task, Effect::Invoke(one) if one.to.name == name);
        let (unheard, others): (Vec<Effect>, Vec<Effect>) =
            std::mem::take(&mut self.tasks).into_iter().partition(to_it);
        self.tasks = others.into();
        for task in unheard {
            let Effect::Invoke(one) = task else { continue };
            let told = Err(NotDone { why: "nobody listens".to_owned(), reached: false });
            self.tell(Event::Invoked { id: one.id, told });
        }
    }

    /// Does everything that is to be done, with time passing while something is owed.
    pub fn rest(&mut self) {
        for _ in 0..10_000 {
            if self.work() {
                continue;
            }
            let Some(wait) = self.state.owed_in(Time(self.clock)) else { return };
            // Plugins that failed to take something away are run again when everything is compared, not by waiting.
            let is_stuck =
                |id: &SandboxId| self.state.called.all_chained().any(|one| one.sandbox == *id && one.leaving);
            let may_help = self.state.extensions.owed().any(|owed| {
                let is_well = |world: &World| world.mood == Mood::Well;
                self.worlds.get(&owed.extension).is_none_or(is_well) && !is_stuck(&owed.sandbox.id)
            });
            if !may_help {
                return;
            }
            self.clock += wait;
            self.tell(Event::Woken);
        }
        panic!("the engine does not come to rest");
    }

    /// The agent is killed and comes again: what was written down is all it knows.
    pub fn crash(&mut self) {
        self.tasks.clear();
        self.answers.clear();
        self.state = State::default();
        self.journal.iter().for_each(|record| self.state.record(record));
        let unfinished: Vec<_> = self.state.unfinished.keys().cloned().collect();
        for unit in unfinished {
            let at = Time(self.clock);
            let ended = Ended { unit, made: None, problems: Vec::new(), given_back: Vec::new(), at };
            let record = Record::Ended(Box::new(ended));
            self.state.record(&record);
            self.journal.push(record);
        }
        self.tell(Event::Restarted);
        self.tell(Event::Resync);
    }

    pub fn register(&mut self, call: &str, spec: ExtensionSpec, token: &str) {
        self.worlds.entry(spec.name.clone()).or_default();
        let shown = (!token.is_empty()).then(|| token.to_owned());
        let (call, fresh) = (CallId(call.to_owned()), format!("token of {call}"));
        self.tell(Event::ExtensionWanted(Box::new(Registration { call, spec, shown, fresh, admin: false })));
    }

    pub fn remove(&mut self, call: &str, name: &str, token: &str, admin: bool) {
        let shown = (!token.is_empty()).then(|| token.to_owned());
        let (call, name) = (CallId(call.to_owned()), name.to_owned());
        self.tell(Event::ExtensionUnwanted(Removal { call, name, shown, admin }));
    }

    pub fn attach(&mut self, call: &str, id: &str, interfaces: &[&str]) {
        self.attach_labelled(call, id, interfaces, &[]);
    }

    /// Attaches to the network that plugins make.
    pub fn attach_plugged(&mut self, call: &str, id: &str, interface: &str) {
        self.ask(call, id, vec![(interface, LEGACY)], &[]);
    }

    pub fn attach_labelled(&mut self, call: &str, id: &str, interfaces: &[&str], labels: &[(&str, &str)]) {
        self.ask(call, id, interfaces.iter().map(|name| (*name, "")).collect(), labels);
    }

    fn ask(&mut self, call: &str, id: &str, interfaces: Vec<(&str, &str)>, labels: &[(&str, &str)]) {
        let asked = |name: &str| Asked { default_route: name == "eth0", ..Asked::default() };
        self.ticket += 1;
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let (id, netns) = (id.to_owned(), format!("/{id}"));
        self.tell(Event::AttachRequested(Box::new(Attach {
            call: CallId(call.to_owned()),
            dialect: Dialect::Kni,
            sandbox: Wished { id, netns, labels, ..Wished::default() },
            interfaces: interfaces
                .iter()
                .map(|(name, network)| (name.parse().unwrap(), (*network).to_owned(), asked(name)))
                .collect(),
            notes: Notes::default(),
            fail_if_present: false,
            ticket: self.ticket,
            began: 0,
        })));
    }

    pub fn detach(&mut self, call: &str, id: &str, which: Which) {
        let (call, sandbox) = (CallId(call.to_owned()), SandboxId(id.to_owned()));
        self.tell(Event::DetachRequested(Detach {
            call,
            sandbox,
            netns: String::new(),
            which,
            forget: false,
            began: 0,
        }));
    }

    /// Cancels the newest attach.
    pub fn cancel(&mut self, call: &str) {
        self.tell(Event::CallCancelled { call: CallId(call.to_owned()), ticket: self.ticket });
    }

    pub fn answer(&mut self, call: &str) -> Answer {
        let found = self.answers.iter().position(|(of, _)| of == call);
        let at = found.unwrap_or_else(|| panic!("{call} has no answer"));
        self.answers.remove(at).1
    }

    pub fn attached(&mut self, call: &str) {
        let answer = self.answer(call);
        assert!(matches!(answer, Answer::Attached { .. }), "{call}: {answer:?}");
    }

    pub fn refused(&mut self, call: &str) -> Problem {
        match self.answer(call) {
            Answer::Failed(problem) => problem,
            other => panic!("{call} did not fail: {other:?}"),
        }
    }

    /// The phases and interfaces in which an extension was called.
    pub fn calls_of(&self, name: &str) -> Vec<String> {
        let calls = self.worlds[name].called.iter();
        calls
            .map(|one| {
                let names: Vec<&str> = one.interfaces.iter().map(|went| went.name.as_str()).collect();
                format!("{} {} {}", one.phase, one.sandbox.id, names.join(","))
            })
            .collect()
    }

    /// When all is quiet and everyone is well: each extension has exactly what is attached and has its receipt, nothing
    /// is owed, and a restart finds the same.
    pub fn assert_consistent(&mut self) {
        for world in self.worlds.values_mut() {
            world.mood = Mood::Well;
        }
        self.rest();
        let mut replayed = State::default();
        self.journal.iter().for_each(|record| replayed.record(record));
        let remembered = self.state.remembered();
        assert_eq!(replayed.extensions, remembered.extensions);
        assert_eq!((replayed.called, replayed.sandboxes), (remembered.called, remembered.sandboxes));
        for one in self.state.extensions.in_order() {
            let spec = &one.spec;
            if !spec.phases.contains(&Phase::AfterDetach) {
                continue;
            }
            let mut receipts = BTreeSet::new();
            for id in self.state.sandboxes.keys() {
                let cookie = self.state.sandboxes[id].instance.cookie;
                for receipt in self.state.extensions.receipts(id) {
                    let mine = receipt.extension == spec.name && receipt.phase == Phase::AfterAttach;
                    if mine {
                        receipts
                            .extend(receipt.interfaces.iter().map(|(name, _)| (cookie, name.to_string())));
                    }
                }
            }
            for did in &self.worlds[&spec.name].has {
                assert!(receipts.contains(did), "{} still has {did:?}, and no receipt says so", spec.name);
            }
            let owed: Vec<_> = self.state.extensions.owed().collect();
            assert!(owed.is_empty(), "{owed:?}");
        }
        let stands = self.state.called.all_chained().map(|there| {
            assert!(there.stands(), "{there:?}");
            (there.sandbox.0.clone(), there.interface.to_string())
        });
        assert_eq!(stands.collect::<BTreeSet<_>>(), self.plugged);
        let attached: BTreeSet<_> = self.state.called.sandboxes().collect();
        assert!(attached.iter().all(|id| self.state.sandboxes.contains_key(*id)));
    }
}

/// An extension that takes part in everything.
pub fn spec(name: &str, order: i32) -> ExtensionSpec {
    ExtensionSpec {
        name: name.to_owned(),
        order,
        socket: format!("/run/{name}.sock"),
        phases: [Phase::BeforeAttach, Phase::AfterAttach, Phase::AfterDetach].into(),
        namespaces: BTreeSet::new(),
        labels: BTreeMap::new(),
        fail: FailPolicy::Fail,
        deadline: 5_000,
        speaks: Speaks::Knit,
    }
}
