//! Health checks for external load balancers: each Service with `healthCheckNodePort` answers on that port of the node whether it
//! has endpoints here.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State as Shared;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::any;
use knit_service::HealthCheck;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::kubernetes::Context;

/// How often a port that was in use is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// A listener, and what it answers.
struct Server {
    answer: watch::Sender<Arc<HealthCheck>>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves the health checks of all Services.
pub(super) async fn run(context: &Context) {
    let mut servers: BTreeMap<u16, Server> = BTreeMap::new();
    loop {
        let checks = context
            .handle
            .query(|node| node.state().has_synced_services().then(|| node.state().service_health_checks()));
        if let Ok(Some(checks)) = checks.await {
            servers.retain(|port, _| checks.contains_key(port));
            for (port, check) in checks {
                let check = Arc::new(check);
                match servers.get(&port) {
                    Some(server) => drop(server.answer.send_replace(check)),
                    None => drop(start(port, check).await.map(|server| servers.insert(port, server))),
                }
            }
        }
        let _ = timeout(RETRY_INTERVAL, context.services_changed.notified()).await;
    }
}

async fn start(port: u16, check: Arc<HealthCheck>) -> Option<Server> {
    let listener = match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Ok(listener) => listener,
        Err(why) => {
            tracing::warn!(
                service = %check.service, port, error = %why,
                "cannot serve the health check of a Service; retrying"
            );
            return None;
        }
    };
    let (answer, answers) = watch::channel(check);
    let routes = Router::new().fallback(any(respond)).with_state(answers);
    let task = tokio::spawn(async move {
        if let Err(why) = axum::serve(listener, routes).await {
            tracing::warn!(port, error = %why, "the health check of a Service failed");
        }
    });
    Some(Server { answer, task })
}

/// The answer of kube-proxy: 200 with local endpoints, otherwise 503.
async fn respond(Shared(answers): Shared<watch::Receiver<Arc<HealthCheck>>>) -> impl IntoResponse {
    let check = Arc::clone(&answers.borrow());
    let status = if check.local_endpoints > 0 { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = serde_json::json!({
        "service": {"namespace": check.service.namespace, "name": check.service.name},
        "localEndpoints": check.local_endpoints,
        "serviceProxyHealthy": true,
    });
    let weight = HeaderName::from_static("x-load-balancing-endpoint-weight");
    let headers =
        [(header::CONTENT_TYPE, "application/json".to_owned()), (weight, check.local_endpoints.to_string())];
    (status, headers, body.to_string())
}
