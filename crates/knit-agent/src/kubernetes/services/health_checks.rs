//! Health checks for external load balancers: each Service with `healthCheckNodePort` answers on that port of the node whether it
//! has endpoints here.
//!
//! Anybody who reaches the node reaches these ports, pods too: connections are limited in number and time, those of all ports
//! together. A new one ends the oldest, so that unfinished requests do not block other clients.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use knit_model::filter::field::IpFamily;
use knit_service::HealthCheck;
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::kubernetes::Context;

/// How often a port that was in use is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// How long a connection may last, from its first packet to the end of the answer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);
/// How many connections there may be at the same time, of all ports.
const MAX_CONNECTIONS: usize = 256;
/// How many connections wait to be accepted.
const BACKLOG: u32 = 128;
/// The pause after a connection could not be accepted.
const ACCEPT_INTERVAL: Duration = Duration::from_millis(100);

/// A task that ends when this is dropped.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A listener, and what it answers.
struct Server {
    answer: watch::Sender<Arc<HealthCheck>>,
    _task: Task,
}

/// The connections of all ports, oldest first.
#[derive(Clone, Default)]
struct Connections(Arc<Mutex<VecDeque<Task>>>);

impl Connections {
    /// Adds a connection. If there are too many, the oldest one ends.
    fn add(&self, connection: Task) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| !one.0.is_finished());
        if all.len() >= MAX_CONNECTIONS {
            all.pop_front();
        }
        all.push_back(connection);
    }
}

/// Serves the health checks of all Services.
pub(super) async fn run(context: &Context) {
    let mut servers: BTreeMap<(u16, IpFamily), Server> = BTreeMap::new();
    let connections = Connections::default();
    loop {
        let checks = context
            .handle
            .query(|node| node.state().has_synced_services().then(|| node.state().service_health_checks()));
        if let Ok(Some(checks)) = checks.await {
            servers.retain(|(port, _), _| checks.contains_key(port));
            for (port, check) in checks {
                let check = Arc::new(check);
                for family in IpFamily::ALL {
                    let at = (port, family);
                    match servers.get(&at) {
                        Some(server) => drop(server.answer.send_replace(Arc::clone(&check))),
                        None => servers.extend(start(at, &check, &connections).map(|server| (at, server))),
                    }
                }
            }
        }
        let _ = timeout(RETRY_INTERVAL, context.services_changed.notified()).await;
    }
}

/// Starts a server. A family that the kernel does not have needs none.
fn start(
    (port, family): (u16, IpFamily),
    check: &Arc<HealthCheck>,
    connections: &Connections,
) -> Option<Server> {
    let listener = match listen(family, port) {
        Ok(Some(listener)) => listener,
        Ok(None) => return None,
        Err(why) => {
            tracing::warn!(
                service = %check.service, port, error = %why,
                "cannot serve the health check of a Service; retrying"
            );
            return None;
        }
    };
    let (answer, answers) = watch::channel(Arc::clone(check));
    let task = Task(tokio::spawn(accept(listener, answers, connections.clone())));
    Some(Server { answer, _task: task })
}

/// Listens at a port of all addresses of one family; `None` without such addresses. Of IPv6 only: whether it includes IPv4
/// would depend on the setting `bindv6only`.
fn listen(family: IpFamily, port: u16) -> io::Result<Option<TcpListener>> {
    let all: IpAddr = match family {
        IpFamily::V4 => Ipv4Addr::UNSPECIFIED.into(),
        IpFamily::V6 => Ipv6Addr::UNSPECIFIED.into(),
    };
    let bind = || {
        let socket = match family {
            IpFamily::V4 => TcpSocket::new_v4()?,
            IpFamily::V6 => TcpSocket::new_v6()?,
        };
        if family == IpFamily::V6 {
            setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
        }
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::new(all, port))?;
        socket.listen(BACKLOG)
    };
    let is_missing = |why: &io::Error| {
        why.kind() == ErrorKind::AddrNotAvailable || why.raw_os_error() == Some(Errno::EAFNOSUPPORT as i32)
    };
    match bind() {
        Err(why) if is_missing(&why) => Ok(None),
        bound => bound.map(Some),
    }
}

