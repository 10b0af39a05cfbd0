//! The rules that translate connections to one kind of frontend in one family.
//!
//! The packet's priority carries numbers from rule to rule: the number of slots, then the slot, or the id of a backend. It is
//! zero when the packet is translated. Routing depends on the packet mark, but not on the priority, which the kernel derives
//! from the type of service when it forwards IPv4.
//!
//! No rule looks up what it has just looked up: `nft` 1.0.6 ends with a failed assertion when it lists such a rule.

use knit_model::filter::field::{DataType, Field, IpFamily};
use knit_model::filter::rule::{Expression, FilterRule, LookupResult, Register, Translation};
use knit_model::filter::{FilterChain, FilterSet, FilterTable};

use crate::affinity::{TIMEOUT_MASK, timeout_bits};
use crate::names::{self, FrontendSets};

const MILLISECONDS: u64 = 1_000;
/// How many clients are recorded, those of all Services together. The kernel reserves 4 MiB for them.
const MAX_CLIENTS: u32 = 262_144;
/// The chain that leads a known client to its backend.
const RECALL: &str = "recall";
/// The chain that leads a client to a backend and records it, with a rule for each timeout in use.
const LEARN: &str = "learn";

/// A kind of frontend in a family.
pub(crate) struct Frontends {
    pub(crate) family: IpFamily,
    pub(crate) sets: FrontendSets,
    /// The fields of a packet that are the frontend.
    pub(crate) fields: Vec<Field>,
    /// What the names of chains end with.
    pub(crate) suffix: &'static str,
}

impl Frontends {
    /// Cluster IPs, external IPs and load balancer IPs.
    pub(crate) fn ips(family: IpFamily) -> Self {
        let fields = vec![Field::Destination(family), Field::L4Protocol, Field::DestinationPort];
        Self { family, sets: names::IPS, fields, suffix: "" }
    }

    /// Node ports.
    pub(crate) fn node_ports(family: IpFamily) -> Self {
        let fields = vec![Field::L4Protocol, Field::DestinationPort];
        Self { family, sets: names::NODE_PORTS, fields, suffix: "_node_ports" }
    }

    /// The data types of a frontend.
    pub(crate) fn key(&self) -> Vec<DataType> {
        self.fields.iter().map(|field| field.data_type()).collect()
    }

    /// The name of a chain.
    pub(crate) fn chain(&self, name: &str) -> String {
        self.family.suffixed(&format!("service_{name}{}", self.suffix))
    }

    /// The name of a set of this family.
    pub(crate) fn set(&self, name: &str) -> String {
        self.family.suffixed(name)
    }

    pub(crate) fn rule(&self) -> FilterRule {
        FilterRule::new().family(self.family)
    }

    /// Declares the sets.
    pub(crate) fn declare(&self, table: &mut FilterTable, affinity: &[u32]) {
        let key = self.key();
        let with = |more: DataType| [&key[..], &[more]].concat();
        let address = self.family.data_type();
        let sets = &self.sets;
        let mut add = |name: String, set: FilterSet| drop(table.sets.insert(name, set));
        for name in [sets.slots, sets.internal_slots] {
            add(self.set(name), FilterSet::map(&key, &[DataType::Mark]));
        }
        let backends = FilterSet::map(&with(DataType::Mark), &[address, DataType::Port]);
        add(self.set(sets.backends), backends);
        for name in [sets.masquerade, sets.masquerade_node, sets.no_endpoints, sets.no_local_endpoints] {
            add(self.set(name), FilterSet::keys(&key));
        }
        if !affinity.is_empty() {
            add(self.set(sets.affinity_slots), FilterSet::map(&with(DataType::Mark), &[DataType::Mark]));
            let client = FilterSet::map(&[&[address], &key[..]].concat(), &[DataType::Mark]);
            let (timeout, size) = (Some(0), Some(MAX_CLIENTS));
            add(self.set(sets.affinity), FilterSet { timeout, size, ..client });
        }
    }

    /// The rules that translate: clients with affinity first, then those in the cluster where they are led differently.
    pub(crate) fn dispatch(&self, affinity: &[u32]) -> Vec<FilterRule> {
        let with_client = [&[Field::Source(self.family)], &self.fields[..]].concat();
        let recall = (!affinity.is_empty()).then(|| {
            let known = remember(self.rule().load(&with_client), &self.set(self.sets.affinity));
            known.jump(&self.chain(RECALL))
        });
        let slots = |map: &str| remember(self.rule().load(&self.fields), &self.set(map));
        let internal = slots(self.sets.internal_slots).jump(&self.chain("internal"));
        let all = slots(self.sets.slots).jump(&self.chain("translate"));
        recall.into_iter().chain([internal, all]).collect()
    }

