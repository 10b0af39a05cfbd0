//! Attach, detach, check and garbage collection of a running agent: results, errors and cleanup.
//! Needs root.

use std::os::unix::fs::symlink;
use std::time::Duration;

use crate::support::agent::{Machine, addresses, attach, netns, ports};
use knit_kni::{Reason, v1};
use knit_testbed::{Dump, eventually};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

#[test]
fn the_first_attach_creates_a_working_dual_stack_eth0() {
    let machine = Machine::new("agent-first");
    let (one, other) = (machine.testbed.pod("one"), machine.testbed.pod("other"));
    let agent = machine.agent();
    let first = addresses(&agent.attach("sb1", &one), "eth0");
    let second = addresses(&agent.attach("sb2", &other), "eth0");
    assert_eq!(first, ["10.75.0.2", "fd75:6b6e:6974::2"]);
    assert_eq!(second, ["10.75.0.3", "fd75:6b6e:6974::3"]);
    for address in first.iter().chain([&"10.75.0.1".to_owned(), &"fd75:6b6e:6974::1".to_owned()]) {
        other.ping(address).unwrap();
    }
    // The node reaches its pods without a source address, like the probes of the kubelet.
    for address in first.iter().chain(&second) {
        machine.host.ping(address).unwrap();
    }
    one.ping("127.0.0.1").unwrap();
    let routes = one.ip(&["route"]) + &one.ip(&["-6", "route"]);
    assert!(routes.contains("default via 10.75.0.1 dev eth0 proto 75"), "{routes}");
    assert!(routes.contains("default via fd75:6b6e:6974::1 dev eth0 proto 75"), "{routes}");
    // The main routing table of the host is unchanged.
    assert_eq!(machine.host.ip(&["route", "show", "table", "main"]), "");
}

#[test]
fn get_pod_returns_all_details_of_a_pod() {
    let machine = Machine::new("agent-query");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let mut request = attach("sb1", &netns(&pod));
    request.dns = Some(v1::DnsConfig { servers: vec!["10.0.0.10".to_owned()], ..Default::default() });
    let sandbox = request.sandbox.as_mut().unwrap();
    sandbox.labels = [("app".to_owned(), "x".to_owned())].into();
    sandbox.annotations = [("kubernetes.io/ingress-bandwidth".to_owned(), "10M".to_owned())].into();
    let response = agent.try_attach(request).unwrap();
    let pod_now = agent.pod("sb1").unwrap();
    assert_eq!(Some(&pod_now), response.pod.as_ref());
    assert_eq!((pod_now.name.as_str(), pod_now.namespace.as_str()), ("sb1", "default"));
    assert_eq!(pod_now.netns_path, netns(&pod));
    assert_eq!(pod_now.labels["app"], "x");
    assert_eq!(pod_now.dns.unwrap().servers, ["10.0.0.10"]);
    let interface = &pod_now.interfaces[0];
    assert_eq!(interface.network, "cluster-network");
    assert_eq!(interface.mtu, 1500);
    assert_eq!(interface.bandwidth.as_ref().unwrap().ingress_bits, 10_000_000);
    let families: Vec<_> = interface.addresses.iter().map(|address| address.family()).collect();
    assert_eq!(families, [v1::Family::Ipv4, v1::Family::Ipv6]);
    assert_eq!(interface.addresses[0].gateway, "10.75.0.1");
    assert_eq!(interface.routes.len(), 2);
    let provenance = interface.provenance.as_ref().unwrap();
    assert_eq!(
        (provenance.dialect.as_str(), provenance.call_id.as_str()),
        ("kni", response.call_id.as_str())
    );
    let shown = pod.ip_json(&["link", "show", "dev", "eth0"]);
    assert_eq!(shown[0]["address"], interface.mac);
    eventually("the call's id is in the log", Duration::from_secs(5), || {
        machine.log().contains(&response.call_id)
    });
}

