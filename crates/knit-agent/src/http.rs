//! Metrics and health over plain HTTP, for whoever has no gRPC.

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::daemon::Handle;
use crate::error::{Error, Result};
use crate::services::readiness;

/// What OpenMetrics readers ask for.
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
            tracing::error!(%why, "metrics and health are not served any more");
        }
    });
    Ok(())
}

async fn metrics(State(handle): State<Handle>) -> impl IntoResponse {
    let counted = std::sync::Arc::clone(handle.metrics());
    // A node that cannot be asked is no reason to hide what was counted.
    let _ = handle.ask(move |node| counted.look(node)).await;
    ([(header::CONTENT_TYPE, OPEN_METRICS)], handle.metrics().text())
}

/// The agent answers: its loop turns.
async fn live(State(handle): State<Handle>) -> impl IntoResponse {
    match handle.ask(|_| ()).await {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(problem) => (StatusCode::SERVICE_UNAVAILABLE, format!("{problem}\n")),
    }
}

/// New pods may come; otherwise why not.
async fn ready(State(handle): State<Handle>) -> impl IntoResponse {
    let asked = handle.ask(|node| readiness(node.state())).await.map(|mut reasons| {
        reasons.extend(handle.outside().iter().map(|one| format!("{}: {}", one.reason, one.message)));
        reasons
    });
    match asked {
        Ok(reasons) if reasons.is_empty() => (StatusCode::OK, "ok\n".to_owned()),
        Ok(reasons) => (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", reasons.join("\n"))),
        Err(problem) => (StatusCode::SERVICE_UNAVAILABLE, format!("{problem}\n")),
    }
}
