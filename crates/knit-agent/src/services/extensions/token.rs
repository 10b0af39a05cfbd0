//! Tokens of registrations. Only their digests are written down.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};

use sha2::{Digest, Sha256};

/// A new token that nobody can guess.
pub(in crate::services) fn fresh() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(hex(&bytes))
}

/// What is remembered of a token.
pub(in crate::services) fn digest(token: &str) -> String {
    hex(&Sha256::digest(token))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_differ_and_are_known_by_their_digest() {
        let (one, other) = (fresh().unwrap(), fresh().unwrap());
        assert_eq!(one.len(), 32);
        assert_ne!(one, other);
        assert_ne!(digest(&one), digest(&other));
        assert_eq!(digest("abc")[..16], *"ba7816bf8f01cfea");
    }
}
