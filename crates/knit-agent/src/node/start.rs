//! Opens a node: replays the journal, rolls back unfinished changes and forgets sandboxes that are gone.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ipnet::IpNet;
use knit_crds::attachments::AllowedPlugins;
use knit_engine::event::ChangeEnded;
use knit_engine::recording::NewEntry;
use knit_engine::{Event, Record, Settings, State, Unit, tenant_ranges};
use knit_kernel::netns::allow_netns_switch;
use knit_kernel::nft::TableOwner;
use knit_kernel::{Netns, memory};
use knit_model::{IfName, Route, Scope, ScopeState};
use knit_store::{EntryKind, Format, Journal, OpenedJournal, Options, RecoveryFinding};
use serde_json::Value;

use super::repair::is_marked;
use super::{Node, no_faults, now};
use crate::error::{Error, Result};
use crate::executor::{Executor, ExecutorSource, KernelExecutor};
use crate::keys::{ApiSecrets, KeyDir};
use crate::recorder::Recorder;
use crate::sandboxes;

/// Number of older journal segments that are kept as history.
const HISTORY_SEGMENTS: usize = 4;

/// Routes with a shorter prefix are default routes.
const MIN_ROUTED_PREFIX: u8 = 8;

/// The format version of the journal. Journals of other versions are rejected.
pub const FORMAT: Format = Format { version: 5, migrate: reject };

fn reject(from: u32, _: EntryKind, _: Value) -> std::result::Result<Value, String> {
    Err(format!("format {from} is not supported"))
}

/// Turns the store's error about a journal of an older format into one that names the remedy.
fn open_error(error: knit_store::Error, folder: &Path) -> Error {
    match error {
        knit_store::Error::Undecodable { format, .. } if format < FORMAT.version => Error::OldJournal {
            folder: folder.display().to_string(),
            found: format,
            supported: FORMAT.version,
        },
        error => Error::Store(error),
    }
}

impl Node {
    /// Opens the node with the state directory `folder`. Also returns the problems found there.
    ///
    /// Changes that a crash interrupted are rolled back, then done again or dropped as the objects require; other differences between the
    /// kernel and the journal are left to [`Node::repair`].
    ///
    /// The calling thread becomes the node's: it blocks on the kernel and enters namespaces of sandboxes, so it must not belong to an async
    /// runtime.
    pub fn open(folder: &Path) -> Result<(Self, Vec<String>)> {
        // Without an agent all objects are those of a local root user, who may add any address.
        let ranges = tenant_ranges::all_addresses().to_vec();
        Self::open_with(folder, None, || Ok(None), None, ranges, TableOwner::default())
    }

    /// The same, with Secrets from an API server, a recording of the engine's inputs, which is opened while the directory is locked,
    /// another executor than the kernel's, the ranges that are open to tenants, and the owner of the tables of the packet filter.
    pub(crate) fn open_with(
        folder: &Path,
        secrets: Option<Arc<ApiSecrets>>,
        open_recorder: impl FnOnce() -> Result<Option<Recorder>>,
        executor: Option<&ExecutorSource>,
        tenant_ranges: Vec<IpNet>,
        tables: TableOwner,
    ) -> Result<(Self, Vec<String>)> {
        let options = Options { format: FORMAT, retained_segments: HISTORY_SEGMENTS };
        let opened = Journal::<Record, State>::open(folder, options);
        let OpenedJournal { journal, snapshot, records, findings } =
            opened.map_err(|error| open_error(error, folder))?;
        let mut state = snapshot.map(|(_, state)| state).unwrap_or_default();
        records.into_iter().for_each(|(_, record)| state.record(&record));
        let keys = Arc::new(KeyDir::new(folder).with_secrets(secrets));
        let faults = no_faults();
        let executor: Box<dyn Executor> = match executor {
            Some(ExecutorSource(create)) => create(),
            None => {
                allow_netns_switch()?;
                let (keys, faults) = (Arc::clone(&keys), Arc::clone(&faults));
                let (host, boot) = (Netns::current()?, sandboxes::boot_id()?);
                Box::new(KernelExecutor::new(host, boot, keys, faults, tables)?)
            }
        };
        let mut node = Self {
            state,
            journal,
            executor,
            faults,
            keys,
            namespaces: BTreeMap::new(),
            deferred_deletes: [Scope::Host].into(),
            deferred_sandboxes: BTreeMap::new(),
            keeps_foreign_links: false,
            host_settings: None,
            fast_path: Vec::new(),
            allowed_plugins: AllowedPlugins::default(),
            recorder: open_recorder()?,
        };
        if let Some(recorder) = &mut node.recorder {
            recorder.write(&NewEntry::Opened { version: env!("CARGO_PKG_VERSION"), state: &node.state });
        }
        let mut notes: Vec<String> = findings.iter().map(ToString::to_string).collect();
        if findings.iter().any(RecoveryFinding::loses_records) {
            // Records after a gap are only readable with a snapshot that they follow.
            node.journal.compact(&node.state.persistent(), node.journal.last())?;
        }
        node.state.settings = Settings { tenant_ranges, ..node.settings()? };
        if let Some(recorder) = &mut node.recorder {
            recorder.write(&NewEntry::Settings(&node.state.settings));
        }
        let rolled_back = node.roll_back_unfinished()?;
        let mut gone = node.forget_gone_sandboxes()?;
        gone.extend(node.forget_gone_namespaces()?);
        node.handle(Event::Restarted)?;
        if !rolled_back.is_empty() || !gone.is_empty() {
            node.handle(Event::Resync)?;
        }
        notes.extend(rolled_back);
        notes.extend(gone);
        node.clean_up()?;
        // The memory of the replay is not needed again.
        memory::trim();
        Ok((node, notes))
    }

