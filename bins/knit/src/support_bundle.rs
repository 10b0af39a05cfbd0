//! `knit support-bundle`: state, inputs of the last minutes, kernel network configuration, logs and versions of a node in one archive.
//!
//! Secrets are redacted. If a part cannot be read, the bundle has the error in its place. No program other than knit
//! itself is run: the image has none.

pub mod recording;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use knit_kernel::{Kernel, Netns, SandboxNamespaces, ScopeQuery, StateQuery};
use knit_model::{Scope, ScopeState};
use serde_json::{Value, json};

use crate::node_args::NodeArgs;
use crate::output;

/// Replaces values that may be secrets.
const REDACTED: &str = "(redacted)";

/// Fields whose values are redacted: their names contain one of these. Annotations can contain anything.
const SECRET_FIELDS: [&str; 6] = ["annotation", "secret", "privatekey", "private_key", "token", "password"];

/// Commands of knit whose output is in the bundle.
const COMMANDS: [(&str, &[&str]); 7] = [
    ("version.json", &["version", "-o", "json"]),
    ("doctor.json", &["doctor", "-o", "json"]),
    ("networks.json", &["networks", "-o", "json"]),
    ("ready.json", &["ready", "-o", "json"]),
    ("capacity.json", &["capacity", "-o", "json"]),
    ("logs.txt", &["logs", "--level", "trace"]),
    ("config.yaml", &["agent", "--print-config"]),
];

/// Files below `/proc/thread-self/net` of the host and of each pod: counters, and tables in the kernel's own format.
const PROC_NET_FILES: [&str; 9] =
    ["dev", "arp", "fib_trie", "if_inet6", "ipv6_route", "netstat", "snmp", "snmp6", "sockstat"];

/// Writes the bundle.
pub fn run(node: &NodeArgs, file: Option<PathBuf>, socket: Option<PathBuf>) -> Result<ExitCode> {
    let file = file.unwrap_or_else(|| PathBuf::from("knit-support.tar.gz"));
    let mut bundle = Bundle::create(&file).with_context(|| format!("cannot create {}", file.display()))?;
    collect(&mut bundle, node.state_dir(), socket.as_deref())
        .and_then(|()| bundle.finish())
        .with_context(|| format!("cannot write {}", file.display()))?;
    output::text(&format!("{}\n", file.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// A compressed archive that is being written.
struct Bundle {
    archive: tar::Builder<GzEncoder<File>>,
    mtime: u64,
}

impl Bundle {
    fn create(path: &Path) -> Result<Self> {
        // It has objects and addresses of all tenants.
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        let archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
        let mtime = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        Ok(Self { archive, mtime })
    }

    /// Adds a file. JSON is redacted.
    fn add(&mut self, name: &str, contents: &[u8]) -> Result<()> {
        let redacted = match serde_json::from_slice::<Value>(contents) {
            Ok(mut value) => {
                redact(&mut value);
                Some(serde_json::to_vec_pretty(&value)?)
            }
            Err(_) => None,
        };
        self.add_unchanged(name, redacted.as_deref().unwrap_or(contents))
    }

    /// Adds a file as it is.
    fn add_unchanged(&mut self, name: &str, contents: &[u8]) -> Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(u64::try_from(contents.len())?);
        header.set_mode(0o644);
        header.set_mtime(self.mtime);
        Ok(self.archive.append_data(&mut header, name, contents)?)
    }

    fn finish(self) -> Result<()> {
        self.archive.into_inner()?.finish()?.sync_all()?;
        Ok(())
    }
}

fn collect(bundle: &mut Bundle, state_dir: &Path, socket: Option<&Path>) -> Result<()> {
    let knit = std::env::current_exe().context("cannot find this program on disk")?;
    for (name, arguments) in COMMANDS {
        bundle.add(name, &command_output(&knit, arguments, socket))?;
    }
    let pods = command_output(&knit, &["pods", "-o", "json"], socket);
    bundle.add("pods.json", &pods)?;
    bundle.add("kernel.txt", &read_or_error(Path::new("/proc/version")))?;
    add_network(bundle, "host", Netns::current())?;
    for (id, netns) in pod_namespaces(&pods) {
        let name: String = id.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        add_network(bundle, &format!("pods/{name}"), Netns::open(netns.as_ref()))?;
    }
    add_state(bundle, state_dir)?;
    recording::add(bundle, state_dir)
}

/// The output of a knit command, or the error.
fn command_output(knit: &Path, arguments: &[&str], socket: Option<&Path>) -> Vec<u8> {
    let mut command = Command::new(knit);
    command.args(arguments).stdin(Stdio::null());
    if let Some(socket) = socket {
        command.env("KNIT_KNI_SOCKET", socket);
    }
    match command.output() {
        Ok(output) => [output.stdout, output.stderr].concat(),
        Err(error) => format!("{}: {error}\n", knit.display()).into_bytes(),
    }
}

fn read_or_error(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| format!("{}: {error}\n", path.display()).into_bytes())
}

/// Adds the network configuration of a namespace: links, addresses, routes, rules and neighbours as Knit observes them,
/// and the files of [`PROC_NET_FILES`].
fn add_network(bundle: &mut Bundle, directory: &str, netns: knit_kernel::Result<Netns>) -> Result<()> {
    let observed = netns.and_then(|netns| {
        let files = netns.enter(|| {
            let read = |name| (name, read_or_error(&Path::new("/proc/thread-self/net").join(name)));
            PROC_NET_FILES.map(read)
        })?;
        Ok((observe(netns)?, files))
    });
    match observed {
        Ok((state, files)) => {
            bundle.add(&format!("{directory}/network.json"), &serde_json::to_vec(&state)?)?;
            files
                .iter()
                .try_for_each(|(name, text)| bundle.add(&format!("{directory}/proc-net/{name}"), text))
        }
        Err(error) => {
            let error = json!({ "error": error.to_string() });
            bundle.add(&format!("{directory}/network.json"), error.to_string().as_bytes())
        }
    }
}

fn observe(netns: Netns) -> knit_kernel::Result<ScopeState> {
    let mut kernel = Kernel::open(netns)?;
    let look = StateQuery::default().with_scope(Scope::Host, ScopeQuery::everything());
    let mut state = kernel.observe(&look, &mut SandboxNamespaces::new())?;
    Ok(state.scopes.remove(&Scope::Host).unwrap_or_default())
}

/// The ids and network namespaces of the pods in the output of `knit pods -o json`.
fn pod_namespaces(pods: &[u8]) -> Vec<(String, String)> {
    let pods: Value = serde_json::from_slice(pods).unwrap_or_default();
    let text = |pod: &Value, key: &str| pod.get(key).and_then(Value::as_str).map(str::to_owned);
    let pods = pods.get("pods").and_then(Value::as_array).cloned().unwrap_or_default();
    pods.iter().filter_map(|pod| Some((text(pod, "id")?, text(pod, "netnsPath")?))).collect()
}

/// Adds the journal and its snapshots, redacted line by line.
fn add_state(bundle: &mut Bundle, state_dir: &Path) -> Result<()> {
    let entries = fs::read_dir(state_dir).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.path().is_file()) {
        let text = String::from_utf8_lossy(&fs::read(entry.path()).unwrap_or_default()).into_owned();
        let lines: Vec<String> = text.lines().map(redacted_line).collect();
        let name = format!("state/{}", entry.file_name().to_string_lossy());
        bundle.add(&name, (lines.join("\n") + "\n").as_bytes())?;
    }
    Ok(())
}

