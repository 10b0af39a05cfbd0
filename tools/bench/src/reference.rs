//! The reference: Debian's CNI bridge plugin with host-local addresses, called as by a container runtime.

use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use knit_kernel::Netns;
use serde_json::json;

use knit_report::Samples;

const PLUGINS: &str = "/usr/lib/cni";

/// Measures ADD and DEL of one pod. The plugins start in the host's namespace, which the calling thread is in.
pub fn measure(pod: &Netns, rounds: usize) -> Result<(Samples, Samples)> {
    let leases = tempfile::tempdir().context("cannot create a temporary directory")?;
    let plugin = Reference::new(leases.path(), pod);
    let (mut add, mut del) = (Samples::new(), Samples::new());
    for _ in 0..rounds {
        plugin.cycle(&mut add, &mut del)?;
    }
    Ok((add, del))
}

/// The plugin with its configuration, and a pod.
pub struct Reference {
    config: String,
    netns: String,
}

impl Reference {
    /// Leases are stored in this directory.
    pub fn new(leases: &Path, pod: &Netns) -> Self {
        let config = json!({
            "cniVersion": "1.0.0", "name": "bench", "type": "bridge", "bridge": "cni0", "isGateway": true,
            "ipam": {
                "type": "host-local", "dataDir": leases,
                "ranges": [[{ "subnet": "10.89.0.0/16" }]], "routes": [{ "dst": "0.0.0.0/0" }],
            },
        });
        // The descriptor's path in /proc, which needs no mount.
        let netns = format!("/proc/{}/fd/{}", std::process::id(), pod.as_fd().as_raw_fd());
        Self { config: config.to_string(), netns }
    }

    /// One ADD and one DEL. The plugin starts in the namespace of the calling thread.
    pub fn cycle(&self, add: &mut Samples, del: &mut Samples) -> Result<()> {
        let bridge = Path::new(PLUGINS).join("bridge");
        add.time(|| call(&bridge, "ADD", "bench", &self.netns, &self.config))?;
        del.time(|| call(&bridge, "DEL", "bench", &self.netns, &self.config))
    }
}

/// Calls a plugin like a container runtime.
pub fn call(program: &Path, verb: &str, container: &str, netns: &str, config: &str) -> Result<()> {
    let mut plugin = Command::new(program);
    plugin.env("CNI_COMMAND", verb).env("CNI_CONTAINERID", container).env("CNI_NETNS", netns);
    plugin.env("CNI_IFNAME", "eth0").env("CNI_PATH", PLUGINS);
    plugin.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running =
        plugin.spawn().with_context(|| format!("cannot start the plugin {}", program.display()))?;
    let written =
        running.stdin.take().context("the plugin's standard input is piped")?.write_all(config.as_bytes());
    match written {
        // An empty program does not read its input.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(error.into()),
        _ => {}
    }
    let done = running.wait_with_output()?;
    if !done.status.success() {
        let output = [done.stdout, done.stderr].concat();
        bail!("{verb} of {} failed: {}", program.display(), String::from_utf8_lossy(&output));
    }
    Ok(())
}
