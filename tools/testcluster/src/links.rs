//! A cluster's links in the machine's own namespace, found by their names.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::layout::Names;
use knit_dev::process;

/// The links that are the cluster's.
pub fn of(names: &Names) -> Result<Vec<String>> {
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

/// Removes them, and waits until they are gone. Those whose far end was in a node go by themselves, a moment after
/// its last process.
pub fn remove(names: &Names, limit: Duration) -> Result<()> {
    let began = Instant::now();
    loop {
        let left = of(names)?;
        if left.is_empty() {
            return Ok(());
        }
        if began.elapsed() > limit {
            bail!("cluster {}: links do not go away: {}", names.name(), left.join(" "));
        }
        for link in left {
            // It may have gone by itself since it was listed; whatever else is wrong shows in the next round.
            let _ = process::output(Command::new("ip").args(["link", "delete", &link]));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
