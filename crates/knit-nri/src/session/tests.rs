//! Against a fake of the runtime's side. It stands for containerd: what it sends is written after NRI's definition and after
//! what containerd 2 was seen to send, messages cut into frames at any byte included.

use std::sync::Mutex as Lock;

use prost::Message as _;
use tokio::net::UnixListener;
use tokio::sync::Notify;

use super::*;
use crate::proto::nri::{
    ConfigureRequest, ConfigureResponse, PodSandbox, PodSandboxRequest, SynchronizeRequest,
    SynchronizeResponse,
};
use crate::proto::ttrpc::{Response, Status};
use crate::{Pod, Runtime};

/// Writes down what it is told, and has a pod wait until it may go on.
#[derive(Default)]
struct Told {
    words: Lock<Vec<String>>,
    go_on: Notify,
}

impl Told {
    fn say(&self, word: String) {
        self.words.lock().unwrap().push(word);
    }

    fn words(&self) -> Vec<String> {
        std::mem::take(&mut self.words.lock().unwrap())
    }
}

/// Says so when it is dropped before its end.
struct Cut<'a>(&'a Told, bool);

impl Drop for Cut<'_> {
    fn drop(&mut self) {
        if !self.1 {
            self.0.say("cut".to_owned());
        }
    }
}

impl Plugin for Told {
    fn configured(&self, runtime: Runtime) {
        self.say(format!("{} {:?}", runtime.title, runtime.waits));
    }

    fn synchronized(&self, pods: Vec<Pod>) {
        self.say(format!("all {}", pods.iter().map(|pod| pod.id.as_str()).collect::<Vec<_>>().join(",")));
    }

    async fn starts(&self, pod: Pod) {
        self.say(format!("starts {} {} {:?}", pod.id, pod.pid, pod.labels));
        let mut cut = Cut(self, false);
        self.go_on.notified().await;
        cut.1 = true;
    }

    fn removed(&self, pod: Pod) {
        self.say(format!("removed {}", pod.id));
    }
}

/// The runtime's end of a connection.
struct Far {
    stream: UnixStream,
    parts: Parts,
    next: u32,
}

impl Far {
    async fn accept(listener: &UnixListener) -> Self {
        Self { stream: listener.accept().await.unwrap().0, parts: Parts::default(), next: 1 }
    }

    async fn hear(&mut self) -> Message {
        loop {
            let mut header = [0; FRAME];
            self.stream.read_exact(&mut header).await.unwrap();
            let (connection, length) = frames::frame(header).unwrap();
            let mut bytes = vec![0; length];
            self.stream.read_exact(&mut bytes).await.unwrap();
            if let Some(message) = self.parts.take(connection, &bytes).unwrap().pop() {
                return message;
            }
        }
    }

    async fn say(&mut self, message: Message) {
        self.stream.write_all(&message.bytes()).await.unwrap();
    }

    /// Hears the registration and answers it.
    async fn register(&mut self) {
        let asked = self.hear().await;
        assert_eq!((asked.connection, asked.stream, asked.kind), (RUNTIME, 1, REQUEST));
        let request = Request::decode(&asked.payload[..]).unwrap();
        assert_eq!(request.service, "nri.pkg.api.v1alpha1.Runtime");
        let plugin = RegisterPluginRequest::decode(&request.payload[..]).unwrap();
        assert_eq!((plugin.plugin_name.as_str(), plugin.plugin_idx.len()), ("knit", 2));
        let payload = Response::default().encode_to_vec();
        self.say(Message { connection: RUNTIME, stream: 1, kind: RESPONSE, flags: 0, payload }).await;
    }

    async fn ask(&mut self, method: &str, message: &impl prost::Message) -> u32 {
        let request = Request {
            service: "nri.pkg.api.v1alpha1.Plugin".to_owned(),
            method: method.to_owned(),
            payload: message.encode_to_vec(),
        };
        let (stream, payload) = (self.next, request.encode_to_vec());
        self.next += 2;
        self.say(Message { connection: PLUGIN, stream, kind: REQUEST, flags: CLOSED, payload }).await;
        stream
    }

    async fn answer(&mut self, stream: u32) -> Response {
        let message = self.hear().await;
        assert_eq!((message.connection, message.stream, message.kind), (PLUGIN, stream, RESPONSE));
        Response::decode(&message.payload[..]).unwrap()
    }

    async fn call(&mut self, method: &str, message: &impl prost::Message) -> Response {
        let stream = self.ask(method, message).await;
        self.answer(stream).await
    }
}

struct Ground {
    _folder: tempfile::TempDir,
    listener: UnixListener,
    told: Arc<Told>,
    served: tokio::task::JoinHandle<Result<Infallible, Error>>,
}

fn ground() -> Ground {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nri.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let told = Arc::new(Told::default());
    let plugin = Arc::clone(&told);
    let served = tokio::spawn(async move { serve(&socket, plugin).await });
    Ground { _folder: folder, listener, told, served }
}

impl Ground {
    async fn ended(self) -> Error {
        let Err(why) = self.served.await.unwrap();
        why
    }
}

