//! Generates Rust code from the part of NRI that Knit uses, without protoc.

use std::path::Path;
use std::{env, io};

fn main() -> io::Result<()> {
    // Read at run time: two checkouts that share a target directory share the build script.
    let here = env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR for build scripts");
    let folder = Path::new(&here).join("proto");
    println!("cargo::rerun-if-changed={}", folder.display());
    let files = protox::compile(["nri.proto", "ttrpc.proto"], [&folder]).map_err(io::Error::other)?;
    prost_build::Config::new().btree_map(["."]).compile_fds(files)
}
