//! Health over plain HTTP, for the kubelet.
//!
//! *Alive* is a controller that answers: all of it runs on one thread, so that one that hangs does not. *Ready* is one that
//! has reached the API server lately, and that has seen everything there is once it works; one that waits for the lease is
//! ready to take it. Nothing restarts a controller because an API server is away.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::Router;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;

use crate::lease::GIVE_UP;

/// What is known of a controller's health. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Health {
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    /// When the API server last answered about the lease.
    reached: Option<Instant>,
    /// What is to be listed before anything is decided; none while another controller works.
    missing: BTreeSet<String>,
}

impl Health {
    /// The API server answered.
    pub(crate) fn reached(&self) {
        self.seen().reached = Some(Instant::now());
    }

    /// What is still to be listed before anything is decided.
    pub(crate) fn misses(&self, missing: BTreeSet<String>) {
        self.seen().missing = missing;
    }

    /// Why the controller is not ready, in words; nothing if it is.
    pub fn in_the_way(&self, now: Instant) -> Option<String> {
        let seen = self.seen();
        match seen.reached {
            None => return Some("the API server was not reached yet".to_owned()),
            Some(at) if now.duration_since(at) > GIVE_UP => {
                let silent = now.duration_since(at).as_secs();
                return Some(format!("the API server has not answered for {silent} s"));
            }
            Some(_) => {}
        }
        let missing: Vec<&str> = seen.missing.iter().map(String::as_str).collect();
        (!missing.is_empty()).then(|| format!("not listed yet: {}", missing.join(", ")))
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves `/livez`, `/healthz` and `/readyz` for as long as the runtime lives.
pub(crate) async fn serve(address: &str, health: Health) -> std::io::Result<()> {
    let listener = bind(address).await?;
    let routes = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(move || async move { ready(&health) }));
    tokio::spawn(async move {
        if let Err(why) = axum::serve(listener, routes).await {
            tracing::error!(%why, "health is not served any more");
        }
    });
    Ok(())
}

/// `:9477` is every address of the machine, of both families where it has them.
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
    match health.in_the_way(Instant::now()) {
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
    fn ready_is_who_reached_the_api_server_lately_and_has_seen_everything() {
        let health = Health::default();
        let now = Instant::now();
        let why = |later: u64| health.in_the_way(now + Duration::from_secs(later)).unwrap_or_default();
        assert_eq!(why(0), "the API server was not reached yet");
        health.reached();
        assert_eq!(why(9), "");
        assert!(why(12).starts_with("the API server has not answered for 1"), "{}", why(12));
        health.misses(["Node".to_owned(), "Bridge".to_owned()].into());
        assert_eq!(why(1), "not listed yet: Bridge, Node");
        health.misses(BTreeSet::new());
        assert_eq!(why(1), "");
    }

    #[tokio::test]
    async fn a_kubelet_is_told_in_its_own_words() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let health = Health::default();
        serve(&address, health.clone()).await.unwrap();
        let ask = async |path: &str| {
            let request = format!("GET {path} HTTP/1.1\r\nHost: knit\r\nConnection: close\r\n\r\n");
            let mut stream = TcpStream::connect(&address).unwrap();
            let asked = move || {
                stream.write_all(request.as_bytes()).unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).map(|_| answer).unwrap()
            };
            tokio::task::spawn_blocking(asked).await.unwrap()
        };
        assert!(ask("/livez").await.starts_with("HTTP/1.1 200"));
        let answer = ask("/readyz").await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("was not reached yet"), "{answer}");
        health.reached();
        assert!(ask("/readyz").await.starts_with("HTTP/1.1 200"));
    }
}
