//! Commands that call the agent, against a [`FakeAgent`] with prepared responses.

use std::process::{Command, Output};

use crate::fake_agent::{FakeAgent, Responses};
use knit_kni::v1;
use knit_kni::v1::watch_event::Object;
use serde_json::Value;

pub fn knit(agent: &FakeAgent, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_knit"));
    command.args(arguments).env("KNIT_KNI_SOCKET", agent.socket()).output().unwrap()
}

/// Exit code, standard output, standard error.
pub fn output_text(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn condition(reason: &str, message: &str) -> v1::Condition {
    v1::Condition {
        r#type: "AddressesLeft".to_owned(),
        ok: false,
        reason: reason.to_owned(),
        message: message.to_owned(),
        object: "network cluster-network".to_owned(),
        since: None,
    }
}

fn pod() -> v1::Pod {
    let address = |address: &str, prefix_length, family: v1::Family| v1::Address {
        address: address.to_owned(),
        prefix_length,
        family: family.into(),
        gateway: String::new(),
    };
    let eth0 = v1::Interface {
        name: "eth0".to_owned(),
        kind: "veth".to_owned(),
        network: "cluster-network".to_owned(),
        mac: "02:00:00:00:00:01".to_owned(),
        mtu: 1450,
        addresses: vec![address("10.4.0.2", 24, v1::Family::Ipv4), address("fd00::2", 64, v1::Family::Ipv6)],
        routes: vec![v1::Route {
            destination: "0.0.0.0/0".to_owned(),
            gateway: "10.4.0.1".to_owned(),
            ..v1::Route::default()
        }],
        host_link: "kn1".to_owned(),
        master: "knit0".to_owned(),
        bandwidth: Some(v1::Bandwidth { ingress_bits: 10_000_000, ..v1::Bandwidth::default() }),
        port_mappings: vec![v1::PortMapping {
            protocol: v1::Protocol::Udp.into(),
            container_port: 53,
            host_port: 5353,
            host_ip: String::new(),
        }],
        provenance: Some(v1::Provenance {
            dialect: "kni".to_owned(),
            call_id: "c1".to_owned(),
            ..v1::Provenance::default()
        }),
        ready: true,
        ..v1::Interface::default()
    };
    v1::Pod {
        id: "sandbox-1".to_owned(),
        name: "web".to_owned(),
        namespace: "shop".to_owned(),
        netns_path: "/run/netns/web".to_owned(),
        isolation: v1::IsolationKind::Netns.into(),
        netns_made: true,
        interfaces: vec![eth0],
        readiness: Some(v1::Readiness { ready: true, conditions: Vec::new() }),
        extensions: vec![v1::ExtensionReceipt {
            extension: "mesh".to_owned(),
            generation: 3,
            phase: "after-attach".to_owned(),
            ..v1::ExtensionReceipt::default()
        }],
        ..v1::Pod::default()
    }
}

#[test]
fn pods_are_printed_as_table_json_and_yaml() {
    let agent = FakeAgent::start(Responses { pods: vec![pod()], ..Responses::default() });
    let (code, out, err) = output_text(&knit(&agent, &["pods", "-n", "shop", "-l", "a=b"]));
    let table = "NAMESPACE  NAME  READY  INTERFACES  ADDRESSES         AGE\nshop       web   yes    eth0        10.4.0.2,fd00::2\n";
    assert_eq!((code, out.as_str(), err.as_str()), (0, table, ""));
    assert!(agent.requests()[0].contains(r#"namespace: "shop""#), "{:?}", agent.requests());
    assert!(agent.requests()[0].contains(r#"labels: {"a": "b"}"#), "{:?}", agent.requests());

    let (_, wide, _) = output_text(&knit(&agent, &["pods", "-o", "wide"]));
    assert!(wide.contains("cluster-network") && wide.contains("/run/netns/web"), "{wide}");
    let json: Value = serde_json::from_slice(&knit(&agent, &["pods", "-o", "json"]).stdout).unwrap();
    assert_eq!(json["pods"][0]["interfaces"][0]["addresses"][1]["family"], "FAMILY_IPV6");
    let (_, yaml, _) = output_text(&knit(&agent, &["pods", "-o", "yaml"]));
    let again: Value = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!(again["pods"][0]["interfaces"][0]["mtu"], 1450);
}

#[test]
fn an_empty_list_is_not_an_error() {
    let agent = FakeAgent::start(Responses::default());
    assert_eq!(output_text(&knit(&agent, &["pods"])), (0, "no pods\n".to_owned(), String::new()));
    let json: Value = serde_json::from_slice(&knit(&agent, &["pods", "-o", "json"]).stdout).unwrap();
    assert_eq!(json, serde_json::json!({"pods": []}));
}

#[test]
fn a_pod_is_described_with_its_origin() {
    let agent = FakeAgent::start(Responses { pods: vec![pod()], ..Responses::default() });
    let (code, out, _) = output_text(&knit(&agent, &["pod", "web", "-n", "shop"]));
    let expected = "\
Name:       web
Namespace:  shop
Id:         sandbox-1
Isolation:  /run/netns/web (created by the agent)
Ready:      yes
Interfaces:
  eth0: veth on network cluster-network, host side kn1, port of knit0
    mac 02:00:00:00:00:01, mtu 1450
    address 10.4.0.2/24
    address fd00::2/64
    route 0.0.0.0/0 via 10.4.0.1
    port *:5353/udp -> 53
    ingress limit 10 Mbit/s
    origin a kni call, call c1
Extensions:
  mesh after-attach, generation 3
";
    assert_eq!((code, out.as_str()), (0, expected));
    assert_eq!(output_text(&knit(&agent, &["pod", "--id", "sandbox-1"])).0, 0);
}

#[test]
fn an_unknown_pod_is_an_error_with_reason_and_call_id() {
    let agent = FakeAgent::start(Responses::default());
    let (code, out, err) = output_text(&knit(&agent, &["pod", "nobody"]));
    assert_eq!((code, out.as_str()), (1, ""));
    assert_eq!(err, "knit: pod nobody not found (NotFound); see `knit logs --call call-7`\n");
}

#[test]
fn networks_show_the_scarcer_family() {
    let capacity = |family: v1::Family, free| v1::Capacity {
        family: family.into(),
        used: 4,
        free,
        ..Default::default()
    };
    let network = v1::Network {
        name: "blue".to_owned(),
        namespace: "shop".to_owned(),
        ranges: vec!["10.4.0.0/29".to_owned(), "fd00::/64".to_owned()],
        readiness: Some(v1::Readiness { ready: true, conditions: Vec::new() }),
        capacity: vec![capacity(v1::Family::Ipv6, u64::MAX), capacity(v1::Family::Ipv4, 1)],
        ..v1::Network::default()
    };
    let agent = FakeAgent::start(Responses { networks: vec![network], ..Responses::default() });
    let (code, out, _) = output_text(&knit(&agent, &["networks"]));
    let row: Vec<&str> = out.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!((code, row), (0, vec!["shop", "blue", "yes", "10.4.0.0/29,fd00::/64", "4", "1"]));
}

#[test]
fn a_full_node_has_an_exit_code_and_a_reason() {
    let capacity = v1::GetCapacityResponse {
        networks: vec![v1::Capacity {
            network: "cluster-network".to_owned(),
            family: v1::Family::Ipv4.into(),
            total: 2,
            used: 2,
            exhausted: true,
            ..v1::Capacity::default()
        }],
        no_more_pods: true,
        reasons: vec![condition("AddressesExhausted", "all 2 addresses are in use")],
    };
    let agent = FakeAgent::start(Responses { capacity, ..Responses::default() });
    let (code, out, _) = output_text(&knit(&agent, &["capacity"]));
    assert_eq!(code, 1);
    assert!(
        out.ends_with(
            "no more pods\n  network cluster-network: all 2 addresses are in use (AddressesExhausted)\n"
        ),
        "{out}"
    );
}

#[test]
fn readiness_sets_the_exit_code_and_can_be_awaited() {
    let readiness = v1::GetReadinessResponse {
        node: Some(v1::Readiness { ready: true, conditions: Vec::new() }),
        new_pods: Some(v1::Readiness {
            ready: false,
            conditions: vec![condition("ExtensionMissing", "mesh has not registered")],
        }),
        pods: Vec::new(),
    };
    let agent = FakeAgent::start(Responses { readiness: readiness.clone(), ..Responses::default() });
    let (code, out, _) = output_text(&knit(&agent, &["ready"]));
    let expected = "node: ready\nnew pods: not ready\n  network cluster-network: mesh has not registered (ExtensionMissing)\n";
    assert_eq!((code, out.as_str()), (1, expected));

    let agent = FakeAgent::start(Responses { readiness, ..Responses::default() });
    assert_eq!(output_text(&knit(&agent, &["ready", "--wait", "10"])).0, 0);
    assert_eq!(agent.requests().len(), 2);
}

#[test]
fn gc_collects_deleted_sandboxes_unless_keep_or_all_is_set() {
    let garbage = v1::CollectGarbageResponse {
        collected: vec![v1::Collected {
            sandbox_id: "old".to_owned(),
            name: "web".to_owned(),
            namespace: "shop".to_owned(),
            interfaces: vec!["eth0".to_owned()],
            addresses: vec!["10.4.0.9".to_owned()],
            why: "its namespace is gone".to_owned(),
        }],
        ..v1::CollectGarbageResponse::default()
    };
    let agent = FakeAgent::start(Responses { garbage, ..Responses::default() });
    let (code, out, _) = output_text(&knit(&agent, &["gc", "--dry-run"]));
    let line = "pod shop/web: eth0, 10.4.0.9 would be removed: its namespace is gone\n";
    assert_eq!((code, out.as_str()), (0, line));
    knit(&agent, &["gc", "--keep", "a", "--keep", "b/net1"]);
    knit(&agent, &["gc", "--all"]);
    let requests = agent.requests();
    assert!(requests[0].contains("Gone(Gone)") && requests[0].contains("dry_run: true"), "{requests:?}");
    assert!(requests[1].contains(r#"sandbox_id: "b", interface: "net1""#), "{requests:?}");
    assert!(requests[1].contains("none: false") && requests[2].contains("none: true"), "{requests:?}");
    assert_eq!(output_text(&knit(&agent, &["gc", "--all", "--keep", "a"])).0, 2);
}

#[test]
fn a_watch_resumes_after_the_agent_reconnects() {
    let event = |sequence, change: v1::Change, object| v1::WatchEvent {
        position: Some(v1::Position { epoch: "e1".to_owned(), sequence }),
        time: Some(prost_types::Timestamp { seconds: 0, nanos: 0 }),
        change: change.into(),
        object,
        call_id: String::new(),
    };
    let first = vec![event(7, v1::Change::Added, Some(Object::Pod(pod())))];
    let second =
        vec![event(8, v1::Change::Deleted, Some(Object::Pod(pod()))), event(9, v1::Change::Synced, None)];
    let agent = FakeAgent::start(Responses { watches: vec![first, second], ..Responses::default() });
    let (code, out, err) = output_text(&knit(&agent, &["watch", "--once"]));
    let expected = "\
1970-01-01T00:00:00Z added pod shop/web [eth0 10.4.0.2/24 fd00::2/64]
1970-01-01T00:00:00Z deleted pod shop/web [eth0 10.4.0.2/24 fd00::2/64]
";
    assert_eq!((code, out.as_str()), (0, expected), "{err}");
    assert!(err.contains("waiting for the agent"), "{err}");
    assert!(agent.requests()[0].contains("after: None"), "{:?}", agent.requests());
    assert!(agent.requests()[1].contains("sequence: 7"), "{:?}", agent.requests());
}

#[test]
fn log_lines_are_text_or_one_json_each() {
    let line = v1::LogLine {
        time: Some(prost_types::Timestamp { seconds: 0, nanos: 0 }),
        level: "info".to_owned(),
        target: "knit_agent".to_owned(),
        message: "attached".to_owned(),
        fields: [("pod".to_owned(), "shop/web".to_owned())].into(),
    };
    let agent = FakeAgent::start(Responses { lines: vec![line.clone(), line], ..Responses::default() });
    let (code, out, _) = output_text(&knit(&agent, &["logs", "--tail", "2", "--call", "c1"]));
    assert_eq!(code, 0);
    assert_eq!(out.lines().next(), Some("1970-01-01T00:00:00Z INFO  attached pod=shop/web"));
    assert!(agent.requests()[0].contains(r#"tail: 2"#) && agent.requests()[0].contains(r#"call_id: "c1""#));
    let (_, json, _) = output_text(&knit(&agent, &["logs", "-o", "json"]));
    let lines: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[1]["fields"]["pod"], "shop/web");
}

#[test]
fn an_unreachable_agent_has_its_own_exit_code() {
    let agent = FakeAgent::start(Responses::default());
    let missing = agent.folder().join("missing.sock");
    let left_over = agent.folder().join("left-over.sock");
    drop(std::os::unix::net::UnixListener::bind(&left_over).unwrap());
    for (socket, expected) in [(&missing, "the socket does not exist"), (&left_over, "connection refused")] {
        for command in [
            &["pods"][..],
            &["pod", "a"],
            &["networks"],
            &["ready"],
            &["capacity"],
            &["gc"],
            &["watch"],
            &["logs"],
            &["policy", "list"],
            &["policy", "show", "a/b"],
        ] {
            let mut arguments = command.to_vec();
            arguments.extend(["--kni-socket", socket.to_str().unwrap()]);
            let (code, out, err) = output_text(&knit(&agent, &arguments));
            assert_eq!((code, out.as_str()), (3, ""), "{command:?}");
            assert!(err.contains(expected) && err.contains(socket.to_str().unwrap()), "{err}");
        }
    }
}

#[test]
fn a_hanging_agent_times_out() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("silent.sock");
    // The kernel accepts connections, but no process reads them.
    let _silent = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for command in ["pods", "watch", "logs"] {
        let mut knit = Command::new(env!("CARGO_BIN_EXE_knit"));
        let output = knit.args([command, "--timeout", "1", "--kni-socket"]).arg(&socket).output().unwrap();
        let (code, out, err) = output_text(&output);
        assert_eq!((code, out.as_str()), (3, ""), "{command}");
        assert!(err.contains("no response in time"), "{command}: {err}");
    }
}
