//! The topology of one test: its namespaces, what connects them, and its cleanup.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use crate::leftovers::{Links, machine_links};
use crate::namespace::Namespace;
use crate::pod::Pod;
use crate::{failure_report, names, netns, netns_dir};

/// How many prefixes are tried; a second try is already very rare.
const MAX_PREFIX_ATTEMPTS: usize = 16;

/// The topology of one test. Dropping it deletes everything, also when the test panics.
///
/// Calls that build something panic on failure: a test cannot use half a topology.
#[derive(Debug)]
pub struct Testbed {
    test: String,
    pub(crate) prefix: String,
    host: Namespace,
    namespaces: Mutex<Vec<Namespace>>,
    /// The machine's own links before the test.
    pub(crate) machine_before: Links,
    /// What was left after `close`; `None` while the testbed is open.
    pub(crate) remaining: Option<Vec<String>>,
    /// Names of links that the testbed made, and of those in its namespaces when it was closed.
    pub(crate) links: Mutex<BTreeSet<String>>,
}

impl Testbed {
    /// A new topology with one namespace, the host, which represents the node. The name identifies the test;
    /// several tests may use the same name at the same time.
    #[track_caller]
    pub fn new(test: &str) -> Self {
        let folder = netns_dir::folder().unwrap_or_else(|error| panic!("testbed {test}: {error}"));
        let machine_before = machine_links().unwrap_or_else(|error| panic!("testbed {test}: {error}"));
        for _ in 0..MAX_PREFIX_ATTEMPTS {
            let prefix = names::prefix(test);
            let name = names::namespace(&prefix, "host");
            let path = folder.join(&name);
            match netns::reserve(&path) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) => panic!("testbed {test}: {error}"),
            }
            let host = netns::create(&name, &path)
                .and_then(|descriptor| Namespace::new("host", name, path, descriptor))
                .unwrap_or_else(|error| panic!("testbed {test}: {error}"));
            return Self {
                test: test.to_owned(),
                prefix,
                namespaces: Mutex::new(vec![host.clone()]),
                host,
                machine_before,
                remaining: None,
                links: Mutex::default(),
            };
        }
        panic!("testbed {test}: no free name in {}", folder.display());
    }

    /// The test's name, as given.
    pub fn test(&self) -> &str {
        &self.test
    }

    /// The namespace that represents the node. The machine's own namespace is never touched.
    pub fn host(&self) -> Namespace {
        self.host.clone()
    }

    /// A new network namespace with only `lo`, up.
    #[track_caller]
    pub fn namespace(&self, label: &str) -> Namespace {
        assert!(self.remaining.is_none(), "testbed {}: closed", self.test);
        let name = names::namespace(&self.prefix, label);
        let path = self.host.path().with_file_name(&name);
        match netns::reserve(&path) {
            Ok(true) => {}
            Ok(false) => panic!("testbed {}: namespace {label} exists already", self.test),
            Err(error) => panic!("testbed {}: {error}", self.test),
        }
        let namespace = netns::create(&name, &path)
            .and_then(|descriptor| Namespace::new(label, name, path, descriptor))
            .unwrap_or_else(|error| panic!("testbed {}: {error}", self.test));
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner).push(namespace.clone());
        namespace
    }

    /// A namespace with a process in it, found by its PID like a pod's sandbox.
    #[track_caller]
    pub fn pod(&self, label: &str) -> Pod {
        Pod::new(self.namespace(label))
    }

    /// A veth pair between two namespaces, both ends up and running, each created in its namespace.
    #[track_caller]
    pub fn connect(&self, a: &Namespace, link_a: &str, b: &Namespace, link_b: &str) {
        // `ip` accepts a path, too, in place of a namespace's name.
        let peer_netns = b.path().to_string_lossy();
        a.ip(&["link", "add", link_a, "up", "type", "veth", "peer", "name", link_b, "netns", &peer_netns]);
        b.ip(&["link", "set", "dev", link_b, "up"]);
        self.remember_links([link_a, link_b].map(str::to_owned));
        a.wait_until_running(link_a);
        b.wait_until_running(link_b);
    }

    /// A bridge, up, without ports; [`Namespace::enslave`] adds them.
    #[track_caller]
    pub fn bridge(&self, namespace: &Namespace, name: &str) {
        namespace.ip(&["link", "add", name, "up", "type", "bridge"]);
        self.remember_links([name.to_owned()]);
    }

    fn remember_links(&self, names: impl IntoIterator<Item = String>) {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).extend(names);
    }

    /// Every namespace of this testbed, the host first.
    pub fn namespaces(&self) -> Vec<Namespace> {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The state of a failed test: links, addresses, routes and background processes of each namespace, and the
    /// commands to enter them. Printed when a test panics.
    pub fn state(&self) -> String {
        failure_report::state(self)
    }

    /// Deletes everything now. Dropping the testbed does the same; a test that checks for leftovers calls this and
    /// then [`assert_nothing_left`](Self::assert_nothing_left).
    pub fn close(&mut self) {
        if self.remaining.is_none() {
            self.delete_all();
        }
    }

    /// Returns what could not be deleted. Errors are collected, so that as much as possible is deleted.
    fn delete_all(&mut self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut held = Vec::new();
        let namespaces = self.namespaces();
        self.remember_links(namespaces.iter().flat_map(crate::leftovers::link_names));
        for namespace in namespaces.iter().rev() {
            let holders = namespace.close(&mut problems);
            held.extend(holders.iter().map(|holder| format!("namespace {}: {holder}", namespace.name())));
        }
        self.remaining = Some(problems.iter().cloned().chain(held).collect());
        problems
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        if self.remaining.is_some() {
            return;
        }
        let failing = std::thread::panicking();
        if failing {
            eprintln!("{}", self.state());
            if failure_report::is_kept() {
                eprintln!("{}", failure_report::cleanup_commands(self));
                return;
            }
        }
        let problems = self.delete_all();
        // A passing test that leaves something behind must fail. While panicking, a second panic would abort.
        assert!(failing || problems.is_empty(), "testbed {}: {}", self.test, problems.join("; "));
    }
}
