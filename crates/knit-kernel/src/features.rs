//! What this kernel and machine offer, found out by trying.
//!
//! Everything is tried for real in a scratch network namespace on a thread that ends with it, so nothing is left behind;
//! the answers are words ("this kernel has no WireGuard: CONFIG_WIREGUARD"), never an error number. What a module
//! would leave behind on being loaded is not tried: see [`modules`].

mod filtering;
mod links;
mod machine;
mod modules;
mod probe;
mod routes;
mod scratch;
mod shaping;

use serde::Serialize;

use modules::Modules;
use probe::{Probe, Where};
use scratch::Scratch;

/// A part of networking; features are shown by area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Area {
    /// Namespaces and how they are told apart.
    Namespaces,
    /// Kinds of links, and what can be set on them.
    Links,
    /// Links that carry packets inside packets.
    Tunnels,
    /// Addresses, routes and encapsulations of routes.
    Routing,
    /// nftables.
    Filtering,
    /// Queueing disciplines.
    Shaping,
    /// eBPF and what it needs around it.
    Ebpf,
}

impl Area {
    /// The area's name for people.
    pub fn title(self) -> &'static str {
        match self {
            Self::Namespaces => "namespaces",
            Self::Links => "links",
            Self::Tunnels => "tunnels",
            Self::Routing => "addresses and routes",
            Self::Filtering => "filtering",
            Self::Shaping => "traffic shaping",
            Self::Ebpf => "eBPF",
        }
    }
}

/// Something that Knit can use if the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Feature {
    /// Its stable name, such as `wireguard`.
    pub name: &'static str,
    /// The area it belongs to.
    pub area: Area,
    /// What Knit uses it for.
    pub needed_for: &'static str,
    /// The kernel's build option.
    pub config: &'static str,
    /// Whether Knit cannot do its basic job without it.
    pub basic: bool,
    /// Whether it is there.
    #[serde(flatten)]
    pub state: State,
}

/// Whether a feature is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum State {
    /// It was tried and works.
    Present {
        /// Something worth knowing about it.
        #[serde(skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    },
    /// It is not there.
    Absent {
        /// Why, in words.
        why: String,
        /// What a person can do about it.
        hint: String,
    },
    /// It could not be tried.
    Unknown {
        /// Why, in words.
        why: String,
        /// What a person can do about it.
        hint: String,
    },
}

impl State {
    /// Whether the feature was seen to be there.
    pub fn is_present(&self) -> bool {
        matches!(self, Self::Present { .. })
    }
}

/// Finds out what this kernel and machine offer. Takes some milliseconds; do it once.
pub fn detect() -> Vec<Feature> {
    let modules = Modules::read();
    // The scratch namespace belongs to this thread and ends with it.
    let detected = std::thread::scope(|scope| scope.spawn(|| detect_here(&modules)).join());
    detected.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn detect_here(modules: &Modules) -> Vec<Feature> {
    // Looked at before the thread leaves: /proc/sys/net shows the namespace of whoever reads it.
    let all = || probes().into_iter();
    let mut features: Vec<Feature> = all()
        .filter_map(|probe| match probe.run {
            Where::Machine(run) => Some(probe.feature(modules, |_| run())),
            Where::Scratch(_) => None,
        })
        .collect();
    let mut scratch = Scratch::enter();
    features.extend(all().filter_map(|probe| match probe.run {
        Where::Machine(_) => None,
        Where::Scratch(run) => Some(probe.feature(modules, |probe| match &mut scratch {
            Ok(_) if probe.leaves_devices(modules) => probe.promised_by_module(),
            Ok(scratch) => run(scratch),
            Err(why) => why.finding(),
        })),
    }));
    // In the order in which the probes are listed, whichever side they ran on.
    let order: Vec<&str> = all().map(|probe| probe.name).collect();
    features.sort_by_key(|feature| (feature.area, order.iter().position(|name| *name == feature.name)));
    features
}

/// Every feature that Knit asks for, in the order in which people read them.
fn probes() -> Vec<Probe> {
    [machine::PROBES, links::PROBES, links::TUNNELS, routes::PROBES, filtering::PROBES, shaping::PROBES]
        .concat()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_feature_has_a_name_of_its_own_and_says_what_it_is_for() {
        let mut names = BTreeSet::new();
        for probe in probes() {
            assert!(names.insert(probe.name), "{} is listed twice", probe.name);
            assert!(!probe.needed_for.is_empty() && probe.config.starts_with("CONFIG_"), "{}", probe.name);
        }
    }

    #[test]
    fn every_kind_of_link_is_a_feature_with_its_option() {
        for name in knit_model::Kind::names() {
            // To lend a NIC takes namespaces, and nothing else.
            let feature = if name == "host-device" { "netns" } else { name };
            let config = probes().into_iter().find(|probe| probe.name == feature).map(|probe| probe.config);
            assert_eq!(config, crate::kinds::config(name), "{name}");
        }
    }

    #[test]
    fn the_basic_job_needs_these() {
        let basic: Vec<_> =
            probes().into_iter().filter(|probe| probe.basic).map(|probe| probe.name).collect();
        assert_eq!(basic, ["netns", "veth", "bridge", "alternative-names", "addresses"]);
    }

    #[test]
    fn a_state_serialises_as_a_word_and_its_reasons() {
        let state = State::Absent { why: "no".into(), hint: "yes".into() };
        let feature = Feature {
            name: "wireguard",
            area: Area::Tunnels,
            needed_for: "encrypted links",
            config: "CONFIG_WIREGUARD",
            basic: false,
            state,
        };
        let json = serde_json::to_value(feature).unwrap();
        assert_eq!(json["state"], "absent");
        assert_eq!(json["area"], "tunnels");
        assert_eq!(json["why"], "no");
    }
}
