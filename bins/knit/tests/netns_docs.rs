//! Runs the commands on the documentation pages, and checks that no page is missing. Pages that need the guest: `vm_docs`.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

#[path = "support/pages.rs"]
#[macro_use]
mod pages;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use pages::{IN_GUEST, Page};

/// One test for each page, and the list of pages.
macro_rules! pages {
    ($($name:ident => $path:literal,)*) => {
        const PAGES: &[&str] = &[$($path),*];
        $(
            #[test]
            fn $name() {
                run_here($path);
            }
        )*
    };
}

pages_here!(pages);

#[test]
fn every_kind_has_a_page_that_is_run_and_listed() {
    let index = fs::read_to_string(root().join("docs/kinds/README.md")).unwrap();
    let run: Vec<&str> = all().collect();
    for kind in knit_crds::Object::kinds() {
        let page = format!("docs/kinds/{}.md", kind.singular);
        assert!(run.contains(&page.as_str()), "{page} is not run");
        let entry = format!("[{}]({}.md)", kind.kind, kind.singular);
        assert!(index.contains(&entry), "docs/kinds/README.md has no entry {entry}");
    }
}

#[test]
fn every_example_is_a_block_of_exactly_one_page() {
    let mut shown = BTreeMap::new();
    for path in all() {
        for file in page(path).files() {
            let before = shown.insert(file.name.clone(), file.text.clone());
            assert_eq!(before, None, "{path}: {} is in another page, too", file.name);
        }
    }
    let examples = root().join("examples/standalone");
    if pages::write() {
        let write = |(name, text): (&String, &String)| fs::write(examples.join(name), text).unwrap();
        return shown.iter().for_each(write);
    }
    let names =
        fs::read_dir(&examples).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.collect::<BTreeSet<String>>(), shown.keys().cloned().collect(), "examples/standalone");
    for (name, text) in shown {
        assert_eq!(fs::read_to_string(examples.join(&name)).unwrap(), text, "examples/standalone/{name}");
    }
}

fn all() -> impl Iterator<Item = &'static str> {
    PAGES.iter().copied().chain(IN_GUEST.iter().map(|(path, _)| *path))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page(path: &str) -> Page {
    Page::parse(&fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}")))
}

fn run_here(path: &str) {
    let mut page = page(path);
    let differences = pages::run(path, &mut page);
    if pages::write() {
        fs::write(root().join(path), page.render()).unwrap();
    } else {
        let how = "KNIT_DOCS_WRITE=1 writes what was printed into the page";
        assert!(differences.is_empty(), "\n{}\n\n{how}", differences.join("\n\n"));
    }
}