    /// The settings of the host, without those of the configuration.
    fn settings(&mut self) -> Result<Settings> {
        Ok(settings_of(&self.executor.observe_host()?))
    }

    /// Rolls back changes that have started and not ended: the kernel is then as it was before.
    fn roll_back_unfinished(&mut self) -> Result<Vec<String>> {
        let mut notes = Vec::new();
        let unfinished: Vec<_> = self.state.unfinished.values().cloned().collect();
        for began in unfinished {
            let sandboxes: Vec<_> = match &began.unit {
                Unit::Sandbox(id) => self.state.sandboxes.get(id).cloned().into_iter().collect(),
                Unit::Bridge(_) | Unit::NodeRoutes | Unit::PacketFilter | Unit::Services | Unit::Policies => {
                    Vec::new()
                }
            };
            let (left, scopes) = self.executor.roll_back(&began.plan, &sandboxes);
            self.deferred_deletes.extend(scopes);
            notes.push(format!("{}: an interrupted change was rolled back", began.unit));
            notes.extend(left);
            let problems = self.state.problems.get(&began.unit).cloned().unwrap_or_default();
            let ended =
                ChangeEnded { unit: began.unit, unit_state: None, problems, restored: Vec::new(), at: now() };
            self.record(&Record::ChangeEnded(Box::new(ended)))?;
        }
        Ok(notes)
    }

    /// Forgets namespaces that Knit created and that no longer exist: a reboot leaves at most an empty file.
    fn forget_gone_namespaces(&mut self) -> Result<Vec<String>> {
        let known: Vec<String> =
            self.state.attachments.managed_netns().map(|domain| domain.path.clone()).collect();
        let mut notes = Vec::new();
        for path in known {
            // Any other error is not a reason to forget it.
            if !matches!(Netns::open(Path::new(&path)), Err(knit_kernel::Error::NotANamespace { .. })) {
                continue;
            }
            if let Err(why) = Netns::delete(Path::new(&path)) {
                notes.push(why.to_string());
            }
            notes.push(format!("namespace {path}: gone, removed from the state"));
            self.record(&Record::NetnsRemoved { path, instance: None })?;
        }
        Ok(notes)
    }

    /// Forgets sandboxes whose namespace is gone or that ran before the last boot. Units without a sandbox are remains of a crash.
    fn forget_gone_sandboxes(&mut self) -> Result<Vec<String>> {
        let known: Vec<_> = self.state.sandboxes.keys().cloned().collect();
        let mut notes = Vec::new();
        for id in known {
            let sandbox = self.state.sandboxes.get(&id).cloned();
            if !sandbox.is_some_and(|sandbox| self.executor.is_alive(&sandbox)) {
                notes.push(format!("sandbox {id}: its namespace is gone, removed from the state"));
                self.handle(Event::SandboxRemoved(id))?;
            }
        }
        let is_orphan =
            |unit: &&Unit| matches!(unit, Unit::Sandbox(id) if !self.state.sandboxes.contains_key(id));
        let orphans = self.state.units.keys().filter(is_orphan);
        notes.extend(orphans.map(|unit| format!("{unit}: remains of an interrupted change")));
        Ok(notes)
    }
}

