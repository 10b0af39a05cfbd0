//! Reads objects from files and directories, as kubectl does.

use std::path::{Path, PathBuf};

use knit_crds::Object;
use knit_engine::ObjectKey;
use serde_json::Value;

use crate::error::{Error, Result};

/// All objects of a file, of the files of a directory (`.yaml`, `.yml`, `.json`, in lexical order), or of standard input (`-`).
pub fn read_objects(path: &Path) -> Result<Vec<Object>> {
    Ok(read_files(path)?.into_iter().flat_map(|(_, objects)| objects).collect())
}

/// The same, file by file.
pub(crate) fn read_files(path: &Path) -> Result<Vec<(String, Vec<Object>)>> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |source| Error::File { path, source }
    };
    if path == Path::new("-") {
        let text = std::io::read_to_string(std::io::stdin()).map_err(failed(path))?;
        let name = "standard input".to_owned();
        let objects = parse(&name, &text)?;
        return Ok(vec![(name, objects)]);
    }
    let mut files: Vec<PathBuf> = Vec::new();
    if path.is_dir() {
        for entry in std::fs::read_dir(path).map_err(failed(path))? {
            let file = entry.map_err(failed(path))?.path();
            let is_manifest = file
                .extension()
                .is_some_and(|end| ["yaml", "yml", "json"].iter().any(|extension| end == *extension));
            if is_manifest && file.is_file() {
                files.push(file);
            }
        }
        files.sort();
    } else {
        files.push(path.to_owned());
    }
    let mut read = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).map_err(failed(&file))?;
        let name = file.display().to_string();
        let objects = parse(&name, &text)?;
        read.push((name, objects));
    }
    Ok(read)
}

fn parse(path: &str, text: &str) -> Result<Vec<Object>> {
    Object::parse_all(text).map_err(|errors| Error::Parse { path: path.to_owned(), errors })
}

/// An object's identity.
pub(super) fn key_of(object: &Object) -> ObjectKey {
    let reference = object.object_ref();
    ObjectKey { kind: reference.kind, namespace: reference.namespace, name: reference.name }
}

/// Sets the metadata that an API server would set.
pub(super) fn set_identity(object: &mut Object, key: &ObjectKey, uid: &str, generation: i64) {
    let metadata = object.metadata_mut();
    metadata.namespace = (!key.namespace.is_empty()).then(|| key.namespace.clone());
    metadata.uid = Some(uid.to_owned());
    metadata.generation = Some(generation);
}

/// The part that an author controls: spec, labels and annotations.
pub(super) fn spec_of(manifest: &Value) -> (Option<&Value>, Option<&Value>, Option<&Value>) {
    let metadata = |field: &str| manifest.get("metadata").and_then(|metadata| metadata.get(field));
    (manifest.get("spec"), metadata("labels"), metadata("annotations"))
}
