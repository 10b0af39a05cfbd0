//! Random actions on a cluster. The next action depends only on the seed and on earlier choices, never on their
//! outcomes, so a seed always produces the same sequence.

use std::collections::BTreeSet;

use knit_crds::Object;
use serde_json::{Value, json};

use knit_sim::SeededRng;

/// How many pods there are. The first [`PERMANENT_PODS`] are never replaced.
pub const PODS: usize = 6;
/// See [`PODS`].
pub const PERMANENT_PODS: usize = 2;
/// Object names: at most this many objects of each kind exist at once.
const NAMES: [&str; 3] = ["a", "b", "c"];
/// Few bridges, so that objects share them.
const BRIDGES: [&str; 3] = ["soakbr0", "soakbr1", "soakbr2"];
/// Kinds that do not need optional kernel modules.
const KINDS: [&str; 9] = [
    "Bridge",
    "PodConfig",
    "PodNetworkConfig",
    "Veth",
    "Macvlan",
    "Vxlan",
    "Tap",
    "PodRoute",
    "PrimaryNetwork",
];

/// A Knit process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    /// The agent of a node.
    Agent(u8),
    /// A controller replica, by its position.
    Controller(u8),
}

/// One step of the soak.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Create or change an object.
    Apply { kind: &'static str, name: &'static str, spec: Value },
    /// Change the same object repeatedly without waiting.
    ApplyBurst { kind: &'static str, name: &'static str, specs: Vec<Value> },
    /// Delete an object.
    Delete { kind: &'static str, name: &'static str },
    /// Set or remove a kind's label on a pod.
    Label { pod: usize, label: &'static str, value: Option<&'static str> },
    /// Delete a pod and create it again under the same name.
    ReplacePod { pod: usize },
    /// Kill a process; the kubelet restarts it.
    Kill(Component),
    /// Delete a process's pod; its controller creates another one.
    RestartPod(Component),
}

impl Action {
    /// A label for the summary.
    pub fn description(&self) -> &'static str {
        match self {
            Self::Apply { .. } => "objects written",
            Self::ApplyBurst { .. } => "objects written ten times in a row",
            Self::Delete { .. } => "objects deleted",
            Self::Label { .. } => "labels changed",
            Self::ReplacePod { .. } => "pods replaced",
            Self::Kill(Component::Agent(_)) => "agents killed",
            Self::Kill(Component::Controller(_)) => "controllers killed",
            Self::RestartPod(Component::Agent(_)) => "agents restarted",
            Self::RestartPod(Component::Controller(_)) => "controllers restarted",
        }
    }
}

/// Generates actions.
pub struct ActionGenerator {
    dice: SeededRng,
    existing: BTreeSet<(&'static str, &'static str)>,
    /// Processes that were killed: the next action on one is a restart, so that the kubelet's crash back-off never applies.
    killed: BTreeSet<Component>,
}

impl ActionGenerator {
    /// A generator for a seed.
    pub fn new(seed: u64) -> Self {
        Self { dice: SeededRng::new(seed), existing: BTreeSet::new(), killed: BTreeSet::new() }
    }

    /// The pause before the next action, in milliseconds: mostly short, so that actions overlap.
    pub fn pause(&mut self) -> u64 {
        if self.dice.chance(10) { self.dice.below(2_000) } else { self.dice.below(250) }
    }

    /// The next action.
    pub fn next(&mut self) -> Action {
        let (kind, name) = (*self.dice.choose(&KINDS), *self.dice.choose(&NAMES));
        match self.dice.below(100) {
            0..36 => {
                self.existing.insert((kind, name));
                Action::Apply { kind, name, spec: self.spec(kind, name) }
            }
            36..40 => {
                self.existing.insert((kind, name));
                Action::ApplyBurst { kind, name, specs: (0..10).map(|_| self.spec(kind, name)).collect() }
            }
            40..58 => {
                let existing: Vec<_> = self.existing.iter().copied().collect();
                if existing.is_empty() {
                    return Action::Delete { kind, name };
                }
                let (kind, name) = *self.dice.choose(&existing);
                self.existing.remove(&(kind, name));
                Action::Delete { kind, name }
            }
            58..90 => self.label(),
            90..96 => Action::ReplacePod {
                pod: PERMANENT_PODS + self.dice.below((PODS - PERMANENT_PODS) as u64) as usize,
            },
            _ => {
                let number = 1 + self.dice.below(2) as u8;
                let component = if self.dice.chance(70) {
                    Component::Agent(number)
                } else {
                    Component::Controller(number)
                };
                if self.killed.remove(&component) {
                    return Action::RestartPod(component);
                }
                self.killed.insert(component);
                Action::Kill(component)
            }
        }
    }

