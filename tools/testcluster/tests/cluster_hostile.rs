//! Attacks on a cluster whose network is Knit: a tenant with every tenant role, a pod with the runtime's default capabilities,
//! a pod with NET_ADMIN in its own network namespace, and a node with its agent's token. Every attack must fail, and others
//! must not be affected. `docs/security.md` lists the attacks with what refuses them.
//!
//! Run by `cargo xtask test cluster --filter hostile`; manually against a running cluster
//! (`cargo xtask cluster up --network knit`):
//! `KNIT_TEST_KUBECTL=kubectl KUBECONFIG=... cargo test -p knit-testcluster --test cluster_hostile`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod operator;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod programs;
}

mod hostile {
    mod controller;
    mod frames;
    mod host_state;
    mod node;
    mod objects;
    mod pod;
    mod stage;
    mod tenant;
    mod wire;
}
