//! A node in memory: the engine, a fake kernel, and the journal as a list.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use knit_engine::blocks::BlockRequest;
use knit_engine::call::NetnsInfo;
use knit_engine::nodes::{NodeEvent, NodeInfo};
use knit_engine::quota::ClaimRequest;
use knit_engine::recording::{Entry, NewEntry, digest};
use knit_engine::{
    ApplyFailure, CallResult, Effect, Event, KeyError, ObjectKey, ObserveRequest, PlanResult, PublicKeys,
    Record, Settings, State, StoredObject, UnsupportedKind, step,
};
use knit_ipam::Time;
use knit_model::connected_routes::ConnectedRoutes;
use knit_model::intent::{
    BridgeIntent, Intent, IntentSpec, InterfaceIntent, LinkChangeIntent, NameRule, PeerNode, Selector,
};
use knit_model::link::{Attrs, Bridge, Kind, Link, Veth};
use knit_model::problem::{Problem, Reason};
use knit_model::provenance::{Dialect, ObjectRef, Provenance};
use knit_model::sandbox::SandboxInstance;
use knit_model::{
    IfName, KeyRef, NetState, Plan, PublicKey, Sandbox, SandboxId, Scope, ScopeState, Step, kernel_ids,
};

use super::executor::restrict_filter;
use super::kernel::FakeKernel;
use super::{settings, with_settings};

/// Bounds the number of events, so that a loop in the engine fails instead of hanging.
const MAX_EVENTS: usize = 10_000;
/// How many times the recording of a node starts a segment after every event.
const MAX_SEGMENTS: usize = 16;

/// A node.
pub struct Node {
    pub state: State,
    pub kernel: FakeKernel,
    pub journal: Vec<Record>,
    /// What the agent sets at every start.
    pub settings: Settings,
    /// Plans of units whose text contains this fail.
    pub failing_unit: Option<String>,
    /// A kind of link that the kernel does not support.
    pub missing_kind: Option<&'static str>,
    /// A kind of link that the kernel supports but fails to create.
    pub rejected_kind: Option<&'static str>,
    pub applied_steps: usize,
    /// Secrets that exist.
    pub secrets: BTreeSet<KeyRef>,
    /// Secrets that the API server has not answered for.
    pub unknown_secrets: BTreeSet<KeyRef>,
    /// For each observation of a sandbox, whether it covered links only.
    pub links_only: Vec<bool>,
    /// Every object that was ever applied, by its manifest: an unused one is translated again.
    translations: BTreeMap<String, StoredObject>,
    /// Results of calls.
    pub results: Vec<CallResult>,
    /// Pending requests for address blocks.
    pub block_requests: VecDeque<BlockRequest>,
    /// Pending requests for claims of quotas.
    pub claim_requests: Vec<ClaimRequest>,
    /// The recording, if there is one, as lines of JSON.
    pub recording: Option<Vec<String>>,
    /// The time of the next event, in Unix milliseconds.
    pub clock: u64,
    /// The number of handled events, without those that followed.
    handled: usize,
}

impl Node {
    /// A node whose kernel starts with this state.
    pub fn with_kernel(kernel: NetState) -> Self {
        let kernel = FakeKernel::with_state(kernel);
        Self {
            state: with_settings(State::default()),
            kernel,
            journal: Vec::new(),
            settings: settings(),
            failing_unit: None,
            missing_kind: None,
            rejected_kind: None,
            applied_steps: 0,
            secrets: BTreeSet::new(),
            unknown_secrets: BTreeSet::new(),
            links_only: Vec::new(),
            translations: BTreeMap::new(),
            results: Vec::new(),
            block_requests: VecDeque::new(),
            claim_requests: Vec::new(),
            recording: None,
            clock: 0,
            handled: 0,
        }
    }

    /// Handles an event and all its effects.
    pub fn handle(&mut self, event: Event) {
        if matches!(event, Event::Restarted) {
            self.state.settings = self.settings.clone();
        }
        let mut events = with_its_peers(event);
        let mut count = 0;
        while let Some(event) = events.pop_front() {
            count += 1;
            assert!(count < MAX_EVENTS, "the engine does not become idle");
            if let Event::ObjectApplied(object) = &event {
                self.translations.insert(object.manifest.to_string(), object.clone());
            }
            let recorded = self.recording.is_some().then(|| Box::new(event.clone()));
            let at = Time(self.clock + count as u64);
            let effects = step(&mut self.state, event, at);
            if let (Some(recording), Some(event)) = (&mut self.recording, recorded) {
                let entry = Entry::Handled { at, event, digest: digest(&effects) };
                recording.push(serde_json::to_string(&entry).unwrap());
            }
            for effect in effects {
                events.extend(self.execute(effect));
            }
        }
        self.handled += 1;
        // Long histories would take minutes.
        if self.handled <= MAX_SEGMENTS || self.handled.is_power_of_two() {
            self.start_segment();
        }
    }

    /// Gives the node these other nodes.
    pub fn set_peers(&mut self, peers: &[PeerNode]) {
        node_events(peers).into_iter().for_each(|event| self.handle(event));
    }

