//! VirtualNetworks that show the segments of the cluster network.

use knit_controller_engine::{Effect, Event, NamespaceInfo, SegmentOptions, State};
use knit_crds::{Object, WatchUpdate};
use serde_json::{Value, json};

use crate::{Controller, status};

const OWN: &str = "pod-network-operator";
const OPEN: NamespaceInfo = NamespaceInfo { isolated: false, terminating: false };
const ISOLATED: NamespaceInfo = NamespaceInfo { isolated: true, terminating: false };

fn options(isolation: bool) -> SegmentOptions {
    SegmentOptions { namespace: OWN.to_owned(), isolation }
}

/// A controller with synced watches and these namespaces.
fn controller(namespaces: &[(&str, NamespaceInfo)]) -> Controller {
    let mut controller = Controller::with_state(State::with_segments(options(true)));
    assert_eq!(controller.reconcile(0), [], "nothing is created before namespaces and pods have synced");
    let namespaces = namespaces.iter().map(|(name, info)| ((*name).to_owned(), *info));
    controller.handle(Event::Namespaces(WatchUpdate::Listed(namespaces.collect())));
    assert_eq!(controller.reconcile(0), [], "pods have not synced");
    controller.handle(Event::AppPods(WatchUpdate::Listed(Vec::new())));
    controller
}

impl Controller {
    fn namespace(&mut self, name: &str, info: NamespaceInfo) {
        self.handle(Event::Namespaces(WatchUpdate::Applied((name.to_owned(), info))));
    }

    fn app_pod(&mut self, namespace: &str, pod: &str, app: &str) {
        let pod = (namespace.to_owned(), pod.to_owned());
        self.handle(Event::AppPods(WatchUpdate::Applied((pod, app.to_owned()))));
    }

    fn app_pod_deleted(&mut self, namespace: &str, pod: &str) {
        let pod = (namespace.to_owned(), pod.to_owned());
        self.handle(Event::AppPods(WatchUpdate::Deleted((pod, "web".to_owned()))));
    }

    /// The API server executes creations and deletions; returns them.
    fn settle(&mut self) -> Vec<String> {
        let mut written = Vec::new();
        for effect in self.reconcile(0) {
            match effect {
                Effect::CreateSegment { key, mut manifest } => {
                    written.push(format!("+{}/{}", key.namespace, key.name));
                    let uid = json!({"uid": "s", "resourceVersion": "3", "generation": 1});
                    manifest["metadata"].as_object_mut().unwrap().extend(uid.as_object().unwrap().clone());
                    self.apply(manifest);
                }
                Effect::DeleteSegment { key, uid, version } => {
                    assert!(!uid.is_empty() && !version.is_empty());
                    written.push(format!("-{}/{}", key.namespace, key.name));
                    let object = self.state.objects[&key].object.clone();
                    self.handle(Event::Objects("VirtualNetwork", Box::new(WatchUpdate::Deleted(object))));
                }
                Effect::PublishEvent { reason, .. } if reason == "SegmentNameTaken" => written.push(reason),
                _ => {}
            }
        }
        written
    }
}

fn network(namespace: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "podnetwork.opdev.io/v1alpha1",
        "kind": "VirtualNetwork",
        "metadata": {"name": name, "namespace": namespace, "uid": "theirs", "resourceVersion": "4", "generation": 1},
        "spec": spec,
    })
}

#[test]
fn segments_follow_annotations_and_the_pods_of_apps() {
    let mut controller = controller(&[(OWN, OPEN), ("shop", OPEN), ("lab", ISOLATED)]);
    assert_eq!(controller.settle(), ["+lab/lab-vn", "+pod-network-operator/cluster-network"]);
    controller.namespace("shop", ISOLATED);
    controller.app_pod("shop", "a", "web");
    controller.app_pod("shop", "b", "web");
    assert_eq!(controller.settle(), ["+shop/app.web", "+shop/shop-vn"]);
    controller.app_pod_deleted("shop", "a");
    assert_eq!(controller.settle(), Vec::<String>::new(), "a pod of the app is left");
    controller.app_pod("shop", "b", "Web");
    assert_eq!(controller.settle(), ["-shop/app.web", "+shop/app-576562"]);
    controller.app_pod_deleted("shop", "b");
    controller.namespace("shop", OPEN);
    assert_eq!(controller.settle(), ["-shop/app-576562", "-shop/shop-vn"]);
    assert_eq!(controller.settle(), Vec::<String>::new());
}

#[test]
fn a_segment_is_ready_and_has_no_subnets() {
    let mut controller = controller(&[(OWN, OPEN), ("shop", ISOLATED)]);
    let effects = controller.reconcile(0);
    let created = effects.iter().find_map(|effect| match effect {
        Effect::CreateSegment { key, manifest } if key.name == "shop-vn" => Some(manifest.clone()),
        _ => None,
    });
    let manifest = created.unwrap();
    assert_eq!(manifest["spec"]["segment"], json!({"scope": "namespace"}));
    assert_eq!(
        (&manifest["spec"]["isolation"], &manifest["spec"]["subnets"]),
        (&json!("isolated"), &Value::Null)
    );
    controller.apply(manifest);
    let status = status(&controller.reconcile(0));
    assert_eq!(
        (&status["phase"], &status["conditions"][0]["status"]),
        (&json!("configured"), &json!("True"))
    );
}

