//! The redirect: one nftables table in the network namespace of the pod, managed with the `nft` program.
//!
//! The name of the table contains the netns cookie, which the kernel never reuses. A late call whose path refers to the
//! netns of another pod does not find a table of that name and changes nothing.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, setns};

/// Packets of the proxy have this mark and are not redirected.
const PROXY_MARK: u32 = 0x6d65_7368;

/// The redirect of the TCP connections of one pod.
#[derive(Clone, Debug)]
pub struct Redirect {
    /// The path of the network namespace.
    pub netns: String,
    /// The netns cookie.
    pub cookie: u64,
    /// The port of the proxy.
    pub port: u16,
}

/// Checks that `nft` is installed.
pub fn check() -> Result<()> {
    let status = Command::new("nft").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !status.context("nft")?.success() {
        bail!("nft --version failed");
    }
    Ok(())
}

impl Redirect {
    /// The name of the table.
    pub fn table(&self) -> String {
        format!("mesh_{}", self.cookie)
    }

    /// Creates or replaces the redirect in one transaction.
    pub fn ensure(&self) -> Result<()> {
        self.enter()?;
        let (table, port) = (self.table(), self.port);
        nft(&format!(
            "table inet {table}\n\
             delete table inet {table}\n\
             table inet {table} {{\n\
               chain output {{\n\
                 type nat hook output priority -100; policy accept;\n\
                 meta mark {PROXY_MARK:#x} accept\n\
                 oifname \"lo\" accept\n\
                 meta l4proto tcp redirect to :{port}\n\
               }}\n\
               chain prerouting {{\n\
                 type nat hook prerouting priority -100; policy accept;\n\
                 meta l4proto tcp redirect to :{port}\n\
               }}\n\
             }}\n"
        ))
    }

    /// Removes the redirect. Succeeds if the network namespace does not exist.
    pub fn remove(&self) -> Result<()> {
        if !Path::new(&self.netns).exists() || self.enter().is_err() {
            return Ok(());
        }
        let table = self.table();
        nft(&format!("table inet {table}\ndelete table inet {table}\n"))
    }

    /// Moves the calling thread to the network namespace. The thread must be dedicated to this call.
    fn enter(&self) -> Result<()> {
        let namespace = File::open(&self.netns).with_context(|| self.netns.clone())?;
        setns(namespace, CloneFlags::CLONE_NEWNET).with_context(|| format!("cannot enter {}", self.netns))
    }
}

fn nft(script: &str) -> Result<()> {
    let mut command = Command::new("nft");
    command.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().context("nft")?;
    if let Some(mut input) = child.stdin.take() {
        // If nft exits early, its standard error has the reason.
        let _ = input.write_all(script.as_bytes());
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("nft: {}", String::from_utf8_lossy(&output.stderr).trim().replace('\n', " "));
    }
    Ok(())
}
