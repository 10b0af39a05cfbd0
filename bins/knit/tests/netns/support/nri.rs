//! The runtime side of NRI: a fake of containerd 2 that sends what containerd sends when a
//! kubelet starts and removes a pod.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use prost::Message;

/// The timeout of a response.
const TIMEOUT: Duration = Duration::from_secs(20);
const PLUGIN: u32 = 1;
const RUNTIME: u32 = 2;

#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(string, tag = "1")]
    service: String,
    #[prost(string, tag = "2")]
    method: String,
    #[prost(bytes = "vec", tag = "3")]
    payload: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Response {
    #[prost(bytes = "vec", optional, tag = "1")]
    status: Option<Vec<u8>>,
    #[prost(bytes = "vec", tag = "2")]
    payload: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Configure {
    #[prost(string, tag = "2")]
    runtime: String,
    #[prost(int64, tag = "5")]
    timeout: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Synchronize {
    #[prost(message, repeated, tag = "1")]
    pods: Vec<Sandbox>,
}

#[derive(Clone, PartialEq, Message)]
struct OfPod {
    #[prost(message, optional, tag = "1")]
    pod: Option<Sandbox>,
}

/// A pod sandbox as containerd describes it.
#[derive(Clone, PartialEq, Message)]
pub struct Sandbox {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, tag = "3")]
    pub uid: String,
    #[prost(string, tag = "4")]
    pub namespace: String,
    #[prost(map = "string, string", tag = "5")]
    pub labels: HashMap<String, String>,
    #[prost(uint32, tag = "9")]
    pub pid: u32,
}

impl Sandbox {
    pub fn new(id: &str, pid: u32, label: &str) -> Self {
        let text = |text: &str| text.to_owned();
        let added = [("io.kubernetes.pod.name", id), ("io.cri-containerd.kind", "sandbox")];
        let own = [label.split_once('=').unwrap()];
        let labels = added.into_iter().chain(own).map(|(key, value)| (text(key), text(value)));
        Self {
            id: format!("sb-{id}"),
            name: text(id),
            uid: format!("uid-{id}"),
            namespace: text("default"),
            labels: labels.collect(),
            pid,
        }
    }
}

/// The runtime: the agent connects to it.
pub struct Runtime(UnixListener);

/// A connected agent.
pub struct Connection {
    stream: UnixStream,
    next: u32,
}

impl Runtime {
    pub fn listen(socket: &Path) -> Self {
        let _ = std::fs::remove_file(socket);
        Self(UnixListener::bind(socket).unwrap())
    }

    /// Accepts the next agent as a plugin and synchronizes the existing pods.
    pub fn accept(&self, pods: Vec<Sandbox>) -> Connection {
        let until = Instant::now() + TIMEOUT;
        self.0.set_nonblocking(true).unwrap();
        let stream = loop {
            match self.0.accept() {
                Ok((stream, _)) => break stream,
                Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
                Err(error) => panic!("no plugin connects: {error}"),
            }
        };
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut connection = Connection { stream, next: 1 };
        let (connected, stream, payload) = connection.receive();
        assert_eq!((connected, stream), (RUNTIME, 1));
        assert_eq!(Request::decode(&payload[..]).unwrap().method, "RegisterPlugin");
        connection.write_frame(RUNTIME, 1, 2, &Response::default().encode_to_vec());
        connection.call("Configure", &Configure { runtime: "containerd".to_owned(), timeout: 2_000 });
        connection.call("Synchronize", &Synchronize { pods });
        connection
    }
}

impl Connection {
    /// Starts a pod sandbox. Returns the time until its containers could be started.
    pub fn run(&mut self, pod: &Sandbox) -> Duration {
        let began = Instant::now();
        self.call("RunPodSandbox", &OfPod { pod: Some(pod.clone()) });
        began.elapsed()
    }

    /// Starts a pod sandbox without waiting for the response.
    pub fn start_without_waiting(&mut self, pod: &Sandbox) {
        self.send("RunPodSandbox", &OfPod { pod: Some(pod.clone()) });
    }

    /// Removes a pod sandbox.
    pub fn remove(&mut self, pod: &Sandbox) {
        self.call("RemovePodSandbox", &OfPod { pod: Some(pod.clone()) });
    }

    /// Sends an invalid message and waits until the agent disconnects.
    pub fn send_garbage(mut self) {
        self.stream.write_all(&[0xff; 64]).unwrap();
        // Unread data causes a connection reset.
        assert_eq!(self.stream.read(&mut [0; 64]).unwrap_or_default(), 0, "nothing is answered");
    }

    fn call(&mut self, method: &str, message: &impl Message) {
        let sent = self.send(method, message);
        let (connection, stream, payload) = self.receive();
        assert_eq!((connection, stream), (PLUGIN, sent), "{method}");
        assert_eq!(Response::decode(&payload[..]).unwrap().status, None, "{method}");
    }

    fn send(&mut self, method: &str, message: &impl Message) -> u32 {
        let request = Request {
            service: "nri.pkg.api.v1alpha1.Plugin".to_owned(),
            method: method.to_owned(),
            payload: message.encode_to_vec(),
        };
        let stream = self.next;
        self.next += 2;
        self.write_frame(PLUGIN, stream, 1, &request.encode_to_vec());
        stream
    }

    fn write_frame(&mut self, connection: u32, stream: u32, kind: u8, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap();
        let header = [&connection.to_be_bytes()[..], &(length + 10).to_be_bytes()].concat();
        let message = [&length.to_be_bytes()[..], &stream.to_be_bytes(), &[kind, 0], payload].concat();
        self.stream.write_all(&[header, message].concat()).unwrap();
    }

    /// The next message: it is short and has one frame.
    fn receive(&mut self) -> (u32, u32, Vec<u8>) {
        let mut header = [0; 18];
        self.stream.read_exact(&mut header).unwrap();
        let number = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
        let mut payload = vec![0; number(8) as usize];
        assert_eq!(number(4) as usize, payload.len() + 10);
        self.stream.read_exact(&mut payload).unwrap();
        (number(0), number(12), payload)
    }
}
