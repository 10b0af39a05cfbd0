//! Programs of this checkout in pods of tests.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::kubectl::{Namespace, command, run, text};

/// The files that a program needs in a pod: itself, and libraries that the test images may not contain. It lies beside the
/// programs of this package.
pub fn files(name: &str) -> Vec<PathBuf> {
    let program = Path::new(env!("CARGO_BIN_EXE_knit-testcluster")).with_file_name(name);
    assert!(program.exists(), "{} is missing: build its package", program.display());
    let listed = Command::new("ldd").arg(&program).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let libraries = listed.lines().filter_map(|line| line.split_once(" => "));
    let libraries = libraries.filter_map(|(_, rest)| rest.split_whitespace().next()).map(PathBuf::from);
    libraries.filter(|library| library.exists()).chain([program.clone()]).collect()
}

/// Copies a file into a folder of a pod, as the pod's user.
pub fn copy(namespace: &Namespace, pod: &str, file: &Path, folder: &str) {
    let name = file.file_name().unwrap().to_str().unwrap();
    let script = format!("cat > {folder}/{name} && chmod 755 {folder}/{name}");
    let args = ["-n", &namespace.name, "exec", "-i", pod, "--", "sh", "-c", &script];
    let copied = command(&args).stdin(File::open(file).unwrap()).output().unwrap();
    assert!(copied.status.success(), "{}", text(&copied));
}

/// Runs a script in a pod; returns its output.
pub fn script(namespace: &Namespace, pod: &str, script: &str) -> String {
    text(&run(&["-n", &namespace.name, "exec", pod, "--", "sh", "-c", script]))
}