    /// Starts a recording of a new node, as an agent does.
    pub fn start_recording(&mut self) {
        let mut line = Vec::new();
        NewEntry::Settings(&self.state.settings).write(&mut line).unwrap();
        self.recording = Some(vec![String::from_utf8(line).unwrap()]);
    }

    /// Starts a segment of the recording. A node without changes in flight continues from the serialised form of its state.
    fn start_segment(&mut self) {
        if !self.state.is_quiescent() {
            return;
        }
        let mut line = Vec::new();
        NewEntry::Opened { version: "", state: &self.state }.write(&mut line).unwrap();
        let Ok(Entry::Opened { state, .. }) = serde_json::from_slice(&line) else { panic!("{line:?}") };
        assert_eq!(*state, self.state);
        if let Some(recording) = &mut self.recording {
            recording.push(String::from_utf8(line).unwrap());
        }
    }

    /// Executes the effects of an earlier step, and handles what follows.
    pub fn resume(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            if let Some(event) = self.execute(effect) {
                self.handle(event);
            }
        }
    }

    fn execute(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Journal(record) => {
                // A record must survive a round trip through JSON.
                let text = serde_json::to_string(&record).unwrap();
                self.journal.push(serde_json::from_str(&text).unwrap());
                None
            }
            Effect::Observe { unit, request: look } => {
                self.links_only.extend(look.sandbox.is_some().then_some(look.links_only));
                Some(Event::Observed { unit, observed: self.observe(&look), keys: self.read_keys(&look) })
            }
            Effect::Apply { unit, plan } => {
                self.applied_steps += plan.steps.len();
                let fails =
                    self.failing_unit.as_ref().is_some_and(|failing| unit.to_string().contains(failing))
                        || creates(&plan, self.rejected_kind).is_some();
                let lacks = self.missing_feature(&plan);
                let result = match (fails, &lacks) {
                    (true, _) => Err("injected failure".to_owned()),
                    (false, Some(_)) => Err("not supported".to_owned()),
                    (false, None) => self.kernel.apply(&plan),
                };
                let failure = |message| ApplyFailure {
                    problem: Problem::new("", Reason::KernelError, message),
                    rolled_back: true,
                    missing_tables: false,
                    unsupported: lacks,
                };
                Some(Event::PlanApplied(PlanResult { unit, result: result.map_err(failure) }))
            }
            // The path identifies a netns.
            Effect::InspectNetns { call, path } => {
                let cookie = path.bytes().map(u64::from).sum();
                let instance = SandboxInstance { boot: "boot".to_owned(), cookie };
                Some(Event::NetnsInspected { call, result: Ok(NetnsInfo { instance, number: 1 }) })
            }
            Effect::Respond { result: answer, .. } => {
                self.results.push(answer);
                None
            }
            Effect::TranslateObjects { namespace, manifests } => {
                let objects = manifests.iter().map(|manifest| self.translations[manifest].clone()).collect();
                Some(Event::ObjectsTranslated { namespace, objects })
            }
            Effect::Block(request) => {
                self.block_requests.push_back(request);
                None
            }
            Effect::ClaimQuota(request) => {
                self.claim_requests.push(request);
                None
            }
            // Other effects have their own tests.
            _ => None,
        }
    }

    /// The unsupported kind that a plan would create.
    fn missing_feature(&self, plan: &Plan) -> Option<UnsupportedKind> {
        creates(plan, self.missing_kind).map(|kind| UnsupportedKind {
            kind: kind.to_owned(),
            message: format!("this kernel has no {kind}: CONFIG"),
        })
    }

    /// Public keys: generated keys always exist, keys of Secrets only if the Secret does.
    fn read_keys(&self, request: &ObserveRequest) -> PublicKeys {
        let exists = |key: &&KeyRef| matches!(key, KeyRef::Generated { .. }) || self.secrets.contains(*key);
        let existing = request.keys.iter().filter(exists);
        let number = |key: &KeyRef| key.to_string().bytes().fold(1u8, u8::wrapping_add);
        let existing = existing.map(|key| (key.clone(), Ok(PublicKey::from_bytes([number(key); 32]))));
        let unknown = request.keys.iter().filter(|key| self.unknown_secrets.contains(*key)).map(|key| {
            (key.clone(), Err(KeyError { reason: Reason::NotReady, message: "unknown".to_owned() }))
        });
        existing.chain(unknown).collect()
    }

    /// Observes only what was requested: one sandbox, only a part of a new one without marks, and the whole host.
    fn observe(&self, request: &ObserveRequest) -> NetState {
        let mut observed = self.kernel.observe();
        observed.scopes.retain(|scope, _| match scope {
            Scope::Host => true,
            Scope::Sandbox(id) => request.sandbox.as_ref() == Some(id),
        });
        let is_marked =
            |link: &Link| link.owner.is_some() || link.attrs.group == Some(kernel_ids::NEW_LINK_GROUP);
        for (scope, state) in &mut observed.scopes {
            let has_mark =
                state.links.values().any(is_marked) || state.routes.values().any(|route| route.owned);
            if request.is_new && *scope != Scope::Host && !has_mark {
                state.addresses.clear();
                state.rules.clear();
                state.neighbours.clear();
            }
            let is_left_out = |name: &IfName| !request.host_links.contains(name);
            if request.elements_if_owned
                && *scope == Scope::Host
                && state.links.values().all(|link| is_left_out(&link.name) || !is_marked(link))
            {
                state.filter.elements.clear();
            }
            if request.links_only {
                *state = ScopeState { links: std::mem::take(&mut state.links), ..ScopeState::default() };
            }
        }
        for scope in observed.scopes.values_mut() {
            scope.sysctls.retain(|key, _| request.sysctls.contains(key));
        }
        restrict_filter(&mut observed, request);
        observed
    }

    /// The state that a restart reads from the journal.
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

