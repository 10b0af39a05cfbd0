//! Metrics and health over HTTP.

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::daemon::Handle;
use crate::error::{Error, Result};
use crate::node::Node;
use crate::policy_drops::PolicyDrops;
use crate::services::readiness;

/// The content type of OpenMetrics.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves `/metrics` at an address.
pub async fn serve_metrics(address: &str, handle: Handle, stop: watch::Receiver<bool>) -> Result<()> {
    let routes = Router::new().route("/metrics", get(metrics)).with_state(handle);
    serve(address, routes, stop).await
}

/// Serves `/livez`, `/healthz` and `/readyz` at an address.
pub async fn serve_health(address: &str, handle: Handle, stop: watch::Receiver<bool>) -> Result<()> {
    let routes = Router::new()
        .route("/livez", get(live))
        .route("/healthz", get(live))
        .route("/readyz", get(ready))
        .with_state(handle);
    serve(address, routes, stop).await
}

async fn serve(address: &str, routes: Router, mut stop: watch::Receiver<bool>) -> Result<()> {
    let failed = |why: std::io::Error| Error::Serve { what: address.to_owned(), why: why.to_string() };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    tokio::spawn(async move {
        let served = axum::serve(listener, routes).with_graceful_shutdown(async move {
            let _ = stop.wait_for(|stop| *stop).await;
        });
        if let Err(why) = served.await {
            tracing::error!(error = %why, "the HTTP server of metrics and health failed");
        }
    });
    Ok(())
}

async fn metrics(State(handle): State<Handle>) -> impl IntoResponse {
    let metrics = std::sync::Arc::clone(handle.metrics());
    let observe = move |node: &mut Node| {
        metrics.observe(node);
        node.state().policy_drop_rules()
    };
    // If the node cannot be queried, the counters are still served.
    if let Ok(rules) = handle.query(observe).await {
        match PolicyDrops::read(rules).await {
            Ok(drops) => handle.metrics().policy_drops(&drops),
            Err(why) => tracing::debug!(error = %why, "cannot read what network policies dropped"),
        }
    }
    ([(header::CONTENT_TYPE, OPEN_METRICS)], handle.metrics().text())
}

/// Liveness: the event loop responds.
async fn live(State(handle): State<Handle>) -> impl IntoResponse {
    match handle.query(|_| ()).await {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(problem) => (StatusCode::SERVICE_UNAVAILABLE, format!("{problem}\n")),
    }
}

/// Readiness for new pods, or the reasons against it.
async fn ready(State(handle): State<Handle>) -> impl IntoResponse {
    let reasons = handle.query(|node| readiness(node.state())).await.map(|mut reasons| {
        reasons
            .extend(handle.readiness_blockers().iter().map(|one| format!("{}: {}", one.reason, one.message)));
        reasons
    });
    match reasons {
        Ok(reasons) if reasons.is_empty() => (StatusCode::OK, "ok\n".to_owned()),
        Ok(reasons) => (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", reasons.join("\n"))),
        Err(problem) => (StatusCode::SERVICE_UNAVAILABLE, format!("{problem}\n")),
    }
}
