//! Tests with a fake runtime, which follows the NRI definition and the observed behaviour of containerd 2, including
//! messages that are split into frames at any byte.

use std::sync::Mutex as Lock;

use prost::Message as _;
use tokio::net::UnixListener;
use tokio::sync::Notify;

use super::*;
use crate::RuntimeInfo;
use crate::proto::nri::{
    ConfigureRequest, ConfigureResponse, PodSandbox, PodSandboxRequest, SynchronizeRequest,
    SynchronizeResponse,
};
use crate::proto::ttrpc::{Response, Status};

/// Records its calls, and blocks a sandbox until it is released.
#[derive(Default)]
struct RecordingPlugin {
    calls: Lock<Vec<String>>,
    release: Notify,
}

impl RecordingPlugin {
    fn record(&self, call: String) {
        self.calls.lock().unwrap().push(call);
    }

    fn take_calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }
}

/// Records that it was dropped before completion.
struct DropGuard<'a>(&'a RecordingPlugin, bool);

impl Drop for DropGuard<'_> {
    fn drop(&mut self) {
        if !self.1 {
            self.0.record("dropped".to_owned());
        }
    }
}

impl Plugin for RecordingPlugin {
    fn configure(&self, runtime: RuntimeInfo) {
        self.record(format!("{} {:?}", runtime.version, runtime.request_timeout));
    }

    fn synchronize(&self, pods: Vec<crate::PodSandbox>) {
        self.record(format!("all {}", pods.iter().map(|pod| pod.id.as_str()).collect::<Vec<_>>().join(",")));
    }

    async fn run_pod_sandbox(&self, pod: crate::PodSandbox) {
        self.record(format!("starts {} {} {:?}", pod.id, pod.pid, pod.labels));
        let mut guard = DropGuard(self, false);
        self.release.notified().await;
        guard.1 = true;
    }

    fn remove_pod_sandbox(&self, pod: crate::PodSandbox) {
        self.record(format!("removed {}", pod.id));
    }
}

/// The runtime's end of a connection.
struct FakeRuntime {
    stream: UnixStream,
    reassembler: Reassembler,
    next: u32,
}

impl FakeRuntime {
    async fn accept(listener: &UnixListener) -> Self {
        Self { stream: listener.accept().await.unwrap().0, reassembler: Reassembler::default(), next: 1 }
    }

    async fn receive(&mut self) -> Message {
        loop {
            let mut header = [0; FRAME_HEADER_LEN];
            self.stream.read_exact(&mut header).await.unwrap();
            let (connection, length) = mux::parse_frame_header(header).unwrap();
            let mut bytes = vec![0; length];
            self.stream.read_exact(&mut bytes).await.unwrap();
            if let Some(message) = self.reassembler.push(connection, &bytes).unwrap().pop() {
                return message;
            }
        }
    }

    async fn send(&mut self, message: Message) {
        self.stream.write_all(&message.encode()).await.unwrap();
    }

    /// Receives the registration and confirms it.
    async fn register(&mut self) {
        let message = self.receive().await;
        assert_eq!((message.connection, message.stream, message.kind), (RUNTIME_CONNECTION, 1, REQUEST));
        let request = Request::decode(&message.payload[..]).unwrap();
        assert_eq!(request.service, "nri.pkg.api.v1alpha1.Runtime");
        let plugin = RegisterPluginRequest::decode(&request.payload[..]).unwrap();
        assert_eq!((plugin.plugin_name.as_str(), plugin.plugin_idx.len()), ("knit", 2));
        let payload = Response::default().encode_to_vec();
        self.send(Message { connection: RUNTIME_CONNECTION, stream: 1, kind: RESPONSE, flags: 0, payload })
            .await;
    }

    async fn start_call(&mut self, method: &str, message: &impl prost::Message) -> u32 {
        let request = Request {
            service: "nri.pkg.api.v1alpha1.Plugin".to_owned(),
            method: method.to_owned(),
            payload: message.encode_to_vec(),
        };
        let (stream, payload) = (self.next, request.encode_to_vec());
        self.next += 2;
        self.send(Message {
            connection: PLUGIN_CONNECTION,
            stream,
            kind: REQUEST,
            flags: FLAG_CLOSED,
            payload,
        })
        .await;
        stream
    }

    async fn response(&mut self, stream: u32) -> Response {
        let message = self.receive().await;
        assert_eq!((message.connection, message.stream, message.kind), (PLUGIN_CONNECTION, stream, RESPONSE));
        Response::decode(&message.payload[..]).unwrap()
    }

    async fn call(&mut self, method: &str, message: &impl prost::Message) -> Response {
        let stream = self.start_call(method, message).await;
        self.response(stream).await
    }
}

struct Fixture {
    _folder: tempfile::TempDir,
    listener: UnixListener,
    plugin: Arc<RecordingPlugin>,
    served: tokio::task::JoinHandle<Result<Infallible, Error>>,
}

fn fixture() -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nri.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let plugin = Arc::new(RecordingPlugin::default());
    let served_plugin = Arc::clone(&plugin);
    let served = tokio::spawn(async move { serve(&socket, served_plugin).await });
    Fixture { _folder: folder, listener, plugin, served }
}

impl Fixture {
    async fn error(self) -> Error {
        let Err(why) = self.served.await.unwrap();
        why
    }
}

