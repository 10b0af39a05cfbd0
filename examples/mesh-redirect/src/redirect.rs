//! The redirect itself: one nftables table in the pod's network namespace, made and removed by the `nft` program.
//!
//! The table's name contains the namespace's cookie, which the kernel never uses twice. A call that comes late, when the
//! path leads to another pod's namespace, finds no table of that name there and harms nobody.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, setns};

/// Packets with this mark are the proxy's own, and go their way.
const PROXY_MARK: u32 = 0x6d65_7368;

/// A redirect of one pod's TCP.
#[derive(Clone, Debug)]
pub struct Redirect {
    /// Where the pod's namespace is.
    pub netns: String,
    /// The kernel's number of it.
    pub cookie: u64,
    /// The proxy's port in the pod.
    pub port: u16,
}

/// Whether there is an `nft`.
pub fn check() -> Result<()> {
    let ran = Command::new("nft").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !ran.context("nft")?.success() {
        bail!("nft does not work");
    }
    Ok(())
}

impl Redirect {
    /// The table's name.
    pub fn table(&self) -> String {
        format!("mesh_{}", self.cookie)
    }

    /// Has the redirect in place, whether it was there before or not. In one transaction: it is whole, or not there.
    pub fn ensure(&self) -> Result<()> {
        self.enter()?;
        let (table, port) = (self.table(), self.port);
        nft(&format!(
            "table inet {table}\n\
             delete table inet {table}\n\
             table inet {table} {{\n\
               chain leaving {{\n\
                 type nat hook output priority -100; policy accept;\n\
                 meta mark {PROXY_MARK:#x} accept\n\
                 oifname \"lo\" accept\n\
                 meta l4proto tcp redirect to :{port}\n\
               }}\n\
               chain arriving {{\n\
                 type nat hook prerouting priority -100; policy accept;\n\
                 meta l4proto tcp redirect to :{port}\n\
               }}\n\
             }}\n"
        ))
    }

    /// Has no redirect in place. A namespace that is gone has none.
    pub fn remove(&self) -> Result<()> {
        if !Path::new(&self.netns).exists() || self.enter().is_err() {
            return Ok(());
        }
        let table = self.table();
        nft(&format!("table inet {table}\ndelete table inet {table}\n"))
    }

    /// The calling thread works in the pod's namespace from now on; it belongs to this call alone.
    fn enter(&self) -> Result<()> {
        let namespace = File::open(&self.netns).with_context(|| self.netns.clone())?;
        setns(namespace, CloneFlags::CLONE_NEWNET).with_context(|| format!("enter {}", self.netns))
    }
}

fn nft(script: &str) -> Result<()> {
    let mut command = Command::new("nft");
    command.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().context("nft")?;
    if let Some(mut input) = child.stdin.take() {
        // One that ended early says why on its standard error.
        let _ = input.write_all(script.as_bytes());
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("nft: {}", String::from_utf8_lossy(&output.stderr).trim().replace('\n', " "));
    }
    Ok(())
}
