//! Receives an output stream of the program: a marker ends it, so that a stream that is cut off is detected.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use anyhow::Result;

/// The received part of a stream.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// The program's output, if it is collected.
    pub collected: Vec<u8>,
    /// Whether the end marker was received.
    pub complete: bool,
}

/// Reads a stream until its marker or until the guest is gone. Passes on bytes as they arrive.
pub fn receive(mut port: UnixStream, marker: &str, keep: bool, mut show: impl Write) -> Result<Received> {
    let mut splitter = MarkerSplitter::new(marker);
    let mut received = Received::default();
    let mut buffer = vec![0; 64 * 1024];
    while !received.complete {
        let size = port.read(&mut buffer)?;
        let (bytes, complete) =
            if size == 0 { (splitter.rest(), false) } else { splitter.feed(&buffer[..size]) };
        show.write_all(&bytes)?;
        show.flush()?;
        if keep {
            received.collected.extend(&bytes);
        }
        received.complete = complete;
        if size == 0 {
            break;
        }
    }
    Ok(received)
}

/// Splits a stream at a marker that may arrive in pieces.
struct MarkerSplitter<'a> {
    marker: &'a [u8],
    /// Bytes that may be the beginning of the marker.
    pending: Vec<u8>,
}

impl<'a> MarkerSplitter<'a> {
    fn new(marker: &'a str) -> Self {
        Self { marker: marker.as_bytes(), pending: Vec::new() }
    }

    /// The bytes that are known to precede the marker, and whether the marker was found.
    fn feed(&mut self, bytes: &[u8]) -> (Vec<u8>, bool) {
        self.pending.extend(bytes);
        if let Some(at) = self.pending.windows(self.marker.len()).position(|window| window == self.marker) {
            self.pending.truncate(at);
            return (self.rest(), true);
        }
        let longest = self.pending.len().min(self.marker.len() - 1);
        let keep =
            (0..=longest).rev().find(|size| self.pending.ends_with(&self.marker[..*size])).unwrap_or(0);
        let tail = self.pending.split_off(self.pending.len() - keep);
        (std::mem::replace(&mut self.pending, tail), false)
    }

    fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.pending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKER: &str = "ababc";

    fn through(pieces: &[&[u8]]) -> (Received, Vec<u8>) {
        let (mut guest, port) = UnixStream::pair().unwrap();
        for piece in pieces {
            guest.write_all(piece).unwrap();
        }
        drop(guest);
        let mut shown = Vec::new();
        let received = receive(port, MARKER, true, &mut shown).unwrap();
        (received, shown)
    }

    #[test]
    fn output_before_the_marker_is_exact() {
        for text in ["", "a", "abab", "xababab", "line\nab\n", "\0\u{1}"] {
            let (received, shown) = through(&[text.as_bytes(), MARKER.as_bytes()]);
            assert_eq!(received, Received { collected: text.into(), complete: true });
            assert_eq!(shown, text.as_bytes());
        }
    }

    #[test]
    fn a_guest_that_dies_leaves_an_incomplete_stream() {
        let (received, shown) = through(&[b"half a line aba"]);
        assert_eq!(received, Received { collected: b"half a line aba".to_vec(), complete: false });
        assert_eq!(shown, b"half a line aba");
    }

    #[test]
    fn a_marker_in_pieces_is_found_and_output_is_not_delayed() {
        let mut splitter = MarkerSplitter::new(MARKER);
        assert_eq!(splitter.feed(b"1aba"), (b"1".to_vec(), false));
        assert_eq!(splitter.feed(b"b2"), (b"abab2".to_vec(), false));
        assert_eq!(splitter.feed(b"a"), (b"".to_vec(), false));
        assert_eq!(splitter.feed(b"babcafter"), (b"".to_vec(), true));
    }
}
