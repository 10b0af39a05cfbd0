//! EchoServer servers: the remote end of a reachability check.
//!
//! A socket belongs to the namespace in which it was opened. The socket is opened inside, and an ordinary thread
//! serves it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::Namespace;

/// How often a server checks whether it must stop.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A running echo server. It stops with the testbed, or with [`stop`](Self::stop).
#[derive(Clone, Debug)]
pub struct EchoServer {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl EchoServer {
    /// The listening address; with port 0 the port that the kernel chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops it and waits until its sockets are closed.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // The thread does not panic; its sockets would be closed all the same.
            let _ = thread.join();
        }
    }

    fn start(address: SocketAddr, serve: impl FnOnce(&AtomicBool) + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let observed = Arc::clone(&stop);
        let thread = thread::spawn(move || serve(&observed));
        Self { address, stop, thread: Arc::new(Mutex::new(Some(thread))) }
    }
}

impl Namespace {
    /// Starts a TCP echo server in the namespace: `ns.tcp_echo("10.0.0.1:80")`, `ns.tcp_echo("[fd00::1]:0")`.
    #[track_caller]
    pub fn tcp_echo(&self, address: impl ToSocketAddrs + Send) -> EchoServer {
        let opened = self.run(|| {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        });
        let (listener, address) = self.unwrap_server(opened, "tcp");
        self.register_echo(EchoServer::start(address, move |stop| serve_tcp(&listener, stop)))
    }

    /// Starts a UDP echo server in the namespace.
    #[track_caller]
    pub fn udp_echo(&self, address: impl ToSocketAddrs + Send) -> EchoServer {
        let opened = self.run(|| {
            let socket = UdpSocket::bind(address)?;
            socket.set_read_timeout(Some(STOP_POLL_INTERVAL))?;
            let address = socket.local_addr()?;
            Ok((socket, address))
        });
        let (socket, address) = self.unwrap_server(opened, "udp");
        self.register_echo(EchoServer::start(address, move |stop| serve_udp(&socket, stop)))
    }

    #[track_caller]
    fn unwrap_server<T>(&self, opened: io::Result<T>, protocol: &str) -> T {
        opened.unwrap_or_else(|error| {
            panic!("namespace {}: cannot open a {protocol} server: {error}", self.name())
        })
    }

    fn register_echo(&self, echo: EchoServer) -> EchoServer {
        self.add_echo(&echo);
        echo
    }
}

fn serve_tcp(listener: &TcpListener, stop: &AtomicBool) {
    thread::scope(|scope| {
        while !stop.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((stream, _)) => {
                    scope.spawn(move || {
                        // The client reports a broken connection.
                        let _ = echo_stream(stream, stop);
                    });
                }
                Err(_) => thread::sleep(STOP_POLL_INTERVAL),
            }
        }
    });
}

fn echo_stream(mut stream: TcpStream, stop: &AtomicBool) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(STOP_POLL_INTERVAL))?;
    let mut part = [0; 4096];
    while !stop.load(Ordering::Relaxed) {
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(length) => stream.write_all(&part[..length])?,
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn serve_udp(socket: &UdpSocket, stop: &AtomicBool) {
    let mut datagram = [0; 65_535];
    while !stop.load(Ordering::Relaxed) {
        if let Ok((length, from)) = socket.recv_from(&mut datagram) {
            // A lost reply is normal for UDP: the client retries.
            let _ = socket.send_to(&datagram[..length], from);
        }
    }
}

pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
