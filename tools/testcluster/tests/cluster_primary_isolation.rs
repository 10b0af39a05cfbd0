//! Isolated namespaces and apps on a cluster whose network is Knit: docs/isolation-walkthrough.md, command by command, and what
//! it leaves out.
//!
//! Run by `cargo xtask test cluster`; manually against a running cluster (`cargo xtask cluster up --network knit`):
//! `KNIT_TEST_KUBECTL=kubectl KUBECONFIG=... cargo test -p knit-testcluster --test cluster_primary_isolation`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod operator;
    pub mod page;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod web;
}

use std::net::IpAddr;

use serde_json::Value;
use support::kubectl::{Namespace, kubectl, run};
use support::operator::{eventually, on_node};
use support::page;
use support::web::{addresses, pod, request};

const PAGE: &str = include_str!("../../../docs/isolation-walkthrough.md");
const ANNOTATION: &str = "opencontrail.kubernetes.isolated";
const APP: &str = "opencontrail.org/name";
const NODES: [&str; 2] = ["node1", "node2"];

/// The namespaces of the page, deleted also if it fails.
struct PageNamespaces;

impl Drop for PageNamespaces {
    fn drop(&mut self) {
        run(&["delete", "namespace", "open", "shop", "--ignore-not-found"]);
    }
}

#[test]
fn the_commands_of_the_page_have_the_output_of_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let program = std::env::var("KNIT_TEST_KUBECTL").expect("KNIT_TEST_KUBECTL names kubectl");
    let program = if program.contains('/') { program } else { format!("/usr/bin/{program}") };
    std::os::unix::fs::symlink(program, folder.path().join("kubectl")).unwrap();
    page::write_files(PAGE, folder.path());
    let steps = page::steps(PAGE);
    assert!(steps.len() > 40, "{}", steps.len());
    let _namespaces = PageNamespaces;
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap_or_default());
    page::run(&steps, folder.path(), &path);
}

fn annotate(namespace: &Namespace, annotation: &str) {
    kubectl(&["annotate", "namespace", &namespace.name, annotation]);
}

/// The VirtualNetworks of a namespace, each with its segment and whether it is ready.
fn networks(namespace: &Namespace) -> Vec<String> {
    let found: Value =
        serde_json::from_str(&namespace.kubectl(&["get", "virtualnetworks", "-o", "json"])).unwrap();
    let line = |one: &Value| {
        let ready = one["status"]["conditions"][0]["status"].as_str().unwrap_or("unknown").to_owned();
        let scope = one["spec"]["segment"]["scope"].as_str().unwrap_or("none").to_owned();
        format!("{} {scope} {ready}", one["metadata"]["name"].as_str().unwrap())
    };
    found["items"].as_array().unwrap().iter().map(line).collect()
}

/// Waits until the namespace has exactly these VirtualNetworks.
fn wait_networks(namespace: &Namespace, expected: &[String]) {
    eventually(&format!("the networks are {expected:?}"), || networks(namespace), |found| found == expected);
}

/// Whether an HTTP request from a pod to a pod's own address is answered.
fn reaches(from: (&Namespace, &str), to: IpAddr) -> bool {
    request(from.0, from.1, to, 8080, "hostname").is_some()
}

/// A namespace with a pod `one` on node1 and a pod `two` on node2.
fn two_pods(purpose: &str) -> Namespace {
    let namespace = Namespace::new(purpose);
    namespace.apply(&[pod("one", "node1", 8080, false), pod("two", "node2", 8080, false)].concat());
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s"]);
    namespace
}

#[test]
fn isolation_is_enforced_in_both_families_between_all_pairs_of_nodes() {
    let (open, shut) = (two_pods("open"), two_pods("shut"));
    let all_reach = |from: &Namespace, to: &Namespace, expected: bool| {
        for source in ["one", "two"] {
            for address in ["one", "two"].iter().flat_map(|pod| addresses(to, pod)) {
                let what = format!("{} {source} reaches {address}: {expected}", from.name);
                eventually(&what, || reaches((from, source), address), |reached| *reached == expected);
            }
        }
    };
    all_reach(&open, &shut, true);
    annotate(&shut, &format!("{ANNOTATION}=true"));
    all_reach(&open, &shut, false);
    all_reach(&shut, &open, true);
    all_reach(&shut, &shut, true);
    annotate(&shut, &format!("{ANNOTATION}-"));
    all_reach(&open, &shut, true);
}

