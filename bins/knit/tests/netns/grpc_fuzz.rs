//! Arbitrary requests to a running agent: it responds to each, continues to run, does not affect foreign
//! state, and everything that the requests created can be removed.

#[path = "../../../../crates/knit-kni/tests/unit/random_wire.rs"]
#[allow(dead_code, reason = "shared with the messages' own tests")]
mod wire;

use std::cell::Cell;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::support::agent::{Agent, Machine, reference};
use knit_kni::{Client, Reason, kni, v1};
use knit_testbed::{Dump, eventually};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Request, Status};

/// The timeout for reading a stream.
const DEADLINE: Duration = Duration::from_millis(300);

/// A codec for raw messages.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        bytes::BufMut::put_slice(buffer, &item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let length = bytes::Buf::remaining(buffer);
        Ok(Some(bytes::Buf::copy_to_bytes(buffer, length).to_vec()))
    }
}

/// The paths of all methods of both packages.
fn methods() -> Vec<String> {
    let services = knit_kni::json::pool().services();
    let paths = services.flat_map(|service| {
        let name = service.full_name().to_owned();
        service.methods().map(|method| format!("/{name}/{}", method.name())).collect::<Vec<_>>()
    });
    paths.collect()
}

async fn send(client: &Client, method: &str, message: Vec<u8>) -> Result<(), Status> {
    let mut grpc = tonic::client::Grpc::new(client.channel());
    grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let mut request = Request::new(message);
    request.set_timeout(DEADLINE);
    let path: PathAndQuery = method.parse().unwrap();
    let mut answers = grpc.server_streaming(request, path, Raw).await?.into_inner();
    let all = async {
        while answers.message().await?.is_some() {}
        Ok(())
    };
    tokio::time::timeout(DEADLINE, all).await.unwrap_or(Ok(()))
}

/// Removes everything that the requests created.
fn remove_everything(machine: &Machine, agent: &Agent<'_>) {
    let pods = agent.with(|mut client| async move { client.list_pods(Default::default()).await }).unwrap();
    for pod in pods.pods {
        let request = v1::DeleteSandboxRequest { pod: Some(reference(&pod.id)) };
        match agent.with(|mut client| async move { client.delete_sandbox(request).await }) {
            // An abandoned request may still be in progress.
            Err(error) if matches!(error.reason(), Some(Reason::Busy | Reason::NotFound)) => {}
            response => drop(response.unwrap()),
        }
    }
    let Ok(made) = std::fs::read_dir(machine.path("netns")) else { return };
    for path in made.map(|entry| entry.unwrap().path().display().to_string()) {
        let request = kni::DeleteNetworkRequest { netns_path: path, ..Default::default() };
        agent.with(|client| async move { client.kni().delete_network(request).await }).unwrap();
    }
}

#[test]
fn the_agent_survives_any_request_and_stays_clean() {
    let machine = Machine::new("agent-fuzz");
    let agent = machine.agent();
    let before = Dump::settled(&machine.host);
    let victim = machine.path("victim");
    std::fs::write(&victim, "not Knit's").unwrap();
    let texts = [
        "a",
        "eth0",
        "net1",
        "default",
        "cluster-network",
        "10.75.0.9",
        "fd75:6b6e:6974::9/64",
        "netns",
        "pid",
    ];
    let odd = [
        "",
        "\0",
        "../..",
        "ä",
        "/proc/self/ns/net",
        "18446744073709551616",
        // No process has this pid.
        "99999999",
        victim.to_str().unwrap(),
    ];
    let messages = wire::fields(&[&texts[..], &odd[..]].concat());
    let cases = (prop::sample::select(methods()), messages);
    let config = ProptestConfig { cases: 600, failure_persistence: None, ..Default::default() };
    let runtime = crate::support::agent::runtime();
    let client = runtime.block_on(Client::connect(agent.socket())).unwrap();
    let (answered, error) = (Cell::new(0), Cell::new(0));
    let outcome = TestRunner::new(config).run(&cases, |(method, message)| {
        let sent = runtime.block_on(send(&client, &method, message));
        match &sent {
            Ok(()) => answered.set(answered.get() + 1),
            Err(status) => {
                error.set(error.get() + 1);
                // Errors of the agent have a reason; these codes would mean a panic or a lost connection.
                let lost = matches!(status.code(), tonic::Code::Unknown | tonic::Code::Unavailable);
                prop_assert!(!lost, "{method}: {status:?}");
            }
        }
        prop_assert!(agent.is_running(), "{method} ended the agent");
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}\n{}", machine.log()));
    let (answered, error) = (answered.get(), error.get());
    assert!(answered > 50 && error > 50, "{answered} succeeded and {error} failed: too one-sided");
    assert!(!machine.log().contains("panicked"), "{}", machine.log());

    let namespaces = || std::fs::read_dir(machine.path("netns")).map_or(0, Iterator::count);
    eventually("everything is removed", Duration::from_secs(20), || {
        remove_everything(&machine, &agent);
        agent.used_addresses() == 0 && namespaces() == 0
    });
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "not Knit's");
    eventually("the links are deleted", Duration::from_secs(20), || {
        crate::support::agent::ports(&machine.host) == 0
    });
    before.assert_unchanged(&machine.host);
    assert_eq!(agent.stop(), Some(0));
}

