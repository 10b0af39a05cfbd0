//! Names that are unique on the machine, short, and identify the test.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// Prefix of every namespace of every testbed.
pub(crate) const PREFIX: &str = "knit";

const MAX_TEST_LENGTH: usize = 20;
const MAX_LABEL_LENGTH: usize = 24;
const TOKEN_LENGTH: u32 = 5;
const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// A fresh prefix for a testbed: `knit-<test>-<token>`.
///
/// The file system decides whether it is free: see [`crate::netns`].
pub(crate) fn prefix(test: &str) -> String {
    // A new RandomState has new keys on every call, which is enough randomness here.
    let random = RandomState::new().hash_one(std::process::id());
    format!("{PREFIX}-{}-{}", sanitize(test, MAX_TEST_LENGTH), token(random))
}

/// The name of one namespace of a testbed.
pub(crate) fn namespace(prefix: &str, label: &str) -> String {
    format!("{prefix}-{}", sanitize(label, MAX_LABEL_LENGTH))
}

fn token(random: u64) -> String {
    (0..TOKEN_LENGTH)
        .map(|position| {
            let digit = random / 36_u64.pow(position) % 36;
            char::from(DIGITS[usize::try_from(digit).expect("a digit is less than 36")])
        })
        .collect()
}

/// Only characters that need no quoting in a shell or a path, up to a maximum length.
fn sanitize(text: &str, max_length: usize) -> String {
    let sanitized: String = text
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
        .take(max_length)
        .collect();
    sanitized.trim_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_contains_test_and_label() {
        let name = namespace(&prefix("ping"), "pod-a");
        assert!(name.starts_with("knit-ping-"), "{name}");
        assert!(name.ends_with("-pod-a"), "{name}");
    }

    #[test]
    fn name_needs_no_quoting() {
        assert_eq!(sanitize("Tenant/A: it's µ", 40), "tenant-a--it-s");
        assert_eq!(sanitize("abcdef", 3), "abc");
    }

    #[test]
    fn each_testbed_gets_another_prefix() {
        let prefixes: std::collections::BTreeSet<_> = (0..100).map(|_| prefix("same")).collect();
        assert_eq!(prefixes.len(), 100);
    }

    #[test]
    fn token_uses_all_digits_of_the_number() {
        assert_eq!(token(0), "00000");
        assert_eq!(token(35 + 36 * 10), "za000");
    }
}
