//! eBPF fast path: the object file that clang compiles from `redirect.c`. TCP between pods bypasses the bridge, the routes and
//! the packet filter; `docs/data-path.md` describes which packets.
//!
//! This crate only embeds the object. `knit-kernel` loads it and defines the layout of the maps.

/// The object file, aligned for ELF parsers.
pub static OBJECT: &[u8] = &ALIGNED.0;

#[repr(align(8))]
struct Aligned<const N: usize>([u8; N]);

static ALIGNED: Aligned<{ include_bytes!(concat!(env!("OUT_DIR"), "/redirect.o")).len() }> =
    Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/redirect.o")));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_is_an_elf_file_for_ebpf() {
        assert_eq!(OBJECT[..4], *b"\x7fELF");
        // `e_machine`: 247 is eBPF.
        assert_eq!(u16::from_le_bytes([OBJECT[18], OBJECT[19]]), 247);
        assert_eq!(OBJECT.as_ptr().align_offset(8), 0);
    }
}
