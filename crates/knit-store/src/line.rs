//! Lines of `<sequence> <crc32> <json>`, and their recovery from a damaged file.

use std::io::Write;
use std::ops::Range;

use crc32fast::Hasher;

/// The sequence number of a header; records begin at 1.
pub(crate) const HEADER: u64 = 0;

/// Largest sequence number. A larger one is damage, whatever its checksum, so that increments never overflow.
pub(crate) const MAX_SEQUENCE: u64 = 1 << 62;

/// An intact line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) seq: u64,
    /// Range of its JSON.
    pub(crate) json: Range<usize>,
    /// Range of the line, including the newline.
    pub(crate) whole: Range<usize>,
}

/// Lines of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scan {
    /// Intact lines in file order.
    pub(crate) lines: Vec<Line>,
    /// Corrupt lines; adjacent ones are merged.
    pub(crate) damage: Vec<Range<usize>>,
    /// Bytes after the last newline.
    pub(crate) torn: Option<Range<usize>>,
}

/// The checksum of the JSON of a line, to which [`encode`] adds the sequence number. CRC-32 as in Ethernet and zip.
pub(crate) fn checksum(json: &[u8]) -> Hasher {
    let mut crc = Hasher::new();
    crc.update(json);
    crc
}

fn with_sequence(mut crc: Hasher, seq: u64) -> u32 {
    crc.update(&seq.to_le_bytes());
    crc.finalize()
}

/// Appends a line to the buffer. `crc` is the [`checksum`] of the JSON.
pub(crate) fn encode(buffer: &mut Vec<u8>, seq: u64, json: &[u8], crc: Hasher) {
    let crc = with_sequence(crc, seq);
    write!(buffer, "{seq} {crc:08x} ").expect("writing to memory does not fail");
    buffer.extend_from_slice(json);
    buffer.push(b'\n');
}

/// Finds the lines, regardless of their sequence numbers.
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

/// The sequence number and the length of the JSON, if the checksum is correct.
fn parse(line: &[u8]) -> Option<(u64, usize)> {
    let mut parts = line.splitn(3, |byte| *byte == b' ');
    let seq =
        std::str::from_utf8(parts.next()?).ok()?.parse::<u64>().ok().filter(|seq| *seq <= MAX_SEQUENCE)?;
    let crc = std::str::from_utf8(parts.next()?).ok()?;
    let json = parts.next()?;
    // Compared as text: another notation of the same number is damage too.
    let expected = with_sequence(checksum(json), seq);
    (crc == format!("{expected:08x}")).then_some((seq, json.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_lines() -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(&mut bytes, 7, br#"{"a":1}"#, checksum(br#"{"a":1}"#));
        encode(&mut bytes, 8, b"[]", checksum(b"[]"));
        bytes
    }

    #[test]
    fn the_checksum_is_crc32_ieee() {
        // The check value of CRC-32/ISO-HDLC (polynomial 0xedb88320, reflected).
        assert_eq!(checksum(b"123456789").finalize(), 0xcbf4_3926);
        assert_eq!(checksum(b"").finalize(), 0);
        let mut in_parts = checksum(b"12345");
        in_parts.update(b"6789");
        assert_eq!(in_parts.finalize(), 0xcbf4_3926);
    }

    #[test]
    fn encoded_lines_are_found() {
        let bytes = two_lines();
        let scan = scan(&bytes);
        let found: Vec<_> = scan.lines.iter().map(|line| (line.seq, &bytes[line.json.clone()])).collect();
        assert_eq!(found, [(7, &br#"{"a":1}"#[..]), (8, b"[]")]);
        assert_eq!((scan.damage.len(), scan.torn), (0, None));
        assert_eq!(scan.lines[1].whole.end, bytes.len());
    }

    #[test]
    fn every_flipped_bit_is_detected() {
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