#[test]
fn a_repeated_attach_is_idempotent_unless_fail_if_present_is_set() {
    let machine = Machine::new("agent-again");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let first = agent.attach("sb1", &pod);
    let before = Dump::settled(pod.namespace());
    let again = agent.attach("sb1", &pod);
    assert_eq!(first.pod, again.pod);
    assert!(first.changed && !again.changed);
    let request = v1::AttachRequest { fail_if_present: true, ..attach("sb1", &netns(&pod)) };
    let error = agent.try_attach(request).unwrap_err();
    assert_eq!(error.reason(), Some(Reason::AlreadyPresent), "{error}");
    let mut request = attach("sb1", &netns(&pod));
    request.interfaces = vec![v1::InterfaceSpec { mtu: 1400, ..Default::default() }];
    assert_eq!(agent.try_attach(request).unwrap_err().reason(), Some(Reason::Conflict));
    assert_eq!(agent.used_addresses(), 2);
    before.assert_unchanged(pod.namespace());
}

#[test]
fn detach_is_idempotent_and_leaves_nothing() {
    let machine = Machine::new("agent-detach");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let (host, inside) = (Dump::settled(&machine.host), Dump::settled(pod.namespace()));
    agent.attach("sb1", &pod);
    assert_eq!(agent.detach("sb1", &["eth0"]).detached, ["eth0"]);
    assert!(agent.detach("sb1", &["eth0"]).detached.is_empty());
    assert!(agent.detach("never", &[]).detached.is_empty());
    assert!(agent.delete("sb1") && !agent.delete("sb1"));
    assert_eq!(agent.used_addresses(), 0);
    eventually("the links are deleted", Duration::from_secs(20), || ports(&machine.host) == 0);
    host.assert_unchanged(&machine.host);
    inside.assert_unchanged(pod.namespace());
}

#[test]
fn an_attach_of_many_interfaces_is_atomic() {
    let machine = Machine::new("agent-many");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let host = Dump::settled(&machine.host);
    let mut request = attach("sb1", &netns(&pod));
    let named = |name: &str| v1::InterfaceSpec { name: name.to_owned(), ..Default::default() };
    let mut bad = named("net1");
    bad.to = Some(v1::interface_spec::To::Network("nowhere".to_owned()));
    request.interfaces = vec![named("eth0"), bad];
    let error = agent.try_attach(request.clone()).unwrap_err();
    assert_eq!(error.reason(), Some(Reason::NotFound), "{error}");
    assert!(agent.pod("sb1").is_none());
    // A lease of another pod fails during allocation: earlier interfaces are rolled back.
    let mut taken = named("net1");
    taken.addresses = vec!["10.75.0.1".to_owned()];
    request.interfaces = vec![named("eth0"), taken];
    let error = agent.try_attach(request.clone()).unwrap_err();
    assert!(error.to_string().contains("10.75.0.1"), "{error}");
    assert!(agent.pod("sb1").is_none(), "a sandbox that nothing was given to is not known");
    assert_eq!(agent.used_addresses(), 0);
    eventually("the links are deleted", Duration::from_secs(20), || ports(&machine.host) == 0);
    host.assert_unchanged(&machine.host);
    request.interfaces = vec![named("eth0"), named("net1"), named("net2")];
    let response = agent.try_attach(request).unwrap();
    assert_eq!(response.interfaces, ["eth0", "net1", "net2"]);
    assert_eq!(response.pod.unwrap().interfaces.len(), 3);
    // One interface is detached from the running pod, the others stay.
    agent.detach("sb1", &["net1"]);
    assert_eq!(agent.pod("sb1").unwrap().interfaces.len(), 2);
    pod.ping("10.75.0.1").unwrap();
}

#[test]
fn invalid_ids_and_names_are_rejected_with_their_field() {
    let machine = Machine::new("agent-names");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let host = Dump::settled(&machine.host);
    for id in ["", "a/b", "..", "a b", "a\0b"] {
        let error = agent.try_attach(attach(id, &netns(&pod))).unwrap_err();
        assert_eq!(error.reason(), Some(Reason::InvalidValue), "{id:?}");
        assert!(error.to_string().contains("sandbox.id"), "{error}");
    }
    for name in ["0123456789abcdef", "a/b", "..", "a\0b", "a b"] {
        let mut request = attach("sb1", &netns(&pod));
        request.interfaces = vec![v1::InterfaceSpec { name: name.to_owned(), ..Default::default() }];
        let error = agent.try_attach(request).unwrap_err();
        assert_eq!(error.reason(), Some(Reason::InvalidValue), "{name:?}");
        assert!(error.to_string().contains("interfaces[0].name"), "{error}");
    }
    host.assert_unchanged(&machine.host);
    assert!(agent.pod("sb1").is_none());
}

