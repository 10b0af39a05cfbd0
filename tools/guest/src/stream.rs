//! One of the program's streams on its way out of the guest: it ends where a mark says so, not where the guest dies.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use anyhow::Result;

/// How much of a stream has arrived, and whether that is all of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// What the program wrote, when it was to be kept.
    pub kept: Vec<u8>,
    /// Whether the mark came after it.
    pub complete: bool,
}

/// Reads a stream until its mark or until the guest is gone. Passes bytes on as they come.
pub fn receive(mut port: UnixStream, mark: &str, keep: bool, mut show: impl Write) -> Result<Received> {
    let mut cut = Cut::new(mark);
    let mut received = Received::default();
    let mut buffer = vec![0; 64 * 1024];
    while !received.complete {
        let size = port.read(&mut buffer)?;
        let (bytes, complete) = if size == 0 { (cut.rest(), false) } else { cut.feed(&buffer[..size]) };
        show.write_all(&bytes)?;
        show.flush()?;
        if keep {
            received.kept.extend(&bytes);
        }
        received.complete = complete;
        if size == 0 {
            break;
        }
    }
    Ok(received)
}

/// Cuts a stream at a mark that may arrive in pieces.
struct Cut<'a> {
    mark: &'a [u8],
    /// Bytes that may be the beginning of the mark.
    held: Vec<u8>,
}

impl<'a> Cut<'a> {
    fn new(mark: &'a str) -> Self {
        Self { mark: mark.as_bytes(), held: Vec::new() }
    }

    /// What is known to come before the mark, and whether the mark was seen.
    fn feed(&mut self, bytes: &[u8]) -> (Vec<u8>, bool) {
        self.held.extend(bytes);
        if let Some(at) = self.held.windows(self.mark.len()).position(|window| window == self.mark) {
            self.held.truncate(at);
            return (self.rest(), true);
        }
        let longest = self.held.len().min(self.mark.len() - 1);
        let keep = (0..=longest).rev().find(|size| self.held.ends_with(&self.mark[..*size])).unwrap_or(0);
        let tail = self.held.split_off(self.held.len() - keep);
        (std::mem::replace(&mut self.held, tail), false)
    }

    fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: &str = "ababc";

    fn through(pieces: &[&[u8]]) -> (Received, Vec<u8>) {
        let (mut guest, port) = UnixStream::pair().unwrap();
        for piece in pieces {
            guest.write_all(piece).unwrap();
        }
        drop(guest);
        let mut shown = Vec::new();
        let received = receive(port, MARK, true, &mut shown).unwrap();
        (received, shown)
    }

    #[test]
    fn what_comes_before_the_mark_is_exact() {
        for text in ["", "a", "abab", "xababab", "line\nab\n", "\0\u{1}"] {
            let (received, shown) = through(&[text.as_bytes(), MARK.as_bytes()]);
            assert_eq!(received, Received { kept: text.into(), complete: true });
            assert_eq!(shown, text.as_bytes());
        }
    }

    #[test]
    fn a_guest_that_dies_leaves_an_incomplete_stream() {
        let (received, shown) = through(&[b"half a line aba"]);
        assert_eq!(received, Received { kept: b"half a line aba".to_vec(), complete: false });
        assert_eq!(shown, b"half a line aba");
    }

    #[test]
    fn a_mark_in_pieces_is_found_and_nothing_is_held_back_longer_than_needed() {
        let mut cut = Cut::new(MARK);
        assert_eq!(cut.feed(b"1aba"), (b"1".to_vec(), false));
        assert_eq!(cut.feed(b"b2"), (b"abab2".to_vec(), false));
        assert_eq!(cut.feed(b"a"), (b"".to_vec(), false));
        assert_eq!(cut.feed(b"babcafter"), (b"".to_vec(), true));
    }
}
