//! Every kind as YAML: created, changed in place, used, removed, and the previous state restored.

mod devices;
mod links;
mod lists;
mod networks;
mod routing;

use crate::support::machine::{Machine, link};
use knit_testbed::Namespace;
use serde_json::Value;

/// An object of Knit's own group.
fn object(kind: &str, name: &str, spec: &str) -> String {
    format!(
        "{{apiVersion: podnetwork.opdev.io/v1alpha1, kind: {kind}, metadata: {{name: {name}}}, spec: {{{spec}}}}}"
    )
}

/// The interface index: the same index is the same link.
fn ifindex(place: &Namespace, name: &str) -> u64 {
    link(place, name)["ifindex"].as_u64().unwrap()
}

/// Applies an object and asserts that it is configured.
#[track_caller]
fn assert_configured(machine: &Machine, kind: &str, name: &str, spec: &str) {
    let printed = machine.apply(&object(kind, name, spec));
    assert_eq!((printed.code, printed.err.as_str()), (Some(0), ""), "{spec}");
    let shown: Value = machine.get(kind, name);
    assert_eq!(shown["status"]["phase"], "configured", "{shown}");
    machine.assert_no_drift();
}
