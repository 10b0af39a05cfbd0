//! Every attack of the hostile tests has a line in the page about security.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::fs;
use std::path::Path;

/// The names of the tests in a folder's files.
fn tests(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let of_entry = |path: std::path::PathBuf| {
        if path.is_dir() {
            return tests(&path);
        }
        let source = fs::read_to_string(&path).unwrap();
        let functions = source.split("#[test]\nfn ").skip(1);
        functions.map(|rest| rest.split('(').next().unwrap().to_owned()).collect()
    };
    entries.flat_map(of_entry).collect()
}

#[test]
fn every_attack_has_a_line_in_the_page_about_security() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("../../docs/security.md")).unwrap();
    let tests = tests(&root.join("tests/hostile"));
    assert!(tests.len() > 200, "{}", tests.len());
    let missing: Vec<&String> =
        tests.iter().filter(|test| !page.contains(&format!("| `{test}` |"))).collect();
    assert!(missing.is_empty(), "docs/security.md has no line for {missing:#?}");
}
