//! A node for events: its kernel is empty and applies every plan.

use std::collections::{BTreeMap, VecDeque};

use knit_crds::Object;
use knit_engine::call::NetnsInfo;
use knit_engine::recording::{NewEntry, digest};
use knit_engine::{Effect, Event, PlanResult, Record, State, StoredObject, step, tenant_ranges};
use knit_ipam::Time;
use knit_model::intent::Intent;
use knit_model::provenance::{Dialect, ObjectRef};
use knit_model::sandbox::{Sandbox, SandboxInstance};
use knit_model::{NetState, Plan, SandboxId};
use serde_json::Value;

/// More events than this follow only from a loop in the engine.
const MAX_EVENTS: u64 = 1_000;

/// The namespace of the pod.
pub const NAMESPACE: &str = "shop";
/// Its uid.
pub const UID: &str = "u1";

/// A node with one pod.
#[derive(Debug)]
pub struct Node {
    /// The state of the engine.
    pub state: State,
    /// Its journal, one record in each line.
    pub journal: String,
    /// Its recording.
    pub recording: String,
    /// What CNI plugins return.
    pub plugin_result: String,
}

impl Default for Node {
    fn default() -> Self {
        let mut line = Vec::new();
        let mut state = State::default();
        state.settings.tenant_ranges = tenant_ranges::all_addresses().to_vec();
        NewEntry::Opened { version: "0", state: &state }.write(&mut line).expect("a state is plain data");
        let recording = String::from_utf8(line).expect("JSON is text");
        let mut node = Self { state, journal: String::new(), recording, plugin_result: "{}".to_owned() };
        node.set_labels([("app".to_owned(), "web".to_owned())].into());
        node
    }
}

impl Node {
    /// Gives the pod these labels.
    pub fn set_labels(&mut self, labels: BTreeMap<String, String>) {
        self.handle(Event::SandboxUpdated(Sandbox {
            id: SandboxId("s1".to_owned()),
            instance: SandboxInstance { boot: "boot".to_owned(), cookie: 7 },
            isolation: Default::default(),
            netns: "/run/netns/s1".to_owned(),
            number: 1234,
            pod: "web".to_owned(),
            namespace: NAMESPACE.to_owned(),
            uid: UID.to_owned(),
            labels,
            annotated_limits: None,
        }));
    }

    /// Gives the pod labels with which an object selects it, and applies the object.
    pub fn apply(&mut self, object: &Object, dialect: Dialect) {
        let Ok(translation) = object.intents(dialect) else { return };
        let name = object.metadata().name.as_deref().unwrap_or_default();
        let mut labels: BTreeMap<String, String> = Object::kinds()
            .iter()
            .filter_map(|kind| Some((kind.pod_label?.to_owned(), name.to_owned())))
            .collect();
        let manifest = object.to_value();
        if let Some(selected) = manifest.pointer("/spec/selector/matchLabels").and_then(Value::as_object) {
            let texts =
                selected.iter().filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
            labels.extend(texts);
        }
        self.set_labels(labels);
        self.apply_intents(&object.object_ref(), translation.intents, manifest);
    }

    /// Applies an object with these intents.
    pub fn apply_intents(&mut self, object: &ObjectRef, intents: Vec<Intent>, manifest: Value) {
        let object = StoredObject {
            object: object.clone(),
            intents,
            warnings: Vec::new(),
            manifest,
            since: 0,
            file: None,
        };
        let key = object.key();
        self.handle(Event::ObjectApplied(object));
        assert!(self.state.report(&key).is_some());
    }

    /// Handles an event and everything that follows. Events, records and plans have to survive a round trip through JSON,
    /// because they are recorded, journalled and sent to clients.
    pub fn handle(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        let mut at = 0;
        while let Some(event) = events.pop_front() {
            assert!(at < MAX_EVENTS, "the engine does not become idle");
            let text = serde_json::to_string(&event).expect("an event is plain data");
            let again = serde_json::from_str::<Event>(&text).unwrap_or_else(|why| panic!("{why}: {text}"));
            assert_eq!(serde_json::to_string(&again).expect("an event is plain data"), text);
            let effects = step(&mut self.state, event, Time(at));
            let digest = digest(&effects);
            self.recording +=
                &format!("{{\"handled\":{{\"at\":{at},\"event\":{text},\"digest\":{digest}}}}}\n");
            for effect in effects {
                events.extend(self.execute(effect));
            }
            at += 1;
        }
    }

    fn execute(&mut self, effect: Effect) -> Option<Event> {
        Some(match effect {
            Effect::Journal(record) => {
                let text = serde_json::to_string(&record).expect("a record is plain data");
                assert_eq!(serde_json::from_str::<Record>(&text).ok().as_ref(), Some(&record), "{text}");
                self.journal += &text;
                self.journal.push('\n');
                return None;
            }
            Effect::Observe { unit, .. } => {
                Event::Observed { unit, observed: NetState::default(), keys: Default::default() }
            }
            Effect::Apply { unit, plan } => {
                let _ = plan.to_string();
                let text = serde_json::to_string(&*plan).expect("a plan is plain data");
                assert!(serde_json::from_str::<Plan>(&text).is_ok(), "{text}");
                Event::PlanApplied(PlanResult { unit, result: Ok(()) })
            }
            Effect::InspectNetns { call, .. } => {
                let instance = SandboxInstance { boot: "boot".to_owned(), cookie: 9 };
                Event::NetnsInspected { call, result: Ok(NetnsInfo { instance, number: 1 }) }
            }
            Effect::RunPluginChain { command, interface } => {
                let result = Ok(self.plugin_result.clone());
                Event::PluginChainDone { key: interface.key(), command, result }
            }
            _ => return None,
        })
    }
}