fn sandbox(id: &str) -> PodSandbox {
    let labels = [("podconfig".to_owned(), "a".to_owned())].into();
    PodSandbox { id: id.to_owned(), pid: 4711, labels, ..PodSandbox::default() }
}

#[tokio::test]
async fn a_pod_waits_for_the_plugin_and_others_are_answered_meanwhile() {
    let ground = ground();
    let mut far = Far::accept(&ground.listener).await;
    far.register().await;
    let runtime = ConfigureRequest {
        runtime_name: "containerd".to_owned(),
        runtime_version: "v2".to_owned(),
        request_timeout: 2_000,
    };
    let answer = far.call("Configure", &runtime).await;
    let events = ConfigureResponse::decode(&answer.payload[..]).unwrap().events;
    assert_eq!(events, 0b101, "RunPodSandbox is event 1, RemovePodSandbox event 3");
    let starts = far.ask("RunPodSandbox", &PodSandboxRequest { pod: Some(sandbox("s1")) }).await;
    let other = far.call("RemovePodSandbox", &PodSandboxRequest { pod: Some(sandbox("s0")) }).await;
    assert_eq!(other.status, None);
    ground.told.go_on.notify_one();
    assert_eq!(far.answer(starts).await.status, None);
    let mut words = ground.told.words();
    words.sort();
    assert_eq!(words, ["containerd v2 Some(2s)", "removed s0", r#"starts s1 4711 {"podconfig": "a"}"#]);
    let unknown = far.call("CreateContainer", &PodSandboxRequest::default()).await;
    assert_eq!(unknown.status.map(|status| status.code), Some(12));
}

#[tokio::test]
async fn pods_come_in_chunks_and_each_is_acknowledged_in_kind() {
    let ground = ground();
    let mut far = Far::accept(&ground.listener).await;
    far.register().await;
    for (ids, more) in [(["s1", "s2"], true), (["s3", "s4"], true), (["s5", "s6"], false)] {
        let chunk = SynchronizeRequest { pods: ids.map(sandbox).to_vec(), more };
        let answer = far.call("Synchronize", &chunk).await;
        assert_eq!(SynchronizeResponse::decode(&answer.payload[..]).unwrap().more, more);
    }
    assert_eq!(ground.told.words(), ["all s1,s2,s3,s4,s5,s6"]);
    // A list far larger than a frame that is written at once.
    let many = SynchronizeRequest { pods: (0..5_000).map(|_| sandbox("s")).collect(), more: false };
    assert_eq!(far.call("Synchronize", &many).await.status, None);
}

#[tokio::test]
async fn what_waits_ends_with_the_connection_and_another_one_can_be_made() {
    let ground = ground();
    let mut far = Far::accept(&ground.listener).await;
    far.register().await;
    far.ask("RunPodSandbox", &PodSandboxRequest { pod: Some(sandbox("s1")) }).await;
    assert_eq!(far.call("Shutdown", &crate::proto::nri::Empty {}).await.status, None);
    drop(far);
    let told = Arc::clone(&ground.told);
    assert!(matches!(ground.ended().await, Error::Ended { .. }));
    assert_eq!(told.words()[1..], ["cut"]);
}

#[tokio::test]
async fn a_runtime_that_refuses_says_why_and_one_that_is_not_there_is_named() {
    let ground = ground();
    let mut far = Far::accept(&ground.listener).await;
    far.hear().await;
    let status = Some(Status { code: 3, message: "invalid plugin index".to_owned() });
    let payload = Response { status, payload: Vec::new() }.encode_to_vec();
    far.say(Message { connection: RUNTIME, stream: 1, kind: RESPONSE, flags: 0, payload }).await;
    assert!(ground.ended().await.to_string().contains("invalid plugin index"));
    let Err(why) = serve(Path::new("/nowhere/nri.sock"), Arc::new(Told::default())).await;
    assert!(why.to_string().contains("/nowhere/nri.sock"), "{why}");
}

#[tokio::test]
async fn garbage_ends_the_connection_and_answers_no_pod_with_an_error() {
    let request =
        |payload: Vec<u8>| Message { connection: PLUGIN, stream: 1, kind: REQUEST, flags: 0, payload };
    let no_pod = Request {
        service: "nri.pkg.api.v1alpha1.Plugin".to_owned(),
        method: "RunPodSandbox".to_owned(),
        payload: vec![0xff; 12],
    };
    let wrong = [
        vec![0xff; 64],
        [0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff].to_vec(),
        request(vec![0xff; 33]).bytes(),
        request(no_pod.encode_to_vec()).bytes(),
        Message { kind: 9, ..request(Vec::new()) }.bytes(),
    ];
    for bytes in wrong {
        let ground = ground();
        let mut far = Far::accept(&ground.listener).await;
        far.register().await;
        far.stream.write_all(&bytes).await.unwrap();
        let why = ground.ended().await;
        assert!(matches!(why, Error::Unclear { .. }), "{bytes:?}: {why}");
        let mut left = Vec::new();
        // What it did not read any more makes the end a hard one.
        let _ = far.stream.read_to_end(&mut left).await;
        assert_eq!(left, [], "nothing was answered");
    }
}
