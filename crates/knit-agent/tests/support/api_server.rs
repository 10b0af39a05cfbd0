//! A fake of the Kubernetes API server: list, watch, get, create, apply and delete of any resource over HTTP, and faults. It has no
//! authentication, selectors or validation.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use axum::Router;
use knit_testbed::Namespace;
use serde_json::Value;
use tokio::runtime::Runtime;

use super::api_objects::{Change, Objects};
use super::api_requests::{Shared, lock, serve};

/// Knit's own kinds.
pub const KNIT: &str = "/apis/podnetwork.opdev.io/v1alpha1";

/// A server. While it is stopped, its objects can still be changed.
pub struct ApiServer {
    host: Namespace,
    address: SocketAddr,
    shared: Shared,
    running: Option<Runtime>,
}

impl ApiServer {
    /// Starts a server on the loopback of a host.
    pub fn start(host: &Namespace) -> Self {
        let shared = Shared::default();
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