    fn label(&mut self) -> Action {
        let labels: Vec<&'static str> = KINDS.iter().filter_map(|kind| label_of(kind)).collect();
        let (pod, label) = (self.dice.below(PODS as u64) as usize, *self.dice.choose(&labels));
        let value = (!self.dice.chance(30)).then(|| *self.dice.choose(&NAMES));
        Action::Label { pod, label, value }
    }

    /// A random spec. Names and ranges are few, so that objects conflict.
    fn spec(&mut self, kind: &str, name: &str) -> Value {
        let dice = &mut self.dice;
        let (mtu, number) = (1_280 + dice.below(200), dice.below(4));
        let bridge = *dice.choose(&BRIDGES);
        let cidr = format!("10.{}.0.0/24", 100 + dice.below(6));
        match kind {
            "Bridge" => json!({"name": bridge, "cidr": cidr, "mtu": mtu}),
            "PodConfig" => {
                let entry =
                    |index: u64| json!({"name": format!("p{name}{index}"), "master": bridge, "cidr": cidr});
                json!({"networkAttachments": (0..=number % 3).map(entry).collect::<Vec<_>>()})
            }
            "PodNetworkConfig" => json!({
                "eth0": {"mtu": mtu},
                "additionalNetworks": [{
                    "networkName": format!("n{name}"), "linkType": "veth", "master": bridge, "cidr": cidr, "mtu": mtu,
                }],
            }),
            "Veth" => {
                json!({"interfaceName": format!("v{number}"), "master": bridge, "cidr": cidr, "mtu": mtu})
            }
            "Macvlan" => json!({
                "interfaceName": format!("m{number}"), "parent": "eth0", "mode": "bridge",
                "addresses": [format!("10.120.{number}.2/24")],
            }),
            "Vxlan" => json!({
                "interfaceName": format!("x{number}"), "vni": 40 + number, "remote": "10.50.0.3",
                "addresses": [format!("10.121.{number}.2/24")], "mtu": mtu,
            }),
            "Tap" => {
                json!({"interfaceName": format!("t{number}"), "addresses": [format!("10.122.{number}.2/24")]})
            }
            "PodRoute" => json!({
                "routes": [{"to": format!("10.43.{number}.0/24"), "type": "unreachable"}],
                "sysctls": {"net.ipv4.conf.eth0.rp_filter": if number > 1 { "2" } else { "0" }},
            }),
            _ => json!({"mtu": mtu, "txQLen": 500 + mtu}),
        }
    }
}

/// The pod label that selects objects of a kind.
pub fn label_of(kind: &str) -> Option<&'static str> {
    Object::kinds().iter().find(|info| info.kind == kind)?.pod_label
}

/// All labels that are ever set on pods.
pub fn labels() -> impl Iterator<Item = &'static str> {
    KINDS.iter().filter_map(|kind| label_of(kind))
}

/// All kinds that objects are created of.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    KINDS.into_iter()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn actions(seed: u64, number: usize) -> Vec<Action> {
        let mut generator = ActionGenerator::new(seed);
        (0..number).map(|_| generator.next()).collect()
    }

    #[test]
    fn a_seed_gives_one_sequence_with_every_action() {
        assert_eq!(actions(3, 200), actions(3, 200));
        let mut seen = BTreeMap::<&str, usize>::new();
        actions(3, 500).iter().for_each(|action| *seen.entry(action.description()).or_default() += 1);
        assert_eq!(seen.len(), 9, "{seen:?}");
    }

    #[test]
    fn permanent_pods_stay_and_no_process_is_killed_twice_in_a_row() {
        let mut killed = BTreeSet::new();
        for action in actions(9, 3_000) {
            match action {
                Action::ReplacePod { pod } => assert!((PERMANENT_PODS..PODS).contains(&pod)),
                Action::Kill(component) => assert!(killed.insert(component), "{component:?}"),
                Action::RestartPod(component) => assert!(killed.remove(&component), "{component:?}"),
                _ => {}
            }
        }
    }

    #[test]
    fn every_generated_object_is_valid() {
        for action in actions(1, 500) {
            let Action::Apply { kind, name, spec } = action else { continue };
            let info = Object::kinds().iter().find(|info| info.kind == kind).unwrap();
            let manifest = json!({
                "apiVersion": info.api_version(), "kind": kind, "metadata": {"name": name, "namespace": "soak"}, "spec": spec,
            });
            let object = Object::from_manifest(&manifest).unwrap_or_else(|| panic!("{manifest}"));
            let read = object.intents(knit_model::provenance::Dialect::Kubernetes);
            assert!(read.is_ok(), "{manifest}: {}", read.unwrap_err());
        }
    }
}
