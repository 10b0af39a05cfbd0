//! A machine with pods of a primary CNI plugin, and `knit` commands on it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use knit_testbed::{Dump, Namespace, Pod, Testbed};
use serde_json::Value;
use tempfile::TempDir;

/// The object of the walkthrough: two networks.
pub const SAMPLE: &str = r#"
apiVersion: podconfig.opdev.io/v1alpha1
kind: PodConfig
metadata:
  name: podconfig-sample-a
spec:
  networkAttachments:
    - name: pc0
      linkType: veth
      master: pcbr0
      parent: pc0
      cidr: "192.168.100.0/24"
    - name: pc1
      linkType: veth
      master: pcbr1
      parent: pc1
      cidr: "192.168.99.0/24"
"#;

/// A host with a primary network, pods, and a state directory.
pub struct Machine {
    pub testbed: Testbed,
    pub host: Namespace,
    folder: TempDir,
}

/// The output and exit code of a command.
#[derive(Debug)]
pub struct CommandOutput {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// Dumps of namespaces.
pub struct Snapshot(Vec<(Namespace, Dump)>);

impl Machine {
    /// A host with a bridge of the primary CNI plugin, and foreign routes, rules and tables.
    pub fn new(test: &str) -> Self {
        let testbed = Testbed::new(test);
        let host = testbed.host();
        testbed.bridge(&host, "cni0");
        host.address("cni0", "10.128.2.1/23");
        host.ip(&["route", "add", "172.30.0.0/16", "dev", "cni0"]);
        host.ip(&["rule", "add", "from", "10.99.0.0/16", "table", "99", "priority", "500"]);
        host.output("nft", &["add", "table", "inet", "kube-proxy"]).unwrap();
        host.output("nft", &["add", "chain", "inet", "kube-proxy", "services"]).unwrap();
        Self { testbed, host, folder: TempDir::new().unwrap() }
    }

    /// A running pod with `eth0` of the primary CNI plugin; `number` is the last byte of its address.
    pub fn pod(&self, name: &str, number: u8) -> Pod {
        let pod = self.testbed.pod(name);
        let port = format!("cni-{name}");
        self.testbed.connect(&pod, "eth0", &self.host, &port);
        self.host.enslave(&port, "cni0");
        for (place, link) in [(pod.namespace(), "eth0"), (&self.host, port.as_str())] {
            place.ip(&["link", "set", link, "mtu", "1450"]);
        }
        pod.address("eth0", &format!("10.128.2.{number}/23"));
        pod.ip(&["route", "add", "default", "via", "10.128.2.1"]);
        pod
    }

    /// A pod that is registered with these labels.
    pub fn registered_pod(&self, name: &str, number: u8, labels: &[&str]) -> Pod {
        let pod = self.pod(name, number);
        self.add(name, &pod, labels);
        pod
    }

    /// Registers a pod.
    pub fn add(&self, name: &str, pod: &Pod, labels: &[&str]) {
        let pid = pod.pid().to_string();
        let mut arguments = vec!["sandbox", "add", name, "--pid", &pid];
        arguments.extend(labels.iter().flat_map(|label| ["-l", label]));
        assert_eq!(self.knit(&arguments).ok(), format!("sandbox/{name} created (pid {pid})\n"));
    }

    /// The state directory.
    pub fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// Writes a file next to the state directory.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Runs `knit` on the host.
    pub fn knit(&self, arguments: &[&str]) -> CommandOutput {
        self.knit_with(arguments, "", &[])
    }

    /// Runs `knit` on the host with standard input and environment variables.
    pub fn knit_with(&self, arguments: &[&str], input: &str, environment: &[(&str, &str)]) -> CommandOutput {
        let mut command = self.host.command(env!("CARGO_BIN_EXE_knit"));
        command.args(arguments).env("KNIT_STATE_DIR", self.state()).envs(environment.iter().copied());
        CommandOutput::of(command, input)
    }

    /// `knit apply` of a text.
    pub fn apply(&self, yaml: &str) -> CommandOutput {
        self.knit_with(&["apply", "-f", "-"], yaml, &[])
    }

    /// `knit delete` of a text.
    pub fn delete(&self, yaml: &str) -> CommandOutput {
        self.knit_with(&["delete", "-f", "-"], yaml, &[])
    }

