//! Reachability checks. Every check is bounded and reports what happened instead.

use std::fmt::Display;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use crate::{Error, Namespace};

/// Round-trip time.
pub type Rtt = Duration;

/// How long a check waits for a reply.
const TIMEOUT: Duration = Duration::from_secs(4);
/// Retransmission interval of datagrams.
const RETRANSMIT_INTERVAL: Duration = Duration::from_millis(200);
/// What reachability checks send to echo servers.
pub const ECHO_REQUEST: &[u8] = b"knit-testbed echo request";

impl Namespace {
    /// Pings an address of either family for at most four seconds; the first reply counts.
    pub fn ping(&self, address: impl Display) -> Result<Rtt, Error> {
        let address = address.to_string();
        // With -w, ping continues until it has as many replies as -c says.
        let printed = self.output("ping", &["-n", "-c", "1", "-i", "0.2", "-w", "4", &address]);
        match printed {
            Ok(text) => round_trip(&text).ok_or_else(|| {
                self.unreachable(&address, "ping", format!("no round-trip time in its output: {text}"))
            }),
            Err(Error::Failed { stderr, .. }) if stderr.is_empty() => {
                Err(self.unreachable(&address, "ping", "no reply within 4 s".to_owned()))
            }
            Err(Error::Failed { stderr, .. }) => Err(self.unreachable(&address, "ping", stderr)),
            Err(other) => Err(other),
        }
    }

    /// Connects to a [`tcp_echo`](Self::tcp_echo) server, sends a request and expects the echo.
    pub fn tcp_reaches(&self, address: impl ToSocketAddrs) -> Result<Rtt, Error> {
        self.reaches(address, "tcp", echo_over_tcp)
    }

    /// Sends a datagram to a [`udp_echo`](Self::udp_echo) server and expects the echo.
    pub fn udp_reaches(&self, address: impl ToSocketAddrs) -> Result<Rtt, Error> {
        self.reaches(address, "udp", echo_over_udp)
    }

    fn reaches(
        &self,
        address: impl ToSocketAddrs,
        protocol: &'static str,
        exchange: fn(SocketAddr) -> io::Result<()>,
    ) -> Result<Rtt, Error> {
        let address = address.to_socket_addrs().and_then(|mut all| {
            all.next().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no such address"))
        });
        let address = address.map_err(|error| self.unreachable("?", protocol, error.to_string()))?;
        let start = Instant::now();
        let reply = self.try_run(|| exchange(address))?;
        reply.map_err(|error| self.unreachable(&address.to_string(), protocol, error.to_string()))?;
        Ok(start.elapsed())
    }

    fn unreachable(&self, to: &str, protocol: &'static str, reason: String) -> Error {
        Error::Unreachable { from: self.name().to_owned(), to: to.to_owned(), protocol, reason }
    }
}

fn echo_over_tcp(address: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(ECHO_REQUEST)?;
    let mut reply = [0; ECHO_REQUEST.len()];
    stream.read_exact(&mut reply)?;
    is_echo(&reply)
}

fn echo_over_udp(address: SocketAddr) -> io::Result<()> {
    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(RETRANSMIT_INTERVAL))?;
    let deadline = Instant::now() + TIMEOUT;
    let mut reply = [0; 1024];
    loop {
        socket.send(ECHO_REQUEST)?;
        match socket.recv(&mut reply) {
            Ok(length) => return is_echo(&reply[..length]),
            Err(error) if crate::echo::is_timeout(&error) && Instant::now() < deadline => {}
            Err(error) if crate::echo::is_timeout(&error) => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no reply within 4 s"));
            }
            Err(error) => return Err(error),
        }
    }
}

fn is_echo(reply: &[u8]) -> io::Result<()> {
    if reply == ECHO_REQUEST {
        return Ok(());
    }
    let text = String::from_utf8_lossy(reply);
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("unexpected reply: {text:?}")))
}

/// The `time=0.165 ms` of the first reply.
fn round_trip(printed: &str) -> Option<Rtt> {
    let (_, after) = printed.split_once("time=").or_else(|| printed.split_once("time<"))?;
    let milliseconds: f64 = after.split_whitespace().next()?.parse().ok()?;
    Duration::try_from_secs_f64(milliseconds / 1000.0).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_is_parsed_from_ping_output() {
        let printed = "64 bytes from 127.0.0.1: icmp_seq=1 ttl=64 time=0.165 ms\n";
        assert_eq!(round_trip(printed), Some(Duration::from_micros(165)));
        assert_eq!(round_trip("1 packets transmitted, 0 received"), None);
    }

    #[test]
    fn only_the_request_itself_counts_as_an_echo() {
        assert!(is_echo(ECHO_REQUEST).is_ok());
        assert!(is_echo(b"HTTP/1.1 400 Bad Request").is_err());
    }
}
