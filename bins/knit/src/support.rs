//! `knit support-bundle`: what a maintainer needs to understand a node, in one file, without secrets.
//!
//! Each part is what a person would have typed. A part that cannot be had is in the bundle as the reason why.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::output;
use crate::place::Place;

/// What stands where a value was that may be a secret.
const LEFT_OUT: &str = "(left out)";

/// What knit itself is asked.
const QUESTIONS: [(&str, &[&str]); 8] = [
    ("version.json", &["version", "-o", "json"]),
    ("doctor.json", &["doctor", "-o", "json"]),
    ("pods.json", &["pods", "-o", "json"]),
    ("networks.json", &["networks", "-o", "json"]),
    ("ready.json", &["ready", "-o", "json"]),
    ("capacity.json", &["capacity", "-o", "json"]),
    ("logs.txt", &["logs", "--level", "trace"]),
    ("config.yaml", &["agent", "--print-config"]),
];

/// What the kernel is asked, on the host and in each pod.
const KERNEL: [(&str, &[&str]); 5] = [
    ("links.txt", &["ip", "-d", "link"]),
    ("addresses.txt", &["ip", "address"]),
    ("routes.txt", &["ip", "route", "show", "table", "all"]),
    ("routes6.txt", &["ip", "-6", "route", "show", "table", "all"]),
    ("rules.txt", &["ip", "rule"]),
];

/// Collects everything into a compressed archive.
pub fn run(place: &Place, file: Option<PathBuf>, socket: Option<PathBuf>) -> Result<ExitCode> {
    let file = file.unwrap_or_else(|| PathBuf::from("knit-support.tar.gz"));
    let folder = std::env::temp_dir().join(format!("knit-support-{}", std::process::id()));
    // Nobody else may have made it, and nobody else may read it.
    let made = fs::DirBuilder::new().mode(0o700).create(&folder);
    made.with_context(|| format!("cannot make {}", folder.display()))?;
    let collected = collect(place, &folder, socket.as_deref()).and_then(|()| pack(&folder, &file));
    // The first error is the one to tell.
    let removed = fs::remove_dir_all(&folder);
    collected?;
    removed.with_context(|| format!("cannot remove {}", folder.display()))?;
    output::text(&format!("{}\n", file.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn collect(place: &Place, folder: &Path, socket: Option<&Path>) -> Result<()> {
    let knit = std::env::current_exe().context("cannot find this program on disk")?;
    for (name, words) in QUESTIONS {
        let mut command = Command::new(&knit);
        command.args(words);
        if let Some(socket) = socket {
            command.env("KNIT_KNI_SOCKET", socket);
        }
        keep(folder, name, &mut command)?;
    }
    keep(folder, "kernel.txt", Command::new("uname").arg("-a"))?;
    look(&folder.join("host"), None)?;
    for (id, netns) in pods(folder) {
        let name: String =
            id.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' }).collect();
        look(&folder.join("pods").join(name), Some(&netns))?;
    }
    state(place.folder(), &folder.join("state"))
}

/// Keeps what a command says, or why it said nothing. Annotations may hold anything, so they are left out.
fn keep(folder: &Path, name: &str, command: &mut Command) -> Result<()> {
    let said = match command.stdin(Stdio::null()).output() {
        Ok(output) => [output.stdout, output.stderr].concat(),
        Err(why) => format!("{}: {why}\n", command.get_program().to_string_lossy()).into_bytes(),
    };
    let said = match serde_json::from_slice::<Value>(&said) {
        Ok(mut value) => {
            leave_out_secrets(&mut value);
            serde_json::to_vec_pretty(&value)?
        }
        Err(_) => said,
    };
    fs::write(folder.join(name), said).with_context(|| format!("cannot write {name}"))
}

/// What the kernel shows on the host, or in a namespace.
fn look(folder: &Path, netns: Option<&str>) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for (name, words) in KERNEL {
        let mut command = match netns {
            None => Command::new(words[0]),
            Some(netns) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net={netns}")).arg(words[0]);
                command
            }
        };
        keep(folder, name, command.args(&words[1..]))?;
    }
    Ok(())
}

/// The pods that the agent told of, with their namespaces.
fn pods(folder: &Path) -> Vec<(String, String)> {
    let told = fs::read(folder.join("pods.json")).unwrap_or_default();
    let told: Value = serde_json::from_slice(&told).unwrap_or_default();
    let text = |pod: &Value, key: &str| pod.get(key).and_then(Value::as_str).map(str::to_owned);
    let pods = told.get("pods").and_then(Value::as_array).cloned().unwrap_or_default();
    pods.iter().filter_map(|pod| Some((text(pod, "id")?, text(pod, "netnsPath")?))).collect()
}

/// The journal and its snapshots, line by line.
fn state(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    for entry in fs::read_dir(from).into_iter().flatten().flatten().filter(|entry| entry.path().is_file()) {
        let text = String::from_utf8_lossy(&fs::read(entry.path()).unwrap_or_default()).into_owned();
        let lines: Vec<String> = text.lines().map(line).collect();
        fs::write(to.join(entry.file_name()), lines.join("\n") + "\n").context("cannot write the state")?;
    }
    Ok(())
}

/// A line of the journal: two numbers and a value. What is none of that may be anything, so only its length is kept.
fn line(text: &str) -> String {
    let Some((numbers, json)) = text.find('{').map(|at| text.split_at(at)) else {
        return if text.len() < 64 { text.to_owned() } else { format!("({} bytes)", text.len()) };
    };
    match serde_json::from_str::<Value>(json) {
        Ok(mut value) => {
            leave_out_secrets(&mut value);
            format!("{numbers}{value}")
        }
        Err(_) => format!("{numbers}({} bytes that are no value)", json.len()),
    }
}

fn leave_out_secrets(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let lower = key.to_lowercase();
                let secret = ["annotation", "secret", "privatekey", "private_key", "token", "password"];
                if secret.iter().any(|word| lower.contains(word)) {
                    *value = Value::String(LEFT_OUT.to_owned());
                } else {
                    leave_out_secrets(value);
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(leave_out_secrets),
        _ => {}
    }
}

fn pack(folder: &Path, file: &Path) -> Result<()> {
    let mut tar = Command::new("tar");
    let status = tar.arg("-czf").arg(file).arg("-C").arg(folder).arg(".").status();
    if !status.context("cannot run tar")?.success() {
        bail!("cannot write {}", file.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_a_secret_is_left_out_of_a_journal_line() {
        let told = line(
            r#"7 0a0b0c0d {"attached":{"notes":{"annotations":{"x":"hush"}},"privateKey":"hush","mtu":9}}"#,
        );
        assert!(
            !told.contains("hush") && told.starts_with("7 0a0b0c0d {") && told.contains(r#""mtu":9"#),
            "{told}"
        );
        assert!(!line(r#"8 0a0b0c0d {"half":"hush"#).contains("hush"));
        assert!(!line(&"hush".repeat(40)).contains("hush"));
    }
}
