//! Compiles the eBPF programs with clang. The object file is never committed.

use std::path::Path;
use std::process::{Command, exit};

const SOURCE: &str = "src/redirect.c";

fn main() {
    println!("cargo::rerun-if-changed={SOURCE}");
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let out_dir = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let mut command = Command::new(&clang);
    command.args(["-target", "bpf", "-O2", "-Wall", "-Werror", "-ffreestanding", "-c", SOURCE, "-o"]);
    command.arg(Path::new(&out_dir).join("redirect.o"));
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => fail(&format!("`{clang}` failed to compile {SOURCE} for eBPF: {status}")),
        Err(error) => fail(&format!(
            "`{clang}` cannot be started: {error}. clang compiles Knit's eBPF programs: run `apt-get install clang` on Debian, \
             or `cargo xtask deps --install`, or set CLANG to another compiler"
        )),
    }
}

fn fail(message: &str) -> ! {
    println!("cargo::error={message}");
    exit(1)
}
