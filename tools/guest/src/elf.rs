//! Looks at a program before it goes into the guest: only a static one can run there.

use std::path::Path;

use anyhow::{Context, Result, bail};

/// The program header that names a dynamic loader.
const INTERPRETER: u32 = 3;
const X86_64: u16 = 62;

/// What a program needs to start.
#[derive(Debug, PartialEq, Eq)]
pub enum Linkage {
    /// It brings everything along.
    Static,
    /// It needs this loader, and the libraries that the loader finds.
    Dynamic { loader: String },
}

/// Fails in words unless the program can run on its own in the guest.
pub fn require_static(program: &Path) -> Result<()> {
    let bytes = std::fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let linkage = linkage(&bytes).with_context(|| {
        format!("{} cannot run in the guest, which takes x86-64 programs", program.display())
    })?;
    if let Linkage::Dynamic { loader } = linkage {
        bail!(
            "{} is not static: it wants the loader {loader} and its libraries, which the guest does not have for it. \
             Build a static one:\n  \
             RUSTFLAGS='-C target-feature=+crt-static' cargo build --target x86_64-unknown-linux-gnu\n\
             or bring it along with its libraries as a tool: --tool {}",
            program.display(),
            program.display()
        );
    }
    Ok(())
}

/// How the program is linked. Fails when it is not a program for this kind of machine.
pub fn linkage(bytes: &[u8]) -> Result<Linkage> {
    if bytes.get(..4) != Some(b"\x7fELF") {
        bail!("it is not an ELF file");
    }
    let (class, order) = (bytes.get(4), bytes.get(5));
    if (class, order) != (Some(&2), Some(&1)) || number(bytes, 18, 2)? != u64::from(X86_64) {
        bail!("it is an ELF file for another machine");
    }
    let table = number(bytes, 32, 8)?;
    let entry_size = number(bytes, 54, 2)?;
    let count = number(bytes, 56, 2)?;
    for index in 0..count {
        let at = table.checked_add(index * entry_size).context("its program headers are damaged")?;
        if number(bytes, at, 4)? == u64::from(INTERPRETER) {
            let (from, size) = (number(bytes, at + 8, 8)?, number(bytes, at + 32, 8)?);
            let loader = slice(bytes, from, size)?;
            let loader = String::from_utf8_lossy(loader).trim_end_matches('\0').to_owned();
            return Ok(Linkage::Dynamic { loader });
        }
    }
    Ok(Linkage::Static)
}

fn slice(bytes: &[u8], from: u64, size: u64) -> Result<&[u8]> {
    let from = usize::try_from(from)?;
    let to = from.checked_add(usize::try_from(size)?).context("its headers are damaged")?;
    bytes.get(from..to).context("it ends too early: cut off, or damaged")
}

/// A little-endian number of up to eight bytes.
fn number(bytes: &[u8], from: u64, size: u64) -> Result<u64> {
    let digits = slice(bytes, from, size)?;
    Ok(digits.iter().rev().fold(0, |sum, digit| sum << 8 | u64::from(*digit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busybox_is_static() {
        let bytes = std::fs::read("/bin/busybox").unwrap();
        assert_eq!(linkage(&bytes).unwrap(), Linkage::Static);
        require_static(Path::new("/bin/busybox")).unwrap();
    }

    #[test]
    fn a_dynamic_program_is_refused_with_the_way_out() {
        let error = require_static(&std::env::current_exe().unwrap()).unwrap_err().to_string();
        assert!(error.contains("is not static: it wants the loader /lib64/ld-linux-x86-64.so.2"), "{error}");
        assert!(error.contains("target-feature=+crt-static"), "{error}");
    }

    #[test]
    fn what_is_no_program_is_refused() {
        assert_eq!(linkage(b"#!/bin/sh\n").unwrap_err().to_string(), "it is not an ELF file");
        let mut arm = std::fs::read("/bin/busybox").unwrap();
        arm[18] = 183;
        assert_eq!(linkage(&arm).unwrap_err().to_string(), "it is an ELF file for another machine");
    }

    #[test]
    fn a_damaged_program_is_refused_at_any_length() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for length in 0..600 {
            linkage(&bytes[..length]).unwrap_err();
        }
    }
}
