//! Reads sysctls inside the network namespace: `/proc/sys/net` shows the reader's namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;

use knit_model::{Scope, sysctl};

use crate::error::{Error, Result};
use crate::kernel::Session;

/// The root directory, if it is not `/proc/sys`.
static ROOT: OnceLock<String> = OnceLock::new();

/// Sets the root directory of sysctls: in a container `/proc/sys` is read-only, and the host's is mounted at another
/// path. The first call wins.
pub fn set_sysctl_root(folder: &Path) {
    ROOT.get_or_init(|| folder.display().to_string());
}

/// The root directory of sysctls.
pub fn sysctl_root() -> &'static Path {
    Path::new(ROOT.get().map_or("/proc/sys", String::as_str))
}

/// Longer than any network sysctl, so that a single consistent read is enough.
const MAX_LENGTH: usize = 4096;

/// Reads sysctls. Those that do not exist are left out, and so are those of links for which `is_there` is false.
pub(super) fn observe(
    session: &mut Session<'_>,
    scope: &Scope,
    keys: &BTreeSet<String>,
    is_there: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, String>> {
    let mut paths = Vec::new();
    let mut open = BTreeMap::new();
    for key in keys.iter().filter(|key| sysctl::link_of(key).is_none_or(&is_there)) {
        let file = session.namespaces.sysctls.get(&(scope.clone(), key.clone()));
        match file.and_then(|file| read_one(file).ok()) {
            Some(value) => {
                open.insert(key.clone(), value);
            }
            None => paths.push((key.clone(), path(key)?)),
        }
    }
    if paths.is_empty() {
        return Ok(open);
    }
    let read = move || {
        let mut values = open.clone();
        for (key, path) in &paths {
            match File::open(path).and_then(|file| read_one(&file)) {
                Ok(value) => {
                    values.insert(key.clone(), value);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(io::Error::new(error.kind(), format!("{key}: {error}"))),
            }
        }
        Ok(values)
    };
    let values = session.run_in_netns(scope, read)?;
    values.map_err(|error| Error::system(format!("sysctls of {scope}"), "read", error))
}

fn read_one(file: &File) -> io::Result<String> {
    let mut value = [0; MAX_LENGTH];
    let length = file.read_at(&mut value, 0)?;
    Ok(String::from_utf8_lossy(&value[..length]).trim().to_owned())
}

/// The file of a sysctl. Only network sysctls belong to a namespace; any other would change the machine.
pub(crate) fn path(key: &str) -> Result<String> {
    let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    if key.starts_with("net/") && key.split('/').all(is_plain) {
        return Ok(format!("{}/{key}", sysctl_root().display()));
    }
    let reason = "only sysctls under net/ belong to a network namespace".to_owned();
    Err(Error::InvalidValue { context: format!("sysctl {key}").into(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sysctls_of_the_network_have_a_file() {
        assert_eq!(path("net/ipv6/conf/a.b/accept_ra").unwrap(), "/proc/sys/net/ipv6/conf/a.b/accept_ra");
        for key in ["kernel/core_pattern", "net/../kernel/core_pattern", "/net/x", "net//x", "net"] {
            assert!(path(key).is_err(), "{key}");
        }
    }
}
