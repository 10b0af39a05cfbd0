//! The parts of the tables that depend on Services: chains that choose a slot, and those that recall a client's backend.
//!
//! The modulus of the kernel's random numbers is a constant of a rule, therefore there is a chain for each number of slots
//! in use, which all Services with that number share. A Service refers to it by a number and never by its name.

use std::collections::BTreeSet;

use knit_model::filter::field::IpFamily;
use knit_model::filter::rule::{Expression, FilterRule, Register, Verdict};
use knit_model::filter::{ElementData, FilterChain, FilterTable, KeyPart, TableFamily};
use serde::{Deserialize, Serialize};

use crate::{Element, names};

/// The bit of numbers of slots, and of slots, that are about backends of the Local traffic policy.
const LOCAL: u32 = 0x8000_0000;

/// A part of the tables that depends on Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BackendChain {
    /// Chooses a slot.
    #[serde(rename_all = "camelCase")]
    Choose {
        /// Of which backends.
        scope: Scope,
        /// How many there are.
        slots: u32,
    },
    /// Leads a client to the backend of its last connection.
    #[serde(rename_all = "camelCase")]
    Recall {
        /// The family.
        family: IpFamily,
        /// For how many seconds: one of few timeouts, to which those of Services are rounded up.
        seconds: u32,
    },
}

/// The backends of a traffic policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Cluster: those for this node.
    Cluster,
    /// Local: those on this node.
    Local,
}

impl Scope {
    /// A number of slots, or a slot, of these backends.
    pub(crate) fn number(self, number: u32) -> u32 {
        match self {
            Self::Cluster => number,
            Self::Local => number | LOCAL,
        }
    }
}

/// The elements that lead to these chains. They belong to the tables, not to a Service.
pub fn chain_elements(chains: &BTreeSet<BackendChain>) -> Vec<Element> {
    let choose = |chain: &BackendChain| match chain {
        BackendChain::Choose { scope, slots } => {
            let key = vec![KeyPart::from(scope.number(*slots))];
            let verdict = Verdict::Jump(choose_name(*scope, *slots));
            Some((TableFamily::Inet.table().element(names::SLOTS, key), ElementData::Verdict(verdict)))
        }
        BackendChain::Recall { .. } => None,
    };
    chains.iter().filter_map(choose).collect()
}

/// Adds the chains that choose a slot: they replace the number of slots in the packet's priority.
pub(crate) fn add_choices(table: &mut FilterTable, chains: &BTreeSet<BackendChain>) {
    for chain in chains {
        let BackendChain::Choose { scope, slots } = *chain else { continue };
        let (modulus, offset) = (slots, scope.number(0));
        let number = Expression::Number { modulus, offset, random: true, to: Register::FIRST };
        let rules = vec![FilterRule::new().then(number).then(Expression::SetPriority)];
        table.chains.insert(choose_name(scope, slots), FilterChain { base: None, rules });
    }
}

fn choose_name(scope: Scope, slots: u32) -> String {
    match scope {
        Scope::Cluster => format!("service_choose_{slots}"),
        Scope::Local => format!("service_choose_local_{slots}"),
    }
}