#[test]
fn segments_follow_annotations_and_labels() {
    let namespace = two_pods("segments");
    let own = format!("{}-vn namespace True", namespace.name);
    wait_networks(&namespace, &[]);
    annotate(&namespace, &format!("{ANNOTATION}=true"));
    wait_networks(&namespace, std::slice::from_ref(&own));
    namespace.kubectl(&["label", "pod", "one", "two", &format!("{APP}=Web_1")]);
    let app = "app-5765625f31 app True".to_owned();
    wait_networks(&namespace, &[app.clone(), own.clone()]);
    // Another controller takes over, and a deleted segment is created again.
    kubectl(&["-n", "pod-network-operator", "delete", "pod", "-l", "app=knit-controller", "--wait=false"]);
    namespace.kubectl(&["delete", "virtualnetwork", "app-5765625f31"]);
    wait_networks(&namespace, &[app, own.clone()]);
    // The last pod of the app: one is deleted, the other one loses the label.
    namespace.kubectl(&["delete", "pod", "one"]);
    namespace.kubectl(&["label", "pod", "two", &format!("{APP}-")]);
    wait_networks(&namespace, &[own]);
    annotate(&namespace, &format!("{ANNOTATION}-"));
    wait_networks(&namespace, &[]);
    // Nothing was created for any of them.
    for node in NODES {
        let links = on_node(node, &["ip", "-o", "link"]);
        assert!(!links.contains("vn-segments") && !links.contains("vn-app"), "{links}");
    }
    let blocks = kubectl(&["get", "podaddressblocks", "-o", "name"]);
    assert!(!blocks.contains(&namespace.name), "{blocks}");
}

#[test]
fn the_last_pod_of_an_app_that_ends_ends_its_segment() {
    let namespace = Namespace::new("ended");
    namespace.apply(&format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: job, labels: {{{APP}: job}}}}\nspec:\n  restartPolicy: Never\n  \
         terminationGracePeriodSeconds: 0\n  containers:\n  - {{name: main, image: '{}', imagePullPolicy: Never, \
         command: [sh, -c, 'until [ -e /tmp/stop ]; do sleep 0.2; done']}}\n",
        support::operator::IMAGE
    ));
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod/job", "--timeout=120s"]);
    wait_networks(&namespace, &["app.job app True".to_owned()]);
    namespace.kubectl(&["exec", "job", "--", "touch", "/tmp/stop"]);
    wait_networks(&namespace, &[]);
}

#[test]
fn a_network_of_a_tenant_with_the_name_of_a_segment_is_kept_and_reported() {
    let namespace = Namespace::new("taken");
    let name = format!("{}-vn", namespace.name);
    namespace.apply(&format!(
        "apiVersion: podnetwork.opdev.io/v1alpha1\nkind: VirtualNetwork\nmetadata: {{name: {name}}}\n\
         spec: {{subnets: [10.188.0.0/24]}}\n"
    ));
    let uid = || {
        namespace.kubectl(&["get", "virtualnetwork", &name, "-o", "jsonpath={.metadata.uid}{.spec.subnets}"])
    };
    let before = uid();
    annotate(&namespace, &format!("{ANNOTATION}=true"));
    let warnings =
        || namespace.kubectl(&["get", "virtualnetwork", &name, "-o", "jsonpath={.status.warnings}"]);
    eventually("its status reports it", warnings, |found| found.contains("is not shown as a VirtualNetwork"));
    let events = || namespace.kubectl(&["get", "events"]);
    eventually("an Event reports it", events, |found| found.contains("SegmentNameTaken"));
    assert_eq!(uid(), before);
    namespace.kubectl(&["delete", "virtualnetwork", &name]);
    wait_networks(&namespace, &[format!("{name} namespace True")]);
}
