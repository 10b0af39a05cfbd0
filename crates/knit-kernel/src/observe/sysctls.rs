//! Sysctls, read inside the namespace: `/proc/sys/net` shows the reader's own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;

use knit_model::Scope;

use crate::error::{Error, Result};
use crate::kernel::Room;

/// Where the files are, if not at the usual place.
static ROOT: OnceLock<String> = OnceLock::new();

/// From now on sysctls are below this folder: in a container `/proc/sys` can only be read, and the host's is mounted
/// elsewhere. The first folder that is named holds.
pub fn use_sysctls_at(folder: &Path) {
    ROOT.get_or_init(|| folder.display().to_string());
}

/// Where the kernel's sysctls are.
pub fn sysctls() -> &'static Path {
    Path::new(ROOT.get().map_or("/proc/sys", String::as_str))
}

/// No sysctl of the network is longer. One read takes it all, as of one moment.
const LONGEST: usize = 4096;

/// Reads sysctls. One that does not exist is left out; so is one of a link of which `is_there` says that it does not.
pub(super) fn look(
    room: &mut Room<'_>,
    scope: &Scope,
    keys: &BTreeSet<String>,
    is_there: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, String>> {
    let mut paths = Vec::new();
    let mut open = BTreeMap::new();
    for key in keys.iter().filter(|key| link_of(key).is_none_or(&is_there)) {
        let file = room.places.sysctls.get(&(scope.clone(), key.clone()));
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
    let values = room.visit(scope, read)?;
    values.map_err(|error| Error::system(format!("sysctls of {scope}"), "read them", error))
}

fn read_one(file: &File) -> io::Result<String> {
    let mut value = [0; LONGEST];
    let length = file.read_at(&mut value, 0)?;
    Ok(String::from_utf8_lossy(&value[..length]).trim().to_owned())
}

/// The link that a sysctl is about.
fn link_of(key: &str) -> Option<&str> {
    let mut parts = key.split('/').skip(2);
    let of_a_link = matches!(parts.next(), Some("conf" | "neigh"));
    parts.next().filter(|link| of_a_link && !matches!(*link, "all" | "default"))
}

/// The file of a sysctl. Only those of the network are per namespace; anything else would change the machine.
pub(crate) fn path(key: &str) -> Result<String> {
    let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    if key.starts_with("net/") && key.split('/').all(is_plain) {
        return Ok(format!("{}/{key}", sysctls().display()));
    }
    let why = "only sysctls below net/ belong to a network namespace".to_owned();
    Err(Error::Unsayable { context: format!("sysctl {key}").into(), why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sysctl_of_a_link_names_it() {
        assert_eq!(link_of("net/ipv6/conf/a.b/accept_ra"), Some("a.b"));
        assert_eq!(link_of("net/ipv4/neigh/net1/locktime"), Some("net1"));
        for key in ["net/ipv4/conf/all/rp_filter", "net/ipv6/conf/default/mtu", "net/ipv4/ip_forward", "net"]
        {
            assert_eq!(link_of(key), None, "{key}");
        }
    }

    #[test]
    fn only_sysctls_of_the_network_have_a_file() {
        assert_eq!(path("net/ipv6/conf/a.b/accept_ra").unwrap(), "/proc/sys/net/ipv6/conf/a.b/accept_ra");
        for key in ["kernel/core_pattern", "net/../kernel/core_pattern", "/net/x", "net//x", "net"] {
            assert!(path(key).is_err(), "{key}");
        }
    }
}
