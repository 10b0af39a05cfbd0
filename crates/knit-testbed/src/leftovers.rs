//! Checks that everything a testbed made is deleted.

use std::collections::BTreeSet;
use std::fs;
use std::sync::PoisonError;

use nix::net::if_::if_nameindex;

use crate::namespace::{Namespace, machine};
use crate::{Error, Testbed, netns};

/// Links by index and name. The index distinguishes a new link from an old one of the same name.
pub(crate) type Links = BTreeSet<(u32, String)>;

/// The links of the machine's own namespace, regardless of the calling thread's namespace.
pub(crate) fn machine_links() -> Result<Links, Error> {
    let not_allowed = |error: &dyn std::fmt::Display| Error::NotAllowed {
        cause: format!("cannot enter the machine's own namespace from a thread: {error}"),
    };
    let own = machine().map_err(|error| not_allowed(&error))?;
    netns::run_inside("machine", own, links_here).map_err(|error| not_allowed(&error))
}

/// The names of a namespace's links; empty if it can no longer be entered.
pub(crate) fn link_names(namespace: &Namespace) -> Vec<String> {
    let links = namespace.try_run(links_here).unwrap_or_default();
    links.into_iter().map(|(_, name)| name).collect()
}

fn links_here() -> Links {
    let Ok(links) = if_nameindex() else { return Links::new() };
    links.iter().map(|link| (link.index(), link.name().to_string_lossy().into_owned())).collect()
}

impl Testbed {
    /// Asserts that nothing of this testbed is left: no namespace, mount or process, and no link of its own in the
    /// machine's own namespace. Call [`close`](Testbed::close) first.
    #[track_caller]
    pub fn assert_nothing_left(&self) {
        let left = self.leftovers();
        assert!(left.is_empty(), "testbed {}: left behind:\n  {}", self.test(), left.join("\n  "));
    }

    fn leftovers(&self) -> Vec<String> {
        let Some(remaining) = &self.remaining else {
            return vec![format!("everything: {} was not closed", self.prefix)];
        };
        let mut left = remaining.clone();
        let mine = format!("{}-", self.prefix);
        let folder = self.host().path().parent().map(fs::read_dir);
        let names = folder.into_iter().flatten().flatten().flatten().map(|entry| entry.file_name());
        let names = names.filter(|name| name.to_string_lossy().starts_with(&mine));
        left.extend(names.map(|name| format!("file {}", self.host().path().with_file_name(name).display())));

        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mount_points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
        left.extend(mount_points.filter(|path| path.contains(&mine)).map(|path| format!("mount {path}")));

        let processes = self.namespaces().into_iter().flat_map(|namespace| namespace.background());
        left.extend(
            processes.filter(|process| process.still_exists()).map(|process| format!("process {process}")),
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

/// New links of the machine with a name of the testbed. Other links may appear and disappear while a test runs:
/// the machine is shared.
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
    fn new_link_with_a_name_of_the_testbed_has_escaped() {
        let before = links(&[(1, "lo"), (2, "eth0")]);
        let now = links(&[(1, "lo"), (2, "eth0"), (7, "br7"), (8, "docker0")]);
        let testbed = BTreeSet::from(["lo", "eth0", "br7"].map(str::to_owned));
        assert_eq!(escaped(&before, &now, &testbed), ["br7"]);
        assert!(escaped(&before, &before, &testbed).is_empty());
    }

    #[test]
    fn replaced_link_of_the_same_name_has_escaped() {
        let testbed = BTreeSet::from(["eth0".to_owned()]);
        assert_eq!(escaped(&links(&[(2, "eth0")]), &links(&[(9, "eth0")]), &testbed), ["eth0"]);
    }
}