/// A redacted line of the journal: two numbers and a JSON value. Of any other long line only the length is kept.
fn redacted_line(text: &str) -> String {
    let Some((numbers, json)) = text.find('{').map(|at| text.split_at(at)) else {
        return if text.len() < 64 { text.to_owned() } else { format!("({} bytes)", text.len()) };
    };
    match serde_json::from_str::<Value>(json) {
        Ok(mut value) => {
            redact(&mut value);
            format!("{numbers}{value}")
        }
        Err(_) => format!("{numbers}({} bytes of invalid JSON)", json.len()),
    }
}

fn redact(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let key = key.to_lowercase();
                if SECRET_FIELDS.iter().any(|field| key.contains(field)) {
                    *value = Value::String(REDACTED.to_owned());
                } else {
                    redact(value);
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(redact),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn secrets_in_a_journal_line_are_redacted() {
        let line = redacted_line(
            r#"7 0a0b0c0d {"attached":{"notes":{"annotations":{"x":"hush"}},"privateKey":"hush","mtu":9}}"#,
        );
        assert!(
            !line.contains("hush") && line.starts_with("7 0a0b0c0d {") && line.contains(r#""mtu":9"#),
            "{line}"
        );
        assert!(!redacted_line(r#"8 0a0b0c0d {"half":"hush"#).contains("hush"));
        assert!(!redacted_line(&"hush".repeat(40)).contains("hush"));
    }

    #[test]
    fn the_archive_can_be_read_back_and_has_no_secrets() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bundle.tar.gz");
        let mut bundle = Bundle::create(&path).unwrap();
        bundle.add("pods/a/network.json", br#"{"mtu":1500,"token":"hush"}"#).unwrap();
        bundle.add("kernel.txt", b"Linux\n").unwrap();
        bundle.finish().unwrap();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(File::open(&path).unwrap()));
        let mut files = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            files.push((entry.path().unwrap().display().to_string(), text));
        }
        assert_eq!(files[0].0, "pods/a/network.json");
        assert!(files[0].1.contains("1500") && !files[0].1.contains("hush"), "{files:?}");
        assert_eq!(files[1], ("kernel.txt".to_owned(), "Linux\n".to_owned()));
    }
}
