//! A node without a kernel: the engine, a kernel made of plain data, and the journal as a list.

use std::collections::{BTreeSet, VecDeque};

use knit_engine::blocks::Order;
use knit_engine::call::Found;
use knit_engine::{
    Answer, Applied, Effect, Event, Failure, Keys, Lack, Look, ObjectKey, Record, State, StoredObject, step,
};
use knit_ipam::Time;
use knit_model::intent::{
    BridgeIntent, Intent, IntentSpec, InterfaceIntent, LinkChangeIntent, NameRule, Selector,
};
use knit_model::link::{Attrs, Bridge, Kind, Link, Veth};
use knit_model::problem::{Problem, Reason};
use knit_model::provenance::{Dialect, ObjectRef, Provenance};
use knit_model::sandbox::Instance;
use knit_model::{KeyRef, NetState, Plan, PublicKey, Sandbox, SandboxId, Scope, ScopeState, Step, marks};

use super::kernel::Kernel;

/// Events are bounded, so that a loop in the engine is a failure and no hang.
const MOST_EVENTS: usize = 10_000;

/// A node.
pub struct Node {
    pub state: State,
    pub kernel: Kernel,
    pub journal: Vec<Record>,
    /// Plans of this unit (by its text) fail.
    pub broken: Option<String>,
    /// The kind of link that the kernel lacks.
    pub without: Option<&'static str>,
    /// The kind of link that the kernel has, and will not make.
    pub refused: Option<&'static str>,
    pub steps: usize,
    /// Secrets that are there.
    pub secrets: BTreeSet<KeyRef>,
    /// Of each look at a sandbox, whether it was at links alone.
    pub links_only: Vec<bool>,
    /// What calls were answered.
    pub answers: Vec<Answer>,
    /// What is to be done with blocks of addresses.
    pub orders: VecDeque<Order>,
}

impl Node {
    /// A node whose kernel holds something already.
    pub fn holding(kernel: NetState) -> Self {
        let kernel = Kernel::holding(kernel);
        Self {
            state: State::default(),
            kernel,
            journal: Vec::new(),
            broken: None,
            without: None,
            refused: None,
            steps: 0,
            secrets: BTreeSet::new(),
            links_only: Vec::new(),
            answers: Vec::new(),
            orders: VecDeque::new(),
        }
    }

    /// Hears an event and does all that follows from it.
    pub fn hear(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        let mut count = 0;
        while let Some(event) = events.pop_front() {
            count += 1;
            assert!(count < MOST_EVENTS, "the engine does not come to rest");
            for effect in step(&mut self.state, event, Time(count as u64)) {
                events.extend(self.carry_out(effect));
            }
        }
    }

    fn carry_out(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Journal(record) => {
                // What is written must come back as it was.
                let text = serde_json::to_string(&record).unwrap();
                self.journal.push(serde_json::from_str(&text).unwrap());
                None
            }
            Effect::Observe { unit, look } => {
                self.links_only.extend(look.sandbox.is_some().then_some(look.links_only));
                Some(Event::Observed { unit, seen: self.look(&look), keys: self.keys_of(&look) })
            }
            Effect::Apply { unit, plan } => {
                self.steps += plan.steps.len();
                let broken = self.broken.as_ref().is_some_and(|broken| unit.to_string().contains(broken))
                    || makes(&plan, self.refused).is_some();
                let lacks = self.lack(&plan);
                let result = match (broken, &lacks) {
                    (true, _) => Err("it is broken".to_owned()),
                    (false, Some(_)) => Err("it lacks something".to_owned()),
                    (false, None) => self.kernel.apply(&plan),
                };
                let failure = |message| Failure {
                    problem: Problem { field: String::new(), reason: Reason::KernelRefused, message },
                    taken_back: true,
                    lacks,
                };
                Some(Event::Applied(Applied { unit, result: result.map_err(failure) }))
            }
            // A namespace is known by its path here.
            Effect::Inspect { call, path } => {
                let cookie = path.bytes().map(u64::from).sum();
                let instance = Instance { boot: "boot".to_owned(), cookie };
                Some(Event::Inspected { call, found: Ok(Found { instance, number: 1 }) })
            }
            Effect::Answer { answer, .. } => {
                self.answers.push(answer);
                None
            }
            Effect::Block(order) => {
                self.orders.push_back(order);
                None
            }
            // What else calls lead to has tests of its own.
            _ => None,
        }
    }

    /// The kind that a plan would make and that the kernel is without.
    fn lack(&self, plan: &Plan) -> Option<Lack> {
        makes(plan, self.without)
            .map(|kind| Lack { kind: kind.to_owned(), words: format!("this kernel has no {kind}: CONFIG") })
    }

    /// Keys of Secrets that are not there are missing; those that the node makes are made.
    fn keys_of(&self, look: &Look) -> Keys {
        let is_there = |key: &&KeyRef| matches!(key, KeyRef::Made { .. }) || self.secrets.contains(*key);
        let there = look.keys.iter().filter(is_there);
        let number = |key: &KeyRef| key.to_string().bytes().fold(1u8, u8::wrapping_add);
        there.map(|key| (key.clone(), Ok(PublicKey::from_bytes([number(key); 32])))).collect()
    }

    /// Sees only what was asked for: one sandbox, of a new one without a mark only a part, and all of the host.
    fn look(&self, look: &Look) -> NetState {
        let mut seen = self.kernel.observe();
        seen.scopes.retain(|scope, _| match scope {
            Scope::Host => true,
            Scope::Sandbox(id) => look.sandbox.as_ref() == Some(id),
        });
        let is_marked = |link: &Link| link.owner.is_some() || link.attrs.group == Some(marks::BIRTH_GROUP);
        for (scope, state) in &mut seen.scopes {
            let has_mark =
                state.links.values().any(is_marked) || state.routes.values().any(|route| route.owned);
            if look.is_new && *scope != Scope::Host && !has_mark {
                state.addresses.clear();
                state.rules.clear();
                state.neighbours.clear();
            }
            if look.links_only {
                *state = ScopeState { links: std::mem::take(&mut state.links), ..ScopeState::default() };
            }
        }
        for scope in seen.scopes.values_mut() {
            scope.sysctls.retain(|key, _| look.sysctls.contains(key));
        }
        seen
    }

    /// The state as a restart would find it.
    pub fn replayed(&self) -> State {
        let mut state = State::default();
        self.journal.iter().for_each(|record| state.record(record));
        state
    }

    pub fn link(&self, sandbox: &str, name: &str) -> Option<Link> {
        self.kernel.observe().link(&scope(sandbox), &name.parse().unwrap()).cloned()
    }

    pub fn host_link(&self, name: &str) -> Option<Link> {
        self.kernel.observe().link(&Scope::Host, &name.parse().unwrap()).cloned()
    }

    pub fn problems(&self, name: &str) -> Vec<String> {
        let key = self.state.objects.keys().find(|key| key.name == name).unwrap();
        self.state.report(key).unwrap().problems.iter().map(ToString::to_string).collect()
    }
}