/// A plausible call with possibly invalid values.
#[derive(Clone, Debug)]
enum Operation {
    Create(String),
    Attach(Box<v1::AttachRequest>),
    Detach(String, Vec<String>),
    Delete(String),
    Collect(Vec<String>),
}

/// Mostly a valid value, sometimes an invalid one.
fn mostly_valid<T: Clone + std::fmt::Debug + 'static>(
    good: &[T],
    odd: &[T],
) -> impl Strategy<Value = T> + use<T> {
    prop_oneof![20 => prop::sample::select(good.to_vec()), 1 => prop::sample::select(odd.to_vec())]
}

fn text_value(good: &[&'static str], odd: &[&'static str]) -> impl Strategy<Value = String> + use<> {
    mostly_valid(good, odd).prop_map(str::to_owned)
}

fn interface() -> impl Strategy<Value = v1::InterfaceSpec> {
    let address = text_value(
        &["10.75.0.9", "10.75.1.1/16", "fd75:6b6e:6974::9/64"],
        &["10.75.0.1", "10.76.0.1", "0.0.0.0", "x", "::1"],
    );
    let route = (
        text_value(&["10.9.0.0/16", "fd00::/8"], &["0.0.0.0/0", "10.9.0.1/8", "x"]),
        text_value(&["", "10.75.0.1"], &["::1", "10.99.0.1", "x"]),
    );
    let route =
        route.prop_map(|(destination, gateway)| v1::Route { destination, gateway, ..Default::default() });
    let port =
        (0..3_i32, mostly_valid(&[80, 443], &[0, 65_536]), mostly_valid(&[30_080, 30_443], &[0, 65_536]));
    let port = port.prop_map(|(protocol, container_port, host_port)| v1::PortMapping {
        protocol,
        container_port,
        host_port,
        host_ip: String::new(),
    });
    let parts = (
        text_value(&["", "eth0", "net1", "net2"], &["lo", "sixteen-bytes-ab", "a/b"]),
        prop::option::of(text_value(&["cluster-network"], &["nowhere"])),
        prop::collection::vec(address, 0..2),
        text_value(&["", "", "02:00:00:00:00:09"], &["ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01", "x"]),
        mostly_valid(&[0, 1280, 1500], &[67, 70_000, u32::MAX]),
        prop::collection::vec(route, 0..2),
        prop::collection::vec(port, 0..2),
        prop::option::of(any::<bool>()),
    );
    let plain =
        parts.prop_map(|(name, network, addresses, mac, mtu, routes, port_mappings, default_route)| {
            v1::InterfaceSpec {
                name,
                to: network.map(v1::interface_spec::To::Network),
                addresses,
                mac,
                mtu,
                routes,
                default_route,
                port_mappings,
                ..Default::default()
            }
        });
    let device = text_value(&[""], &["0000:00:1f.6", "../x", "a b"]);
    (plain, range_sets(), device).prop_map(|(plain, range_sets, device_id)| v1::InterfaceSpec {
        range_sets,
        device_id,
        ..plain
    })
}

fn range_sets() -> impl Strategy<Value = Vec<v1::RangeSet>> {
    let range = (
        text_value(
            &["10.75.9.0/24", "10.75.0.0/16", "10.75.9.4/30"],
            &["", "10.9.0.0/16", "10.75.9.1/24", "x"],
        ),
        text_value(&["", "", "10.75.9.5"], &["10.75.8.1", "::1", "x"]),
        text_value(&["", "", "10.75.9.6"], &["10.75.9.0", "fd00::1", "x"]),
        text_value(&["", "", "10.75.0.1"], &["10.75.9.1", "x"]),
    );
    let range =
        range.prop_map(|(subnet, first, last, gateway)| v1::AddressRange { subnet, first, last, gateway });
    let set = prop::collection::vec(range, 0..3).prop_map(|ranges| v1::RangeSet { ranges });
    prop_oneof![4 => Just(Vec::new()), 1 => prop::collection::vec(set, 1..3)]
}

