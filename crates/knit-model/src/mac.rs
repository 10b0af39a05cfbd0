//! Hardware addresses.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize, Serializer};
use thiserror::Error;

/// A unicast hardware address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Mac([u8; 6]);

/// The length of the notation.
const TEXT_BYTES: usize = 17;

/// Why a text is not a unicast hardware address.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MacError {
    /// Not six pairs of hexadecimal digits.
    #[error(
        "`{text}` is not a hardware address: expected six pairs of hexadecimal digits such as 02:00:00:00:00:01"
    )]
    Form {
        /// The text.
        text: String,
    },
    /// The group bit is set.
    #[error(
        "`{text}` is a multicast address: an interface needs a unicast one (the first byte must be even)"
    )]
    Multicast {
        /// The text.
        text: String,
    },
    /// All zero.
    #[error("the hardware address of an interface must not be all zero")]
    Zero,
}

impl Mac {
    /// From bytes of the kernel, unchecked.
    pub const fn from_bytes(bytes: [u8; 6]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    pub const fn bytes(self) -> [u8; 6] {
        self.0
    }

    /// A stable, locally administered unicast address for a seed, so that a recreated interface keeps its address.
    pub fn derived(seed: &str) -> Self {
        let [_, _, a, b, c, d, e, f] = fnv1a(seed.as_bytes()).to_be_bytes();
        Self([(a & 0xfc) | 0x02, b, c, d, e, f])
    }

    /// Passes the notation to `use_text`. The journal has several addresses per change, and formatting each byte costs ten times as much.
    fn with_text<T>(self, use_text: impl FnOnce(&str) -> T) -> T {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [b':'; TEXT_BYTES];
        for (digits, byte) in text.chunks_mut(3).zip(self.0) {
            digits[0] = DIGITS[usize::from(byte >> 4)];
            digits[1] = DIGITS[usize::from(byte & 0xf)];
        }
        use_text(std::str::from_utf8(&text).expect("digits and colons are ASCII"))
    }

    /// Reads the notation of any hardware address, such as that of the loopback link.
    fn read(text: &str) -> Result<Self, MacError> {
        let form = || MacError::Form { text: text.to_owned() };
        let mut bytes = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut bytes {
            let is_pair = |part: &&str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
            let part = parts.next().filter(is_pair).ok_or_else(form)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| form())?;
        }
        if parts.next().is_some() {
            return Err(form());
        }
        Ok(Self(bytes))
    }
}

impl FromStr for Mac {
    type Err = MacError;

    fn from_str(text: &str) -> Result<Self, MacError> {
        let mac = Self::read(text)?;
        if mac.0 == [0; 6] {
            return Err(MacError::Zero);
        }
        if mac.0[0] & 1 == 1 {
            return Err(MacError::Multicast { text: text.to_owned() });
        }
        Ok(mac)
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with_text(|text| out.write_str(text))
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl TryFrom<String> for Mac {
    type Error = MacError;

    /// Unlike the notation that people write, a stored address was observed and is not checked.
    fn try_from(text: String) -> Result<Self, MacError> {
        Self::read(&text)
    }
}

impl Serialize for Mac {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.with_text(|text| to.serialize_str(text))
    }
}

/// FNV-1a hash. Unlike the standard library's hasher it is stable across versions and machines.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_prints_colon_notation() {
        let mac: Mac = "02:00:0A:b0:00:01".parse().unwrap();
        assert_eq!(mac.to_string(), "02:00:0a:b0:00:01");
        assert_eq!(serde_json::to_string(&mac).unwrap(), r#""02:00:0a:b0:00:01""#);
    }

    #[test]
    fn rejects_invalid_addresses() {
        let error = |text: &str| text.parse::<Mac>().unwrap_err().to_string();
        assert!(error("02:00:00:00:00").contains("six pairs"));
        assert!(error("02:00:00:00:00:00:01").contains("six pairs"));
        assert!(error("+2:00:00:00:00:01").contains("six pairs"));
        assert!(error("01:00:5e:00:00:01").contains("multicast"));
        assert!(error("00:00:00:00:00:00").contains("all zero"));
    }

    #[test]
    fn a_derived_address_is_stable_local_and_unicast() {
        let mac = Mac::derived("pod-a/net1");
        assert_eq!(mac, Mac::derived("pod-a/net1"));
        assert_ne!(mac, Mac::derived("pod-b/net1"));
        assert_eq!(mac.bytes()[0] & 0x03, 0x02);
    }
}
