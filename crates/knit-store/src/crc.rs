//! CRC-32 as in Ethernet and zip (polynomial 0xedb88320, reflected): it finds what a disk or an editor changed.

const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { (value >> 1) ^ 0xedb8_8320 } else { value >> 1 };
            bit += 1;
        }
        table[byte] = value;
        byte += 1;
    }
    table
}

/// A checksum that can still grow.
#[derive(Clone, Copy)]
pub(crate) struct Crc(u32);

impl Crc {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(!0).and(bytes)
    }

    pub(crate) fn and(self, bytes: &[u8]) -> Self {
        let step = |value: u32, byte: &u8| (value >> 8) ^ TABLE[usize::from(value as u8 ^ byte)];
        Self(bytes.iter().fold(self.0, step))
    }

    pub(crate) fn value(self) -> u32 {
        !self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_well_known_crc() {
        assert_eq!(Crc::of(b"123456789").value(), 0xcbf4_3926);
        assert_eq!(Crc::of(b"").value(), 0);
        assert_eq!(Crc::of(b"12345").and(b"6789").value(), 0xcbf4_3926);
    }
}