#[test]
fn deleted_and_false_segments_are_repaired() {
    let mut controller = controller(&[(OWN, OPEN), ("shop", ISOLATED)]);
    controller.settle();
    let key = controller.state.objects.keys().find(|key| key.name == "shop-vn").unwrap().clone();
    let object = controller.state.objects[&key].object.clone();
    controller.handle(Event::Objects("VirtualNetwork", Box::new(WatchUpdate::Deleted(object))));
    assert_eq!(controller.settle(), ["+shop/shop-vn"]);
    let app = json!({"segment": {"scope": "app", "app": "web"}, "isolation": "isolated"});
    controller.apply(network("shop", "shop-vn", app.clone()));
    controller.apply(network("lab", "app.web", app));
    assert_eq!(controller.settle(), ["-lab/app.web", "-shop/shop-vn"]);
    assert_eq!(controller.settle(), ["+shop/shop-vn"]);
}

#[test]
fn a_network_of_a_tenant_with_the_name_of_a_segment_is_kept_and_reported() {
    let mut controller = controller(&[(OWN, OPEN), ("shop", OPEN)]);
    controller.settle();
    let theirs = network("shop", "shop-vn", json!({"subnets": ["10.60.0.0/24"]}));
    controller.apply(theirs.clone());
    assert_eq!(status(&controller.reconcile(0))["warnings"], Value::Null);
    controller.namespace("shop", ISOLATED);
    let effects = controller.reconcile(0);
    let Effect::PublishEvent { reason, note, object, .. } = &effects[0] else { panic!("{effects:?}") };
    assert_eq!((reason.as_str(), object.name.as_str()), ("SegmentNameTaken", "shop-vn"));
    assert!(note.contains("isolated namespace shop is not shown as a VirtualNetwork"), "{note}");
    let written = status(&effects);
    assert_eq!(written["warnings"], json!([note]));
    assert_eq!(written["conditions"][0]["status"], "True", "the network itself works");
    assert!(
        !effects.iter().any(|one| matches!(one, Effect::CreateSegment { .. } | Effect::DeleteSegment { .. }))
    );
    controller.apply(theirs.clone());
    assert_eq!(controller.settle(), Vec::<String>::new(), "it is published once");
    // The name is free again.
    let object = Object::from_manifest(&theirs).unwrap();
    controller.handle(Event::Objects("VirtualNetwork", Box::new(WatchUpdate::Deleted(object))));
    assert_eq!(controller.settle(), ["+shop/shop-vn"]);
}

#[test]
fn the_warning_ends_with_the_isolation() {
    let mut controller = controller(&[(OWN, OPEN), ("shop", ISOLATED)]);
    controller.apply(network("shop", "shop-vn", json!({"subnets": ["10.60.0.0/24"]})));
    assert!(status(&controller.reconcile(0))["warnings"].is_array());
    controller.namespace("shop", OPEN);
    assert_eq!(status(&controller.reconcile(0))["warnings"], Value::Null);
}

#[test]
fn a_failed_write_is_repeated_after_a_pause() {
    let mut controller = controller(&[(OWN, OPEN), ("shop", ISOLATED)]);
    assert_eq!(controller.reconcile(0).len(), 2);
    controller.handle(Event::SegmentWriteFailed("shop".to_owned()));
    controller.app_pod("shop", "a", "web");
    assert_eq!(controller.reconcile(9_999), []);
    assert!(controller.state.has_failed_segments() && !controller.state.needs_reconcile());
    assert_eq!(controller.reconcile(1).len(), 2, "what changed meanwhile is included");
    assert!(!controller.state.has_failed_segments());
}

#[test]
fn nothing_is_written_in_a_namespace_that_is_being_deleted() {
    let mut controller = controller(&[(OWN, OPEN), ("shop", ISOLATED)]);
    controller.settle();
    controller.namespace("shop", NamespaceInfo { isolated: true, terminating: true });
    let key = controller.state.objects.keys().find(|key| key.name == "shop-vn").unwrap().clone();
    let object = controller.state.objects[&key].object.clone();
    controller.handle(Event::Objects("VirtualNetwork", Box::new(WatchUpdate::Deleted(object))));
    controller.app_pod("shop", "a", "web");
    assert_eq!(controller.settle(), Vec::<String>::new());
}

#[test]
fn without_isolation_only_the_cluster_network_is_shown() {
    let mut controller = Controller::with_state(State::with_segments(options(false)));
    controller.apply(network(
        "shop",
        "shop-vn",
        json!({"segment": {"scope": "namespace"}, "isolation": "isolated"}),
    ));
    assert_eq!(controller.settle(), ["+pod-network-operator/cluster-network", "-shop/shop-vn"]);
    let mut beside = Controller::new();
    beside.apply(network(
        "shop",
        "shop-vn",
        json!({"segment": {"scope": "namespace"}, "isolation": "isolated"}),
    ));
    assert_eq!(beside.settle(), Vec::<String>::new(), "without a cluster network nothing is written");
}
