//! Where this agent reaches the API server: no Service may take over connections to it.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::http::Uri;
use knit_engine::Event;
use knit_engine::services::ServiceEvent;
use tokio::time::sleep;

use crate::kubernetes::Context;

/// How often the name of the API server is resolved again.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(30);
/// The port of HTTPS.
const DEFAULT_PORT: u16 = 443;

/// Submits the addresses of the API server whenever they change. If its name cannot be resolved, the last known ones stay.
pub(super) async fn run(context: &Context) {
    loop {
        match resolve(&context.api_server).await {
            // The loop may have reopened its state, and compares them with what it knows.
            Ok(addresses) => context.handle.submit(Event::Services(ServiceEvent::ApiServer(addresses))),
            Err(why) => tracing::debug!(error = %why, "cannot resolve the address of the API server"),
        }
        sleep(RESOLVE_INTERVAL).await;
    }
}

async fn resolve(url: &str) -> io::Result<BTreeSet<SocketAddr>> {
    let url: Uri = url.parse().map_err(io::Error::other)?;
    let host = url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let port = url.port_u16().unwrap_or(DEFAULT_PORT);
    Ok(tokio::net::lookup_host((host, port)).await?.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_in_the_url_of_the_api_server_is_its_address() {
        for (url, expected) in [
            ("https://192.0.2.1:6443/", "192.0.2.1:6443"),
            ("https://192.0.2.1", "192.0.2.1:443"),
            ("https://[2001:db8::1]:6443", "[2001:db8::1]:6443"),
        ] {
            assert_eq!(resolve(url).await.unwrap(), [expected.parse().unwrap()].into());
        }
    }
}
