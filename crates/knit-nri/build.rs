//! Generates Rust code from the part of NRI that Knit speaks, without protoc.

use std::path::Path;
use std::{env, io};

fn main() -> io::Result<()> {
    // Asked for when it runs: a target folder that two clones share holds one build script for both.
    let here = env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR for build scripts");
    let folder = Path::new(&here).join("proto");
    println!("cargo::rerun-if-changed={}", folder.display());
    let files = protox::compile(["nri.proto", "ttrpc.proto"], [&folder]).map_err(io::Error::other)?;
    prost_build::Config::new().btree_map(["."]).compile_fds(files)
}
