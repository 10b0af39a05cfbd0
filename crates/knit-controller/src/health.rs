//! Health endpoints over HTTP for the kubelet.
//!
//! *Live* is a controller that responds: it runs on one thread, so a hung controller does not. *Ready* is one that has
//! reached the API server recently, and whose watches have synced while it is the leader; a standby that waits for the
//! lease is ready. An unavailable API server never restarts the controller.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::Router;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;

use crate::lease::RENEW_DEADLINE;

/// The health of the controller. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Health {
    state: Arc<Mutex<HealthState>>,
}

#[derive(Debug, Default)]
struct HealthState {
    /// When the API server last responded about the lease.
    reached_at: Option<Instant>,
    /// Watches of the leader that have not synced.
    unsynced: BTreeSet<String>,
}

impl Health {
    /// Records a response of the API server.
    pub(crate) fn record_api_response(&self) {
        self.state().reached_at = Some(Instant::now());
    }

    /// Sets the watches that have not synced.
    pub(crate) fn set_unsynced(&self, unsynced: BTreeSet<String>) {
        self.state().unsynced = unsynced;
    }

    /// Why the controller is not ready; `None` if it is.
    pub fn not_ready_reason(&self, now: Instant) -> Option<String> {
        let state = self.state();
        match state.reached_at {
            None => return Some("the API server has not been reached yet".to_owned()),
            Some(at) if now.duration_since(at) > RENEW_DEADLINE => {
                let seconds = now.duration_since(at).as_secs();
                return Some(format!("no response from the API server for {seconds} s"));
            }
            Some(_) => {}
        }
        let unsynced: Vec<&str> = state.unsynced.iter().map(String::as_str).collect();
        (!unsynced.is_empty()).then(|| format!("watches have not synced: {}", unsynced.join(", ")))
    }

    fn state(&self) -> MutexGuard<'_, HealthState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves `/livez`, `/healthz` and `/readyz` in the background.
pub(crate) async fn serve(address: &str, health: Health) -> std::io::Result<()> {
    let listener = bind(address).await?;
    let routes = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(move || async move { ready(&health) }));
    tokio::spawn(async move {
        if let Err(why) = axum::serve(listener, routes).await {
            tracing::error!(%why, "the health endpoint failed");
        }
    });
    Ok(())
}

/// Binds an address; `:9477` is every address of the machine, of both families if available.
async fn bind(address: &str) -> std::io::Result<TcpListener> {
    let Some(port) = address.strip_prefix(':').and_then(|port| port.parse::<u16>().ok()) else {
        return TcpListener::bind(address).await;
    };
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await,
        bound => bound,
    }
}

fn ready(health: &Health) -> impl IntoResponse + use<> {
    match health.not_ready_reason(Instant::now()) {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;
    use std::time::Duration;

    use super::*;

    #[test]
    fn ready_requires_a_recent_response_and_synced_watches() {
        let health = Health::default();
        let now = Instant::now();
        let why = |later: u64| health.not_ready_reason(now + Duration::from_secs(later)).unwrap_or_default();
        assert_eq!(why(0), "the API server has not been reached yet");
        health.record_api_response();
        assert_eq!(why(9), "");
        assert!(why(12).starts_with("no response from the API server for 1"), "{}", why(12));
        health.set_unsynced(["Node".to_owned(), "Bridge".to_owned()].into());
        assert_eq!(why(1), "watches have not synced: Bridge, Node");
        health.set_unsynced(BTreeSet::new());
        assert_eq!(why(1), "");
    }

    #[tokio::test]
    async fn probes_return_http_status_codes() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let health = Health::default();
        serve(&address, health.clone()).await.unwrap();
        let get = async |path: &str| {
            let request = format!("GET {path} HTTP/1.1\r\nHost: knit\r\nConnection: close\r\n\r\n");
            let mut stream = TcpStream::connect(&address).unwrap();
            let exchange = move || {
                stream.write_all(request.as_bytes()).unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).map(|_| answer).unwrap()
            };
            tokio::task::spawn_blocking(exchange).await.unwrap()
        };
        assert!(get("/livez").await.starts_with("HTTP/1.1 200"));
        let answer = get("/readyz").await;
        assert!(
            answer.starts_with("HTTP/1.1 503") && answer.contains("has not been reached yet"),
            "{answer}"
        );
        health.record_api_response();
        assert!(get("/readyz").await.starts_with("HTTP/1.1 200"));
    }
}
