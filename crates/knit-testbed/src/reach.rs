//! Does traffic get from here to there? Every check is bounded and says what it saw instead.

use std::fmt::Display;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use crate::{Error, Namespace};

/// How long the way there and back took.
pub type Rtt = Duration;

/// The longest that a check waits for an answer.
const PATIENCE: Duration = Duration::from_secs(4);
/// After this long without an answer a datagram is sent again.
const RESEND: Duration = Duration::from_millis(200);
const QUESTION: &[u8] = b"knit: is anybody there?";

impl Namespace {
    /// Pings an address of either family, for four seconds at most; the first answer counts.
    pub fn ping(&self, address: impl Display) -> Result<Rtt, Error> {
        let address = address.to_string();
        // With -w, ping goes on asking until it has as many answers as -c says.
        let printed = self.output("ping", &["-n", "-c", "1", "-i", "0.2", "-w", "4", &address]);
        match printed {
            Ok(text) => round_trip(&text)
                .ok_or_else(|| self.unreached(&address, "ping", format!("no time in its output: {text}"))),
            Err(Error::Failed { stderr, .. }) if stderr.is_empty() => {
                Err(self.unreached(&address, "ping", "no answer in 4 s".to_owned()))
            }
            Err(Error::Failed { stderr, .. }) => Err(self.unreached(&address, "ping", stderr)),
            Err(other) => Err(other),
        }
    }

    /// Connects to a [`tcp_echo`](Self::tcp_echo) server, sends something and wants it back.
    pub fn tcp_reaches(&self, address: impl ToSocketAddrs) -> Result<Rtt, Error> {
        self.reaches(address, "tcp", ask_by_tcp)
    }

    /// Sends a datagram to a [`udp_echo`](Self::udp_echo) server and wants it back.
    pub fn udp_reaches(&self, address: impl ToSocketAddrs) -> Result<Rtt, Error> {
        self.reaches(address, "udp", ask_by_udp)
    }

    fn reaches(
        &self,
        address: impl ToSocketAddrs,
        protocol: &'static str,
        ask: fn(SocketAddr) -> io::Result<()>,
    ) -> Result<Rtt, Error> {
        let address = address.to_socket_addrs().and_then(|mut all| {
            all.next().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no such address"))
        });
        let address = address.map_err(|error| self.unreached("?", protocol, error.to_string()))?;
        let start = Instant::now();
        let answer = self.try_run(|| ask(address))?;
        answer.map_err(|error| self.unreached(&address.to_string(), protocol, error.to_string()))?;
        Ok(start.elapsed())
    }

    fn unreached(&self, to: &str, protocol: &'static str, reason: String) -> Error {
        Error::Unreached { from: self.name().to_owned(), to: to.to_owned(), protocol, reason }
    }
}

fn ask_by_tcp(address: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(QUESTION)?;
    let mut answer = [0; QUESTION.len()];
    stream.read_exact(&mut answer)?;
    is_echo(&answer)
}

fn ask_by_udp(address: SocketAddr) -> io::Result<()> {
    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(RESEND))?;
    let deadline = Instant::now() + PATIENCE;
    let mut answer = [0; 1024];
    loop {
        socket.send(QUESTION)?;
        match socket.recv(&mut answer) {
            Ok(length) => return is_echo(&answer[..length]),
            Err(error) if crate::echo::is_timeout(&error) && Instant::now() < deadline => {}
            Err(error) if crate::echo::is_timeout(&error) => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in 4 s"));
            }
            Err(error) => return Err(error),
        }
    }
}

fn is_echo(answer: &[u8]) -> io::Result<()> {
    if answer == QUESTION {
        return Ok(());
    }
    let text = String::from_utf8_lossy(answer);
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("something else answered: {text:?}")))
}

/// The `time=0.165 ms` of the first answer.
fn round_trip(printed: &str) -> Option<Rtt> {
    let (_, after) = printed.split_once("time=").or_else(|| printed.split_once("time<"))?;
    let milliseconds: f64 = after.split_whitespace().next()?.parse().ok()?;
    Duration::try_from_secs_f64(milliseconds / 1000.0).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_round_trip_is_read_from_pings_answer() {
        let printed = "64 bytes from 127.0.0.1: icmp_seq=1 ttl=64 time=0.165 ms\n";
        assert_eq!(round_trip(printed), Some(Duration::from_micros(165)));
        assert_eq!(round_trip("1 packets transmitted, 0 received"), None);
    }

    #[test]
    fn only_the_question_itself_counts_as_an_echo() {
        assert!(is_echo(QUESTION).is_ok());
        assert!(is_echo(b"HTTP/1.1 400 Bad Request").is_err());
    }
}
