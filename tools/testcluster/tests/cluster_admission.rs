//! What the API server refuses beyond the definitions of the kinds: ranges of the cluster, closed uplinks, quotas, and
//! whatever is another namespace's. Tenants are real ServiceAccounts with their own tokens.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
}

use std::sync::Mutex;
use std::time::{Duration, Instant};

use support::kubectl::{Namespace, feed, install_kinds, kubectl, run, text};

/// Policies hold for the whole cluster: one test at a time.
static POLICIES: Mutex<()> = Mutex::new(());

/// The policies, with these ranges; all of it goes with the value.
struct Admission;

impl Admission {
    fn install(ranges: &str) -> Self {
        install_kinds();
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/admission");
        let this = Self;
        kubectl(&["apply", "-k", folder]);
        let name = "crd/clusterranges.podnetwork.opdev.io";
        kubectl(&["wait", "--for=condition=Established", "--timeout=60s", name]);
        let (accepted, said) = set_ranges(ranges);
        assert!(accepted, "{said}");
        this
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/admission");
        run(&["delete", "-k", folder, "--ignore-not-found"]);
    }
}

fn set_ranges(spec: &str) -> (bool, String) {
    feed(&["apply", "-f", "-"], &object("ClusterRanges", "cluster", spec))
}

fn object(kind: &str, name: &str, spec: &str) -> String {
    let group = if kind == "PodConfig" { "podconfig" } else { "podnetwork" };
    format!("apiVersion: {group}.opdev.io/v1alpha1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n")
}