    /// Adds the chains to which [`Self::dispatch`] leads.
    pub(crate) fn add_chains(&self, table: &mut FilterTable, affinity: &[u32]) {
        let mut add = |name: String, rules: Vec<FilterRule>| {
            table.chains.insert(name, FilterChain { base: None, rules });
        };
        let from_pods = self.rule().in_set(&[Field::Source(self.family)], &names::pod_set(self.family));
        let in_cluster = [from_pods, self.rule().from_local()];
        add(self.chain("internal"), in_cluster.map(|rule| rule.jump(&self.chain("translate"))).into());
        add(self.chain("translate"), self.choose(!affinity.is_empty()));
        if !affinity.is_empty() {
            add(self.chain(RECALL), self.recall());
            add(self.chain(LEARN), affinity.iter().map(|seconds| self.learn(*seconds)).collect());
        }
    }

    /// Chooses a slot and translates to its backend. A Service with affinity has no backends by slot: its rule learns the id.
    /// If the map of clients is full, the last rule translates without learning.
    fn choose(&self, has_affinity: bool) -> Vec<FilterRule> {
        let verdict = lookup(names::SLOTS, Register::FIRST, LookupResult::Verdict);
        let choose = self.rule().load(&[Field::Priority]).then(verdict);
        let fields = [&self.fields[..], &[Field::Priority]].concat();
        let by_number = || self.translate(self.rule().load(&fields), Register::FIRST, &fields);
        let mut rules = vec![choose, by_number()];
        if has_affinity {
            let id = remember(self.rule().load(&fields), &self.set(self.sets.affinity_slots));
            rules.extend([id.jump(&self.chain(LEARN)), by_number()]);
        }
        rules
    }

    /// Translates to the backend whose id is in the packet's priority, and forgets one that is gone.
    fn recall(&self) -> Vec<FilterRule> {
        let client = [&[Field::Source(self.family)], &self.fields[..], &[Field::Priority]].concat();
        let data = Some(after(Register::FIRST, &client[..client.len() - 1]));
        let set = self.set(self.sets.affinity);
        let forget = self.rule().load(&client).then(Expression::Forget { set, data });
        vec![self.rule().jump(&self.chain(LEARN)), forget]
    }

    /// Translates to the backend whose id is in the packet's priority, if it has this timeout, and records it for the client.
    /// All registers of IPv6 are in use: client (4), frontend (6), id (1), backend (5).
    fn learn(&self, seconds: u32) -> FilterRule {
        let rule = self.rule().has_bits(Field::Priority, timeout_bits(seconds), TIMEOUT_MASK);
        let client = [Field::Source(self.family)];
        let fields = [&client[..], &self.fields, &[Field::Priority]].concat();
        let frontend = after(Register::FIRST, &client);
        let id = after(Register::FIRST, &fields[..fields.len() - 1]);
        let backend = after(id, &[Field::Priority]);
        let timeout = Some(u64::from(seconds) * MILLISECONDS);
        let set = self.set(self.sets.affinity);
        let learn = Expression::Learn { set, data: Some(id), renew: true, timeout };
        let found = lookup(&self.set(self.sets.backends), frontend, LookupResult::Load(backend));
        self.nat(rule.load(&fields).then(found).then(learn), backend)
    }

    /// Translates to the backend that the map has for these fields.
    fn translate(&self, rule: FilterRule, from: Register, fields: &[Field]) -> FilterRule {
        let backend = after(from, fields);
        let found = lookup(&self.set(self.sets.backends), from, LookupResult::Load(backend));
        self.nat(rule.then(found), backend)
    }

    /// Restores the packet's priority, and translates.
    fn nat(&self, rule: FilterRule, backend: Register) -> FilterRule {
        let zero = Expression::Mask { mask: 0u32.into(), xor: 0u32.into() };
        let rule = rule.load(&[Field::Priority]).then(zero).then(Expression::SetPriority);
        rule.then(Expression::Nat {
            translates: Translation::Destination,
            family: self.family,
            address: backend,
            port: Some(backend.after(self.family.data_type().length())),
        })
    }
}

/// Keeps what a map has for the loaded fields in the packet's priority.
fn remember(rule: FilterRule, map: &str) -> FilterRule {
    let load = lookup(map, Register::FIRST, LookupResult::Load(Register::FIRST));
    rule.then(load).then(Expression::SetPriority)
}

fn lookup(set: &str, from: Register, to: LookupResult) -> Expression {
    Expression::Lookup { set: set.to_owned(), negated: false, to, from }
}

/// The register after these fields.
fn after(first: Register, fields: &[Field]) -> Register {
    fields.iter().fold(first, |register, field| register.after(field.length()))
}
