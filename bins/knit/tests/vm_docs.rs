//! Runs the pages about kinds that this machine's kernel may lack, in the guest.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

#[path = "support/pages.rs"]
mod pages;

use std::io::{self, Write};

use pages::{IN_GUEST, Page};

#[test]
fn pages_show_what_is_seen_on_a_kernel_that_has_all_kinds() {
    let mut differences = Vec::new();
    for (path, text) in IN_GUEST {
        let mut page = Page::parse(text);
        differences.extend(pages::run(path, &mut page));
        if pages::write() {
            // Not by a macro: what those print is kept back when a test passes.
            write!(io::stdout(), "--8<-- {path}\n{}--8<--\n", page.render()).unwrap();
        }
    }
    let how = "KNIT_DOCS_WRITE=1 prints the pages with what was printed";
    assert!(pages::write() || differences.is_empty(), "\n{}\n\n{how}", differences.join("\n\n"));
}
