//! Lines of `<sequence> <crc32> <json>`, and finding them again in a file that may be damaged.

use std::io::Write;
use std::ops::Range;

use crate::crc::Crc;

/// The sequence number of a header; records begin at 1.
pub(crate) const HEADER: u64 = 0;

/// The largest sequence number. Nobody counts so far: a larger one is damage, whatever its checksum says, so that adding
/// to one never overflows.
pub(crate) const LARGEST: u64 = 1 << 62;

/// A whole line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) seq: u64,
    /// Where its JSON is.
    pub(crate) json: Range<usize>,
    /// Where all of it is, with its end of line.
    pub(crate) whole: Range<usize>,
}

/// What a file holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scan {
    /// Whole lines in the file's order.
    pub(crate) lines: Vec<Line>,
    /// Ended lines that are not whole; neighbours are one piece.
    pub(crate) damage: Vec<Range<usize>>,
    /// What follows the last end of line.
    pub(crate) torn: Option<Range<usize>>,
}

/// Appends a line to the buffer. `crc` is the JSON's; the sequence number is added to it.
pub(crate) fn encode(buffer: &mut Vec<u8>, seq: u64, json: &[u8], crc: Crc) {
    let crc = crc.and(&seq.to_le_bytes()).value();
    write!(buffer, "{seq} {crc:08x} ").expect("writing to memory does not fail");
    buffer.extend_from_slice(json);
    buffer.push(b'\n');
}

/// Finds the lines. No order is demanded here.
pub(crate) fn scan(bytes: &[u8]) -> Scan {
    let mut scan = Scan::default();
    let mut start = 0;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let whole = start..start + line.len();
        start = whole.end;
        let Some(text) = line.strip_suffix(b"\n") else {
            scan.torn = Some(whole);
            break;
        };
        match parse(text) {
            Some((seq, json)) => {
                let json = whole.end - 1 - json..whole.end - 1;
                scan.lines.push(Line { seq, json, whole });
            }
            None => match scan.damage.last_mut() {
                Some(last) if last.end == whole.start => last.end = whole.end,
                _ => scan.damage.push(whole),
            },
        }
    }
    scan
}

/// The sequence number and the length of the JSON, if the checksum holds.
fn parse(line: &[u8]) -> Option<(u64, usize)> {
    let mut parts = line.splitn(3, |byte| *byte == b' ');
    let seq = std::str::from_utf8(parts.next()?).ok()?.parse::<u64>().ok().filter(|seq| *seq <= LARGEST)?;
    let crc = std::str::from_utf8(parts.next()?).ok()?;
    let json = parts.next()?;
    // Compared as text: other spellings of the same number are damage too.
    let expected = Crc::of(json).and(&seq.to_le_bytes()).value();
    (crc == format!("{expected:08x}")).then_some((seq, json.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_lines() -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(&mut bytes, 7, br#"{"a":1}"#, Crc::of(br#"{"a":1}"#));
        encode(&mut bytes, 8, b"[]", Crc::of(b"[]"));
        bytes
    }

    #[test]
    fn lines_are_found_again() {
        let bytes = two_lines();
        let scan = scan(&bytes);
        let found: Vec<_> = scan.lines.iter().map(|line| (line.seq, &bytes[line.json.clone()])).collect();
        assert_eq!(found, [(7, &br#"{"a":1}"#[..]), (8, b"[]")]);
        assert_eq!((scan.damage.len(), scan.torn), (0, None));
        assert_eq!(scan.lines[1].whole.end, bytes.len());
    }

    #[test]
    fn no_flipped_bit_passes() {
        let bytes = two_lines();
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let scan = scan(&bytes);
            assert!(scan.lines.len() < 2, "bit {bit}");
            assert!(!scan.damage.is_empty() || scan.torn.is_some(), "bit {bit}");
        }
    }
}
