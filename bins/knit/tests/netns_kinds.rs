//! Every kind by YAML: made, changed on the living link, used, removed, and everything as before. Needs root.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod machine;
}

#[path = "kinds/devices.rs"]
mod devices;
#[path = "kinds/links.rs"]
mod links;
#[path = "kinds/lists.rs"]
mod lists;
#[path = "kinds/networks.rs"]
mod networks;
#[path = "kinds/routing.rs"]
mod routing;

use knit_testbed::Namespace;
use serde_json::Value;
use support::machine::{Machine, link};

/// An object of Knit's own group.
fn object(kind: &str, name: &str, spec: &str) -> String {
    format!(
        "{{apiVersion: podnetwork.opdev.io/v1alpha1, kind: {kind}, metadata: {{name: {name}}}, spec: {{{spec}}}}}"
    )
}

/// The number by which the kernel knows a link: the same number is the same link.
fn number(place: &Namespace, name: &str) -> u64 {
    link(place, name)["ifindex"].as_u64().unwrap()
}

/// Applies an object and wants it to stand.
#[track_caller]
fn stands(machine: &Machine, kind: &str, name: &str, spec: &str) {
    let said = machine.apply(&object(kind, name, spec));
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{spec}");
    let shown: Value = machine.get(kind, name);
    assert_eq!(shown["status"]["phase"], "configured", "{shown}");
    machine.assert_at_rest();
}
