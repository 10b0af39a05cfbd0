//! A cluster's links in the host's network namespace, found by their names.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::layout::Names;
use knit_dev::process;

/// The cluster's links.
pub fn list(names: &Names) -> Result<Vec<String>> {
    let entries = fs::read_dir("/sys/class/net").context("cannot read /sys/class/net")?;
    let mut found = Vec::new();
    for entry in entries {
        let link = entry?.file_name().to_string_lossy().into_owned();
        if names.owns_link(&link) {
            found.push(link);
        }
    }
    found.sort();
    Ok(found)
}

/// Deletes the links and waits until they are gone. Those with a peer in a node vanish by themselves, a moment after the
/// node's last process.
pub fn remove(names: &Names, limit: Duration) -> Result<()> {
    let start = Instant::now();
    loop {
        let left = list(names)?;
        if left.is_empty() {
            return Ok(());
        }
        if start.elapsed() > limit {
            bail!("cluster {}: links are not deleted: {}", names.name(), left.join(" "));
        }
        for link in left {
            // It may have vanished since it was listed; any other problem shows in the next round.
            let _ = process::output(Command::new("ip").args(["link", "delete", &link]));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