/// The kind of link, if a plan would make one of this kind.
fn makes(plan: &Plan, kind: Option<&'static str>) -> Option<&'static str> {
    let is_it = |step: &Step| matches!(step, Step::CreateLink { link, .. } if Some(link.kind.name()) == kind);
    kind.filter(|_| plan.steps.iter().any(|planned| is_it(&planned.step)))
}

pub fn scope(sandbox: &str) -> Scope {
    Scope::Sandbox(SandboxId(sandbox.to_owned()))
}

/// A sandbox `name` with a number, in a namespace, with one label `net: <value>`.
pub fn sandbox(name: &str, number: u32, namespace: &str, label: &str) -> Sandbox {
    Sandbox {
        id: SandboxId(name.to_owned()),
        instance: Instance { boot: "boot".to_owned(), cookie: u64::from(number) },
        isolation: Default::default(),
        netns: format!("/run/netns/{name}"),
        number,
        pod: name.to_owned(),
        namespace: namespace.to_owned(),
        uid: format!("uid-{name}"),
        labels: [("net".to_owned(), label.to_owned())].into(),
        annotated: None,
    }
}

/// An object that wants something.
pub fn object(kind: &str, namespace: &str, name: &str, wants: Vec<IntentSpec>) -> StoredObject {
    let object = ObjectRef {
        kind: kind.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        generation: 1,
    };
    let origin = |index: usize| Provenance {
        dialect: Dialect::File,
        object: Some(object.clone()),
        field: format!("spec.entries[{index}]"),
        call: None,
    };
    let intents = wants
        .into_iter()
        .enumerate()
        .map(|(index, want)| Intent { origin: origin(index), spec: want })
        .collect();
    StoredObject {
        object: object.clone(),
        intents,
        warnings: Vec::new(),
        manifest: serde_json::Value::Null,
        since: 0,
        file: None,
    }
}

pub fn key(object: &StoredObject) -> ObjectKey {
    object.key()
}

/// A veth on a bridge, for pods with `net: <label>`.
pub fn veth(label: &str, prefix: &str, bridge: &str, range: &str) -> IntentSpec {
    IntentSpec::Interface(Box::new(InterfaceIntent {
        pods: Selector::label("net", label),
        name: NameRule::Prefix(prefix.to_owned()),
        kind: Kind::Veth(Veth::default()),
        attrs: Attrs::default(),
        parent: None,
        master: Some(bridge.to_owned()),
        port: None,
        vrf: None,
        remote_pod: None,
        ranges: vec![range.parse().unwrap()],
        network: None,
        fixed: Vec::new(),
        routes: Vec::new(),
        rules: Vec::new(),
        gateways: Vec::new(),
        sysctls: [].into(),
        limits: Default::default(),
        defined: None,
    }))
}

pub fn bridge(name: &str, range: &str) -> IntentSpec {
    IntentSpec::Bridge(BridgeIntent {
        name: name.parse().unwrap(),
        ranges: vec![range.parse().unwrap()],
        attrs: Attrs::default(),
        bridge: Bridge::default(),
        port: None,
    })
}

/// A change of the MTU of `eth0`.
pub fn eth0_mtu(label: &str, mtu: u32) -> IntentSpec {
    IntentSpec::LinkChange(LinkChangeIntent {
        pods: Selector::label("net", label),
        name: "eth0".parse().unwrap(),
        attrs: Attrs { mtu: Some(mtu), ..Attrs::default() },
        sysctls: [].into(),
        routes: Vec::new(),
    })
}

/// Sandboxes that have an `eth0` from "the main CNI plugin".
pub fn with_eth0(sandboxes: &[&str]) -> NetState {
    let mut state = NetState::default();
    for name in sandboxes {
        let mut eth0 = Link::new("eth0".parse().unwrap(), Kind::Veth(Veth::default()));
        eth0.attrs = Attrs { mtu: Some(1450), up: Some(true), group: Some(0), ..Attrs::default() };
        state.scope(&scope(name)).add_link(eth0);
    }
    state
}
