//! Knit's eBPF program between two pods. It is compiled at run time, so that this crate builds without clang.

use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::{Context, Result, bail};
use knit_kernel::Netns;
use knit_kernel::redirect::{DatapathMode, Redirect, RedirectPort, RedirectSpec};
use knit_model::Mac;

use knit_dev::places;
use knit_dev::process;

/// The program at two ports. Its pinned objects are removed when dropped.
pub struct AttachedProgram {
    host: Netns,
    redirect: Redirect,
}

impl AttachedProgram {
    /// Attaches it to these links of the host, whose peers are in these pods.
    pub fn new(host: &Netns, links: [&str; 2], pods: &[Netns; 2], addresses: [Ipv4Addr; 2]) -> Result<Self> {
        // The program bytes live until the process ends, as in an agent.
        let new = Self { host: host.clone(), redirect: Redirect::new(Some(compile()?.leak())) };
        let mut ports = Vec::new();
        for ((link, pod), address) in links.into_iter().zip(pods).zip(addresses) {
            let mac = mac(pod)?;
            ports.push(RedirectPort { link: link.parse()?, mac, addresses: [address.into()].into() });
        }
        new.redirect.apply(host, &RedirectSpec { ports, ..RedirectSpec::default() })?;
        Ok(new)
    }

    /// Checks that it has redirected packets.
    pub fn check(&self) -> Result<()> {
        match self.redirect.mode() {
            DatapathMode::Redirect { packets: 1.., .. } => Ok(()),
            other => bail!("Knit's eBPF program redirected no packets: {other:?}"),
        }
    }
}

impl Drop for AttachedProgram {
    fn drop(&mut self) {
        let _ = self.redirect.apply(&self.host, &RedirectSpec::default());
    }
}

/// Compiles the program.
pub fn compile() -> Result<Vec<u8>> {
    let folder = tempfile::tempdir().context("cannot create a temporary directory")?;
    let object = folder.path().join("redirect.o");
    let mut clang = Command::new("clang");
    clang.args(["-target", "bpf", "-O2", "-ffreestanding", "-c"]);
    clang.arg(places::workspace().join("crates/knit-ebpf/src/redirect.c")).arg("-o").arg(&object);
    process::output(&mut clang)?;
    Ok(std::fs::read(&object)?)
}

fn mac(pod: &Netns) -> Result<Mac> {
    let mut ip = Command::new("ip");
    ip.args(["-json", "link", "show", "dev", "eth0"]);
    let shown: serde_json::Value = serde_json::from_str(&pod.enter(|| process::output(&mut ip))??)?;
    let text = shown[0]["address"].as_str().context("a pod's link has no MAC address")?;
    text.parse().context("a pod's MAC address")
}
