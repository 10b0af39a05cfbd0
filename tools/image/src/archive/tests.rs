//! Archives read back from the file.

use std::io::Read;

use flate2::read::GzDecoder;

use super::*;

/// The files of an archive, in their order.
type Files = Vec<(String, Vec<u8>)>;

fn layer(contents: &str) -> Rc<Layer> {
    let mut layer = Layer::default();
    layer.add_file("/usr/local/bin/knit", 0o755, contents).unwrap();
    layer.add_folder("/tmp", 0o1777).unwrap();
    Rc::new(layer)
}

fn image() -> Image {
    Image {
        references: vec!["localhost/knit:1".to_owned(), "localhost:5000/knit/again:2".to_owned()],
        architecture: "amd64".to_owned(),
        entrypoint: vec!["/usr/local/bin/knit".to_owned()],
        cmd: vec!["agent".to_owned()],
        env: BTreeMap::from([("B".to_owned(), "2".to_owned()), ("A".to_owned(), "1".to_owned())]),
        user: "65532:65532".to_owned(),
        workdir: "/tmp".to_owned(),
        labels: BTreeMap::from([("title".to_owned(), "knit".to_owned())]),
        layers: vec![layer("program"), layer("over it")],
    }
}

/// The summary, the bytes of the file, and the files in it.
fn write(image: &Image) -> (ArchiveInfo, Vec<u8>, Files) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("new/image.tar");
    let written = image.write(&file).unwrap();
    let left: Vec<_> = std::fs::read_dir(folder.path().join("new")).unwrap().collect();
    assert_eq!(left.len(), 1, "unfinished files were left: {left:?}");
    let bytes = std::fs::read(file).unwrap();
    let mut archive = tar::Archive::new(bytes.as_slice());
    let mut entries = Vec::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        assert_eq!(entry.header().mtime().unwrap(), 0);
        let mut contents = Vec::new();
        entry.read_to_end(&mut contents).unwrap();
        entries.push((entry.path().unwrap().display().to_string(), contents));
    }
    (written, bytes, entries)
}

fn contents<'a>(entries: &'a [(String, Vec<u8>)], path: &str) -> &'a [u8] {
    &entries.iter().find(|(name, _)| name == path).unwrap_or_else(|| panic!("no {path}")).1
}

fn json(entries: &[(String, Vec<u8>)], path: &str) -> Value {
    serde_json::from_slice(contents(entries, path)).unwrap()
}

/// The blob of a descriptor, after checking its size and digest.
fn blob<'a>(entries: &'a [(String, Vec<u8>)], descriptor: &Value) -> &'a [u8] {
    let digest = descriptor["digest"].as_str().unwrap();
    let bytes = contents(entries, &blob_path(digest));
    assert_eq!(descriptor["size"], bytes.len());
    assert_eq!(digest::of(bytes), digest);
    bytes
}

#[test]
fn the_same_image_gives_the_same_bytes() {
    let (first, first_bytes, _) = write(&image());
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let (second, second_bytes, _) = write(&image());
    assert_eq!(first.digest, second.digest);
    assert!(first_bytes == second_bytes, "a second later the file differs");
    assert_eq!(first.size, first_bytes.len() as u64);
}

#[test]
fn different_contents_give_a_different_digest() {
    let mut other = image();
    other.layers[1] = layer("something else");
    assert_ne!(write(&image()).0.digest, write(&other).0.digest);
}

#[test]
fn every_descriptor_matches_its_blob() {
    let (written, _, entries) = write(&image());
    let index = json(&entries, "index.json");
    for descriptor in index["manifests"].as_array().unwrap() {
        assert_eq!(descriptor["digest"], written.digest);
        let manifest: Value = serde_json::from_slice(blob(&entries, descriptor)).unwrap();
        blob(&entries, &manifest["config"]);
        assert_eq!(manifest["layers"].as_array().unwrap().len(), 2);
        for layer in manifest["layers"].as_array().unwrap() {
            blob(&entries, layer);
        }
    }
}

#[test]
fn a_diff_id_is_the_digest_of_the_uncompressed_tar() {
    let image = image();
    let (_, _, entries) = write(&image);
    let docker = json(&entries, "manifest.json");
    let config = json(&entries, docker[0]["Config"].as_str().unwrap());
    for (number, layer) in image.layers.iter().enumerate() {
        let packed = contents(&entries, docker[0]["Layers"][number].as_str().unwrap());
        let mut tar = Vec::new();
        GzDecoder::new(packed).read_to_end(&mut tar).unwrap();
        assert_eq!(tar, layer.write_tar(Vec::new()).unwrap());
        assert_eq!(config["rootfs"]["diff_ids"][number], digest::of(&tar));
    }
}

