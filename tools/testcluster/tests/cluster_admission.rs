//! What the API server rejects beyond the schemas of the CRDs: cluster ranges, closed uplinks, quotas, and access to other
//! namespaces. Tenants are real ServiceAccounts with their own tokens.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
}

use std::sync::Mutex;
use std::time::{Duration, Instant};

use support::kubectl::{Namespace, feed, install_kinds, kubectl, run, text};

/// Policies apply to the whole cluster: one test at a time.
static POLICIES: Mutex<()> = Mutex::new(());

/// The admission policies with these cluster ranges, removed when dropped.
struct Admission;

impl Admission {
    fn install(ranges: &str) -> Self {
        install_kinds();
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/admission");
        let this = Self;
        kubectl(&["apply", "-k", folder]);
        let name = "crd/clusterranges.podnetwork.opdev.io";
        kubectl(&["wait", "--for=condition=Established", "--timeout=60s", name]);
        let (accepted, output) = set_ranges(ranges);
        assert!(accepted, "{output}");
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

/// Policies take effect a moment after they are created: retries until the output contains this text.
fn retry_until(expected: &str, attempt: impl Fn() -> (bool, String)) -> (bool, String) {
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        let (accepted, output) = attempt();
        if output.contains(expected) || Instant::now() > end {
            assert!(output.contains(expected), "expected `{expected}`: {output}");
            return (accepted, output);
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// The token of a ServiceAccount with all rights on these kinds in its namespace, and no others.
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
fn cluster_ranges_are_rejected_in_every_kind_and_existing_objects_can_be_deleted() {
    let _one = POLICIES.lock().unwrap_or_else(|broken| broken.into_inner());
    let admission = Admission::install("{}");
    let namespace = Namespace::new("ranges");
    let old = object("Bridge", "old", "{name: old0, cidr: 10.224.7.0/24}");
    namespace.apply(&old);
    assert!(set_ranges(RANGES).0);

    let dry_run = |object: String| namespace.feed(&["create", "--dry-run=server", "-f", "-"], &object);
    let (accepted, _) =
        retry_until("10.224.7.0/24 must not overlap the ranges of the cluster's pods", || {
            dry_run(object("Bridge", "b", "{name: br0, cidr: 10.224.7.0/24}"))
        });
    assert!(!accepted);
    let bad = [
        (
            "Bridge",
            "{name: br0, cidr: '192.168.100.0/24,fd00:96::/120'}",
            "fd00:96::/120 must not overlap the ranges of the cluster's Services, 10.96.0.0/16, fd00:96::/112",
        ),
        ("Bridge", "{name: br0, cidr: 10.0.0.0/8}", "10.0.0.0/8 must not overlap"),
        (
            "VirtualNetwork",
            "{subnets: [192.168.0.0/24, 172.30.0.128/25]}",
            "172.30.0.128/25 must not overlap the ranges of the cluster's nodes",
        ),
        (
            "Veth",
            "{interfaceName: n1, master: br0, addresses: [10.96.0.10/24]}",
            "10.96.0.10/24 must not overlap",
        ),
        ("Vxlan", "{interfaceName: n1, vni: 1, cidr: 10.96.0.0/24}", "10.96.0.0/24 must not overlap"),
        (
            "PodConfig",
            "{networkAttachments: [{name: a, master: b, cidr: 10.1.0.0/24}, {name: c, master: b, cidr: 10.224.0.0/24}]}",
            "10.224.0.0/24 must not overlap",
        ),
        (
            "PodConfig",
            "{vlans: [{parentInterfaceName: a, vlanID: 7, bridgeName: b, cidr: 10.96.0.0/24}]}",
            "10.96.0.0/24 must not overlap",
        ),
        (
            "PodNetworkConfig",
            "{links: [{namePrefix: a, master: b, cidr: 10.96.0.0/24}]}",
            "10.96.0.0/24 must not overlap",
        ),
        (
            "PodNetworkConfig",
            "{additionalNetworks: [{networkName: a, master: b, cidr: 10.96.0.0/24}]}",
            "10.96.0.0/24 must not overlap",
        ),
    ];
    for (kind, spec, expected) in bad {
        let (accepted, output) = retry_until(expected, || dry_run(object(kind, "bad", spec)));
        assert!(!accepted, "{kind} {spec}: {output}");
    }
    let good = [
        ("Bridge", "{name: br0, cidr: '192.168.100.0/24,fd00:97::/112'}"),
        ("Bridge", "{name: br0}"),
        ("Uplink", "{link: eno1, vlans: ['100-199']}"),
        ("PodRoute", "{routes: [{to: 10.96.0.0/16, dev: eth0}]}"),
        ("PrimaryNetwork", "{mtu: 1400}"),
    ];
    for (kind, spec) in good {
        let (accepted, output) = dry_run(object(kind, "good", spec));
        assert!(accepted, "{kind} {spec}: {output}");
    }

    // An object that is older than the ranges can be labelled and deleted; a change of its spec is checked.
    namespace.kubectl(&["label", "bridges.podnetwork.opdev.io", "old", "still=there"]);
    let (accepted, output) = namespace.try_apply(&old.replace("cidr:", "mtu: 1400, cidr:"));
    assert!(!accepted && output.contains("must not overlap"), "{output}");
    namespace.kubectl(&["delete", "bridges.podnetwork.opdev.io", "old"]);
    drop(admission);
}

#[test]
fn ranges_that_are_not_open_to_tenants_are_rejected_where_nodes_would_have_an_address() {
    let _one = POLICIES.lock().unwrap_or_else(|broken| broken.into_inner());
    let admission = Admission::install("{}");
    let namespace = Namespace::new("tenants");
    let dry_run = |object: String| namespace.feed(&["create", "--dry-run=server", "-f", "-"], &object);
    let bridge = |cidr: &str| object("Bridge", "b", &format!("{{name: br0, cidr: '{cidr}'}}"));
    let old = bridge("1.1.1.0/30").replace("name: b}", "name: old}");
    namespace.apply(&old);
    // Without a list the agents decide.
    assert!(dry_run(bridge("1.1.1.0/30")).0);
    assert!(set_ranges("{tenants: [192.168.96.0/19, 'fd74:6b6e:6974::/48']}").0);
    let expected =
        "1.1.1.0/30 is not within a range that is open to tenants, 192.168.96.0/19, fd74:6b6e:6974::/48";
    let (accepted, _) = retry_until(expected, || dry_run(bridge("1.1.1.0/30")));
    assert!(!accepted);
    for (kind, spec) in [
        ("Bridge", "{name: br0, cidr: '192.168.100.0/24,fd00:1::/64'}"),
        ("Bridge", "{name: br0, cidr: 192.168.64.0/18}"),
        ("Veth", "{interfaceName: n1, master: br0, cidr: 10.0.0.0/24}"),
        ("PodConfig", "{networkAttachments: [{name: a, master: b, cidr: 10.0.0.0/24}]}"),
        ("PodNetworkConfig", "{links: [{namePrefix: a, master: b, cidr: 10.0.0.0/24}]}"),
        ("PodNetworkConfig", "{additionalNetworks: [{networkName: a, master: b, cidr: 10.0.0.0/24}]}"),
    ] {
        let (accepted, output) = dry_run(object(kind, "bad", spec));
        assert!(
            !accepted && output.contains("is not within a range that is open"),
            "{kind} {spec}: {output}"
        );
    }
    for (kind, spec) in [
        ("Bridge", "{name: br0, cidr: '192.168.100.0/24,fd74:6b6e:6974:7::/64'}"),
        ("Bridge", "{name: br0}"),
        // Nodes have no address of these, or not for certain.
        ("Veth", "{interfaceName: n1, master: br0, addresses: [10.0.0.7/24]}"),
        ("Macvlan", "{interfaceName: n1, parent: up, cidr: 10.0.0.0/24}"),
        ("PodConfig", "{networkAttachments: [{name: a, linkType: macvlan, parent: b, cidr: 10.0.0.0/24}]}"),
        ("VirtualNetwork", "{subnets: [10.0.0.0/24]}"),
    ] {
        let (accepted, output) = dry_run(object(kind, "good", spec));
        assert!(accepted, "{kind} {spec}: {output}");
    }
    // An object that is older than the list can be labelled and deleted; a change of its spec is checked.
    namespace.kubectl(&["label", "bridges.podnetwork.opdev.io", "old", "still=there"]);
    let (accepted, output) = namespace.try_apply(&old.replace("cidr:", "mtu: 1400, cidr:"));
    assert!(!accepted && output.contains("is not within a range that is open"), "{output}");
    namespace.kubectl(&["delete", "bridges.podnetwork.opdev.io", "old"]);
    // An empty list opens nothing.
    assert!(set_ranges("{tenants: []}").0);
    retry_until("192.168.100.0/24 is not within", || dry_run(bridge("192.168.100.0/24")));
    drop(admission);
}

#[test]
fn invalid_cluster_ranges_are_rejected() {
    let _one = POLICIES.lock().unwrap_or_else(|broken| broken.into_inner());
    let admission = Admission::install(RANGES);
    for (spec, field, expected) in [
        ("{pods: ['10.224.0.0/16,fd00:e0::/48']}", "spec.pods[0]", "must be a subnet"),
        ("{nodes: [172.30.0.11/24]}", "spec.nodes[0]", "no host bits"),
        ("{services: ['::/0']}", "spec.services[0]", "prefix length of at least 1"),
        ("{tenants: [192.168.96.1/19]}", "spec.tenants[0]", "no host bits"),
        ("{pod: [10.224.0.0/16]}", "spec.pod", "unknown field"),
    ] {
        let (accepted, output) = set_ranges(spec);
        assert!(!accepted && output.contains(field) && output.contains(expected), "{spec}: {output}");
    }
    let other = object("ClusterRanges", "mine", "{pods: [10.224.0.0/16]}");
    let (accepted, output) = feed(&["apply", "-f", "-"], &other);
    assert!(!accepted && output.contains("metadata.name must be cluster"), "{output}");
    drop(admission);
}

#[test]
fn a_closed_uplink_is_denied_to_host_devices_and_a_warning_to_others() {
    let _one = POLICIES.lock().unwrap_or_else(|broken| broken.into_inner());
    let admission = Admission::install("{}");
    let (shop, lab) = (Namespace::new("shop"), Namespace::new("lab"));
    let uplink = format!("admission-{}", std::process::id());
    let spec = format!(
        "{{link: eno1, namespaces: [{}], kinds: [macvlan, host-device, vlan], vlans: ['100-199']}}",
        shop.name
    );
    let (accepted, output) = feed(&["apply", "-f", "-"], &object("Uplink", &uplink, &spec));
    assert!(accepted, "{output}");
    let kinds = "hostdevices.podnetwork.opdev.io,macvlans.podnetwork.opdev.io,vlans.podnetwork.opdev.io";
    let (of_shop, of_lab) = (tenant(&shop, kinds), tenant(&lab, kinds));
    let create = |namespace: &Namespace, token: &str, object: &str| {
        namespace.feed(&[token, "create", "--dry-run=server", "-f", "-"], object)
    };

    let device = object("HostDevice", "d", &format!("{{interfaceName: n1, parent: {uplink}}}"));
    let closed = format!("uplink {uplink} is not open to namespace {}", lab.name);
    let (accepted, _) = retry_until(&closed, || create(&lab, &of_lab, &device));
    assert!(!accepted);
    let (accepted, output) = create(&shop, &of_shop, &device);
    assert!(accepted, "{output}");

    let link = object("Macvlan", "m", &format!("{{interfaceName: n1, parent: {uplink}}}"));
    let (accepted, _) = retry_until(&closed, || create(&lab, &of_lab, &link));
    assert!(accepted, "an interface of the pod may have this name, so the agent decides");
    assert!(!create(&shop, &of_shop, &link).1.contains("Warning"));
    let vlan = |id: u16| object("Vlan", "v", &format!("{{interfaceName: n1, parent: {uplink}, id: {id}}}"));
    retry_until("is not open to VLAN 200", || create(&shop, &of_shop, &vlan(200)));
    assert!(!create(&shop, &of_shop, &vlan(199)).1.contains("Warning"));

    // The tenant can neither create an Uplink nor use a kind that was not granted.
    let (accepted, output) =
        feed(&[&of_lab, "create", "-f", "-"], &object("Uplink", "mine", "{link: eno1, namespaces: ['*']}"));
    assert!(!accepted && output.contains("uplinks.podnetwork.opdev.io is forbidden"), "{output}");
    let (accepted, output) = create(&lab, &of_lab, &object("Bridge", "b", "{name: br0}"));
    assert!(!accepted && output.contains("cannot create resource \"bridges\""), "{output}");
    kubectl(&["delete", "uplinks.podnetwork.opdev.io", &uplink]);
    drop(admission);
}

#[test]
fn objects_of_another_namespace_can_be_neither_referenced_nor_created() {
    install_kinds();
    let (shop, lab) = (Namespace::new("theirs"), Namespace::new("ours"));
    shop.apply(&object("VirtualNetwork", "blue", "{subnets: [192.168.7.0/24]}"));
    let token = tenant(
        &lab,
        "veths.podnetwork.opdev.io,wireguards.podnetwork.opdev.io,virtualnetworks.podnetwork.opdev.io",
    );
    // A reference is a name in the object's own namespace: other namespaces cannot be expressed.
    for (kind, spec, field) in [
        ("Veth", format!("{{interfaceName: n1, network: {}/blue}}", shop.name), "spec.network"),
        (
            "WireGuard",
            format!("{{interfaceName: n1, privateKeySecret: {{name: {}/key, key: k}}}}", shop.name),
            "spec.privateKeySecret.name",
        ),
    ] {
        // A new role binding takes effect a moment later.
        let (accepted, output) = retry_until("must consist of lower case letters", || {
            lab.feed(&[&token, "create", "--dry-run=server", "-f", "-"], &object(kind, "x", &spec))
        });
        assert!(!accepted && output.contains(field), "{output}");
    }
    let (accepted, output) =
        shop.feed(&[&token, "create", "-f", "-"], &object("Veth", "x", "{interfaceName: n1, network: blue}"));
    assert!(!accepted && output.contains("is forbidden"), "{output}");
    let args = ["-n", &shop.name, &token, "get", "virtualnetworks.podnetwork.opdev.io", "blue"];
    assert!(text(&run(&args)).contains("is forbidden"));
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
    // The controller manager discovers new kinds twice a minute and evaluates a quota when it is created, then every five
    // minutes: a quota from before the discovery is created again.
    retry_until("exceeded quota: knit", || {
        namespace.kubectl(&["delete", "resourcequota", "knit", "--ignore-not-found"]);
        namespace.apply(quota);
        std::thread::sleep(Duration::from_secs(3));
        create(&object("Veth", "v", "{interfaceName: n1, master: br0}"))
    });
    assert!(create(&object("Bridge", "one", "{name: br0}")).0);
    let (accepted, output) = create(&object("Bridge", "two", "{name: br1}"));
    assert!(
        !accepted
            && output.contains("exceeded quota: knit")
            && output.contains("count/bridges.podnetwork.opdev.io=1"),
        "{output}"
    );
    assert!(
        create(&object("Macvlan", "free", "{interfaceName: n1, parent: up}")).0,
        "a kind without a quota"
    );
}
