//! Generates Rust code from the part of CRI that Knit speaks, without protoc.

use std::path::Path;
use std::{env, io};

fn main() -> io::Result<()> {
    // Asked for when it runs: a target folder that two clones share holds one build script for both.
    let here = env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR for build scripts");
    let folder = Path::new(&here).join("proto");
    println!("cargo::rerun-if-changed={}", folder.display());
    let files = protox::compile(["cri.proto"], [&folder]).map_err(io::Error::other)?;
    let mut config = prost_build::Config::new();
    config.btree_map(["."]);
    tonic_prost_build::configure().emit_rerun_if_changed(false).compile_fds_with_config(files, config)
}
