//! Generates Rust code from the part of CRI that Knit uses, without protoc.

use std::path::Path;
use std::{env, io};

fn main() -> io::Result<()> {
    // Read at run time: two checkouts that share a target directory share the build script.
    let here = env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR for build scripts");
    let folder = Path::new(&here).join("proto");
    println!("cargo::rerun-if-changed={}", folder.display());
    let files = protox::compile(["cri.proto"], [&folder]).map_err(io::Error::other)?;
    let mut config = prost_build::Config::new();
    config.btree_map(["."]);
    tonic_prost_build::configure().emit_rerun_if_changed(false).compile_fds_with_config(files, config)
}
