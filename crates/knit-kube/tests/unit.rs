//! Watches while the API server is away for an hour, in virtual time. The API server is a function: nothing is sent over a network.

#![allow(clippy::unwrap_used, reason = "a test stops at the first unexpected value")]

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures_util::stream::unfold;
use http::{Request, Response};
use k8s_openapi::api::core::v1::ConfigMap;
use knit_kube::kube::runtime::watcher;
use knit_kube::kube::{Api, Client, client};
use knit_kube::{WatchUpdate, watch_with_errors};
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

const HOUR: Duration = Duration::from_secs(3_600);
/// The longest pause between two attempts is 30 s, or with its jitter twice as long; then a list follows.
const MAX_PAUSE: Duration = Duration::from_secs(62);

/// How the server rejects a watch that continues at a version of an earlier epoch.
#[derive(Clone, Copy)]
enum Expired {
    /// By an event of the stream.
    Event,
    /// By the status of the response.
    Response,
}

/// An API server with one ConfigMap, which is named after the server's epoch, and so is its version.
#[derive(Clone)]
struct ApiServer {
    expired: Expired,
    /// The current epoch; `None` while the server is away.
    epoch: Arc<watch::Sender<Option<u32>>>,
    requests: Arc<Mutex<Vec<Instant>>>,
}

impl ApiServer {
    fn new(expired: Expired) -> Self {
        Self { expired, epoch: Arc::new(watch::channel(Some(1)).0), requests: Arc::default() }
    }

    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<client::Body>| {
            let server = server.clone();
            async move { server.respond(&request) }
        });
        Client::new(service, "default")
    }

    fn respond(&self, request: &Request<client::Body>) -> Result<Response<Body>, std::io::Error> {
        self.requests.lock().unwrap().push(Instant::now());
        let Some(epoch) = *self.epoch.borrow() else {
            return Err(std::io::ErrorKind::ConnectionRefused.into());
        };
        let query = request.uri().query().unwrap_or_default();
        if query.contains("watch=") {
            let is_current = query.contains(&format!("resourceVersion={epoch}"));
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "reason": "Expired",
                "message": "too old resource version"});
            return Ok(match self.expired {
                _ if is_current => Response::new(Body::from_stream(self.open_watch())),
                Expired::Event => {
                    Response::new(Body::from(json!({"type": "ERROR", "object": status}).to_string()))
                }
                Expired::Response => {
                    Response::builder().status(410).body(Body::from(status.to_string())).unwrap()
                }
            });
        }
        let (name, version) = (format!("epoch{epoch}"), epoch.to_string());
        let list = json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": version},
            "items": [{"metadata": {"name": name}}]});
        Ok(Response::new(Body::from(list.to_string())))
    }

    /// A watch without events, which ends when the server goes away.
    fn open_watch(&self) -> impl futures_util::Stream<Item = Result<Bytes, Infallible>> + use<> {
        unfold(self.epoch.subscribe(), |mut epoch| async move {
            let _ = epoch.wait_for(Option::is_none).await;
            None
        })
    }

    fn count_requests_after(&self, start: Instant) -> usize {
        self.requests.lock().unwrap().iter().filter(|at| **at >= start).count()
    }
}

/// Runs a watch. Returns what it lists.
fn start_watch(server: &ApiServer) -> mpsc::UnboundedReceiver<Vec<String>> {
    let (to, lists) = mpsc::unbounded_channel();
    let api: Api<ConfigMap> = Api::all(server.client());
    tokio::spawn(async move {
        let handle = |update: Result<WatchUpdate<ConfigMap>, &watcher::Error>| {
            if let Ok(WatchUpdate::Listed(found)) = update {
                let _ = to.send(found.into_iter().filter_map(|one| one.metadata.name).collect());
            }
        };
        watch_with_errors("configmaps", api, watcher::Config::default(), handle).await;
    });
    lists
}

#[tokio::test(start_paused = true)]
async fn a_watch_recovers_within_a_minute_from_an_hour_without_an_api_server() {
    recover_from_an_hour(Expired::Event).await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_answered_with_410_lists_again() {
    recover_from_an_hour(Expired::Response).await;
}

async fn recover_from_an_hour(expired: Expired) {
    let server = ApiServer::new(expired);
    let mut lists = start_watch(&server);
    assert_eq!(timeout(MAX_PAUSE, lists.recv()).await.unwrap().unwrap(), ["epoch1"]);
    for epoch in 2..5 {
        server.epoch.send_replace(None);
        let start = Instant::now();
        sleep(HOUR).await;
        let attempts = server.count_requests_after(start);
        assert!((60..250).contains(&attempts), "{attempts} attempts in an hour");
        assert!(lists.try_recv().is_err(), "nothing is reported while the server is away");
        server.epoch.send_replace(Some(epoch));
        let back = Instant::now();
        let listed = timeout(MAX_PAUSE, lists.recv()).await.expect("it recovers within a minute").unwrap();
        assert_eq!(listed, [format!("epoch{epoch}")], "{:?} later", back.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_watches_do_not_reconnect_at_once() {
    let server = ApiServer::new(Expired::Event);
    let mut watches: Vec<_> = (0..1_000).map(|_| start_watch(&server)).collect();
    for lists in &mut watches {
        timeout(MAX_PAUSE, lists.recv()).await.unwrap().unwrap();
    }
    server.epoch.send_replace(None);
    sleep(HOUR).await;
    server.epoch.send_replace(Some(2));
    let back = Instant::now();
    for lists in &mut watches {
        assert_eq!(timeout(MAX_PAUSE, lists.recv()).await.unwrap().unwrap(), ["epoch2"]);
    }
    let requests = server.requests.lock().unwrap();
    let mut seconds = [0_usize; 62];
    for at in requests.iter().filter(|at| **at >= back) {
        seconds[usize::try_from(at.duration_since(back).as_secs()).unwrap().min(61)] += 1;
    }
    let busiest = seconds.iter().max().unwrap();
    assert!(*busiest < 300, "{busiest} requests in one second: {seconds:?}");
}
