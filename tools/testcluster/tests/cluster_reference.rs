//! Requirements of a cluster with the reference network that all other tests rely on.
//!
//! Run by `cargo xtask test cluster`, which brings the cluster up; manually against a running one:
//! `KNIT_TEST_KUBECTL=kubectl KUBECONFIG=... cargo test -p knit-testcluster --test cluster_reference`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
}

use std::process::Stdio;
use std::time::{Duration, Instant};

use support::kubectl::{Namespace, command, kubectl, run, text};

const IMAGE: &str = "registry.k8s.io/e2e-test-images/agnhost:2.63.0";

fn nodes() -> Vec<String> {
    let names = kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"]);
    names.split_whitespace().map(str::to_owned).collect()
}

/// A pod that answers HTTP on port 8080 with its own name.
fn pod(name: &str, node: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  nodeName: {node}
  terminationGracePeriodSeconds: 0
  containers:
  - {{name: main, image: "{IMAGE}", imagePullPolicy: Never, args: [netexec, --http-port=8080]}}
---
apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec:
  ipFamilyPolicy: RequireDualStack
  selector: {{app: {name}}}
  ports: [{{port: 80, targetPort: 8080}}]
---"#
    )
}

/// The name of the pod that answers a request from inside another pod. kube-proxy follows endpoints with a delay.
fn responder(namespace: &Namespace, from: &str, family: &str, url: &str) -> Result<String, String> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let args =
            ["-n", &namespace.name, "exec", from, "--", "curl", "-sS", family, "-g", "--max-time", "5", url];
        let output = run(&args);
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
        }
        if Instant::now() > end {
            return Err(text(&output));
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

#[test]
fn pods_on_two_nodes_reach_each_other_by_address_by_service_and_by_name_in_both_families() {
    let nodes = nodes();
    assert!(nodes.len() >= 2, "two nodes are needed, there are {nodes:?}");
    let namespace = Namespace::new("reach");
    namespace.apply(&format!("{}{}", pod("a", &nodes[0]), pod("b", &nodes[1])));
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s"]);

    let mut wrong = Vec::new();
    for (from, to) in [("a", "b"), ("b", "a")] {
        let list = |what: &str, path: &str| {
            let found = namespace.kubectl(&["get", what, to, "-o", &format!("jsonpath={path}")]);
            found.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        let pods = list("pod", "{.status.podIPs[*].ip}");
        let services = list("service", "{.spec.clusterIPs[*]}");
        assert_eq!((pods.len(), services.len()), (2, 2), "both families: {pods:?} {services:?}");
        let literal =
            |address: &str| if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
        let mut urls: Vec<String> =
            pods.iter().map(|address| format!("http://{}:8080/hostname", literal(address))).collect();
        urls.extend(services.iter().map(|address| format!("http://{}/hostname", literal(address))));
        for url in &urls {
            let family = if url.contains('[') { "-6" } else { "-4" };
            expect(to, responder(&namespace, from, family, url), url, &mut wrong);
        }
        for family in ["-4", "-6"] {
            let url = format!("http://{to}.{}.svc.cluster.local/hostname", namespace.name);
            expect(to, responder(&namespace, from, family, &url), &format!("{url} {family}"), &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn expect(to: &str, answer: Result<String, String>, what: &str, wrong: &mut Vec<String>) {
    match answer {
        Ok(name) if name == to => {}
        Ok(other) => wrong.push(format!("{what}: `{other}` answered instead of `{to}`")),
        Err(error) => wrong.push(format!("{what}: {error}")),
    }
}

#[test]
fn a_service_account_has_only_the_rights_that_rbac_grants() {
    let namespace = Namespace::new("rbac");
    namespace.kubectl(&["create", "serviceaccount", "tenant"]);
    namespace.kubectl(&["create", "role", "reader", "--verb=get,list", "--resource=pods"]);
    let tenant = format!("{}:tenant", namespace.name);
    namespace.kubectl(&[
        "create",
        "rolebinding",
        "reader",
        "--role=reader",
        &format!("--serviceaccount={tenant}"),
    ]);
    let token = namespace.kubectl(&["create", "token", "tenant"]);
    let may = |verb: &str, what: &str| {
        let args = ["-n", &namespace.name, "--token", token.trim(), "auth", "can-i", verb, what];
        // The tenant's token must override the admin's credentials.
        text(&command(&args).stdin(Stdio::null()).output().unwrap())
            .trim()
            .lines()
            .last()
            .unwrap_or_default()
            .to_owned()
    };
    // A new role binding takes effect a moment later.
    let end = Instant::now() + Duration::from_secs(60);
    while may("list", "pods") != "yes" {
        assert!(Instant::now() < end, "the tenant may not list pods: {}", may("list", "pods"));
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(may("create", "pods"), "no");
    assert_eq!(may("list", "secrets"), "no");
}