#[test]
fn a_path_that_is_not_a_netns_is_rejected() {
    let machine = Machine::new("agent-paths");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let host = Dump::settled(&machine.host);
    let [file, link, fifo, gone] = ["file", "link", "fifo", "gone"].map(|name| machine.path(name));
    std::fs::write(&file, "").unwrap();
    symlink(netns(&pod), &link).unwrap();
    mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    let own = format!("/proc/{}/ns/net", agent.pid());
    let paths = [file, link, fifo, gone].map(|path| path.display().to_string());
    for path in paths.iter().chain([&own]) {
        let error = agent.try_attach(attach("sb1", path)).unwrap_err();
        assert_eq!(error.reason(), Some(Reason::InvalidValue), "{path}: {error}");
        assert!(error.to_string().contains(path.as_str()), "{path}: {error}");
    }
    host.assert_unchanged(&machine.host);
    assert!(agent.pod("sb1").is_none());
}

#[test]
fn a_late_call_for_an_old_sandbox_does_not_affect_the_new_one() {
    let machine = Machine::new("agent-late");
    let (old, new) = (machine.testbed.pod("old"), machine.testbed.pod("new"));
    let agent = machine.agent();
    agent.attach("sb-old", &old);
    agent.attach("sb-new", &new);
    let before = Dump::settled(new.namespace());
    agent.delete("sb-old");
    before.assert_unchanged(new.namespace());
    // The same id with another netns is a new sandbox: the old interface is removed, the new one is created.
    let moved = agent.attach("sb-new", &old);
    assert_eq!(moved.pod.unwrap().netns_path, netns(&old));
    eventually("the old sandbox is detached", Duration::from_secs(5), || ports(&machine.host) == 1);
    // A detach with the netns of the old sandbox does not affect the new one.
    let late = knit_kni::kni::DetachInterfaceRequest {
        id: "sb-new".to_owned(),
        isolation: Some(knit_kni::kni::Isolation { path: netns(&new), ..Default::default() }),
        ..Default::default()
    };
    agent.with(|client| async move { client.kni().detach_interface(late).await }).unwrap();
    old.ping("10.75.0.1").unwrap();
    // An attach that arrives after the deletion of its sandbox is rejected.
    let request = v1::CreateSandboxRequest {
        sandbox: Some(v1::SandboxSpec { id: "made".to_owned(), ..Default::default() }),
        ..Default::default()
    };
    let made = agent.with(|mut client| async move { client.create_sandbox(request).await }).unwrap();
    let path = made.pod.unwrap().netns_path;
    let held = std::fs::File::open(&path).unwrap();
    agent.delete("made");
    assert!(!std::path::Path::new(&path).exists());
    let through = format!("/proc/{}/fd/{}", std::process::id(), std::os::fd::AsRawFd::as_raw_fd(&held));
    let error = agent.try_attach(attach("made", &through)).unwrap_err();
    assert!(matches!(error.reason(), Some(Reason::Superseded | Reason::InvalidValue)), "{error}");
}

