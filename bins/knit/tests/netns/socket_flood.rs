//! Clients that open thousands of streams and connections, and read nothing: the agent refuses what exceeds its limits,
//! its memory stays stable, and it serves the others.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::support::agent::{Agent, Machine, attach, netns, reference, runtime};
use crate::support::process_peaks::{Usage, peaks_during};
use knit_kni::{Client, Reason, Stream, v1};
use knit_testbed::{Pod, eventually};

const TIMEOUT: Duration = Duration::from_secs(20);
/// The bound of the agent's memory over what it used before, in kilobytes.
const MAX_GROWTH: u64 = 48 << 10;

/// Asserts that the agent serves a new client: it attaches and detaches a pod.
#[track_caller]
fn assert_serves(agent: &Agent<'_>, id: &str, pod: &Pod) {
    agent.attach(id, pod);
    pod.ping("10.75.0.1").unwrap();
    assert!(agent.delete(id));
}

/// Opens watches on one connection until one is refused. Returns them, and the error.
async fn watch_until_refused(client: &Client) -> (Vec<Stream<v1::WatchEvent>>, Option<knit_kni::Error>) {
    let mut open = Vec::new();
    for _ in 0..400 {
        match client.clone().watch(v1::WatchRequest::default()).await {
            Ok(stream) => open.push(stream),
            Err(error) => return (open, Some(error)),
        }
    }
    (open, None)
}

#[test]
fn thousands_of_streams_that_nobody_reads_are_refused_with_stable_memory() {
    let machine = Machine::new("flood-streams");
    let pods = ["one", "two"].map(|name| machine.testbed.pod(name));
    let agent = machine.agent();
    agent.attach("s1", &pods[0]);
    let before = Usage::of(agent.pid());
    let runtime = runtime();
    let flood = || {
        runtime.block_on(async {
            let mut open = Vec::new();
            let (mut refused, mut requested) = (0, 0);
            for _ in 0..10 {
                let client = Client::connect(agent.socket()).await.unwrap();
                let (streams, error) = watch_until_refused(&client).await;
                requested += streams.len() + usize::from(error.is_some());
                if let Some(error) = error {
                    assert_eq!(error.reason(), Some(Reason::Busy), "{error}");
                    assert!(error.may_retry() && error.to_string().contains("streams are open"), "{error}");
                    refused += 1;
                }
                // Two hundred more on each connection: all of them are refused at once.
                for _ in 0..200 {
                    let error = client.clone().watch(v1::WatchRequest::default()).await.unwrap_err();
                    assert_eq!(error.reason(), Some(Reason::Busy), "{error}");
                    requested += 1;
                }
                open.push((client, streams));
            }
            assert!(
                requested > 2_000 && refused == 10,
                "{requested} streams, {refused} connections with a refusal"
            );
            open
        })
    };
    let (open, peaks) = peaks_during(agent.pid(), flood);
    assert!(peaks.kilobytes < before.kilobytes + MAX_GROWTH, "{before:?} became {peaks:?}");
    // Every event is for readers that read nothing.
    let churn = || (0..100).for_each(|number| assert_serves(&agent, &format!("c{number}"), &pods[1]));
    let ((), peaks) = peaks_during(agent.pid(), churn);
    assert!(peaks.kilobytes < before.kilobytes + MAX_GROWTH, "{before:?} became {peaks:?}");
    drop(open);
    let watches = || {
        runtime.block_on(async {
            let mut client = Client::connect(agent.socket()).await.unwrap();
            client.watch(v1::WatchRequest::default()).await.is_ok()
        })
    };
    eventually("streams can be opened again", TIMEOUT, watches);
}

#[test]
fn connections_leave_the_agent_the_descriptors_that_it_needs() {
    let machine = Machine::new("flood-connections");
    let pod = machine.testbed.pod("one");
    // Fewer descriptors than connections of both sockets.
    let agent = machine.agent_with_descriptor_limit(200);
    let before = Usage::of(agent.pid());
    let client = runtime();
    let mut served = client.block_on(Client::connect(agent.socket())).unwrap();
    client.block_on(served.get_readiness(v1::GetReadinessRequest::default())).unwrap();
    let connect = |number| {
        let socket = if number % 2 == 0 { "kni.sock" } else { "cni.sock" };
        let mut stream = UnixStream::connect(machine.path(socket)).ok()?;
        // The agent may have closed it.
        let _ = stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        Some(stream)
    };
    let flood = || {
        let held: Vec<UnixStream> = (0..900).filter_map(connect).collect();
        // The client that was there before is served: for an attach the agent opens files, namespaces and sockets.
        for _ in 0..10 {
            client.block_on(served.attach(attach("s1", &netns(&pod)))).unwrap();
            pod.ping("10.75.0.1").unwrap();
            let request = v1::DeleteSandboxRequest { pod: Some(reference("s1")) };
            client.block_on(served.delete_sandbox(request)).unwrap();
        }
        held
    };
    let (held, peaks) = peaks_during(agent.pid(), flood);
    assert!(held.len() > 300, "only {} connections", held.len());
    assert!(peaks.kilobytes < before.kilobytes + MAX_GROWTH, "{before:?} became {peaks:?}");
    assert!(peaks.threads <= before.threads + 1, "{before:?} became {peaks:?}");
    assert!(!machine.log().contains("Too many open files"), "{}", machine.log());
    drop(held);
    eventually("new clients are served", TIMEOUT, || agent.is_ready());
    assert_serves(&agent, "s1", &pod);
    eventually("the connections are closed", TIMEOUT, || {
        Usage::of(agent.pid()).descriptors <= before.descriptors + 4
    });
}

#[test]
fn connections_beyond_the_limit_are_closed_at_once() {
    let machine = Machine::new("flood-limit");
    let agent = machine.agent();
    let before = Usage::of(agent.pid());
    let connect = |_| UnixStream::connect(agent.socket()).unwrap();
    let mut held: Vec<UnixStream> = (0..600).map(connect).collect();
    let is_closed = |stream: &mut UnixStream| {
        stream.set_nonblocking(true).unwrap();
        matches!(stream.read(&mut [0; 64]), Ok(0))
    };
    eventually("the others are closed", TIMEOUT, || {
        held.iter_mut().map(is_closed).filter(|is_closed| *is_closed).count() == 344
    });
    let now = Usage::of(agent.pid());
    assert!(now.descriptors <= before.descriptors + 260, "{before:?} became {now:?}");
    assert_eq!(machine.log().matches("too many are open").count(), 1, "{}", machine.log());
    drop(held);
    eventually("new clients are served", TIMEOUT, || agent.is_ready());
}
