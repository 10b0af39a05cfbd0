//! The demo's environment: a host namespace with a stand-in for the main CNI plugin, and pods that are Knit's sandboxes.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use knit_dev::places;
use knit_dev::process;
use knit_dev::progress::seconds;

/// The pods, and the last octet of their address on the main network.
const PODS: [(&str, u8); 2] = [("pod-a", 11), ("pod-b", 12)];

/// The demo's namespaces and progress.
pub struct Environment {
    folder: TempDir,
    knit: PathBuf,
    start: Instant,
    titles: usize,
    checks: usize,
}

impl Environment {
    pub fn new() -> Result<Self> {
        let folder = tempfile::tempdir().context("cannot create a temporary directory")?;
        let target = std::env::current_exe()?.parent().context("a program's path has a parent")?.to_owned();
        let knit = [target.join("knit"), places::workspace().join("target/debug/knit")]
            .into_iter()
            .find(|path| path.exists());
        let knit = knit.context("knit was not built")?;
        let environment = Self { folder, knit, start: Instant::now(), titles: 0, checks: 0 };
        environment.quiet("ip link set lo up")?;
        Ok(environment)
    }

    /// Prints the title of the next section.
    pub fn title(&mut self, text: &str) {
        self.titles += 1;
        println!("\n== {}. {text}", self.titles);
    }

    /// Checks a condition; the demo ends if it does not hold.
    pub fn check(&mut self, what: &str, holds: bool) -> Result<()> {
        ensure!(holds, "check failed: {what}");
        self.checks += 1;
        println!("  ok  {what}");
        Ok(())
    }

    /// Adds pods with an eth0 on a bridge, like a simple CNI plugin.
    pub fn add_pods(&mut self) -> Result<()> {
        self.quiet("ip link add cni0 type bridge")?;
        self.quiet("ip addr add 10.85.0.1/24 dev cni0")?;
        self.quiet("ip link set cni0 up")?;
        for (pod, number) in PODS {
            self.run(&format!("knit sandbox add {pod} --label podconfig=podconfig-sample-a"))?;
            let pid = self.pid(pod)?;
            self.quiet(&format!(
                "ip link add cni-{pod} master cni0 up type veth peer name eth0 netns {pid}"
            ))?;
            self.quiet_in_pod(pod, &format!("ip addr add 10.85.0.{number}/24 dev eth0"))?;
            self.quiet_in_pod(pod, "ip link set eth0 up")?;
            self.quiet_in_pod(pod, "ip route add default via 10.85.0.1")?;
        }
        self.settle()
    }

    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        println!("  $ cat {name}");
        text.lines().for_each(|line| println!("      {line}"));
        std::fs::write(self.folder.path().join(name), text).with_context(|| format!("cannot write {name}"))
    }

    /// Prints a command and its output; it must succeed.
    pub fn run(&self, line: &str) -> Result<()> {
        self.fails_with(line, 0)
    }

    /// Prints a command and its output; it must end with this code.
    pub fn fails_with(&self, line: &str, code: i32) -> Result<()> {
        println!("  $ {line}");
        let output = self.output(line)?;
        show(&output);
        ensure!(output.status.code() == Some(code), "`{line}` ended with {}", output.status);
        Ok(())
    }

    /// Runs and prints a command inside a pod.
    pub fn in_pod(&self, pod: &str, line: &str) -> Result<()> {
        self.run(&format!("knit sandbox exec {pod} -- {line}"))
    }

    pub fn quiet(&self, line: &str) -> Result<String> {
        let output = self.output(line)?;
        if !output.status.success() {
            bail!("`{line}` failed: {}", process::tail(&String::from_utf8_lossy(&output.stderr)));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    pub fn quiet_in_pod(&self, pod: &str, line: &str) -> Result<String> {
        self.quiet(&format!("knit sandbox exec {pod} -- {line}"))
    }

    /// Pings three times. Returns whether all replies arrived, and the average round trip time as text.
    pub fn ping(&self, pod: &str, address: &str) -> Result<(bool, String)> {
        let output =
            self.output(&format!("knit sandbox exec {pod} -- ping -q -c 3 -i 0.1 -W 2 {address}"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        // rtt min/avg/max/mdev = 0.027/0.043/0.087/0.021 ms
        let average =
            text.lines().find_map(|line| line.strip_prefix("rtt ")?.split('/').nth(4).map(str::to_owned));
        Ok((
            output.status.success(),
            average.map_or_else(String::new, |time| format!(" ({time} ms round trip)")),
        ))
    }

    pub fn pid(&self, pod: &str) -> Result<u32> {
        let list: serde_json::Value = serde_json::from_str(&self.quiet("knit sandbox list -o json")?)?;
        let row = list.as_array().into_iter().flatten().find(|row| row["name"] == pod);
        let pid = row.and_then(|row| row["pid"].as_u64()).with_context(|| format!("no sandbox {pod}"))?;
        Ok(u32::try_from(pid)?)
    }

    pub fn mtu(&self, pod: &str, link: &str) -> Result<u64> {
        let text = self.quiet_in_pod(pod, &format!("ip -j link show {link}"))?;
        let links: serde_json::Value = serde_json::from_str(&text)?;
        links[0]["mtu"].as_u64().with_context(|| format!("{link} of {pod} shows no MTU"))
    }

    /// Links, addresses, routes of all tables and rules, of the host and of each pod.
    pub fn snapshot(&self) -> Result<String> {
        let mut snapshot = String::new();
        for command in
            ["ip -br link", "ip -br addr", "ip route show table all", "ip -6 route show table all", "ip rule"]
        {
            snapshot += &self.quiet(command)?;
            for (pod, _) in PODS {
                snapshot += &self.quiet_in_pod(pod, command)?;
            }
        }
        Ok(snapshot)
    }

    /// Waits until duplicate address detection has finished: a snapshot before that would change by itself.
    fn settle(&self) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let mut tentative = self.quiet("ip -6 addr show tentative")?;
            for (pod, _) in PODS {
                tentative += &self.quiet_in_pod(pod, "ip -6 addr show tentative")?;
            }
            if tentative.trim().is_empty() {
                return Ok(());
            }
            ensure!(Instant::now() < end, "addresses stay tentative:\n{tentative}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Deletes the pods and prints a summary.
    pub fn end(self) -> Result<()> {
        for (pod, _) in PODS {
            self.quiet(&format!("knit sandbox delete {pod}"))?;
        }
        println!(
            "\n{} checks passed in {}. Try it: docs/standalone.md",
            self.checks,
            seconds(self.start.elapsed())
        );
        Ok(())
    }

    fn output(&self, line: &str) -> Result<Output> {
        let mut args = line.split_whitespace();
        let program = args.next().context("empty command")?;
        let mut command = if program == "knit" { Command::new(&self.knit) } else { Command::new(program) };
        command.args(args).current_dir(self.folder.path());
        command.env("KNIT_STATE_DIR", self.folder.path().join("state"));
        command.output().with_context(|| format!("cannot start `{line}`"))
    }
}

fn show(output: &Output) {
    for text in [&output.stdout, &output.stderr] {
        String::from_utf8_lossy(text).lines().for_each(|line| println!("      {line}"));
    }
}
