//! Checks a program before it is copied into the guest: only static ones run there.

use std::path::Path;

use anyhow::{Context, Result, bail};

/// The program header that names a dynamic loader.
const INTERPRETER: u32 = 3;
const X86_64: u16 = 62;

/// How a program is linked.
#[derive(Debug, PartialEq, Eq)]
pub enum Linkage {
    /// Without a loader.
    Static,
    /// It needs this loader and shared libraries.
    Dynamic { loader: String },
}

/// Fails unless the program is a static x86-64 program.
pub fn require_static(program: &Path) -> Result<()> {
    let bytes = std::fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let linkage = linkage(&bytes).with_context(|| {
        format!("{} cannot run in the guest, which runs x86-64 programs", program.display())
    })?;
    if let Linkage::Dynamic { loader } = linkage {
        bail!(
            "{} is not static: it needs the loader {loader} and shared libraries, which the guest does not have. \
             Build a static one:\n  \
             RUSTFLAGS='-C target-feature=+crt-static' cargo build --target x86_64-unknown-linux-gnu\n\
             or copy it with its libraries as a tool: --tool {}",
            program.display(),
            program.display()
        );
    }
    Ok(())
}

/// How the program is linked. Fails if it is not an x86-64 program.
pub fn linkage(bytes: &[u8]) -> Result<Linkage> {
    if bytes.get(..4) != Some(b"\x7fELF") {
        bail!("not an ELF file");
    }
    let (class, order) = (bytes.get(4), bytes.get(5));
    if (class, order) != (Some(&2), Some(&1)) || number(bytes, 18, 2)? != u64::from(X86_64) {
        bail!("an ELF file for another machine");
    }
    let table = number(bytes, 32, 8)?;
    let entry_size = number(bytes, 54, 2)?;
    let count = number(bytes, 56, 2)?;
    for index in 0..count {
        let at = table.checked_add(index * entry_size).context("damaged program headers")?;
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
    let to = from.checked_add(usize::try_from(size)?).context("damaged headers")?;
    bytes.get(from..to).context("the file is truncated or damaged")
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
    fn a_program_built_by_this_workspace_is_static() {
        let program = std::env::current_exe().unwrap();
        let bytes = std::fs::read(&program).unwrap();
        assert_eq!(linkage(&bytes).unwrap(), Linkage::Static);
        require_static(&program).unwrap();
    }

    #[test]
    fn a_dynamic_program_is_rejected_with_a_hint() {
        let error = require_static(Path::new("/usr/bin/env")).unwrap_err().to_string();
        assert!(error.contains("is not static: it needs the loader /lib64/ld-linux-x86-64.so.2"), "{error}");
        assert!(error.contains("target-feature=+crt-static"), "{error}");
    }

    #[test]
    fn a_file_that_is_no_x86_64_program_is_rejected() {
        assert_eq!(linkage(b"#!/bin/sh\n").unwrap_err().to_string(), "not an ELF file");
        let mut arm = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        arm[18] = 183;
        assert_eq!(linkage(&arm).unwrap_err().to_string(), "an ELF file for another machine");
    }

    #[test]
    fn a_damaged_program_is_rejected_at_any_length() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for length in 0..600 {
            linkage(&bytes[..length]).unwrap_err();
        }
    }
}
