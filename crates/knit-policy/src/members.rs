//! The addresses of the pods that peers of rules select. Those on additional networks are kept, pod by pod.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::index::{PolicyNamespace, is_selected};
use crate::pods::{PodView, Pods};
use crate::policy::{PodSelector, Protocol};

/// The prefix of the sets of pods that rules refer to.
pub(crate) const PEERS: &str = "policy_peers_";

/// What a set of the packet filter contains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PeerSet {
    /// The pods.
    pub(crate) selector: PodSelector,
    /// Their addresses on these additional networks; `None`: on the cluster network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) networks: Option<BTreeSet<String>>,
    /// With a port: each address with the port that the pod declares with this protocol and name.
    pub(crate) named_port: Option<(Protocol, String)>,
}

/// An address of a pod, with a port if the set has ports.
pub(crate) type Member = (IpAddr, Option<u16>);

/// Sets by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PeerSets(BTreeMap<String, PeerSetMembers>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PeerSetMembers {
    set: PeerSet,
    /// Each member with the number of pods that have it: a new pod may have the address of one that ended.
    #[serde(with = "knit_model::serde_pairs")]
    members: BTreeMap<Member, u32>,
}

impl PeerSet {
    /// Its name without the suffix of the address family. Sets with equal contents have the same one, on every node.
    pub(crate) fn name(&self) -> String {
        let content = serde_json::to_vec(self).unwrap_or_default();
        format!("{PEERS}{}", short_hash(&content))
    }

    /// What a pod adds to it, if it is selected.
    pub(crate) fn members(&self, pod: PodView<'_>) -> Vec<Member> {
        let addresses: BTreeSet<IpAddr> = match &self.networks {
            None => pod.addresses().collect(),
            Some(networks) => pod.addresses_on(networks),
        };
        let with = |port: Option<u16>| addresses.iter().map(move |address| (*address, port));
        match &self.named_port {
            None => with(None).collect(),
            Some((protocol, name)) => {
                let ports =
                    pod.ports().iter().filter(|port| port.protocol == *protocol && port.name == *name);
                ports.flat_map(|port| with(Some(port.port))).collect::<BTreeSet<_>>().into_iter().collect()
            }
        }
    }
}

/// The first 96 bits of the SHA-256 hash, in hexadecimal. Tenants choose what is hashed.
pub(crate) fn short_hash(content: &[u8]) -> String {
    Sha256::digest(content)[..12].iter().map(|byte| format!("{byte:02x}")).collect()
}

impl PeerSets {
    /// Adds a set without members, and returns its name.
    pub(crate) fn declare(&mut self, set: PeerSet) -> String {
        let name = set.name();
        let empty = || PeerSetMembers { set, members: BTreeMap::new() };
        self.0.entry(name.clone()).or_insert_with(empty);
        name
    }

    /// Adds sets of another collection, with their members, unless they are here already.
    pub(crate) fn add_missing(
        &mut self,
        declared: Self,
        pods: &Pods,
        namespaces: &BTreeMap<String, PolicyNamespace>,
    ) {
        for (name, mut one) in declared.0 {
            self.0.entry(name).or_insert_with(|| {
                one.fill(pods, namespaces);
                one
            });
        }
    }

    /// The declarations of all sets by name.
    pub(crate) fn declared(&self) -> impl Iterator<Item = (&String, &PeerSet)> {
        self.0.iter().map(|(name, one)| (name, &one.set))
    }

    /// The names of all sets.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The members of a set.
    pub(crate) fn members_of(&self, name: &str) -> impl Iterator<Item = &Member> {
        self.0.get(name).into_iter().flat_map(|one| one.members.keys())
    }

    /// Computes the members of some sets again.
    pub(crate) fn rebuild(
        &mut self,
        pods: &Pods,
        namespaces: &BTreeMap<String, PolicyNamespace>,
        is_affected: impl Fn(&PodSelector) -> bool,
    ) {
        self.0
            .values_mut()
            .filter(|one| is_affected(&one.set.selector))
            .for_each(|one| one.fill(pods, namespaces));
    }

    /// Adds a pod. Returns whether a set selects it.
    pub(crate) fn add(&mut self, pod: PodView<'_>, namespace: Option<&PolicyNamespace>) -> bool {
        let mut is_member = false;
        for one in self.selecting(pod, namespace) {
            one.add(pod);
            is_member = true;
        }
        is_member
    }

    /// Removes a pod. Returns whether a set selected it.
    pub(crate) fn remove(&mut self, pod: PodView<'_>, namespace: Option<&PolicyNamespace>) -> bool {
        let mut was_member = false;
        for one in self.selecting(pod, namespace) {
            for member in one.set.members(pod) {
                match one.members.get_mut(&member) {
                    Some(pods) if *pods > 1 => *pods -= 1,
                    _ => drop(one.members.remove(&member)),
                }
            }
            was_member = true;
        }
        was_member
    }

    fn selecting<'a>(
        &'a mut self,
        pod: PodView<'a>,
        namespace: Option<&'a PolicyNamespace>,
    ) -> impl Iterator<Item = &'a mut PeerSetMembers> {
        self.0
            .values_mut()
            .filter(move |one| is_selected(&one.set.selector, pod.namespace(), pod.labels(), namespace))
    }
}

impl PeerSetMembers {
    fn fill(&mut self, pods: &Pods, namespaces: &BTreeMap<String, PolicyNamespace>) {
        self.members.clear();
        // Other pods have no addresses there.
        for pod in pods.with_networks() {
            let namespace = namespaces.get(pod.namespace());
            if is_selected(&self.set.selector, pod.namespace(), pod.labels(), namespace) {
                self.add(pod);
            }
        }
    }

    fn add(&mut self, pod: PodView<'_>) {
        for member in self.set.members(pod) {
            *self.members.entry(member).or_default() += 1;
        }
    }
}
