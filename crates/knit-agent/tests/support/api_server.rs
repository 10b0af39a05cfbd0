//! A fake of the Kubernetes API server: list, watch, get, create, apply and delete of any resource over HTTP, and faults. It has no
//! authentication, selectors or validation.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use knit_testbed::Namespace;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::api_objects::{Change, Objects, Resource};

/// Knit's own kinds.
pub const KNIT: &str = "/apis/podnetwork.opdev.io/v1alpha1";

/// The faults of a server.
#[derive(Clone, Default)]
struct Faults {
    /// Every response is delayed.
    delay: Duration,
    /// Changes that watches report although they are old, each once.
    replayed: Vec<Change>,
    /// Grows when open watches must end with an error.
    expired: u64,
}

#[derive(Clone)]
struct Shared {
    objects: Arc<Mutex<Objects>>,
    faults: Arc<Mutex<Faults>>,
    /// Notified of every change.
    changed: Arc<watch::Sender<()>>,
    requests: Arc<Mutex<Vec<String>>>,
}

/// A server. While it is stopped, its objects can still be changed.
pub struct ApiServer {
    host: Namespace,
    address: SocketAddr,
    shared: Shared,
    running: Option<Runtime>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ApiServer {
    /// Starts a server on the loopback of a host.
    pub fn start(host: &Namespace) -> Self {
        let shared = Shared {
            objects: Arc::default(),
            faults: Arc::default(),
            changed: Arc::new(watch::channel(()).0),
            requests: Arc::default(),
        };
        let address = host.run(|| TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
        let mut server = Self { host: host.clone(), address, shared, running: None };
        server.resume();
        server
    }

    /// A kubeconfig for clients.
    pub fn kubeconfig(&self) -> String {
        format!(
            "{{apiVersion: v1, kind: Config, current-context: c, clusters: [{{name: c, cluster: {{server: 'http://{}'}}}}], \
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}], users: [{{name: u, user: {{}}}}]}}",
            self.address
        )
    }

    /// Ends the server: all connections are closed, and new ones refused.
    pub fn stop(&mut self) {
        self.running.take().expect("the server runs").shutdown_timeout(Duration::from_secs(5));
        let is_refused = || std::net::TcpStream::connect(self.address).is_err();
        assert!(self.host.run(is_refused), "nothing listens any more");
    }

    /// Starts the server again, with what its objects are by now.
    pub fn resume(&mut self) {
        assert!(self.running.is_none());
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let app = Router::new().fallback(serve).with_state(self.shared.clone());
        let address = self.address;
        // The socket belongs to the namespace of the thread that creates it.
        let listener = self.host.run(|| {
            let _context = runtime.enter();
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.set_reuseaddr(true).unwrap();
            socket.bind(address).unwrap();
            socket.listen(128).unwrap()
        });
        runtime.spawn(async move { axum::serve(listener, app).await });
        self.running = Some(runtime);
    }

    /// Delays every response.
    pub fn set_delay(&self, delay: Duration) {
        lock(&self.shared.faults).delay = delay;
    }

    /// Forgets the history: watches end with 410 and cannot continue.
    pub fn expire(&self) {
        self.expire_with(|_| ());
    }

    /// The same after changes that no watch reports.
    pub fn expire_with(&self, change: impl FnOnce(&mut Objects)) {
        let mut objects = lock(&self.shared.objects);
        change(&mut objects);
        objects.compact();
        lock(&self.shared.faults).expired += 1;
        drop(objects);
        self.shared.changed.send_replace(());
    }

    /// Reports old events to all watches of a resource, in this order.
    pub fn replay(&self, resource: &str, events: &[(&'static str, Value)]) {
        let mut faults = lock(&self.shared.faults);
        for (kind, object) in events {
            let resource = resource.to_owned();
            faults.replayed.push(Change { version: 0, resource, kind, object: object.clone() });
        }
        drop(faults);
        self.shared.changed.send_replace(());
    }

    pub fn put(&self, resource: &str, object: Value) -> Value {
        let object = lock(&self.shared.objects).put(resource, object);
        self.shared.changed.send_replace(());
        object
    }

    pub fn delete(&self, resource: &str, namespace: &str, name: &str) {
        lock(&self.shared.objects).delete(resource, namespace, name).expect("it exists");
        self.shared.changed.send_replace(());
    }

    pub fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        lock(&self.shared.objects).get(resource, namespace, name)
    }

    /// The requests so far, each as its method and path, for a failing test.
    pub fn requests(&self) -> Vec<String> {
        lock(&self.shared.requests).clone()
    }
}

/// What a path names.
struct Target {
    resource: Resource,
    namespace: String,
    name: String,
}

impl Target {
    fn parse(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (prefix, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => (format!("/api/{version}"), rest),
            ["apis", group, version, rest @ ..] => (format!("/apis/{group}/{version}"), rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            rest => ("", rest),
        };
        let (plural, name) = match rest {
            [plural] => (plural, ""),
            // A subresource is a part of the object.
            [plural, name, ..] => (plural, *name),
            [] => return None,
        };
        let resource = format!("{prefix}/{plural}");
        Some(Self { resource, namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

async fn serve(State(shared): State<Shared>, method: Method, uri: Uri, body: Bytes) -> Response {
    lock(&shared.requests).push(format!("{method} {uri}"));
    let delay = lock(&shared.faults).delay;
    tokio::time::sleep(delay).await;
    let Some(target) = Target::parse(uri.path()) else { return failure(404, "no such path") };
    let parameter = |name: &str| {
        let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
        pairs.filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).next()
    };
    if parameter("watch").is_some() {
        let after = parameter("resourceVersion").and_then(|version| version.parse().ok()).unwrap_or(0);
        return watch_response(shared, target.resource, after);
    }
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let Target { resource, namespace, name } = &target;
    let mut objects = lock(&shared.objects);
    let found = objects.get(resource, namespace, name);
    let response = match (method.as_str(), name.is_empty(), found) {
        ("GET", true, _) => {
            let version = objects.version().to_string();
            let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": version},
                "items": objects.list(resource)});
            json_response(200, &list)
        }
        ("GET", false, Some(found)) => json_response(200, &found),
        ("POST", _, _) => {
            let mut object = body;
            if !namespace.is_empty() {
                object["metadata"]["namespace"] = namespace.as_str().into();
            }
            let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            match objects.get(resource, namespace, &name) {
                Some(_) => failure(409, "it exists"),
                None => json_response(201, &objects.put(resource, object)),
            }
        }
        ("PATCH" | "PUT", false, _) => {
            let mut object = body;
            object["metadata"]["name"] = name.as_str().into();
            if !namespace.is_empty() {
                object["metadata"]["namespace"] = namespace.as_str().into();
            }
            json_response(200, &objects.put(resource, object))
        }
        ("DELETE", false, Some(found)) => {
            let uid = &body["preconditions"]["uid"];
            if !uid.is_null() && *uid != found["metadata"]["uid"] {
                failure(409, "the uid differs")
            } else {
                objects.delete(resource, namespace, name);
                json_response(200, &found)
            }
        }
        _ => failure(404, "not found"),
    };
    drop(objects);
    if method != Method::GET {
        shared.changed.send_replace(());
    }
    response
}

/// A stream of the changes after a version, and of replayed ones.
fn watch_response(shared: Shared, resource: Resource, after: u64) -> Response {
    if lock(&shared.objects).changes(&resource, after).is_none() {
        return failure(410, "too old resource version");
    }
    let (expired, replayed) = {
        let faults = lock(&shared.faults);
        (faults.expired, faults.replayed.len())
    };
    let changed = shared.changed.subscribe();
    let state = (shared, resource, after, replayed, changed, false);
    let events =
        unfold(state, move |(shared, resource, mut after, mut replayed, mut changed, ended)| async move {
            if ended {
                return None;
            }
            loop {
                changed.mark_unchanged();
                let (mut lines, mut ends) = (String::new(), false);
                let faults = lock(&shared.faults).clone();
                for change in
                    faults.replayed.iter().skip(replayed).filter(|change| change.resource == resource)
                {
                    lines.push_str(&line(change));
                }
                replayed = faults.replayed.len();
                match lock(&shared.objects).changes(&resource, after) {
                    Some(changes) if faults.expired == expired => {
                        for change in &changes {
                            after = change.version;
                            lines.push_str(&line(change));
                        }
                    }
                    _ => {
                        let status = status(410, "too old resource version");
                        lines.push_str(&format!("{}\n", json!({"type": "ERROR", "object": status})));
                        ends = true;
                    }
                }
                if !lines.is_empty() {
                    let state = (shared, resource, after, replayed, changed, ends);
                    return Some((Ok::<_, Infallible>(Bytes::from(lines)), state));
                }
                if changed.changed().await.is_err() {
                    return None;
                }
            }
        });
    Response::new(Body::from_stream(events))
}

fn line(change: &Change) -> String {
    format!("{}\n", json!({"type": change.kind, "object": change.object}))
}

fn status(code: u16, message: &str) -> Value {
    let reason = match code {
        404 => "NotFound",
        409 => "AlreadyExists",
        410 => "Expired",
        _ => "InternalError",
    };
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message})
}

fn failure(code: u16, message: &str) -> Response {
    json_response(code, &status(code, message))
}

fn json_response(code: u16, body: &Value) -> Response {
    let code = StatusCode::from_u16(code).unwrap();
    (code, [("content-type", "application/json")], body.to_string()).into_response()
}