/// The host's own ranges: networks of tenants must not overlap them.
pub(super) fn settings_of(host: &ScopeState) -> Settings {
    let is_own = |range: &IpNet| !range.addr().is_loopback() && !is_link_local(range);
    let foreign = host.addresses.values().filter(|address| !address.owned).map(|address| address.address);
    let addresses = host.addresses.values().map(|address| address.address).filter(is_own);
    let forbidden: Vec<IpNet> = foreign.filter(is_own).map(|range| range.trunc()).collect();
    let is_of_knit = |link: &IfName| host.links.get(link).is_some_and(is_marked);
    let is_foreign = |route: &&Route| !route.owned && !route.via.iter().any(|hop| is_of_knit(&hop.link));
    let routed = host.routes.values().filter(is_foreign).map(|route| route.to.trunc());
    // A VPN may have two halves of the address space as default routes, a router all global IPv6 addresses.
    let routed = routed.filter(|to| to.prefix_len() >= MIN_ROUTED_PREFIX && is_own(to));
    let routed = routed.filter(|to| !forbidden.contains(to) && !to.addr().is_multicast());
    let routed = IpNet::aggregate(&routed.collect::<Vec<_>>());
    let forbidden = forbidden.into_iter().map(|range| ("node's range".to_owned(), range)).collect();
    let lacks_bridge_filter = !Path::new("/proc/sys/net/bridge/bridge-nf-call-iptables").exists();
    let addresses = addresses.map(|address| address.addr()).collect();
    Settings { forbidden, routed, addresses, tenant_ranges: Vec::new(), lacks_bridge_filter }
}

fn is_link_local(address: &IpNet) -> bool {
    match address {
        IpNet::V4(net) => net.addr().is_link_local(),
        IpNet::V6(net) => net.addr().is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use knit_model::link::{Bridge, OwnerId};
    use knit_model::{Address, Kind, Link};

    use super::*;

    #[test]
    fn ranges_of_the_host_are_its_addresses_and_foreign_routes() {
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let name = |text: &str| text.parse::<IfName>().unwrap();
        let mut host = ScopeState::default();
        let mut bridge = Link::new(name("br0"), Kind::Bridge(Bridge::default()));
        bridge.owner = Some(OwnerId::derived("test"));
        host.add_link(bridge);
        for (address, owned) in [("192.0.2.7/24", false), ("fe80::7/64", false), ("10.9.0.1/24", true)] {
            host.add_address(Address { owned, ..Address::new(name("eth0"), net(address)) });
        }
        for (to, link, owned) in [
            ("0.0.0.0/0", "eth0", false),
            ("128.0.0.0/1", "tun0", false),
            ("192.0.2.0/24", "eth0", false),
            ("10.244.0.0/24", "cni0", false),
            ("10.244.1.0/24", "flannel.1", false),
            ("fe80::/64", "eth0", false),
            ("ff00::/8", "eth0", false),
            ("10.77.0.0/16", "br0", false),
            ("10.1.2.0/24", "eth0", true),
        ] {
            host.add_route(Route { owned, ..Route::on_link(net(to), name(link)) });
        }
        let settings = settings_of(&host);
        assert_eq!(settings.forbidden, [("node's range".to_owned(), net("192.0.2.0/24"))]);
        assert_eq!(settings.routed, [net("10.244.0.0/23")]);
        assert_eq!(
            settings.addresses,
            [net("192.0.2.7/24"), net("10.9.0.1/24")].map(|one| one.addr()).into()
        );
    }

    #[test]
    fn a_journal_of_an_older_format_is_rejected_with_its_version_and_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let old = Format { version: FORMAT.version - 1, migrate: reject };
        let options = Options { format: old, retained_segments: HISTORY_SEGMENTS };
        let opened = Journal::<Value, Value>::open(folder.path(), options).unwrap();
        opened.journal.append_durable(&serde_json::json!({ "undone": null })).unwrap();
        drop(opened);
        let error = Node::open(folder.path()).err().unwrap();
        let Error::OldJournal { found, supported, .. } = &error else { panic!("{error:?}") };
        assert_eq!((*found, *supported), (FORMAT.version - 1, FORMAT.version));
        let message = error.to_string();
        assert!(message.contains("drain the node, remove the directory and restart"), "{message}");
    }
}
