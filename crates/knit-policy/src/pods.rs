//! All pods of the cluster in little memory, found by name, by address and by labels.
//!
//! The pods of a workload have the same namespace, labels and ports: they are a group, which has them once. Whatever depends on
//! them alone is decided per group.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::index::{PodKey, PodNetworks, PolicyPod};
use crate::isolation::Segment;
use crate::labels::Labels;
use crate::policy::NamedPort;

/// The number of a pod, as long as it is known.
pub(crate) type PodId = u32;
/// The number of a group, as long as it has pods.
pub(crate) type GroupId = u32;

/// What pods of a group have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GroupKey {
    pub(crate) namespace: String,
    pub(crate) labels: Labels,
    pub(crate) ports: Vec<NamedPort>,
}

/// Pods with the same namespace, labels and ports.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) key: Arc<GroupKey>,
    pub(crate) pods: BTreeSet<PodId>,
    /// The segment that isolates them.
    pub(crate) segment: Option<Segment>,
}

/// A pod.
#[derive(Clone, Debug)]
struct StoredPod {
    name: Arc<str>,
    group: GroupId,
    uid: Uid,
    addresses: Addresses,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Uid {
    Uuid([u8; 16]),
    Other(Box<str>),
}

/// Addresses in their order. Almost no pod has more than one of each family.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Addresses {
    Few([Option<IpAddr>; 2]),
    Many(Box<[IpAddr]>),
}

/// The pods of the cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pods {
    pods: Vec<Option<StoredPod>>,
    free: Vec<PodId>,
    by_name: BTreeMap<String, BTreeMap<Arc<str>, PodId>>,
    by_address: BTreeSet<(IpAddr, PodId)>,
    groups: Vec<Option<Group>>,
    free_groups: Vec<GroupId>,
    by_key: BTreeMap<Arc<GroupKey>, GroupId>,
    /// The addresses of pods on additional networks, each with the pod's uid.
    networks: BTreeMap<PodKey, (String, PodNetworks)>,
}

/// A pod as it is stored.
#[derive(Clone, Copy)]
pub struct PodView<'a> {
    all: &'a Pods,
    pod: &'a StoredPod,
    group: &'a Group,
}

impl<'a> PodView<'a> {
    /// Its namespace.
    pub fn namespace(&self) -> &'a str {
        &self.group.key.namespace
    }

    /// Its name.
    pub fn name(&self) -> &'a str {
        &self.pod.name
    }

    /// Namespace and name.
    pub fn key(&self) -> PodKey {
        PodKey { namespace: self.namespace().to_owned(), name: self.name().to_owned() }
    }

    /// Whether it has this uid: another pod may have had the same name.
    pub fn has_uid(&self, uid: &str) -> bool {
        self.pod.uid == Uid::of(uid)
    }

    /// Its labels.
    pub fn labels(&self) -> &'a Labels {
        &self.group.key.labels
    }

    /// Its addresses on the cluster network.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<'a> {
        self.pod.addresses.iter()
    }

    /// The ports that it declares with a name.
    pub fn ports(&self) -> &'a [NamedPort] {
        &self.group.key.ports
    }

    /// Its addresses on additional networks.
    pub(crate) fn networks(&self) -> Option<&'a PodNetworks> {
        if self.all.networks.is_empty() {
            return None;
        }
        let (uid, networks) = self.all.networks.get(&self.key())?;
        self.has_uid(uid).then_some(networks)
    }

    /// Its addresses on any of these additional networks.
    pub(crate) fn addresses_on(&self, networks: &BTreeSet<String>) -> BTreeSet<IpAddr> {
        let on = self.networks().into_iter().flatten().filter(|(network, _)| networks.contains(*network));
        on.flat_map(|(_, addresses)| addresses).copied().collect()
    }

    pub(crate) fn group(&self) -> &'a Group {
        self.group
    }

    /// Everything that is known of it.
    pub fn to_pod(&self) -> PolicyPod {
        PolicyPod {
            uid: self.pod.uid.text(),
            labels: self.labels().clone(),
            addresses: self.addresses().collect(),
            ports: self.ports().to_vec(),
            networks: self.networks().cloned().unwrap_or_default(),
        }
    }
}