async fn accept(listener: TcpListener, answers: watch::Receiver<Arc<HealthCheck>>, connections: Connections) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let check = Arc::clone(&answers.borrow());
                connections.add(Task(tokio::spawn(serve(stream, check))));
            }
            Err(why) => {
                tracing::debug!(error = %why, "cannot accept a connection to a health check");
                sleep(ACCEPT_INTERVAL).await;
            }
        }
    }
}

/// Answers the one request of a connection.
async fn serve(stream: TcpStream, check: Arc<HealthCheck>) {
    let respond = service_fn(move |_: hyper::Request<Incoming>| {
        let answer = answer(&check);
        async move { Ok::<_, Infallible>(answer) }
    });
    let connection = http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), respond);
    // Whether the client gets the answer is its own concern.
    let _ = timeout(CONNECTION_TIMEOUT, connection).await;
}

/// The answer of kube-proxy: 200 with local endpoints, otherwise 503.
fn answer(check: &HealthCheck) -> Response {
    let status = if check.local_endpoints > 0 { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = serde_json::json!({
        "service": {"namespace": check.service.namespace, "name": check.service.name},
        "localEndpoints": check.local_endpoints,
        "serviceProxyHealthy": true,
    });
    let weight = HeaderName::from_static("x-load-balancing-endpoint-weight");
    let headers =
        [(header::CONTENT_TYPE, "application/json".to_owned()), (weight, check.local_endpoints.to_string())];
    (status, headers, body.to_string()).into_response()
}

#[cfg(test)]
mod tests {
    use knit_service::ServiceKey;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn check(local_endpoints: usize) -> Arc<HealthCheck> {
        let service = ServiceKey { namespace: "shop".to_owned(), name: "web".to_owned() };
        Arc::new(HealthCheck { service, local_endpoints })
    }

    async fn request(to: SocketAddr) -> String {
        let mut stream = TcpStream::connect(to).await.unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn each_family_has_a_listener_of_its_own_and_answers() {
        let v6 = listen(IpFamily::V6, 0).unwrap().unwrap();
        let port = v6.local_addr().unwrap().port();
        let v4 = listen(IpFamily::V4, port).unwrap().unwrap();
        let connections = Connections::default();
        let (answer, answers) = watch::channel(check(2));
        let _tasks =
            [v4, v6].map(|one| Task(tokio::spawn(accept(one, answers.clone(), connections.clone()))));
        let both: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        for address in both {
            let found = request(SocketAddr::new(address, port)).await;
            assert!(found.starts_with("HTTP/1.1 200 OK"), "{found}");
            assert!(found.contains("x-load-balancing-endpoint-weight: 2"), "{found}");
            assert!(found.contains(r#""localEndpoints":2"#), "{found}");
        }
        answer.send_replace(check(0));
        let found = request(SocketAddr::new(both[0], port)).await;
        assert!(found.starts_with("HTTP/1.1 503"), "{found}");
    }

    #[tokio::test]
    async fn clients_that_send_nothing_neither_stay_nor_keep_others_out() {
        let listener = listen(IpFamily::V4, 0).unwrap().unwrap();
        let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), listener.local_addr().unwrap().port());
        let connections = Connections::default();
        let (_answer, answers) = watch::channel(check(1));
        let _task = Task(tokio::spawn(accept(listener, answers, connections.clone())));
        let mut silent = VecDeque::new();
        for _ in 0..MAX_CONNECTIONS + 20 {
            silent.push_back(TcpStream::connect(to).await.unwrap());
        }
        assert!(request(to).await.starts_with("HTTP/1.1 200 OK"));
        assert!(connections.0.lock().unwrap().len() <= MAX_CONNECTIONS);
        // The oldest one was ended for it, the newest one ends by itself.
        let ends = |mut stream: TcpStream| async move { stream.read(&mut [0; 1]).await.unwrap_or(0) };
        assert_eq!(timeout(CONNECTION_TIMEOUT / 2, ends(silent.pop_front().unwrap())).await, Ok(0));
        assert_eq!(timeout(CONNECTION_TIMEOUT * 2, ends(silent.pop_back().unwrap())).await, Ok(0));
    }
}
