//! gRPC channels over unix sockets.

use std::path::PathBuf;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Error};

/// The endpoint of a unix socket. A path is no valid HTTP/2 authority: it is `localhost` as in other gRPC libraries.
pub fn endpoint() -> Endpoint {
    Endpoint::from_static("http://localhost")
}

/// Connects to a socket. The channel reconnects when the connection is lost.
pub async fn connect(endpoint: &Endpoint, socket: impl Into<PathBuf>) -> Result<Channel, Error> {
    let socket = socket.into();
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    endpoint.connect_with_connector(connector).await
}

/// A channel over this connection only: it never reconnects.
pub async fn connect_once(endpoint: &Endpoint, stream: UnixStream) -> Result<Channel, Error> {
    let mut stream = Some(stream);
    let connector = tower::service_fn(move |_| {
        let stream = stream.take().map(TokioIo::new);
        async move { stream.ok_or_else(|| std::io::Error::other("connection already used")) }
    });
    endpoint.connect_with_connector(connector).await
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn a_channel_connects_to_a_listening_socket_only() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s.sock");
        let endpoint = endpoint();
        assert!(connect(&endpoint, &socket).await.is_err());
        let listener = UnixListener::bind(&socket).unwrap();
        let (channel, accepted) = tokio::join!(connect(&endpoint, &socket), listener.accept());
        assert!(channel.is_ok() && accepted.is_ok(), "{channel:?} {accepted:?}");
    }
}
