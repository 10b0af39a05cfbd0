//! A test's whole world: its namespaces, what connects them, and its end.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use crate::leftovers::{Links, machine_links};
use crate::namespace::Namespace;
use crate::pod::Pod;
use crate::{birth, failure, names, place};

/// How often a new prefix is tried before giving up; a second try is already very rare.
const TRIES: usize = 16;

/// The world of one test. Everything in it goes when it is dropped, also when the test panics.
///
/// The calls that make something panic when they cannot: a test has no use for half a world.
#[derive(Debug)]
pub struct Testbed {
    test: String,
    pub(crate) prefix: String,
    host: Namespace,
    namespaces: Mutex<Vec<Namespace>>,
    /// The machine's own links before this test began.
    pub(crate) machine_before: Links,
    /// What was still there after `close`; `None` while the testbed is open.
    pub(crate) remains: Option<Vec<String>>,
    /// Names of links that the testbed made, and of those that lived in its namespaces when it was closed.
    pub(crate) links: Mutex<BTreeSet<String>>,
}

impl Testbed {
    /// A new world with one namespace, the host, which stands for the node. The name says which test it is;
    /// the same name may be used by many tests at the same time.
    #[track_caller]
    pub fn new(test: &str) -> Self {
        let folder = place::folder().unwrap_or_else(|error| panic!("testbed {test}: {error}"));
        let machine_before = machine_links().unwrap_or_else(|error| panic!("testbed {test}: {error}"));
        for _ in 0..TRIES {
            let prefix = names::prefix(test);
            let name = names::namespace(&prefix, "host");
            let path = folder.join(&name);
            match birth::reserve(&path) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) => panic!("testbed {test}: {error}"),
            }
            let host = birth::give_birth(&name, &path)
                .and_then(|descriptor| Namespace::new("host", name, path, descriptor))
                .unwrap_or_else(|error| panic!("testbed {test}: {error}"));
            return Self {
                test: test.to_owned(),
                prefix,
                namespaces: Mutex::new(vec![host.clone()]),
                host,
                machine_before,
                remains: None,
                links: Mutex::default(),
            };
        }
        panic!("testbed {test}: no free name in {}", folder.display());
    }

    /// The test's name, as given.
    pub fn test(&self) -> &str {
        &self.test
    }

    /// The namespace that stands for the node. The machine's own namespace is never touched.
    pub fn host(&self) -> Namespace {
        self.host.clone()
    }

    /// A new network namespace with `lo` up and nothing else.
    #[track_caller]
    pub fn namespace(&self, label: &str) -> Namespace {
        assert!(self.remains.is_none(), "testbed {}: it is closed", self.test);
        let name = names::namespace(&self.prefix, label);
        let path = self.host.path().with_file_name(&name);
        match birth::reserve(&path) {
            Ok(true) => {}
            Ok(false) => panic!("testbed {}: it has a namespace {label} already", self.test),
            Err(error) => panic!("testbed {}: {error}", self.test),
        }
        let namespace = birth::give_birth(&name, &path)
            .and_then(|descriptor| Namespace::new(label, name, path, descriptor))
            .unwrap_or_else(|error| panic!("testbed {}: {error}", self.test));
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner).push(namespace.clone());
        namespace
    }

    /// A namespace with a process in it, to be found by its pid as a pod's sandbox is.
    #[track_caller]
    pub fn pod(&self, label: &str) -> Pod {
        Pod::new(self.namespace(label))
    }

    /// A veth pair between two namespaces, both ends up and running, each born where it lives.
    #[track_caller]
    pub fn connect(&self, a: &Namespace, link_a: &str, b: &Namespace, link_b: &str) {
        // `ip` takes a path, too, where it wants a namespace's name.
        let far = b.path().to_string_lossy();
        a.ip(&["link", "add", link_a, "up", "type", "veth", "peer", "name", link_b, "netns", &far]);
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

    /// What a person wants to see of a failed test: links, addresses, routes and background processes of each
    /// namespace, and the commands to look inside. Printed when a test panics.
    pub fn state(&self) -> String {
        failure::state(self)
    }

    /// Takes everything away now. Dropping the testbed does the same; a test that wants to know what is left
    /// calls this and then [`assert_nothing_left`](Self::assert_nothing_left).
    pub fn close(&mut self) {
        if self.remains.is_none() {
            self.take_away();
        }
    }

    /// Answers with what the kernel refused to remove. Errors are collected, so that as much as possible goes.
    fn take_away(&mut self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut held = Vec::new();
        let namespaces = self.namespaces();
        self.remember_links(namespaces.iter().flat_map(crate::leftovers::link_names));
        for namespace in namespaces.iter().rev() {
            let holders = namespace.close(&mut problems);
            held.extend(holders.iter().map(|holder| format!("namespace {}: {holder}", namespace.name())));
        }
        self.remains = Some(problems.iter().cloned().chain(held).collect());
        problems
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        if self.remains.is_some() {
            return;
        }
        let failing = std::thread::panicking();
        if failing {
            eprintln!("{}", self.state());
            if failure::keep() {
                eprintln!("{}", failure::how_to_remove(self));
                return;
            }
        }
        let problems = self.take_away();
        // A passing test that litters the machine must not pass. While panicking, a second panic would abort.
        assert!(failing || problems.is_empty(), "testbed {}: {}", self.test, problems.join("; "));
    }
}
