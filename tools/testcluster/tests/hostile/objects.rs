//! Objects of the tenant who attacks, and their effects.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use super::stage::Stage;
use crate::support::kubectl::run;
use crate::support::operator::eventually;

/// How long an agent that accepted an object may need to apply it.
const APPLY_TIME: Duration = Duration::from_secs(1);

/// An object that is deleted when dropped.
pub struct Stored<'a> {
    stage: &'a Stage,
    resource: String,
    name: String,
}

/// An object of one of Knit's kinds with a name of its own.
pub fn object(kind: &str, spec: &Value) -> Value {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("attack-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    named(kind, &name, spec)
}

pub fn named(kind: &str, name: &str, spec: &Value) -> Value {
    let group = if kind == "PodConfig" { "podconfig.opdev.io" } else { "podnetwork.opdev.io" };
    let version = format!("{group}/v1alpha1");
    json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// A selector for one of the tenant's pods.
pub fn select(pod: &str) -> Value {
    json!({"matchLabels": {"pod": pod}})
}

/// The name of a kind in requests.
pub fn resource(object: &Value) -> String {
    let (group, _) = object["apiVersion"].as_str().unwrap().split_once('/').unwrap();
    let kind = object["kind"].as_str().unwrap().to_lowercase();
    format!("{kind}.{group}")
}

impl Stage {
    /// Creates an object as the tenant.
    #[track_caller]
    pub fn create(&self, object: &Value) -> Stored<'_> {
        let args = [self.tenant.as_str(), "create", "-f", "-"];
        let (accepted, output) = self.attacker.feed(&args, &object.to_string());
        assert!(accepted, "{output}");
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        Stored { stage: self, resource: resource(object), name }
    }

    /// Asserts that the nodes refuse an object, say why in its status, and stay as they are.
    #[track_caller]
    pub fn assert_refused_by_nodes(&self, object: &Value, expected: &str, protected: &[&str]) {
        let before = self.host_state(protected);
        let stored = self.create(object);
        stored.assert_message(expected);
        sleep(APPLY_TIME);
        self.assert_unaffected(&before, protected);
    }

    /// Asserts that the API server or the nodes refuse an object.
    #[track_caller]
    pub fn assert_refused(&self, object: &Value, expected: &str, protected: &[&str]) {
        let (accepted, output) = self.try_create(&self.tenant, object);
        if accepted {
            self.assert_refused_by_nodes(object, expected, protected);
        } else {
            assert!(output.contains("is invalid") || output.contains("denied request"), "{output}");
        }
    }

    /// Asserts that an object affects no other pod or node.
    #[track_caller]
    pub fn assert_harmless(&self, object: &Value, protected: &[&str]) -> Stored<'_> {
        let before = self.host_state(protected);
        let stored = self.create(object);
        eventually("the agents have seen it", || stored.status(), |status| status["observedGeneration"] == 1);
        sleep(APPLY_TIME);
        self.assert_unaffected(&before, protected);
        stored
    }
}

impl Stored<'_> {
    pub fn status(&self) -> Value {
        let namespace = &self.stage.attacker.name;
        let output = run(&["-n", namespace, "get", &self.resource, &self.name, "-o", "json"]);
        let object: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        object["status"].clone()
    }

    /// Waits until a condition or a warning has this text.
    #[track_caller]
    pub fn assert_message(&self, expected: &str) {
        let seen = || self.status().to_string();
        eventually(&format!("the status contains: {expected}"), seen, |status| status.contains(expected));
    }
}

impl Drop for Stored<'_> {
    fn drop(&mut self) {
        let namespace = &self.stage.attacker.name;
        run(&["-n", namespace, "delete", &self.resource, &self.name, "--ignore-not-found", "--timeout=60s"]);
    }
}