impl Pods {
    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<PodView<'_>> {
        self.view(*self.by_name.get(namespace)?.get(name)?)
    }

    fn view(&self, id: PodId) -> Option<PodView<'_>> {
        let pod = self.pods.get(id as usize)?.as_ref()?;
        Some(PodView { all: self, pod, group: self.group(pod.group)? })
    }

    pub(crate) fn group(&self, id: GroupId) -> Option<&Group> {
        self.groups.get(id as usize)?.as_ref()
    }

    /// All pods, by namespace and name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = PodView<'_>> {
        self.by_name.values().flat_map(BTreeMap::values).filter_map(|id| self.view(*id))
    }

    /// The pods with an address on the cluster network. A pod that starts may have the address of one that ended.
    pub(crate) fn at(&self, address: IpAddr) -> impl Iterator<Item = PodView<'_>> {
        let all = self.by_address.range((address, 0)..=(address, PodId::MAX));
        all.filter_map(|(_, id)| self.view(*id))
    }

    /// The pods with addresses on additional networks.
    pub(crate) fn with_networks(&self) -> impl Iterator<Item = PodView<'_>> {
        let all = self.networks.keys().filter_map(|key| self.get(&key.namespace, &key.name));
        all.filter(|pod| pod.networks().is_some())
    }

    /// The groups of a namespace.
    pub(crate) fn groups_of(&self, namespace: &str) -> impl Iterator<Item = (GroupId, &Group)> {
        let first = GroupKey { namespace: namespace.to_owned(), labels: Labels::new(), ports: Vec::new() };
        let all = self.by_key.range(first..).take_while(move |(key, _)| key.namespace == namespace);
        all.filter_map(|(_, id)| Some((*id, self.group(*id)?))).collect::<Vec<_>>().into_iter()
    }

    /// All groups.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (GroupId, &Group)> {
        self.by_key.values().filter_map(|id| Some((*id, self.group(*id)?)))
    }

    /// The pods of a group.
    pub(crate) fn pods_of<'a>(&'a self, group: &'a Group) -> impl Iterator<Item = PodView<'a>> {
        group.pods.iter().filter_map(|id| self.view(*id))
    }

    pub(crate) fn set_segment(&mut self, id: GroupId, segment: Option<Segment>) {
        if let Some(Some(group)) = self.groups.get_mut(id as usize) {
            group.segment = segment;
        }
    }

    /// Adds a pod, which is not known. Returns its group, and whether that is new.
    pub(crate) fn insert(&mut self, key: &PodKey, pod: PolicyPod) -> (GroupId, bool) {
        let group_key = GroupKey { namespace: key.namespace.clone(), labels: pod.labels, ports: pod.ports };
        let (group, is_new) = match self.by_key.get(&group_key) {
            Some(group) => (*group, false),
            None => (self.add_group(group_key), true),
        };
        let name: Arc<str> = key.name.as_str().into();
        let uid = Uid::of(&pod.uid);
        let stored =
            StoredPod { name: Arc::clone(&name), group, uid, addresses: Addresses::of(&pod.addresses) };
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                self.pods.push(None);
                (self.pods.len() - 1) as PodId
            }
        };
        self.by_address.extend(pod.addresses.iter().map(|address| (*address, id)));
        self.pods[id as usize] = Some(stored);
        match self.by_name.get_mut(&key.namespace) {
            Some(of_namespace) => drop(of_namespace.insert(name, id)),
            None => drop(self.by_name.insert(key.namespace.clone(), [(name, id)].into())),
        }
        if let Some(Some(group)) = self.groups.get_mut(group as usize) {
            group.pods.insert(id);
        }
        (group, is_new)
    }

    fn add_group(&mut self, key: GroupKey) -> GroupId {
        let key = Arc::new(key);
        let group = Some(Group { key: Arc::clone(&key), pods: BTreeSet::new(), segment: None });
        let id = match self.free_groups.pop() {
            Some(id) => {
                self.groups[id as usize] = group;
                id
            }
            None => {
                self.groups.push(group);
                (self.groups.len() - 1) as GroupId
            }
        };
        self.by_key.insert(key, id);
        id
    }

    /// Removes a pod. Returns its group if that has no other pod.
    pub(crate) fn remove(&mut self, key: &PodKey) -> Option<Group> {
        let of_namespace = self.by_name.get_mut(&key.namespace)?;
        let id = of_namespace.remove(key.name.as_str())?;
        if of_namespace.is_empty() {
            self.by_name.remove(&key.namespace);
        }
        let pod = self.pods.get_mut(id as usize)?.take()?;
        self.free.push(id);
        for address in pod.addresses.iter() {
            self.by_address.remove(&(address, id));
        }
        let group = self.groups.get_mut(pod.group as usize)?;
        let of_group = group.as_mut()?;
        of_group.pods.remove(&id);
        if !of_group.pods.is_empty() {
            return None;
        }
        let gone = group.take()?;
        self.free_groups.push(pod.group);
        self.by_key.remove(&gone.key);
        Some(gone)
    }

    pub(crate) fn clear(&mut self) {
        *self = Self { networks: std::mem::take(&mut self.networks), ..Self::default() };
    }

    pub(crate) fn set_all_networks(&mut self, all: BTreeMap<PodKey, (String, PodNetworks)>) {
        self.networks = all;
    }

    pub(crate) fn set_networks(&mut self, key: &PodKey, networks: Option<(String, PodNetworks)>) {
        match networks {
            Some(networks) => drop(self.networks.insert(key.clone(), networks)),
            None => drop(self.networks.remove(key)),
        }
    }

    pub(crate) fn all_networks(&self) -> &BTreeMap<PodKey, (String, PodNetworks)> {
        &self.networks
    }
}

