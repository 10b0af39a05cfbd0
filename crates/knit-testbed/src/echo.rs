//! Servers that send back what they get: the far end of a reachability check.
//!
//! A socket belongs to the namespace in which it was opened, for ever. So the socket is opened inside, and an
//! ordinary thread serves it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::Namespace;

/// How often a server looks whether it should stop.
const HEARTBEAT: Duration = Duration::from_millis(10);

/// A running echo server. It stops when the testbed goes, or with [`stop`](Self::stop).
#[derive(Clone, Debug)]
pub struct Echo {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Echo {
    /// Where it listens; the port is the real one when the test asked for port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops it and waits until its sockets are closed.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // It cannot panic; if it did, its sockets are closed all the same.
            let _ = thread.join();
        }
    }

    fn start(address: SocketAddr, serve: impl FnOnce(&AtomicBool) + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let thread = thread::spawn(move || serve(&seen));
        Self { address, stop, thread: Arc::new(Mutex::new(Some(thread))) }
    }
}

impl Namespace {
    /// Starts a TCP echo server inside: `ns.tcp_echo("10.0.0.1:80")`, `ns.tcp_echo("[fd00::1]:0")`.
    #[track_caller]
    pub fn tcp_echo(&self, address: impl ToSocketAddrs + Send) -> Echo {
        let opened = self.run(|| {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        });
        let (listener, address) = self.opened(opened, "tcp");
        self.kept(Echo::start(address, move |stop| serve_tcp(&listener, stop)))
    }

    /// Starts a UDP echo server inside.
    #[track_caller]
    pub fn udp_echo(&self, address: impl ToSocketAddrs + Send) -> Echo {
        let opened = self.run(|| {
            let socket = UdpSocket::bind(address)?;
            socket.set_read_timeout(Some(HEARTBEAT))?;
            let address = socket.local_addr()?;
            Ok((socket, address))
        });
        let (socket, address) = self.opened(opened, "udp");
        self.kept(Echo::start(address, move |stop| serve_udp(&socket, stop)))
    }

    #[track_caller]
    fn opened<T>(&self, opened: io::Result<T>, protocol: &str) -> T {
        opened.unwrap_or_else(|error| {
            panic!("namespace {}: cannot open a {protocol} server: {error}", self.name())
        })
    }

    fn kept(&self, echo: Echo) -> Echo {
        self.keep_echo(&echo);
        echo
    }
}

fn serve_tcp(listener: &TcpListener, stop: &AtomicBool) {
    thread::scope(|scope| {
        while !stop.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((stream, _)) => {
                    scope.spawn(move || {
                        // The client sees a connection that breaks, and says so in its test.
                        let _ = echo_stream(stream, stop);
                    });
                }
                Err(_) => thread::sleep(HEARTBEAT),
            }
        }
    });
}

fn echo_stream(mut stream: TcpStream, stop: &AtomicBool) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(HEARTBEAT))?;
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
            // A lost answer is what UDP is: the client asks again.
            let _ = socket.send_to(&datagram[..length], from);
        }
    }
}

pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
