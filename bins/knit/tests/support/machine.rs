//! A machine with pods of "the main CNI plugin", and `knit` as a person runs it there.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use knit_testbed::{Dump, Namespace, Pod, Testbed};
use serde_json::Value;
use tempfile::TempDir;

/// The walkthrough's object: two networks.
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

/// A host with a network of its own, pods on it, and a folder for Knit's state.
pub struct Machine {
    pub testbed: Testbed,
    pub host: Namespace,
    folder: TempDir,
}

/// What a command said, and how it ended.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// Dumps of namespaces, to be compared with later ones.
pub struct Untouched(Vec<(Namespace, Dump)>);

impl Machine {
    /// A host with a bridge of the main CNI plugin, a route, a rule and a table of others.
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

    /// A running pod whose `eth0` the main CNI plugin made; `number` is the end of its address.
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

    /// A pod that Knit knows, with labels as `knit sandbox add` takes them.
    pub fn known_pod(&self, name: &str, number: u8, labels: &[&str]) -> Pod {
        let pod = self.pod(name, number);
        self.add(name, &pod, labels);
        pod
    }

    /// Has Knit know a pod.
    pub fn add(&self, name: &str, pod: &Pod, labels: &[&str]) {
        let pid = pod.pid().to_string();
        let mut arguments = vec!["sandbox", "add", name, "--pid", &pid];
        arguments.extend(labels.iter().flat_map(|label| ["-l", label]));
        assert_eq!(self.knit(&arguments).ok(), format!("sandbox/{name} created (pid {pid})\n"));
    }

    /// The state folder.
    pub fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// A file beside the state folder.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Runs `knit` on the host.
    pub fn knit(&self, arguments: &[&str]) -> Said {
        self.knit_with(arguments, "", &[])
    }

    /// Runs `knit` on the host with something on standard input, and more in its environment.
    pub fn knit_with(&self, arguments: &[&str], input: &str, environment: &[(&str, &str)]) -> Said {
        let mut command = self.host.command(env!("CARGO_BIN_EXE_knit"));
        command.args(arguments).env("KNIT_STATE_DIR", self.state()).envs(environment.iter().copied());
        Said::of(command, input)
    }

    /// `knit apply` of a text.
    pub fn apply(&self, yaml: &str) -> Said {
        self.knit_with(&["apply", "-f", "-"], yaml, &[])
    }

    /// `knit delete` of a text.
    pub fn delete(&self, yaml: &str) -> Said {
        self.knit_with(&["delete", "-f", "-"], yaml, &[])
    }

    /// An object as `knit get -o json` shows it.
    pub fn get(&self, kind: &str, name: &str) -> Value {
        let list: Value = serde_json::from_str(&self.knit(&["get", kind, name, "-o", "json"]).ok()).unwrap();
        list["items"][0].clone()
    }

    /// Nothing stands in the way, nothing differs.
    pub fn assert_at_rest(&self) {
        let said = self.knit(&["status"]);
        assert_eq!(said.code, Some(0), "{said:?}");
        assert_eq!(said.err, "");
    }

    /// What the host has of others: its main table, rules, filters.
    pub fn of_others(&self) -> String {
        let rules = self.host.ip(&["rule"]) + &self.host.ip(&["-6", "rule"]);
        let rules: String = rules.lines().filter(|rule| !rule.contains("lookup 7500")).collect();
        let routes = self.host.ip(&["route", "show", "table", "main"])
            + &self.host.ip(&["-6", "route", "show", "table", "main", "dev", "cni0"]);
        rules + &routes + &self.host.output("nft", &["list", "ruleset"]).unwrap()
    }

    /// How the host and these pods look now.
    pub fn untouched(&self, pods: &[&Pod]) -> Untouched {
        let places = std::iter::once(&self.host).chain(pods.iter().map(|pod| pod.namespace()));
        Untouched(places.map(|place| (place.clone(), Dump::settled(place))).collect())
    }
}

/// A test that fails leaves no holder of a sandbox behind: they are processes of their own, in namespaces of their own.
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

impl Untouched {
    /// They look the same again.
    #[track_caller]
    pub fn assert_again(&self) {
        for (place, dump) in &self.0 {
            dump.assert_unchanged(place);
        }
    }
}

impl Said {
    /// What a command says that reads this on standard input.
    pub fn of(mut command: Command, input: &str) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // One that was killed does not read to the end.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let output = child.wait_with_output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Self { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// What it said; it must have succeeded.
    #[track_caller]
    pub fn ok(&self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out.clone()
    }

    /// What it said on standard error; it must have failed.
    #[track_caller]
    pub fn refused(&self) -> String {
        assert_eq!(self.code, Some(1), "{self:?}");
        self.err.clone()
    }
}

/// A value of `ip -d -j link show`.
pub fn link(place: &Namespace, name: &str) -> Value {
    place.ip_json(&["-d", "link", "show", "dev", name])[0].clone()
}

/// Whether there is such a link.
pub fn has_link(place: &Namespace, name: &str) -> bool {
    place.output("ip", &["link", "show", "dev", name]).is_ok()
}

/// The addresses of a link that someone gave it, with their prefix lengths.
pub fn addresses(place: &Namespace, name: &str) -> Vec<String> {
    let shown = place.ip_json(&["address", "show", "dev", name]);
    let all = shown[0]["addr_info"].as_array().unwrap().clone();
    let given = all.iter().filter(|address| address["scope"] == "global");
    given.map(|address| format!("{}/{}", address["local"].as_str().unwrap(), address["prefixlen"])).collect()
}

/// Each of these reaches each other. The host says which of its addresses it speaks from: its main table does not know
/// the pods' networks.
#[track_caller]
pub fn assert_all_reach(all: &[(&Namespace, &str)]) {
    for (from, source) in all {
        for (_, address) in all.iter().filter(|(_, address)| address != source) {
            from.output("ping", &["-n", "-c", "1", "-i", "0.2", "-w", "5", "-I", source, address]).unwrap();
        }
    }
}

/// Text with every line's indentation kept, written to a folder.
pub fn write(folder: &Path, name: &str, text: &str) {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join(name), text).unwrap();
}
