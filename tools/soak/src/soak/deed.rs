//! What may happen to a cluster, chosen by the dice. The choice depends on the seed and on earlier choices alone, never on
//! what became of them: so a seed stands for one sequence of deeds.

use std::collections::BTreeSet;

use knit_crds::Object;
use serde_json::{Value, json};

use knit_sim::SeededRng;

/// How many pods there are. The first [`STEADY`] live from the beginning to the end.
pub const PODS: usize = 6;
/// See [`PODS`].
pub const STEADY: usize = 2;
/// How many objects of each kind there may be at once.
const NAMES: [&str; 3] = ["a", "b", "c"];
/// Bridges are few, so that objects share them.
const BRIDGES: [&str; 3] = ["soakbr0", "soakbr1", "soakbr2"];
/// Kinds that this machine's kernel can make.
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

/// One of Knit's programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Victim {
    /// The agent of a node.
    Agent(u8),
    /// A controller: the one that works, or the other.
    Controller(u8),
}

/// Something that happens.
#[derive(Clone, Debug, PartialEq)]
pub enum Deed {
    /// An object is made, or changed, to be so.
    Put { kind: &'static str, name: &'static str, spec: Value },
    /// The same object is changed again and again, without waiting.
    Hurry { kind: &'static str, name: &'static str, specs: Vec<Value> },
    /// An object is deleted.
    Remove { kind: &'static str, name: &'static str },
    /// A pod gets a kind's label, or loses it.
    Label { pod: usize, label: &'static str, value: Option<&'static str> },
    /// A pod goes and comes again, under the same name.
    Replace { pod: usize },
    /// A program is killed; the kubelet starts it again.
    Kill(Victim),
    /// A program's pod is deleted; another comes.
    Restart(Victim),
}

impl Deed {
    /// What it is, in a word.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Put { .. } => "objects written",
            Self::Hurry { .. } => "objects written ten times at once",
            Self::Remove { .. } => "objects deleted",
            Self::Label { .. } => "labels changed",
            Self::Replace { .. } => "pods replaced",
            Self::Kill(Victim::Agent(_)) => "agents killed",
            Self::Kill(Victim::Controller(_)) => "controllers killed",
            Self::Restart(Victim::Agent(_)) => "agents restarted",
            Self::Restart(Victim::Controller(_)) => "controllers restarted",
        }
    }
}

/// Chooses deeds.
pub struct Chooser {
    dice: SeededRng,
    there: BTreeSet<(&'static str, &'static str)>,
    /// Programs that were killed: the next time they are restarted, so that the kubelet never makes them wait.
    killed: BTreeSet<Victim>,
}

impl Chooser {
    /// For a seed.
    pub fn new(seed: u64) -> Self {
        Self { dice: SeededRng::new(seed), there: BTreeSet::new(), killed: BTreeSet::new() }
    }

    /// How long nothing happens, in milliseconds: mostly short, so that deeds meet.
    pub fn pause(&mut self) -> u64 {
        if self.dice.chance(10) { self.dice.below(2_000) } else { self.dice.below(250) }
    }

    /// What happens next.
    pub fn next(&mut self) -> Deed {
        let (kind, name) = (*self.dice.choose(&KINDS), *self.dice.choose(&NAMES));
        match self.dice.below(100) {
            0..36 => {
                self.there.insert((kind, name));
                Deed::Put { kind, name, spec: self.spec(kind, name) }
            }
            36..40 => {
                self.there.insert((kind, name));
                Deed::Hurry { kind, name, specs: (0..10).map(|_| self.spec(kind, name)).collect() }
            }
            40..58 => {
                let there: Vec<_> = self.there.iter().copied().collect();
                if there.is_empty() {
                    return Deed::Remove { kind, name };
                }
                let (kind, name) = *self.dice.choose(&there);
                self.there.remove(&(kind, name));
                Deed::Remove { kind, name }
            }
            58..90 => self.label(),
            90..96 => Deed::Replace { pod: STEADY + self.dice.below((PODS - STEADY) as u64) as usize },
            _ => {
                let number = 1 + self.dice.below(2) as u8;
                let victim =
                    if self.dice.chance(70) { Victim::Agent(number) } else { Victim::Controller(number) };
                if self.killed.remove(&victim) {
                    return Deed::Restart(victim);
                }
                self.killed.insert(victim);
                Deed::Kill(victim)
            }
        }
    }

    fn label(&mut self) -> Deed {
        let labels: Vec<&'static str> = KINDS.iter().filter_map(|kind| label_of(kind)).collect();
        let (pod, label) = (self.dice.below(PODS as u64) as usize, *self.dice.choose(&labels));
        let value = (!self.dice.chance(30)).then(|| *self.dice.choose(&NAMES));
        Deed::Label { pod, label, value }
    }

    /// What an object asks for. Names and ranges are few: objects get into each other's way.
    fn spec(&mut self, kind: &str, name: &str) -> Value {
        let dice = &mut self.dice;
        let (mtu, number) = (1_280 + dice.below(200), dice.below(4));
        let bridge = *dice.choose(&BRIDGES);
        let cidr = format!("10.{}.0.0/24", 100 + dice.below(6));
        match kind {
            "Bridge" => json!({"name": bridge, "cidr": cidr, "mtu": mtu}),
            "PodConfig" => {
                let entry =
                    |place: u64| json!({"name": format!("p{name}{place}"), "master": bridge, "cidr": cidr});
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

/// The label of the pods that objects of a kind are for.
pub fn label_of(kind: &str) -> Option<&'static str> {
    Object::kinds().iter().find(|info| info.kind == kind)?.pod_label
}

/// All labels that are ever set.
pub fn labels() -> impl Iterator<Item = &'static str> {
    KINDS.iter().filter_map(|kind| label_of(kind))
}

/// All kinds that objects are made of.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    KINDS.into_iter()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn deeds(seed: u64, number: usize) -> Vec<Deed> {
        let mut chooser = Chooser::new(seed);
        (0..number).map(|_| chooser.next()).collect()
    }

    #[test]
    fn a_seed_stands_for_one_sequence_in_which_everything_happens() {
        assert_eq!(deeds(3, 200), deeds(3, 200));
        let mut seen = BTreeMap::<&str, usize>::new();
        deeds(3, 500).iter().for_each(|deed| *seen.entry(deed.word()).or_default() += 1);
        assert_eq!(seen.len(), 9, "{seen:?}");
    }

    #[test]
    fn steady_pods_stay_and_no_program_is_killed_twice_in_a_row() {
        let mut killed = BTreeSet::new();
        for deed in deeds(9, 3_000) {
            match deed {
                Deed::Replace { pod } => assert!((STEADY..PODS).contains(&pod)),
                Deed::Kill(victim) => assert!(killed.insert(victim), "{victim:?}"),
                Deed::Restart(victim) => assert!(killed.remove(&victim), "{victim:?}"),
                _ => {}
            }
        }
    }

    #[test]
    fn every_object_that_is_written_can_be_read() {
        for deed in deeds(1, 500) {
            let Deed::Put { kind, name, spec } = deed else { continue };
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
