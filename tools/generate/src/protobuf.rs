//! Generates Rust code from `.proto` files, without protoc.
//!
//! The code is committed, so that a build of Knit needs neither a protobuf compiler nor its dependencies.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use knit_dev::places;
use prost_build::Module;
use prost_types::FileDescriptorSet;
use protox::prost::Message;

/// The descriptor set of the agent's API, for server reflection.
const DESCRIPTORS: &str = "crates/knit-kni/src/generated/api.bin";

/// The code of a crate.
struct Generated {
    /// The crate's folder.
    package: &'static str,
    /// The folder of the `.proto` files.
    folder: &'static str,
    /// Files that import all others.
    roots: &'static [&'static str],
    /// Whether clients and servers are generated as well.
    services: bool,
}

const API: Generated = Generated {
    package: "crates/knit-kni",
    folder: "api",
    roots: &[
        "kni/kni.proto",
        "kni/knix.proto",
        "knit/v1/knit.proto",
        "knit/v1/standalone.proto",
        "knit/v1/frame.proto",
    ],
    services: true,
};

const CRI: Generated = Generated {
    package: "crates/knit-cri",
    folder: "crates/knit-cri/proto",
    roots: &["cri.proto"],
    services: true,
};

const NRI: Generated = Generated {
    package: "crates/knit-nri",
    folder: "crates/knit-nri/proto",
    roots: &["nri.proto", "ttrpc.proto"],
    services: false,
};

/// The descriptors of the agent's API, without comments, which server reflection would keep in memory.
pub fn api() -> Result<FileDescriptorSet> {
    let mut descriptors = API.compile()?;
    for file in &mut descriptors.file {
        file.source_code_info = None;
    }
    Ok(descriptors)
}

/// Every generated file, by its path in the checkout.
pub fn files(api: &FileDescriptorSet) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut files = vec![(PathBuf::from(DESCRIPTORS), api.encode_to_vec())];
    for generated in [API, CRI, NRI] {
        files.extend(generated.code()?);
    }
    Ok(files)
}

impl Generated {
    fn compile(&self) -> Result<FileDescriptorSet> {
        let folder = places::workspace().join(self.folder);
        protox::compile(self.roots, [folder]).with_context(|| format!("cannot compile {}", self.folder))
    }

    /// The Rust code, one file for each protobuf package.
    fn code(&self) -> Result<Vec<(PathBuf, Vec<u8>)>> {
        let mut config = prost_build::Config::new();
        // Deterministic encoding.
        config.btree_map(["."]);
        if self.package == API.package {
            // The type URL of error details, as gRPC libraries of other languages expect it.
            config.enable_type_names().type_name_domain(["."], "type.googleapis.com");
        }
        if self.services {
            config.service_generator(tonic_prost_build::configure().service_generator());
        }
        // Well-known types are those of prost-types: no code is generated for them.
        let files = self.compile()?.file.into_iter();
        let requests = files.map(|file| (Module::from_protobuf_package_name(file.package()), file)).collect();
        let modules = config.generate(requests).with_context(|| format!("code of {}", self.folder))?;
        let folder = Path::new(self.package).join("src/generated");
        let code = modules.into_iter().map(|(module, code)| {
            // Every `.proto` file names its package.
            (folder.join(module.to_file_name_or("unnamed")), code.into_bytes())
        });
        Ok(code.collect())
    }
}
