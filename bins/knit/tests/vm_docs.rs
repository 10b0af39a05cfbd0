//! Runs the pages about kinds that need the kernel of the guest.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

#[path = "support/pages.rs"]
mod pages;

use std::fs;
use std::io::{self, Write};

use pages::{IN_GUEST, Page};

#[test]
fn pages_match_a_kernel_with_all_kinds() {
    // Once loaded, the modules of tunnels would add their fallback devices to the namespaces of the pages that follow.
    fs::write("/proc/sys/net/core/fb_tunnels_only_for_init_net", "2").unwrap();
    let mut differences = Vec::new();
    for (path, text) in IN_GUEST {
        let mut page = Page::parse(text);
        differences.extend(pages::run(path, &mut page));
        if pages::write() {
            // Not with `println!`: the test harness captures its output.
            write!(io::stdout(), "--8<-- {path}\n{}--8<--\n", page.render()).unwrap();
        }
    }
    let how = "KNIT_DOCS_WRITE=1 prints the pages with what was printed";
    assert!(pages::write() || differences.is_empty(), "\n{}\n\n{how}", differences.join("\n\n"));
}