impl Uid {
    fn of(text: &str) -> Self {
        Self::uuid(text).unwrap_or_else(|| Self::Other(text.into()))
    }

    /// A UUID as the API server writes it, so that it can be written again.
    fn uuid(text: &str) -> Option<Self> {
        let mut bytes = [0; 16];
        let mut digits = text.bytes().enumerate().filter(|(at, _)| ![8, 13, 18, 23].contains(at));
        let mut digit = || match digits.next()?.1 {
            one @ b'0'..=b'9' => Some(one - b'0'),
            one @ b'a'..=b'f' => Some(one - b'a' + 10),
            _ => None,
        };
        for byte in &mut bytes {
            *byte = digit()? << 4 | digit()?;
        }
        let uid = Self::Uuid(bytes);
        (uid.text() == text).then_some(uid)
    }

    fn text(&self) -> String {
        match self {
            Self::Other(text) => text.to_string(),
            Self::Uuid(bytes) => {
                let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
            }
        }
    }
}

impl Addresses {
    fn of(all: &[IpAddr]) -> Self {
        match all {
            [] | [_] | [_, _] => Self::Few([all.first().copied(), all.get(1).copied()]),
            many => Self::Many(many.into()),
        }
    }

    fn iter(&self) -> impl Iterator<Item = IpAddr> + use<'_> {
        let (few, many) = match self {
            Self::Few(few) => (&few[..], &[][..]),
            Self::Many(many) => (&[][..], &many[..]),
        };
        few.iter().flatten().chain(many).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uids_are_read_back_as_they_were() {
        for text in [
            "0c6f7f3e-1b1a-4c7e-9d1f-2f1f0a9b8c7d",
            "0C6f7f3e-1b1a-4c7e-9d1f-2f1f0a9b8c7d",
            "0c6f7f3e-1b1a-4c7e-9d1f-2f1f0a9b8c7d0",
            "0c6f7f3e01b1a-4c7e-9d1f-2f1f0a9b8c7d",
            "uid-web",
            "",
        ] {
            assert_eq!(Uid::of(text).text(), text);
        }
        assert!(matches!(Uid::of("0c6f7f3e-1b1a-4c7e-9d1f-2f1f0a9b8c7d"), Uid::Uuid(_)));
        assert!(matches!(Uid::of("uid-web"), Uid::Other(_)));
    }
}