/// This kind of link, if a plan creates one.
fn creates(plan: &Plan, kind: Option<&'static str>) -> Option<&'static str> {
    let matches_kind =
        |step: &Step| matches!(step, Step::CreateLink { link, .. } if Some(link.kind.name()) == kind);
    kind.filter(|_| plan.steps.iter().any(|planned| matches_kind(&planned.step)))
}

pub fn scope(sandbox: &str) -> Scope {
    Scope::Sandbox(SandboxId(sandbox.to_owned()))
}

/// A sandbox `name` with a number, in a namespace, with one label `net: <value>`.
pub fn sandbox(name: &str, number: u32, namespace: &str, label: &str) -> Sandbox {
    Sandbox {
        id: SandboxId(name.to_owned()),
        instance: SandboxInstance { boot: "boot".to_owned(), cookie: u64::from(number) },
        isolation: Default::default(),
        netns: format!("/run/netns/{name}"),
        number,
        pod: name.to_owned(),
        namespace: namespace.to_owned(),
        uid: format!("uid-{name}"),
        labels: [("net".to_owned(), label.to_owned())].into(),
        annotated_limits: None,
    }
}

/// An object with these intents.
pub fn object(kind: &str, namespace: &str, name: &str, specs: Vec<IntentSpec>) -> StoredObject {
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
    let intents =
        specs.into_iter().enumerate().map(|(index, spec)| Intent { origin: origin(index), spec }).collect();
    StoredObject {
        object: object.clone(),
        intents,
        warnings: Vec::new(),
        manifest: serde_json::json!({"kind": kind, "metadata": {"namespace": namespace, "name": name}}),
        since: 0,
        file: None,
    }
}

/// The field of a test object's manifest with the other nodes.
const PEERS: &str = "peers";

/// The event that applies the cluster network, after the one with its peers.
pub fn with_its_peers(event: Event) -> VecDeque<Event> {
    let mut events = VecDeque::new();
    if let Event::ObjectApplied(object) = &event
        && let Some(peers) = object.manifest.get(PEERS)
    {
        let peers: Vec<PeerNode> = serde_json::from_value(peers.clone()).unwrap();
        events.extend(node_events(&peers));
    }
    events.push_back(event);
    events
}

/// The events after which these are the other nodes of the cluster. All nodes are Ready.
pub fn node_events(peers: &[PeerNode]) -> [Event; 2] {
    let on_link = peers.iter().flat_map(|peer| &peer.addresses);
    let connected = on_link.map(|(address, link)| ((*address).into(), 0, Some(link.clone())));
    let connected = NodeEvent::Connected(ConnectedRoutes::new(connected));
    let node = |peer: &PeerNode| NodeInfo {
        name: peer.name.clone(),
        is_local: false,
        ranges: peer.ranges.clone(),
        addresses: peer.all_addresses().collect(),
        other_addresses: Vec::new(),
        is_ready: true,
        key: peer.key,
    };
    let listed = NodeEvent::Listed(peers.iter().map(node).collect());
    [Event::Nodes(connected), Event::Nodes(listed)]
}

/// The cluster network together with the other nodes, as the agent submits them: see [`with_its_peers`].
pub fn with_peers(mut network: StoredObject, peers: &[PeerNode]) -> StoredObject {
    network.manifest[PEERS] = serde_json::to_value(peers).unwrap();
    network
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
        ports: Vec::new(),
        remote_pod: None,
        ranges: vec![range.parse().unwrap()],
        network: None,
        fixed: Vec::new(),
        routes: Vec::new(),
        rules: Vec::new(),
        gateways: Vec::new(),
        sysctls: [].into(),
        limits: Default::default(),
        definition: None,
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

/// Sandboxes with an `eth0` made by another CNI plugin.
pub fn with_eth0(sandboxes: &[&str]) -> NetState {
    let mut state = NetState::default();
    for name in sandboxes {
        let mut eth0 = Link::new("eth0".parse().unwrap(), Kind::Veth(Veth::default()));
        eth0.attrs = Attrs { mtu: Some(1450), up: Some(true), group: Some(0), ..Attrs::default() };
        state.scope(&scope(name)).add_link(eth0);
    }
    state
}
