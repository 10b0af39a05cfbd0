//! Progress by spec: the upstream tests post a line of JSON to a URL of ours whenever a spec has ended.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::progress::seconds;

/// The largest message that is read: a run in which everything fails names every spec.
const LARGEST: usize = 1 << 20;

#[derive(Deserialize)]
struct Update {
    msg: String,
    total: i64,
    completed: i64,
    failed: i64,
}

/// Prints a line for each spec that ends, until it is dropped.
pub struct Listener {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Listens on a loopback port.
    pub fn start() -> Result<Self> {
        let socket = TcpListener::bind("127.0.0.1:0").context("cannot listen for progress")?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut last = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                let Ok((stream, _)) = socket.accept() else {
                    std::thread::sleep(Duration::from_millis(50));
                    continue;
                };
                // Progress is for people: a message that cannot be read costs a line, not the run.
                if let Some(line) = receive(stream).and_then(|update| line(&update, last.elapsed())) {
                    eprintln!("{line}");
                    last = Instant::now();
                }
            }
        });
        Ok(Self { address, stop, thread: Some(thread) })
    }

    /// Where to post.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It only prints; should it have panicked, it has said so itself.
            let _ = thread.join();
        }
    }
}

fn receive(stream: TcpStream) -> Option<Update> {
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    let mut reader = BufReader::new(&stream);
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.by_ref().take(8192).read_line(&mut header).ok()?;
        let header = header.trim_end();
        if header.is_empty() {
            break;
        }
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
    }
    if length > LARGEST {
        return None;
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    (&stream).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").ok()?;
    serde_json::from_slice(&body).ok()
}

/// Specs run one after the other, so the time since the last one is this one's.
fn line(update: &Update, time: Duration) -> Option<String> {
    let (state, name) = match update.msg.split_once(' ') {
        Some(("PASSED", name)) => ("ok  ", name),
        Some(("FAILED", name)) => ("FAIL", name),
        _ => return None,
    };
    let done = update.completed + update.failed;
    Some(format!("  {state} {done}/{} {name} ({})", update.total, seconds(time)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_spec_becomes_a_line_and_the_rest_does_not() {
        let update = |msg: &str| Update { msg: msg.to_owned(), total: 47, completed: 2, failed: 1 };
        let second = Duration::from_secs(1);
        assert_eq!(
            line(&update("PASSED [sig-network] A b"), second).unwrap(),
            "  ok   3/47 [sig-network] A b (1.0 s)"
        );
        assert!(line(&update("FAILED x"), second).unwrap().contains("FAIL 3/47 x"));
        assert_eq!(line(&update("Test Suite starting"), second), None);
    }

    #[test]
    fn a_posted_update_is_read_and_answered() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(socket.local_addr().unwrap()).unwrap();
        let body = r#"{"msg":"PASSED a","total":1,"completed":1,"skipped":0,"failed":0}"#;
        write!(client, "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
        let update = receive(socket.accept().unwrap().0).unwrap();
        assert_eq!((update.msg.as_str(), update.completed), ("PASSED a", 1));
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}