fn sandbox(id: &str) -> PodSandbox {
    let labels = [("podconfig".to_owned(), "a".to_owned())].into();
    PodSandbox { id: id.to_owned(), pid: 4711, labels, ..PodSandbox::default() }
}

#[tokio::test]
async fn a_sandbox_waits_for_the_plugin_without_blocking_other_requests() {
    let fixture = fixture();
    let mut runtime = FakeRuntime::accept(&fixture.listener).await;
    runtime.register().await;
    let configure = ConfigureRequest {
        runtime_name: "containerd".to_owned(),
        runtime_version: "v2".to_owned(),
        request_timeout: 2_000,
    };
    let answer = runtime.call("Configure", &configure).await;
    let events = ConfigureResponse::decode(&answer.payload[..]).unwrap().events;
    assert_eq!(events, 0b101, "RunPodSandbox is event 1, RemovePodSandbox event 3");
    let starts = runtime.start_call("RunPodSandbox", &PodSandboxRequest { pod: Some(sandbox("s1")) }).await;
    let other = runtime.call("RemovePodSandbox", &PodSandboxRequest { pod: Some(sandbox("s0")) }).await;
    assert_eq!(other.status, None);
    fixture.plugin.release.notify_one();
    assert_eq!(runtime.response(starts).await.status, None);
    let mut calls = fixture.plugin.take_calls();
    calls.sort();
    assert_eq!(calls, ["containerd v2 Some(2s)", "removed s0", r#"starts s1 4711 {"podconfig": "a"}"#]);
    let unknown = runtime.call("CreateContainer", &PodSandboxRequest::default()).await;
    assert_eq!(unknown.status.map(|status| status.code), Some(12));
}

#[tokio::test]
async fn batches_of_pods_are_acknowledged_and_joined() {
    let fixture = fixture();
    let mut runtime = FakeRuntime::accept(&fixture.listener).await;
    runtime.register().await;
    for (ids, more) in [(["s1", "s2"], true), (["s3", "s4"], true), (["s5", "s6"], false)] {
        let chunk = SynchronizeRequest { pods: ids.map(sandbox).to_vec(), more };
        let answer = runtime.call("Synchronize", &chunk).await;
        assert_eq!(SynchronizeResponse::decode(&answer.payload[..]).unwrap().more, more);
    }
    assert_eq!(fixture.plugin.take_calls(), ["all s1,s2,s3,s4,s5,s6"]);
    // A list far larger than one frame.
    let many = SynchronizeRequest { pods: (0..5_000).map(|_| sandbox("s")).collect(), more: false };
    assert_eq!(runtime.call("Synchronize", &many).await.status, None);
}

#[tokio::test]
async fn pending_sandboxes_are_dropped_with_the_connection() {
    let fixture = fixture();
    let mut runtime = FakeRuntime::accept(&fixture.listener).await;
    runtime.register().await;
    runtime.start_call("RunPodSandbox", &PodSandboxRequest { pod: Some(sandbox("s1")) }).await;
    assert_eq!(runtime.call("Shutdown", &crate::proto::nri::Empty {}).await.status, None);
    drop(runtime);
    let plugin = Arc::clone(&fixture.plugin);
    assert!(matches!(fixture.error().await, Error::Disconnected { .. }));
    assert_eq!(plugin.take_calls()[1..], ["dropped"]);
}

#[tokio::test]
async fn registration_errors_have_the_reason_and_connection_errors_the_socket() {
    let fixture = fixture();
    let mut runtime = FakeRuntime::accept(&fixture.listener).await;
    runtime.receive().await;
    let status = Some(Status { code: 3, message: "invalid plugin index".to_owned() });
    let payload = Response { status, payload: Vec::new() }.encode_to_vec();
    runtime
        .send(Message { connection: RUNTIME_CONNECTION, stream: 1, kind: RESPONSE, flags: 0, payload })
        .await;
    assert!(fixture.error().await.to_string().contains("invalid plugin index"));
    let Err(why) = serve(Path::new("/nowhere/nri.sock"), Arc::new(RecordingPlugin::default())).await;
    assert!(why.to_string().contains("/nowhere/nri.sock"), "{why}");
}

#[tokio::test]
async fn invalid_messages_close_the_connection_without_an_error_response() {
    let request = |payload: Vec<u8>| Message {
        connection: PLUGIN_CONNECTION,
        stream: 1,
        kind: REQUEST,
        flags: 0,
        payload,
    };
    let no_pod = Request {
        service: "nri.pkg.api.v1alpha1.Plugin".to_owned(),
        method: "RunPodSandbox".to_owned(),
        payload: vec![0xff; 12],
    };
    let wrong = [
        vec![0xff; 64],
        [0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff].to_vec(),
        request(vec![0xff; 33]).encode(),
        request(no_pod.encode_to_vec()).encode(),
        Message { kind: 9, ..request(Vec::new()) }.encode(),
    ];
    for bytes in wrong {
        let fixture = fixture();
        let mut runtime = FakeRuntime::accept(&fixture.listener).await;
        runtime.register().await;
        runtime.stream.write_all(&bytes).await.unwrap();
        let why = fixture.error().await;
        assert!(matches!(why, Error::InvalidMessage { .. }), "{bytes:?}: {why}");
        let mut left = Vec::new();
        // Unread data resets the connection.
        let _ = runtime.stream.read_to_end(&mut left).await;
        assert_eq!(left, [], "no response was sent");
    }
}