/// A policy works a moment after it was made: asks until the answer has these words.
fn until(words: &str, ask: impl Fn() -> (bool, String)) -> (bool, String) {
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        let (accepted, said) = ask();
        if said.contains(words) || Instant::now() > end {
            assert!(said.contains(words), "expected `{words}`: {said}");
            return (accepted, said);
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// A ServiceAccount that may do everything with these kinds in its namespace, and nothing else.
fn tenant(namespace: &Namespace, kinds: &str) -> String {
    namespace.kubectl(&["create", "serviceaccount", "tenant"]);
    let verbs = "--verb=get,list,create,update,patch,delete";
    namespace.kubectl(&["create", "role", "tenant", verbs, &format!("--resource={kinds}")]);
    let account = format!("--serviceaccount={}:tenant", namespace.name);
    namespace.kubectl(&["create", "rolebinding", "tenant", "--role=tenant", &account]);
    format!("--token={}", namespace.kubectl(&["create", "token", "tenant"]).trim())
}

const RANGES: &str = "{pods: [10.224.0.0/16, 'fd00:e0::/48'], services: [10.96.0.0/16, 'fd00:96::/112'], nodes: [172.30.0.0/24]}";

#[test]
fn ranges_of_the_cluster_are_refused_to_every_kind_and_nothing_that_stands_is_stuck() {
    let _one = POLICIES.lock().unwrap_or_else(|broken| broken.into_inner());
    let admission = Admission::install("{}");
    let namespace = Namespace::new("ranges");
    let old = object("Bridge", "old", "{name: old0, cidr: 10.224.7.0/24}");
    namespace.apply(&old);
    assert!(set_ranges(RANGES).0);

    let try_it = |object: String| namespace.feed(&["create", "--dry-run=server", "-f", "-"], &object);
    let (accepted, _) = until("10.224.7.0/24 must not overlap the ranges of the cluster's pods", || {
        try_it(object("Bridge", "b", "{name: br0, cidr: 10.224.7.0/24}"))
    });
    assert!(!accepted);
    let bad = [
        (
            "Bridge",
            "{name: br0, cidr: '192.168.100.0/24,fd00:96::/120'}",
            "fd00:96::/120 must not overlap the ranges of the cluster's Services, 10.96.0.0/16, fd00:96::/112",
        ),
        ("Bridge", "{name: br0, cidr: 10.0.0.0/8}", "10.0.0.0/8 overlaps"),
        (
            "VirtualNetwork",
            "{subnets: [192.168.0.0/24, 172.30.0.128/25]}",
            "172.30.0.128/25 must not overlap the ranges of the cluster's nodes",
        ),
        ("Veth", "{interfaceName: n1, master: br0, addresses: [10.96.0.10/24]}", "10.96.0.10/24 overlaps"),
        ("Vxlan", "{interfaceName: n1, vni: 1, cidr: 10.96.0.0/24}", "10.96.0.0/24 overlaps"),
        (
            "PodConfig",
            "{networkAttachments: [{name: a, master: b, cidr: 10.1.0.0/24}, {name: c, master: b, cidr: 10.224.0.0/24}]}",
            "10.224.0.0/24 overlaps",
        ),
        (
            "PodConfig",
            "{vlans: [{parentInterfaceName: a, vlanID: 7, bridgeName: b, cidr: 10.96.0.0/24}]}",
            "10.96.0.0/24 overlaps",
        ),
        (
            "PodNetworkConfig",
            "{links: [{namePrefix: a, master: b, cidr: 10.96.0.0/24}]}",
            "10.96.0.0/24 overlaps",
        ),
        (
            "PodNetworkConfig",
            "{additionalNetworks: [{networkName: a, master: b, cidr: 10.96.0.0/24}]}",
            "10.96.0.0/24 overlaps",
        ),
    ];
    for (kind, spec, words) in bad {
        let (accepted, said) = until(words, || try_it(object(kind, "bad", spec)));
        assert!(!accepted, "{kind} {spec}: {said}");
    }
    let good = [
        ("Bridge", "{name: br0, cidr: '192.168.100.0/24,fd00:97::/112'}"),
        ("Bridge", "{name: br0}"),
        ("Uplink", "{link: eno1, vlans: ['100-199']}"),
        ("PodRoute", "{routes: [{to: 10.96.0.0/16, dev: eth0}]}"),
        ("PrimaryNetwork", "{mtu: 1400}"),
    ];
    for (kind, spec) in good {
        let (accepted, said) = try_it(object(kind, "good", spec));
        assert!(accepted, "{kind} {spec}: {said}");
    }

    // What stood before the ranges were known can be labelled, and can go; a change of it is held to them.
    namespace.kubectl(&["label", "bridges.podnetwork.opdev.io", "old", "still=there"]);
    let (accepted, said) = namespace.try_apply(&old.replace("cidr:", "mtu: 1400, cidr:"));
    assert!(!accepted && said.contains("overlaps"), "{said}");
    namespace.kubectl(&["delete", "bridges.podnetwork.opdev.io", "old"]);
    drop(admission);
}

#[test]
fn a_mistake_in_the_clusters_ranges_is_named() {
    let _one = POLICIES.lock().unwrap_or_else(|broken| broken.into_inner());
    let admission = Admission::install(RANGES);
    for (spec, field, words) in [
        ("{pods: ['10.224.0.0/16,fd00:e0::/48']}", "spec.pods[0]", "must be a subnet"),
        ("{nodes: [172.30.0.11/24]}", "spec.nodes[0]", "no host bits"),
        ("{services: ['::/0']}", "spec.services[0]", "prefix length of at least 1"),
        ("{pod: [10.224.0.0/16]}", "spec.pod", "unknown field"),
    ] {
        let (accepted, said) = set_ranges(spec);
        assert!(!accepted && said.contains(field) && said.contains(words), "{spec}: {said}");
    }
    let other = object("ClusterRanges", "mine", "{pods: [10.224.0.0/16]}");
    let (accepted, said) = feed(&["apply", "-f", "-"], &other);
    assert!(!accepted && said.contains("it is called `cluster`"), "{said}");
    drop(admission);
}

#[test]
fn a_closed_uplink_is_denied_to_host_devices_and_told_to_others() {
    let _one = POLICIES.lock().unwrap_or_else(|broken| broken.into_inner());
    let admission = Admission::install("{}");
    let (shop, lab) = (Namespace::new("shop"), Namespace::new("lab"));
    let uplink = format!("admission-{}", std::process::id());
    let spec = format!(
        "{{link: eno1, namespaces: [{}], kinds: [macvlan, host-device, vlan], vlans: ['100-199']}}",
        shop.name
    );
    let (accepted, said) = feed(&["apply", "-f", "-"], &object("Uplink", &uplink, &spec));
    assert!(accepted, "{said}");
    let kinds = "hostdevices.podnetwork.opdev.io,macvlans.podnetwork.opdev.io,vlans.podnetwork.opdev.io";
    let (of_shop, of_lab) = (tenant(&shop, kinds), tenant(&lab, kinds));
    let ask = |namespace: &Namespace, token: &str, object: &str| {
        namespace.feed(&[token, "create", "--dry-run=server", "-f", "-"], object)
    };

    let device = object("HostDevice", "d", &format!("{{interfaceName: n1, parent: {uplink}}}"));
    let closed = format!("uplink {uplink} is not open to namespace {}", lab.name);
    let (accepted, _) = until(&closed, || ask(&lab, &of_lab, &device));
    assert!(!accepted);
    let (accepted, said) = ask(&shop, &of_shop, &device);
    assert!(accepted, "{said}");

    let link = object("Macvlan", "m", &format!("{{interfaceName: n1, parent: {uplink}}}"));
    let (accepted, _) = until(&closed, || ask(&lab, &of_lab, &link));
    assert!(accepted, "an interface of the pod may have the name: the agent decides");
    assert!(!ask(&shop, &of_shop, &link).1.contains("Warning"));
    let vlan = |id: u16| object("Vlan", "v", &format!("{{interfaceName: n1, parent: {uplink}, id: {id}}}"));
    until("is not open to VLAN 200", || ask(&shop, &of_shop, &vlan(200)));
    assert!(!ask(&shop, &of_shop, &vlan(199)).1.contains("Warning"));

    // Neither may the tenant open an uplink, nor use a kind that was not granted.
    let (accepted, said) =
        feed(&[&of_lab, "create", "-f", "-"], &object("Uplink", "mine", "{link: eno1, namespaces: ['*']}"));
    assert!(!accepted && said.contains("uplinks.podnetwork.opdev.io is forbidden"), "{said}");
    let (accepted, said) = ask(&lab, &of_lab, &object("Bridge", "b", "{name: br0}"));
    assert!(!accepted && said.contains("cannot create resource \"bridges\""), "{said}");
    kubectl(&["delete", "uplinks.podnetwork.opdev.io", &uplink]);
    drop(admission);
}

#[test]
fn nothing_of_another_namespace_can_be_named_or_made() {
    install_kinds();
    let (shop, lab) = (Namespace::new("theirs"), Namespace::new("ours"));
    shop.apply(&object("VirtualNetwork", "blue", "{subnets: [192.168.7.0/24]}"));
    let token = tenant(
        &lab,
        "veths.podnetwork.opdev.io,wireguards.podnetwork.opdev.io,virtualnetworks.podnetwork.opdev.io",
    );
    // A reference is a name in the object's own namespace: there are no words for another's.
    for (kind, spec, field) in [
        ("Veth", format!("{{interfaceName: n1, network: {}/blue}}", shop.name), "spec.network"),
        (
            "WireGuard",
            format!("{{interfaceName: n1, privateKeySecret: {{name: {}/key, key: k}}}}", shop.name),
            "spec.privateKeySecret.name",
        ),
    ] {
        // The API server follows a new binding a moment later.
        let (accepted, said) = until("must consist of lower case letters", || {
            lab.feed(&[&token, "create", "--dry-run=server", "-f", "-"], &object(kind, "x", &spec))
        });
        assert!(!accepted && said.contains(field), "{said}");
    }
    let (accepted, said) =
        shop.feed(&[&token, "create", "-f", "-"], &object("Veth", "x", "{interfaceName: n1, network: blue}"));
    assert!(!accepted && said.contains("is forbidden"), "{said}");
    let words = ["-n", &shop.name, &token, "get", "virtualnetworks.podnetwork.opdev.io", "blue"];
    assert!(text(&run(&words)).contains("is forbidden"));
}

#[test]
fn a_resource_quota_counts_the_objects_of_each_kind() {
    install_kinds();
    let namespace = Namespace::new("quota");
    let quota = "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: knit}\nspec:\n  hard:\n    count/bridges.podnetwork.opdev.io: \"1\"\n    count/veths.podnetwork.opdev.io: \"0\"\n";
    let token = tenant(
        &namespace,
        "bridges.podnetwork.opdev.io,veths.podnetwork.opdev.io,macvlans.podnetwork.opdev.io",
    );
    let create = |object: &str| namespace.feed(&[&token, "create", "-f", "-"], object);
    // The controller manager finds new kinds twice a minute and looks at a quota when it is made, then every five minutes:
    // one that is older than its kinds are known is made anew.
    until("exceeded quota: knit", || {
        namespace.kubectl(&["delete", "resourcequota", "knit", "--ignore-not-found"]);
        namespace.apply(quota);
        std::thread::sleep(Duration::from_secs(3));
        create(&object("Veth", "v", "{interfaceName: n1, master: br0}"))
    });
    assert!(create(&object("Bridge", "one", "{name: br0}")).0);
    let (accepted, said) = create(&object("Bridge", "two", "{name: br1}"));
    assert!(
        !accepted
            && said.contains("exceeded quota: knit")
            && said.contains("count/bridges.podnetwork.opdev.io=1"),
        "{said}"
    );
    assert!(
        create(&object("Macvlan", "free", "{interfaceName: n1, parent: up}")).0,
        "a kind without a quota"
    );
}
