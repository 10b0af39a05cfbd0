//! The list of targets.

/// A parser that is fuzzed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its name, which is also that of its folder in the corpus.
    pub name: &'static str,
    /// What it reads.
    pub about: &'static str,
    /// Another folder of this checkout with inputs.
    pub samples: Option<&'static str>,
}

const fn target(name: &'static str, about: &'static str) -> Target {
    Target { name, about, samples: None }
}

/// All targets.
pub const TARGETS: &[Target] = &[
    target(
        "requests",
        "requests of packages kni and knit.v1, and calls of the CNI shim, up to the engine's first decision",
    ),
    target("cni-shim", "configuration, CNI_ARGS and reply of the agent, as the CNI shim reads them"),
    target("cni-results", "configuration lists of CNI plugins, and their results"),
    target("network-attachments", "the annotation of a pod, and NetworkAttachmentDefinitions"),
    Target {
        samples: Some("examples/standalone"),
        ..target("objects", "objects of every kind, up to the plans of a node")
    },
    target("network-policies", "NetworkPolicies, up to the rules of the packet filter"),
    target("nri", "frames of the container runtime (NRI)"),
    target(
        "netlink",
        "links, addresses, routes, rules, neighbours and WireGuard devices, as the kernel reports them",
    ),
    target("nftables", "tables, sets and elements, as the kernel reports them"),
    target("journal", "the files of a journal"),
    target("records", "records of a journal"),
    target("recordings", "recordings, as `knit replay` reads them"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<&str> = TARGETS.iter().map(|target| target.name).collect();
        assert_eq!(names.len(), TARGETS.len());
    }
}
