//! Tars of layers read back from their bytes.

use std::os::unix::fs::symlink;

use super::*;

/// One entry of a tar.
#[derive(Debug, PartialEq)]
struct TarEntry {
    path: String,
    kind: EntryType,
    mode: u32,
    target: Option<String>,
    contents: String,
}

fn tar_of(layer: &Layer) -> Vec<u8> {
    layer.write_tar(Vec::new()).unwrap()
}

fn entries(layer: &Layer) -> Vec<TarEntry> {
    let bytes = tar_of(layer);
    let mut archive = tar::Archive::new(bytes.as_slice());
    let mut all = Vec::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut contents = String::new();
        entry.read_to_string(&mut contents).unwrap();
        let header = entry.header();
        assert_eq!(header.mtime().unwrap(), 0);
        assert_eq!((header.uid().unwrap(), header.gid().unwrap()), (0, 0));
        all.push(TarEntry {
            path: entry.path().unwrap().display().to_string(),
            kind: header.entry_type(),
            mode: header.mode().unwrap(),
            target: entry.link_name().unwrap().map(|target| target.display().to_string()),
            contents,
        });
    }
    all
}

fn paths(layer: &Layer) -> Vec<String> {
    entries(layer).into_iter().map(|entry| entry.path).collect()
}

#[test]
fn entries_are_sorted_and_include_their_parent_directories() {
    let mut layer = Layer::default();
    layer.add_file("/usr/bin/z", 0o755, "z").unwrap();
    layer.add_file("usr/bin/a", 0o755, "a").unwrap();
    layer.add_file("/etc/passwd", 0o644, "root").unwrap();
    assert_eq!(paths(&layer), ["etc/", "etc/passwd", "usr/", "usr/bin/", "usr/bin/a", "usr/bin/z"]);
}

#[test]
fn the_order_of_adding_does_not_matter() {
    let (mut one, mut other) = (Layer::default(), Layer::default());
    one.add_file("/a/b", 0o644, "b").unwrap();
    one.add_folder("/a", 0o700).unwrap();
    other.add_folder("/a", 0o700).unwrap();
    other.add_file("/a/b", 0o644, "b").unwrap();
    assert_eq!(tar_of(&one), tar_of(&other));
}

#[test]
fn all_permission_bits_are_kept() {
    let mut layer = Layer::default();
    layer.add_folder("/tmp", 0o1777).unwrap();
    layer.add_file("/ping", 0o4755, "").unwrap();
    layer.add_file("/secret", 0o600, "").unwrap();
    let modes: Vec<u32> = entries(&layer).iter().map(|entry| entry.mode).collect();
    assert_eq!(modes, [0o4755, 0o600, 0o1777]);
}

#[test]
fn names_longer_than_a_tar_header_are_kept() {
    let folder = "f".repeat(120);
    let (file, target) = (format!("{folder}/{}", "n".repeat(150)), format!("../{}", "t".repeat(140)));
    let mut layer = Layer::default();
    layer.add_file(&file, 0o644, "deep").unwrap();
    layer.add_symlink("/link", &target).unwrap();
    let seen = entries(&layer);
    assert_eq!(seen[0].path, format!("{folder}/"));
    assert_eq!((seen[1].path.as_str(), seen[1].contents.as_str()), (file.as_str(), "deep"));
    assert_eq!(seen[2].target.as_deref(), Some(target.as_str()));
}

#[test]
fn symbolic_links_keep_their_target() {
    let mut layer = Layer::default();
    layer.add_symlink("/bin/sh", "dash").unwrap();
    layer.add_symlink("/lib", "/usr/lib").unwrap();
    let seen = entries(&layer);
    assert_eq!((seen[1].kind, seen[1].target.as_deref()), (EntryType::Symlink, Some("dash")));
    assert_eq!(seen[2].target.as_deref(), Some("/usr/lib"));
}

#[test]
fn a_directory_on_disk_is_added_with_modes_and_links() {
    let disk = tempfile::tempdir().unwrap();
    let root = disk.path();
    std::fs::create_dir(root.join("bin")).unwrap();
    std::fs::write(root.join("bin/tool"), "tool").unwrap();
    std::fs::set_permissions(root.join("bin"), PermissionsExt::from_mode(0o750)).unwrap();
    std::fs::set_permissions(root.join("bin/tool"), PermissionsExt::from_mode(0o555)).unwrap();
    symlink("/nowhere", root.join("dangling")).unwrap();

    let mut layer = Layer::default();
    layer.add_tree("/", root).unwrap();
    let seen = entries(&layer);
    assert_eq!(seen.len(), 3);
    assert_eq!((seen[0].path.as_str(), seen[0].mode), ("bin/", 0o750));
    assert_eq!((seen[1].mode, seen[1].contents.as_str()), (0o555, "tool"));
    assert_eq!(seen[2].target.as_deref(), Some("/nowhere"));
}

#[test]
fn a_socket_in_a_directory_on_disk_is_rejected() {
    let disk = tempfile::tempdir().unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(disk.path().join("test.sock")).unwrap();
    let error = Layer::default().add_tree("/", disk.path()).unwrap_err();
    assert!(error.to_string().contains("test.sock"), "{error}");
}

#[test]
fn a_duplicate_path_is_rejected() {
    let mut layer = Layer::default();
    layer.add_file("/etc/passwd", 0o644, "one").unwrap();
    let error = layer.add_file("etc/passwd", 0o644, "two").unwrap_err();
    assert_eq!(error.to_string(), "layer: duplicate path /etc/passwd");
    assert!(layer.add_symlink("/etc/passwd", "other").is_err());
    assert!(layer.add_file("/etc", 0o644, "a file in place of a directory").is_err());
    layer.add_folder("/etc", 0o700).unwrap();
    assert!(layer.add_folder("/etc", 0o755).is_err());
}

#[test]
fn a_file_has_no_entries_below_it() {
    let mut layer = Layer::default();
    layer.add_file("/etc", 0o644, "").unwrap();
    let error = layer.add_file("/etc/passwd", 0o644, "").unwrap_err();
    assert!(error.to_string().contains("/etc, which is not a directory"), "{error}");
}

#[test]
fn paths_outside_the_image_are_rejected() {
    for path in ["", "/", "..", "/a/../../b", "./a"] {
        assert!(Layer::default().add_file(path, 0o644, "").is_err(), "{path:?} was accepted");
    }
}

#[test]
fn a_missing_source_is_reported() {
    let mut layer = Layer::default();
    layer.add_file_from("/usr/local/bin/knit", 0o755, "/nonexistent/knit").unwrap();
    let error = format!("{:#}", layer.write_tar(Vec::new()).unwrap_err());
    assert!(error.contains("/usr/local/bin/knit") && error.contains("/nonexistent/knit"), "{error}");
}
