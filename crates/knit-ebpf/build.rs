//! Compiles the program. Its object is never committed: it is made from the source, on every machine that builds Knit.

use std::path::Path;
use std::process::{Command, exit};

const SOURCE: &str = "src/redirect.c";

fn main() {
    println!("cargo::rerun-if-changed={SOURCE}");
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let folder = std::env::var("OUT_DIR").expect("cargo says where the results of a build script go");
    let mut command = Command::new(&clang);
    command.args(["-target", "bpf", "-O2", "-Wall", "-Werror", "-ffreestanding", "-c", SOURCE, "-o"]);
    command.arg(Path::new(&folder).join("redirect.o"));
    match command.status() {
        Ok(done) if done.success() => {}
        Ok(done) => fail(&format!("`{clang}` could not compile {SOURCE} for eBPF: {done}")),
        Err(why) => fail(&format!(
            "`{clang}` cannot be started: {why}. It compiles Knit's eBPF program. Install it: `apt-get install clang` on Debian, \
             or `cargo xtask deps --install`; another one can be named in the variable CLANG"
        )),
    }
}

fn fail(why: &str) -> ! {
    println!("cargo::error={why}");
    exit(1)
}
