//! Is everything gone that a testbed made?

use std::collections::BTreeSet;
use std::fs;
use std::sync::PoisonError;

use nix::net::if_::if_nameindex;

use crate::namespace::{Namespace, machine};
use crate::{Error, Testbed, birth};

/// Links by index and name. The index tells a new link from an old one of the same name.
pub(crate) type Links = BTreeSet<(u32, String)>;

/// The links of the machine's own namespace, wherever the calling thread is.
pub(crate) fn machine_links() -> Result<Links, Error> {
    let refused = |error: &dyn std::fmt::Display| Error::NotAllowed {
        cause: format!("cannot enter the machine's own namespace from a thread: {error}"),
    };
    let own = machine().map_err(|error| refused(&error))?;
    birth::inside("machine", own, links_here).map_err(|error| refused(&error))
}

/// The names of a namespace's links; nothing when it cannot be entered any more.
pub(crate) fn link_names(namespace: &Namespace) -> Vec<String> {
    let links = namespace.try_run(links_here).unwrap_or_default();
    links.into_iter().map(|(_, name)| name).collect()
}

fn links_here() -> Links {
    let Ok(links) = if_nameindex() else { return Links::new() };
    links.iter().map(|link| (link.index(), link.name().to_string_lossy().into_owned())).collect()
}

impl Testbed {
    /// Asserts that nothing is left of what this testbed made: no namespace, mount or process, and no link
    /// of its in the machine's own namespace. Call [`close`](Testbed::close) before.
    #[track_caller]
    pub fn assert_nothing_left(&self) {
        let left = self.left();
        assert!(left.is_empty(), "testbed {}: left behind:\n  {}", self.test(), left.join("\n  "));
    }

    fn left(&self) -> Vec<String> {
        let Some(remains) = &self.remains else {
            return vec![format!("everything: {} was not closed", self.prefix)];
        };
        let mut left = remains.clone();
        let mine = format!("{}-", self.prefix);
        let folder = self.host().path().parent().map(fs::read_dir);
        let names = folder.into_iter().flatten().flatten().flatten().map(|entry| entry.file_name());
        let names = names.filter(|name| name.to_string_lossy().starts_with(&mine));
        left.extend(names.map(|name| format!("file {}", self.host().path().with_file_name(name).display())));

        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let places = mounts.lines().filter_map(|line| line.split(' ').nth(4));
        left.extend(places.filter(|place| place.contains(&mine)).map(|place| format!("mount {place}")));

        let processes = self.namespaces().into_iter().flat_map(|namespace| namespace.background());
        left.extend(
            processes.filter(|process| process.is_left()).map(|process| format!("process {process}")),
        );

        let own = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        match machine_links() {
            Ok(now) => left.extend(
                escaped(&self.machine_before, &now, &own)
                    .iter()
                    .map(|name| format!("link {name} in the machine's own namespace")),
            ),
            Err(error) => left.push(error.to_string()),
        }
        left
    }
}

/// Links that the machine did not have before and that are called like one of the testbed's. Others may come
/// and go while a test runs: the machine is not ours alone.
fn escaped(before: &Links, now: &Links, testbed: &BTreeSet<String>) -> Vec<String> {
    now.difference(before).filter(|(_, name)| testbed.contains(name)).map(|(_, name)| name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(links: &[(u32, &str)]) -> Links {
        links.iter().map(|(index, name)| (*index, (*name).to_owned())).collect()
    }

    #[test]
    fn a_new_link_with_a_name_of_the_testbed_has_escaped() {
        let before = links(&[(1, "lo"), (2, "eth0")]);
        let now = links(&[(1, "lo"), (2, "eth0"), (7, "br7"), (8, "docker0")]);
        let testbed = BTreeSet::from(["lo", "eth0", "br7"].map(str::to_owned));
        assert_eq!(escaped(&before, &now, &testbed), ["br7"]);
        assert!(escaped(&before, &before, &testbed).is_empty());
    }

    #[test]
    fn a_replaced_link_of_the_same_name_has_escaped() {
        let testbed = BTreeSet::from(["eth0".to_owned()]);
        assert_eq!(escaped(&links(&[(2, "eth0")]), &links(&[(9, "eth0")]), &testbed), ["eth0"]);
    }
}
