//! Generates Rust code from `api/`, without protoc.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use protox::prost::Message;

/// Files that import all others.
const ROOTS: [&str; 5] = [
    "kni/kni.proto",
    "kni/knix.proto",
    "knit/v1/knit.proto",
    "knit/v1/standalone.proto",
    "knit/v1/frame.proto",
];

fn main() -> io::Result<()> {
    // Read at run time: two checkouts that share a target directory share the build script.
    let here = env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR for build scripts");
    let api = Path::new(&here).join("../../api");
    println!("cargo::rerun-if-changed={}", api.display());
    let files = protox::compile(ROOTS, [&api]).map_err(io::Error::other)?;

    // Server reflection does not need comments, which would stay in memory.
    let mut descriptors = files.clone();
    for file in &mut descriptors.file {
        file.source_code_info = None;
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR for build scripts"));
    fs::write(out.join("api.bin"), descriptors.encode_to_vec())?;

    let mut config = prost_build::Config::new();
    // The type URL of error details, as gRPC libraries of other languages expect it.
    config.enable_type_names().type_name_domain(["."], "type.googleapis.com");
    // Deterministic encoding.
    config.btree_map(["."]);
    tonic_prost_build::configure().emit_rerun_if_changed(false).compile_fds_with_config(files, config)
}
