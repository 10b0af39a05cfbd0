//! Sysctls, read inside the namespace: `/proc/sys/net` shows the reader's own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;

use knit_model::Scope;

use crate::error::{Error, Result};
use crate::kernel::Room;

/// Reads sysctls. One that does not exist is left out.
pub(super) fn look(
    room: &mut Room<'_>,
    scope: &Scope,
    keys: &BTreeSet<String>,
) -> Result<BTreeMap<String, String>> {
    if keys.is_empty() {
        return Ok(BTreeMap::new());
    }
    let mut paths = Vec::new();
    for key in keys {
        paths.push((key.clone(), path(key)?));
    }
    let read = move || {
        let mut values = BTreeMap::new();
        for (key, path) in &paths {
            match fs::read_to_string(path) {
                Ok(value) => {
                    values.insert(key.clone(), value.trim().to_owned());
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

/// The file of a sysctl. Only those of the network are per namespace; anything else would change the machine.
pub(crate) fn path(key: &str) -> Result<String> {
    let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    if key.starts_with("net/") && key.split('/').all(is_plain) {
        return Ok(format!("/proc/sys/{key}"));
    }
    let why = "only sysctls below net/ belong to a network namespace".to_owned();
    Err(Error::Unsayable { context: format!("sysctl {key}").into(), why })
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
