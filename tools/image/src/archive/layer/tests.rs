//! What the tar of a layer must hold, read back from its bytes.

use std::os::unix::fs::symlink;

use super::*;

/// What one entry of a tar says about itself.
#[derive(Debug, PartialEq)]
struct Seen {
    path: String,
    kind: EntryType,
    mode: u32,
    target: Option<String>,
    contents: String,
}

fn tar_of(layer: &Layer) -> Vec<u8> {
    layer.write_tar(Vec::new()).unwrap()
}

fn entries(layer: &Layer) -> Vec<Seen> {
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
        all.push(Seen {
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
fn entries_come_out_sorted_with_the_folders_they_lie_in() {
    let mut layer = Layer::default();
    layer.add_file("/usr/bin/z", 0o755, "z").unwrap();
    layer.add_file("usr/bin/a", 0o755, "a").unwrap();
    layer.add_file("/etc/passwd", 0o644, "root").unwrap();
    assert_eq!(paths(&layer), ["etc/", "etc/passwd", "usr/", "usr/bin/", "usr/bin/a", "usr/bin/z"]);
}

#[test]
fn the_order_in_which_entries_were_added_does_not_matter() {
    let (mut one, mut other) = (Layer::default(), Layer::default());
    one.add_file("/a/b", 0o644, "b").unwrap();
    one.add_folder("/a", 0o700).unwrap();
    other.add_folder("/a", 0o700).unwrap();
    other.add_file("/a/b", 0o644, "b").unwrap();
    assert_eq!(tar_of(&one), tar_of(&other));
}

#[test]
fn permission_bits_are_kept_in_full() {
    let mut layer = Layer::default();
    layer.add_folder("/tmp", 0o1777).unwrap();
    layer.add_file("/ping", 0o4755, "").unwrap();
    layer.add_file("/secret", 0o600, "").unwrap();
    let modes: Vec<u32> = entries(&layer).iter().map(|entry| entry.mode).collect();
    assert_eq!(modes, [0o4755, 0o600, 0o1777]);
}

#[test]
fn names_longer_than_a_tar_header_survive() {
    let folder = "f".repeat(120);
    let (file, target) = (format!("{folder}/{}", "n".repeat(150)), format!("../{}", "t".repeat(140)));
    let mut layer = Layer::default();
    layer.add_file(&file, 0o644, "far away").unwrap();
    layer.add_symlink("/link", &target).unwrap();
    let seen = entries(&layer);
    assert_eq!(seen[0].path, format!("{folder}/"));
    assert_eq!((seen[1].path.as_str(), seen[1].contents.as_str()), (file.as_str(), "far away"));
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
fn a_folder_on_disk_is_taken_with_modes_and_links() {
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
fn a_socket_in_a_folder_on_disk_is_refused_by_name() {
    let disk = tempfile::tempdir().unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(disk.path().join("talk.sock")).unwrap();
    let error = Layer::default().add_tree("/", disk.path()).unwrap_err();
    assert!(error.to_string().contains("talk.sock"), "{error}");
}

#[test]
fn a_path_that_is_there_already_is_refused() {
    let mut layer = Layer::default();
    layer.add_file("/etc/passwd", 0o644, "one").unwrap();
    let error = layer.add_file("etc/passwd", 0o644, "two").unwrap_err();
    assert_eq!(error.to_string(), "layer: /etc/passwd is there twice");
    assert!(layer.add_symlink("/etc/passwd", "elsewhere").is_err());
    assert!(layer.add_file("/etc", 0o644, "a file over a folder").is_err());
    layer.add_folder("/etc", 0o700).unwrap();
    assert!(layer.add_folder("/etc", 0o755).is_err());
}

#[test]
fn nothing_lies_below_a_file() {
    let mut layer = Layer::default();
    layer.add_file("/etc", 0o644, "").unwrap();
    let error = layer.add_file("/etc/passwd", 0o644, "").unwrap_err();
    assert!(error.to_string().contains("/etc, which is no folder"), "{error}");
}

#[test]
fn paths_that_leave_the_image_are_refused() {
    for path in ["", "/", "..", "/a/../../b", "./a"] {
        assert!(Layer::default().add_file(path, 0o644, "").is_err(), "{path:?} was taken");
    }
}

#[test]
fn a_missing_source_is_named() {
    let mut layer = Layer::default();
    layer.add_file_from("/usr/local/bin/knit", 0o755, "/nonexistent/knit").unwrap();
    let error = format!("{:#}", layer.write_tar(Vec::new()).unwrap_err());
    assert!(error.contains("/usr/local/bin/knit") && error.contains("/nonexistent/knit"), "{error}");
}
