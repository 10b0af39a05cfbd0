//! Names that are unique on the machine, short, and still say which test they belong to.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// What every namespace of every testbed starts with.
pub(crate) const MARK: &str = "knit";

const LONGEST_TEST: usize = 20;
const LONGEST_LABEL: usize = 24;
const TOKEN_LENGTH: u32 = 5;
const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// A fresh prefix for a testbed: `knit-<test>-<token>`.
///
/// Whether it is really free is decided by the file system: see [`crate::birth`].
pub(crate) fn prefix(test: &str) -> String {
    // A new RandomState has new keys on every call, which is all the randomness needed here.
    let random = RandomState::new().hash_one(std::process::id());
    format!("{MARK}-{}-{}", plain(test, LONGEST_TEST), token(random))
}

/// The name of one namespace of a testbed.
pub(crate) fn namespace(prefix: &str, label: &str) -> String {
    format!("{prefix}-{}", plain(label, LONGEST_LABEL))
}

fn token(random: u64) -> String {
    (0..TOKEN_LENGTH)
        .map(|place| {
            let digit = random / 36_u64.pow(place) % 36;
            char::from(DIGITS[usize::try_from(digit).expect("a digit is less than 36")])
        })
        .collect()
}

/// Only characters that need no quoting in a shell or a path, and not too many of them.
fn plain(text: &str, longest: usize) -> String {
    let plain: String = text
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
        .take(longest)
        .collect();
    plain.trim_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_the_test_and_the_label() {
        let name = namespace(&prefix("ping"), "pod-a");
        assert!(name.starts_with("knit-ping-"), "{name}");
        assert!(name.ends_with("-pod-a"), "{name}");
    }

    #[test]
    fn a_name_needs_no_quoting() {
        assert_eq!(plain("Tenant/A: it's µ", 40), "tenant-a--it-s");
        assert_eq!(plain("abcdef", 3), "abc");
    }

    #[test]
    fn the_same_test_gets_another_prefix_each_time() {
        let prefixes: std::collections::BTreeSet<_> = (0..100).map(|_| prefix("same")).collect();
        assert_eq!(prefixes.len(), 100);
    }

    #[test]
    fn a_token_uses_all_digits_of_the_number() {
        assert_eq!(token(0), "00000");
        assert_eq!(token(35 + 36 * 10), "za000");
    }
}