#[test]
fn gzip_headers_have_neither_time_nor_name() {
    let (_, _, entries) = write(&image());
    let docker = json(&entries, "manifest.json");
    let packed = contents(&entries, docker[0]["Layers"][0].as_str().unwrap());
    let gzip = GzDecoder::new(packed);
    let header = gzip.header().unwrap();
    assert_eq!((header.mtime(), header.filename(), header.operating_system()), (0, None, 255));
}

#[test]
fn the_file_is_an_oci_layout_with_every_reference() {
    let (_, _, entries) = write(&image());
    assert_eq!(json(&entries, "oci-layout")["imageLayoutVersion"], "1.0.0");
    let index = json(&entries, "index.json");
    let names: Vec<&Value> = index["manifests"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["annotations"]["io.containerd.image.name"])
        .collect();
    assert_eq!(names, ["localhost/knit:1", "localhost:5000/knit/again:2"]);
    assert_eq!(index["manifests"][1]["annotations"]["org.opencontainers.image.ref.name"], "2");
    assert_eq!(json(&entries, "manifest.json")[0]["RepoTags"], json!(image().references));
}

#[test]
fn the_config_contains_the_run_parameters() {
    let (_, _, entries) = write(&image());
    let docker = json(&entries, "manifest.json");
    let config = json(&entries, docker[0]["Config"].as_str().unwrap());
    let expected = json!({
        "Entrypoint": ["/usr/local/bin/knit"],
        "Cmd": ["agent"],
        "Env": ["A=1", "B=2"],
        "User": "65532:65532",
        "WorkingDir": "/tmp",
        "Labels": { "title": "knit" },
    });
    assert_eq!(config["config"], expected);
    assert_eq!((&config["architecture"], &config["os"]), (&json!("amd64"), &json!("linux")));
}

#[test]
fn archive_entries_are_sorted() {
    let (_, _, entries) = write(&image());
    let names: Vec<&String> = entries.iter().map(|(name, _)| name).collect();
    assert!(names.is_sorted(), "{names:?}");
}

#[test]
fn a_layer_that_is_used_twice_is_stored_once() {
    let mut twice = image();
    twice.layers = vec![layer("same"), layer("same")];
    let (_, _, entries) = write(&twice);
    let blobs = entries.iter().filter(|(name, _)| name.starts_with("blobs/sha256/") && !name.ends_with('/'));
    assert_eq!(blobs.count(), 3, "one layer, one config, one manifest");
}

#[test]
fn a_failed_write_leaves_the_old_file_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("image.tar");
    std::fs::write(&file, "old").unwrap();
    let mut broken = image();
    Rc::get_mut(&mut broken.layers[0])
        .unwrap()
        .add_file_from("/missing", 0o644, "/nonexistent/source")
        .unwrap();
    assert!(broken.write(&file).is_err());
    assert_eq!(std::fs::read(&file).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn references_need_a_tag_and_differ() {
    assert_eq!(tag("localhost:5000/knit:1").unwrap(), "1");
    for reference in ["knit", "localhost:5000/knit", "knit:", ":1", "localhost/knit@sha256:00"] {
        assert!(tag(reference).is_err(), "{reference} was accepted");
    }
    let mut twice = image();
    twice.references[1] = twice.references[0].clone();
    assert!(twice.check().is_err());
}

#[test]
fn images_that_share_a_layer_store_it_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("both.tar");
    let shared = layer("shared");
    let named = |reference: &str| Image {
        references: vec![reference.to_owned()],
        architecture: "amd64".to_owned(),
        cmd: vec![reference.to_owned()],
        layers: vec![Rc::clone(&shared)],
        ..Image::default()
    };
    write_all(&[named("localhost/a:1"), named("localhost/b:1")], &file).unwrap();
    let mut archive = tar::Archive::new(File::open(&file).unwrap());
    let entries = archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().into_owned());
    let blobs = entries
        .filter(|path| path.starts_with("blobs/sha256") && path.file_name().unwrap().len() == 64)
        .count();
    // One layer, and for each image its config and manifest.
    assert_eq!(blobs, 1 + 2 * 2);
}