    /// The output of `knit get -o json` for one object.
    pub fn get(&self, kind: &str, name: &str) -> Value {
        let list: Value = serde_json::from_str(&self.knit(&["get", kind, name, "-o", "json"]).ok()).unwrap();
        list["items"][0].clone()
    }

    /// Asserts that there are no problems and no drift.
    pub fn assert_no_drift(&self) {
        let printed = self.knit(&["status"]);
        assert_eq!(printed.code, Some(0), "{printed:?}");
        assert_eq!(printed.err, "");
    }

    /// The foreign routes, rules and nftables tables of the host.
    pub fn foreign_state(&self) -> String {
        let ruleset = self.host.output("nft", &["list", "ruleset"]).unwrap();
        let tables = ruleset.split_inclusive("\n}\n").filter(|table| {
            let title = table.lines().next().unwrap_or_default();
            !title.contains(" knit {")
        });
        let rules = self.host.ip(&["rule"]) + &self.host.ip(&["-6", "rule"]);
        let rules: String = rules.lines().filter(|rule| !rule.contains("lookup 7500")).collect();
        let routes = self.host.ip(&["route", "show", "table", "main"])
            + &self.host.ip(&["-6", "route", "show", "table", "main", "dev", "cni0"]);
        rules + &routes + &tables.collect::<String>()
    }

    /// Dumps the host and these pods.
    pub fn snapshot(&self, pods: &[&Pod]) -> Snapshot {
        let places = std::iter::once(&self.host).chain(pods.iter().map(|pod| pod.namespace()));
        Snapshot(places.map(|place| (place.clone(), Dump::settled(place))).collect())
    }
}

/// A failed test must not leave holders of sandboxes behind.
impl Drop for Machine {
    fn drop(&mut self) {
        let knit = |arguments: &[&str]| {
            let mut command = self.host.command(env!("CARGO_BIN_EXE_knit"));
            command.args(arguments).env("KNIT_STATE_DIR", self.state()).output()
        };
        if !std::thread::panicking() {
            return;
        }
        let listed = knit(&["sandbox", "list", "-o", "json"]).map(|output| output.stdout).unwrap_or_default();
        let listed: Vec<Value> = serde_json::from_slice(&listed).unwrap_or_default();
        for name in listed.iter().filter_map(|sandbox| sandbox["name"].as_str()) {
            let _ = knit(&["sandbox", "delete", name]);
        }
    }
}

impl Snapshot {
    /// Asserts that the namespaces are unchanged.
    #[track_caller]
    pub fn assert_unchanged(&self) {
        for (place, dump) in &self.0 {
            dump.assert_unchanged(place);
        }
    }
}

impl CommandOutput {
    /// Runs a command with this standard input.
    pub fn of(mut command: Command, input: &str) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A killed command does not read everything.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let output = child.wait_with_output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Self { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// The standard output; panics if the command failed.
    #[track_caller]
    pub fn ok(&self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out.clone()
    }

    /// The standard error; panics if the command did not fail.
    #[track_caller]
    pub fn error(&self) -> String {
        assert_eq!(self.code, Some(1), "{self:?}");
        self.err.clone()
    }
}

/// The output of `ip -d -j link show`.
pub fn link(place: &Namespace, name: &str) -> Value {
    place.ip_json(&["-d", "link", "show", "dev", name])[0].clone()
}

/// Whether the link exists.
pub fn has_link(place: &Namespace, name: &str) -> bool {
    place.output("ip", &["link", "show", "dev", name]).is_ok()
}

/// The global addresses of a link with their prefix lengths.
pub fn addresses(place: &Namespace, name: &str) -> Vec<String> {
    let shown = place.ip_json(&["address", "show", "dev", name]);
    let all = shown[0]["addr_info"].as_array().unwrap().clone();
    let given = all.iter().filter(|address| address["scope"] == "global");
    given.map(|address| format!("{}/{}", address["local"].as_str().unwrap(), address["prefixlen"])).collect()
}

/// Asserts that all reach each other. The host needs a source address: its main table does not have
/// routes to the networks of the pods.
#[track_caller]
pub fn assert_all_reach(all: &[(&Namespace, &str)]) {
    for (from, source) in all {
        for (_, address) in all.iter().filter(|(_, address)| address != source) {
            from.output("ping", &["-n", "-c", "1", "-i", "0.2", "-w", "5", "-I", source, address]).unwrap();
        }
    }
}

/// Writes a file, and creates its directory.
pub fn write(folder: &Path, name: &str, text: &str) {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join(name), text).unwrap();
}
