//! CRC-32 as in Ethernet and zip (polynomial 0xedb88320, reflected): it finds what a disk or an editor changed.

/// How many bytes are taken at once.
const STRIDE: usize = 8;

/// For a byte, and for a byte that 1 to 7 others follow.
const TABLES: [[u32; 256]; STRIDE] = tables();

const fn tables() -> [[u32; 256]; STRIDE] {
    let mut tables = [[0; 256]; STRIDE];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { (value >> 1) ^ 0xedb8_8320 } else { value >> 1 };
            bit += 1;
        }
        tables[0][byte] = value;
        byte += 1;
    }
    let mut entry = 256;
    while entry < 256 * STRIDE {
        let before = tables[entry / 256 - 1][entry % 256];
        tables[entry / 256][entry % 256] = (before >> 8) ^ tables[0][(before & 0xff) as usize];
        entry += 1;
    }
    tables
}

/// A checksum that can still grow.
#[derive(Clone, Copy)]
pub(crate) struct Crc(u32);

impl Crc {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(!0).and(bytes)
    }

    pub(crate) fn and(self, bytes: &[u8]) -> Self {
        let mut value = self.0;
        let (strides, rest) = bytes.as_chunks::<STRIDE>();
        for stride in strides {
            // The value so far is mixed into the first four bytes; every byte then counts by its place.
            let mixed = u64::from_le_bytes(*stride) ^ u64::from(value);
            let tables = TABLES.iter().rev().zip(mixed.to_le_bytes());
            value = tables.fold(0, |value, (table, byte)| value ^ table[usize::from(byte)]);
        }
        let step = |value: u32, byte: &u8| (value >> 8) ^ TABLES[0][usize::from(value as u8 ^ byte)];
        Self(rest.iter().fold(value, step))
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

    #[test]
    fn it_is_the_same_in_pieces_of_any_length() {
        let bytes: Vec<u8> = (0..100_u8).map(|byte| byte.wrapping_mul(37)).collect();
        let whole = Crc::of(&bytes).value();
        let one_by_one = bytes.iter().fold(Crc::of(b""), |crc, byte| crc.and(&[*byte]));
        assert_eq!(one_by_one.value(), whole);
        for at in 0..bytes.len() {
            assert_eq!(Crc::of(&bytes[..at]).and(&bytes[at..]).value(), whole, "{at}");
        }
    }
}