#[test]
fn gc_removes_only_invalid_attachments() {
    let machine = Machine::new("agent-gc");
    let pods = ["a", "b", "c"].map(|name| machine.testbed.pod(name));
    let agent = machine.agent();
    for (pod, id) in pods.iter().zip(["sa", "sb", "sc"]) {
        agent.attach(id, pod);
    }
    let collect = |living: &[&str], none: bool| {
        let attachments = living
            .iter()
            .map(|id| v1::Attachment { sandbox_id: (*id).to_owned(), interface: String::new() })
            .collect();
        let living = v1::Living { attachments, none };
        let request = v1::CollectGarbageRequest {
            garbage: Some(v1::collect_garbage_request::Garbage::Living(living)),
            ..Default::default()
        };
        agent.with(|mut client| async move { client.collect_garbage(request).await })
    };
    assert_eq!(collect(&[], false).unwrap_err().reason(), Some(Reason::InvalidValue));
    let gone = collect(&["sa", "sc"], false).unwrap().collected;
    assert_eq!(gone.len(), 1);
    assert_eq!(
        (gone[0].sandbox_id.as_str(), gone[0].interfaces.as_slice()),
        ("sb", &["eth0".to_owned()][..])
    );
    assert_eq!(agent.used_addresses(), 4);
    assert!(agent.pod("sb").is_none());
    pods[0].ping("10.75.0.4").unwrap();
    eventually("there is an audit line", Duration::from_secs(5), || machine.log().contains("collected"));
    // The agent detects a deleted netns without a call.
    for pod in &pods {
        pod.holder().stop().unwrap();
    }
    eventually("deleted sandboxes are removed", Duration::from_secs(15), || agent.used_addresses() == 0);
}

#[test]
fn a_dry_run_returns_the_plan_and_changes_nothing() {
    let machine = Machine::new("agent-dry");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let (host, inside) = (Dump::settled(&machine.host), Dump::settled(pod.namespace()));
    let request = v1::AttachRequest { dry_run: true, ..attach("sb1", &netns(&pod)) };
    let plan = agent.try_attach(request).unwrap().plan.unwrap();
    assert!(plan.steps > 4 && plan.text.contains("eth0") && plan.text.contains("10.75.0.2"), "{}", plan.text);
    host.assert_unchanged(&machine.host);
    inside.assert_unchanged(pod.namespace());
    assert!(agent.pod("sb1").is_none());
    assert_eq!(agent.used_addresses(), 0);
}

#[test]
fn kni_creates_and_removes_network_namespaces() {
    let machine = Machine::new("agent-domain");
    let agent = machine.agent();
    let (path, again, config, empty) = agent.with(|client| async move {
        let mut kni = client.kni();
        let create = knit_kni::kni::CreateNetworkRequest {
            name: "pod".to_owned(),
            namespace: "ns".to_owned(),
            uid: "u1".to_owned(),
            ..Default::default()
        };
        let path = kni.create_network(create.clone()).await.unwrap().into_inner().netns_path;
        let again = kni.create_isolation_domain(create).await.unwrap().into_inner().netns_path;
        let attach = knit_kni::kni::AttachInterfaceRequest {
            name: "pod".to_owned(),
            id: "sb1".to_owned(),
            namespace: "ns".to_owned(),
            extradata: [("netns".to_owned(), path.clone())].into(),
            ..Default::default()
        };
        let config = kni.attach_network(attach).await.unwrap().into_inner().ipconfigs;
        let query =
            |id: &str| knit_kni::kni::QueryPodNetworkRequest { id: id.to_owned(), ..Default::default() };
        let known = kni.query_pod_network(query("sb1")).await.unwrap().into_inner().ipconfigs;
        assert_eq!(known, config);
        let empty = kni.query_pod_network(query("unknown")).await.unwrap().into_inner().ipconfigs;
        let detach = knit_kni::kni::DetachInterfaceRequest { id: "sb1".to_owned(), ..Default::default() };
        assert!(std::path::Path::new(&path).exists());
        kni.detach_interface(detach).await.unwrap();
        assert!(std::path::Path::new(&path).exists(), "a detach leaves the namespace");
        let delete = knit_kni::kni::DeleteNetworkRequest {
            name: "pod".to_owned(),
            namespace: "ns".to_owned(),
            ..Default::default()
        };
        kni.delete_isolation_domain(delete.clone()).await.unwrap();
        kni.delete_network(delete).await.unwrap();
        (path, again, config, empty)
    });
    assert_eq!(path, again);
    assert_eq!(config["eth0"].ip, ["10.75.0.2", "fd75:6b6e:6974::2"]);
    assert!(empty.is_empty());
    assert!(!std::path::Path::new(&path).exists());
    assert_eq!(agent.used_addresses(), 0);
}

