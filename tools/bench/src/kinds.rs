//! `bench kinds`: creating, changing and removing a link of each kind on a running pod through Knit, compared with bare netlink
//! messages that do the same.
//!
//! Knit's part is complete, from the event to the acknowledged result: engine, journal, observe, plan, apply, verify. A pod's
//! label selects the link, the link with another MTU, and nothing again, so that no object has to be written in between. A
//! removal is acknowledged when the link is disconnected; its deletion is deferred, as on a node. The bare messages have the
//! same result and open the pod by its path, without observation, verification or journal.

mod knit;
mod netlink;

use anyhow::{Context, Result, bail};
use knit_kernel::{Error, Netns};
use nix::errno::Errno;

use self::knit::Knit;
use self::netlink::NetlinkPod;
use super::attach::alternate;
use knit_dev::progress::Step;
use knit_report::{Goal, Report};
use knit_report::{Samples, WARM_UP};

/// A kind of link: the object for Knit, and the attributes for the kernel.
pub struct Case {
    /// The kind's name in the kernel.
    pub name: &'static str,
    /// The object's kind.
    pub object: &'static str,
    /// The object's spec without name, address and MTU.
    pub spec: &'static str,
    /// The kind's own attributes in the create message.
    pub data: &'static [(u16, Data)],
    /// Whether its parent is the pod's `eth0`.
    pub on_eth0: bool,
}

/// The value of an attribute.
pub enum Data {
    U8(u8),
    U16(u16),
    U32(u32),
    /// A port, in network byte order.
    Port(u16),
    Ip([u8; 4]),
}

// if_link.h: the numbers are IFLA_MACVLAN_MODE, IFLA_VXLAN_ID, _GROUP, _LEARNING and _PORT, IFLA_VLAN_ID,
// IFLA_IPVLAN_MODE, IFLA_VRF_TABLE.
const CASES: &[Case] = &[
    Case { name: "veth", object: "Veth", spec: "master: bench0", data: &[], on_eth0: false },
    Case {
        name: "macvlan",
        object: "Macvlan",
        spec: "parent: eth0, mode: bridge",
        data: &[(1, Data::U32(4))],
        on_eth0: true,
    },
    Case {
        name: "vxlan",
        object: "Vxlan",
        spec: "vni: 7, remote: 10.5.0.9",
        data: &[(1, Data::U32(7)), (2, Data::Ip([10, 5, 0, 9])), (7, Data::U8(1)), (15, Data::Port(4789))],
        on_eth0: false,
    },
    Case { name: "dummy", object: "Dummy", spec: "", data: &[], on_eth0: false },
    Case {
        name: "vlan",
        object: "Vlan",
        spec: "parent: eth0, id: 7",
        data: &[(1, Data::U16(7))],
        on_eth0: true,
    },
    Case {
        name: "ipvlan",
        object: "Ipvlan",
        spec: "parent: eth0, mode: l2",
        data: &[(1, Data::U16(0))],
        on_eth0: true,
    },
    Case { name: "vrf", object: "Vrf", spec: "table: 1010", data: &[(1, Data::U32(1010))], on_eth0: false },
];

/// Kinds that are not created by a netlink link message.
const NOT_COMPARABLE: [(&str, &str); 2] = [
    ("tap", "created by an ioctl, not by a netlink message"),
    ("wireguard", "its keys and peers use another netlink protocol"),
];

/// Measures everything in separate network namespaces; the machine's own is not changed.
pub fn run(rounds: u32) -> Result<Report> {
    let host = Netns::unnamed().context("cannot create a network namespace")?;
    host.enter(|| measure_all(rounds as usize + WARM_UP))?
}

fn measure_all(rounds: usize) -> Result<Report> {
    let mut report = Report::default();
    let mut netlink = NetlinkPod::new()?;
    let folder = tempfile::tempdir().context("cannot create a temporary directory")?;
    let is_supported = |case: &&Case| netlink.supports(case);
    let (supported, unsupported) = split(CASES.iter(), is_supported)?;
    let mut knit = Knit::open(folder.path(), &supported)?;
    for case in supported {
        let step = Step::start(case.name);
        measure(&mut report, case, &mut netlink, &mut knit, rounds)
            .with_context(|| format!("cannot measure: {}", case.name))?;
        step.done();
    }
    for case in unsupported {
        report.note(format!("not measured: {}, this kernel does not support it", case.name));
    }
    for (name, reason) in NOT_COMPARABLE {
        report.note(format!("not measured: {name}, {reason}"));
    }
    Ok(report)
}

/// The kinds that this kernel supports, and the others.
fn split<'a>(
    cases: impl Iterator<Item = &'a Case>,
    mut is_supported: impl FnMut(&&Case) -> Result<bool>,
) -> Result<(Vec<&'a Case>, Vec<&'a Case>)> {
    let (mut supported, mut unsupported) = (Vec::new(), Vec::new());
    for case in cases {
        if is_supported(&case)? { &mut supported } else { &mut unsupported }.push(case);
    }
    Ok((supported, unsupported))
}

fn measure(
    report: &mut Report,
    case: &Case,
    netlink: &mut NetlinkPod,
    knit: &mut Knit,
    rounds: usize,
) -> Result<()> {
    let [mut create, mut change, mut remove] = [const { Samples::new() }; 3];
    let [mut knit_create, mut knit_change, mut knit_remove] = [const { Samples::new() }; 3];
    for round in 0..rounds {
        alternate(round, || create.time(|| netlink.create(case)), || knit_create.time(|| knit.create(case)))?;
        knit.check(case, netlink::MTU)?;
        alternate(round, || change.time(|| netlink.change(case)), || knit_change.time(|| knit.change(case)))?;
        knit.check(case, netlink::OTHER_MTU)?;
        alternate(round, || remove.time(|| netlink.remove(case)), || knit_remove.time(|| knit.remove()))?;
        knit.delete_deferred()?;
    }
    for (what, netlink, knit) in
        [("create", create, knit_create), ("change", change, knit_change), ("remove", remove, knit_remove)]
    {
        let names = [format!("bare netlink: {what} {}", case.name), format!("Knit: {what} {}", case.name)];
        report.add(&names[0], &netlink)?;
        report.add(&names[1], &knit)?;
        report.compare(&names[1], &names[0], Some(Goal::AtMost(1.5)))?;
    }
    Ok(())
}

/// Whether an error means that the kernel does not support a kind.
fn is_unsupported(error: &Error) -> bool {
    error.errno() == Some(Errno::EOPNOTSUPP)
}

/// Fails with a message unless a condition holds.
fn expect(holds: bool, what: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { bail!(what()) }
}
