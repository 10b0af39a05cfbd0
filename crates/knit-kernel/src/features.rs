//! Probes which features the kernel and the machine support.
//!
//! Features are tested in a scratch network namespace on a thread that ends afterwards, so nothing is left behind.
//! Results are text ("this kernel has no WireGuard: CONFIG_WIREGUARD"), never an error number. A feature whose kernel
//! module would create devices when it is loaded is not tested: see the private module `modules`.

mod host;
mod links;
mod modules;
mod nftables;
mod probe;
mod qdiscs;
mod routes;
mod scratch;

use serde::Serialize;

pub(crate) use host::tun;
use modules::Modules;
pub(crate) use probe::Probe;
use probe::ProbeRun;
use scratch::Scratch;

/// A group of features.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Area {
    /// Network namespaces and their identity.
    Namespaces,
    /// Link kinds and link options.
    Links,
    /// Tunnels.
    Tunnels,
    /// Addresses, routes and route encapsulations.
    Routing,
    /// nftables.
    Filtering,
    /// Qdiscs.
    Shaping,
    /// eBPF and its requirements.
    Ebpf,
}

impl Area {
    /// The title of the area.
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

/// A kernel feature that Knit uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Feature {
    /// Its stable name, such as `wireguard`.
    pub name: &'static str,
    /// Its area.
    pub area: Area,
    /// What Knit uses it for.
    pub needed_for: &'static str,
    /// The kernel's build option.
    pub config: &'static str,
    /// Whether Knit cannot work without it.
    pub required: bool,
    /// Whether it is available.
    #[serde(flatten)]
    pub state: FeatureState,
}

/// The availability of a feature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum FeatureState {
    /// It was tested and works.
    Present {
        /// A remark.
        #[serde(skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    },
    /// It is not available.
    Absent {
        /// The cause.
        reason: String,
        /// How to fix it.
        hint: String,
    },
    /// It could not be tested.
    Unknown {
        /// The cause.
        reason: String,
        /// How to fix it.
        hint: String,
    },
}

impl FeatureState {
    /// Whether the feature is available.
    pub fn is_present(&self) -> bool {
        matches!(self, Self::Present { .. })
    }
}

/// Probes all features. Takes some milliseconds; call it once.
pub fn detect() -> Vec<Feature> {
    let modules = Modules::read();
    // The scratch namespace ends with this thread.
    let detected = std::thread::scope(|scope| scope.spawn(|| run_probes(&modules)).join());
    detected.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn run_probes(modules: &Modules) -> Vec<Feature> {
    // Host probes run first: /proc/sys/net shows the reader's namespace.
    let all = || probes().into_iter();
    let mut features: Vec<Feature> = all()
        .filter_map(|probe| match probe.run {
            ProbeRun::Host(run) => Some(probe.feature(modules, |_| run())),
            ProbeRun::Scratch(_) => None,
        })
        .collect();
    let mut scratch = Scratch::enter();
    features.extend(all().filter_map(|probe| match probe.run {
        ProbeRun::Host(_) => None,
        ProbeRun::Scratch(run) => Some(probe.feature(modules, |probe| match &mut scratch {
            Ok(_) if probe.leaves_devices(modules) => probe.loadable_module(),
            Ok(scratch) => run(scratch),
            Err(reason) => reason.finding(),
        })),
    }));
    // In the order of the probe list, wherever they ran.
    let order: Vec<&str> = all().map(|probe| probe.name).collect();
    features.sort_by_key(|feature| (feature.area, order.iter().position(|name| *name == feature.name)));
    features
}

/// All probes, in display order.
fn probes() -> Vec<Probe> {
    let kinds = crate::kinds::probes();
    [host::PROBES, &kinds, links::PROBES, routes::PROBES, nftables::PROBES, qdiscs::PROBES].concat()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_feature_has_a_unique_name_and_a_purpose() {
        let mut names = BTreeSet::new();
        for probe in probes() {
            assert!(names.insert(probe.name), "{} is listed twice", probe.name);
            assert!(!probe.needed_for.is_empty() && probe.config.starts_with("CONFIG_"), "{}", probe.name);
        }
    }

    #[test]
    fn every_link_kind_is_a_feature_with_its_build_option() {
        for name in knit_model::Kind::names() {
            // Moving a NIC requires network namespaces only.
            let feature = if name == "host-device" { "netns" } else { name };
            let config = probes().into_iter().find(|probe| probe.name == feature).map(|probe| probe.config);
            assert_eq!(config, crate::kinds::config(name), "{name}");
        }
    }

    #[test]
    fn these_features_are_required() {
        let required: Vec<_> =
            probes().into_iter().filter(|probe| probe.required).map(|probe| probe.name).collect();
        assert_eq!(required, ["netns", "veth", "bridge", "alternative-names", "addresses"]);
    }

    #[test]
    fn a_state_serialises_as_a_tag_with_its_cause() {
        let state = FeatureState::Absent { reason: "no".into(), hint: "yes".into() };
        let feature = Feature {
            name: "wireguard",
            area: Area::Tunnels,
            needed_for: "encrypted links",
            config: "CONFIG_WIREGUARD",
            required: false,
            state,
        };
        let json = serde_json::to_value(feature).unwrap();
        assert_eq!(json["state"], "absent");
        assert_eq!(json["area"], "tunnels");
        assert_eq!(json["reason"], "no");
    }
}
