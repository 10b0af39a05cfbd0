//! The requests of a fake API server: list, watch, get, create, apply and delete of any resource.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::api_objects::{Change, Objects, Resource};

/// The faults of a server.
#[derive(Clone, Default)]
pub struct Faults {
    /// Every response is delayed.
    pub delay: Duration,
    /// Changes that watches report although they are old, each once.
    pub replayed: Vec<Change>,
    /// Grows when open watches must end with an error.
    pub expired: u64,
}

/// What a server and its requests share.
#[derive(Clone)]
pub struct Shared {
    pub objects: Arc<Mutex<Objects>>,
    pub faults: Arc<Mutex<Faults>>,
    /// Notified of every change.
    pub changed: Arc<watch::Sender<()>>,
    /// Each request, as its method and path.
    pub requests: Arc<Mutex<Vec<String>>>,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            objects: Arc::default(),
            faults: Arc::default(),
            changed: Arc::new(watch::channel(()).0),
            requests: Arc::default(),
        }
    }
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Answers a request.
pub async fn serve(State(shared): State<Shared>, method: Method, uri: Uri, body: Bytes) -> Response {
    lock(&shared.requests).push(format!("{method} {uri}"));
    let delay = lock(&shared.faults).delay;
    tokio::time::sleep(delay).await;
    let Some(target) = Target::parse(uri.path()) else { return discovery(&shared, uri.path()) };
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

/// The resources of an API group and version.
fn discovery(shared: &Shared, path: &str) -> Response {
    let names = lock(&shared.objects).resources(path);
    if names.is_empty() {
        return failure(404, "no such path");
    }
    let resource =
        |name: String| json!({"name": name, "singularName": "", "namespaced": true, "kind": "", "verbs": []});
    let group_version = path.trim_start_matches("/apis/");
    let resources: Vec<Value> = names.into_iter().map(resource).collect();
    let list = json!({"kind": "APIResourceList", "groupVersion": group_version, "resources": resources});
    json_response(200, &list)
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