#[test]
fn host_ports_work_from_pods_but_not_on_the_loopback_of_the_node() {
    let machine = Machine::new("agent-loopback");
    let (one, two) = (machine.testbed.pod("one"), machine.testbed.pod("two"));
    let agent = machine.agent();
    let mut request = attach("sb1", &netns(&one));
    let port = v1::PortMapping { container_port: 80, host_port: 8080, ..Default::default() };
    request.interfaces = vec![v1::InterfaceSpec { port_mappings: vec![port], ..Default::default() }];
    agent.try_attach(request).unwrap();
    agent.attach("sb2", &two);
    let echo = one.namespace().tcp_echo("10.75.0.2:80");
    two.tcp_reaches("10.75.0.1:8080").unwrap();
    // Also without bridge netfilter.
    let filter = machine.host.output("sysctl", &["-w", "net.bridge.bridge-nf-call-iptables=0"]);
    two.tcp_reaches("10.75.0.1:8080").unwrap();
    // A service on the loopback of the node is unreachable from a pod, whatever the routes of the pod are.
    let private = machine.host.tcp_echo("127.0.0.1:9999");
    machine.host.tcp_reaches("127.0.0.1:9999").unwrap();
    two.set_sysctl("net.ipv4.conf.all.route_localnet", "1");
    two.output("ip", &["address", "del", "127.0.0.1/8", "dev", "lo"]).unwrap();
    two.output("ip", &["route", "add", "127.0.0.1/32", "via", "10.75.0.1"]).unwrap();
    assert!(two.tcp_reaches("127.0.0.1:9999").is_err(), "{filter:?}");
    private.stop();
    echo.stop();
    agent.delete("sb1");
    let open = || machine.host.output("sysctl", &["-n", "net.ipv4.conf.knit0.route_localnet"]);
    eventually("the loopback is closed again", Duration::from_secs(5), || open().unwrap().trim() == "0");
}

#[test]
fn host_ports_reach_the_pod_while_it_is_attached() {
    let machine = Machine::new("agent-ports");
    let (pod, outside) = (machine.testbed.pod("one"), machine.testbed.pod("outside"));
    machine.testbed.connect(&outside, "eth0", &machine.host, "up0");
    machine.host.address("up0", "192.0.2.1/24");
    outside.address("eth0", "192.0.2.2/24");
    machine.host.set_sysctl("net.ipv4.ip_forward", "1");
    let agent = machine.agent();
    let mut request = attach("sb1", &netns(&pod));
    let port = |host_port: u32| v1::PortMapping { container_port: 80, host_port, ..Default::default() };
    let ports = |numbers: &[u32]| v1::InterfaceSpec {
        port_mappings: numbers.iter().map(|number| port(*number)).collect(),
        ..Default::default()
    };
    request.interfaces = vec![ports(&[8080])];
    let response = agent.try_attach(request).unwrap();
    assert_eq!(response.pod.unwrap().interfaces[0].port_mappings.len(), 1);
    let echo = pod.namespace().tcp_echo("10.75.0.2:80");
    outside.tcp_reaches("192.0.2.1:8080").unwrap();
    machine.host.tcp_reaches("192.0.2.1:8080").unwrap();
    machine.host.tcp_reaches("127.0.0.1:8080").unwrap();
    // The same host port cannot be used twice.
    let mut request = attach("sb2", &netns(&outside));
    request.interfaces = vec![v1::InterfaceSpec { name: "net1".to_owned(), ..ports(&[8080]) }];
    let error = agent.try_attach(request).unwrap_err();
    assert_eq!(error.reason(), Some(Reason::Conflict), "{error}");
    // A restart keeps the host port, a detach closes it.
    agent.crash();
    outside.tcp_reaches("192.0.2.1:8080").unwrap();
    let agent = machine.agent();
    outside.tcp_reaches("192.0.2.1:8080").unwrap();
    echo.stop();
    agent.delete("sb1");
    eventually("the port is closed", Duration::from_secs(5), || {
        machine.host.output("nft", &["list", "table", "inet", "knit"]).is_err()
    });
}