fn operation() -> impl Strategy<Value = Operation> {
    let id = || text_value(&["s1", "s2"], &["nobody"]);
    let attach = (id(), prop::collection::vec(interface(), 0..3), any::<bool>(), 0..4_u8);
    let attach = attach.prop_map(|(id, interfaces, fail_if_present, dry)| {
        let sandbox = Some(v1::SandboxSpec { id, ..Default::default() });
        let dry_run = dry == 0;
        let request =
            v1::AttachRequest { sandbox, interfaces, fail_if_present, dry_run, ..Default::default() };
        Operation::Attach(Box::new(request))
    });
    let name = text_value(&["eth0", "net1"], &["", "a/b"]);
    prop_oneof![
        4 => id().prop_map(Operation::Create),
        8 => attach,
        2 => (id(), prop::collection::vec(name, 0..3)).prop_map(|(id, names)| Operation::Detach(id, names)),
        1 => id().prop_map(Operation::Delete),
        1 => prop::collection::vec(id(), 0..3).prop_map(Operation::Collect),
    ]
}

async fn carry_out(client: &mut Client, act: Operation) -> Result<(), knit_kni::Error> {
    match act {
        Operation::Create(id) => {
            let sandbox = v1::SandboxSpec {
                name: id.clone(),
                id,
                namespace: "default".to_owned(),
                ..Default::default()
            };
            let request = v1::CreateSandboxRequest { sandbox: Some(sandbox), ..Default::default() };
            client.create_sandbox(request).await.map(drop)
        }
        Operation::Attach(request) => client.attach(*request).await.map(drop),
        Operation::Detach(id, interfaces) => {
            let (pod, all) = (Some(reference(&id)), interfaces.is_empty());
            client.detach(v1::DetachRequest { pod, interfaces, all, ..Default::default() }).await.map(drop)
        }
        Operation::Delete(id) => {
            client.delete_sandbox(v1::DeleteSandboxRequest { pod: Some(reference(&id)) }).await.map(drop)
        }
        Operation::Collect(ids) => {
            let attachments: Vec<v1::Attachment> = ids
                .into_iter()
                .map(|sandbox_id| v1::Attachment { sandbox_id, interface: String::new() })
                .collect();
            let living = v1::Living { none: attachments.is_empty(), attachments };
            let garbage = Some(v1::collect_garbage_request::Garbage::Living(living));
            let request = v1::CollectGarbageRequest { garbage, ..Default::default() };
            client.collect_garbage(request).await.map(drop)
        }
    }
}

#[test]
fn any_sequence_of_calls_can_be_cleaned_up() {
    let machine = Machine::new("agent-acts");
    let agent = machine.agent();
    let before = Dump::settled(&machine.host);
    let config =
        ProptestConfig { cases: 40, failure_persistence: None, max_shrink_iters: 60, ..Default::default() };
    let runtime = crate::support::agent::runtime();
    let client = runtime.block_on(Client::connect(agent.socket())).unwrap();
    let outcome = TestRunner::new(config).run(&prop::collection::vec(operation(), 1..12), |acts| {
        let both = ["s1", "s2"].map(|id| Operation::Create(id.to_owned()));
        for act in both.into_iter().chain(acts) {
            let shown = format!("{act:?}");
            let done = runtime.block_on(carry_out(&mut client.clone(), act));
            // Rejected values are errors of the caller or of the kernel; these reasons would be bugs of the agent.
            let own = |reason| matches!(reason, None | Some(Reason::Internal));
            let half = |error: &knit_kni::Error| {
                error.reason() == Some(Reason::KernelError) && !error.to_string().ends_with("rolled back")
            };
            let fault = done.as_ref().err().filter(|error| own(error.reason()) || half(error));
            prop_assert!(fault.is_none(), "{shown}: {fault:?}");
        }
        remove_everything(&machine, &agent);
        prop_assert_eq!(agent.used_addresses(), 0);
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}\n{}", machine.log()));
    eventually("the links are deleted", Duration::from_secs(20), || {
        crate::support::agent::ports(&machine.host) == 0
    });
    before.assert_unchanged(&machine.host);
    assert!(!machine.log().contains("panicked"), "{}", machine.log());
}

#[test]
fn connections_that_are_not_grpc_do_not_affect_others() {
    let machine = Machine::new("agent-bytes");
    let agent = machine.agent();
    let config = ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() };
    let beginnings: [&[u8]; 3] = [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"];
    let preface = prop::sample::select(beginnings.to_vec());
    let cases = (preface, prop::collection::vec(any::<u8>(), 0..2_000));
    let outcome = TestRunner::new(config).run(&cases, |(preface, bytes)| {
        let mut stream = UnixStream::connect(agent.socket()).unwrap();
        // The agent may close the connection at any byte.
        let _ = stream.write_all(preface).and_then(|()| stream.write_all(&bytes));
        drop(stream);
        prop_assert!(agent.is_running());
        Ok(())
    });
    outcome.unwrap();
    assert!(agent.is_ready());
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", agent.pid())).unwrap().count();
    eventually("connections are closed", Duration::from_secs(10), || descriptors() < 64);
}
