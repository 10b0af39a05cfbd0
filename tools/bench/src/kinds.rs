//! `bench kinds`: what it costs to make, change and remove a link of each kind on a running pod through Knit, against bare
//! netlink messages that do the same.
//!
//! Knit's part is the whole of it, from the event to the acknowledged answer: engine, journal, look, plan, apply, verify.
//! A pod's label asks for the link, for another MTU of it, and for nothing again, so that no object has to reach the disk
//! in between. A removal is acknowledged when the link is cut off; it is deleted behind that, as on a node.
//! The bare messages lead to the same end and open the pod by its path, without any look, verification or journal.

mod bare;
mod knit;

use anyhow::{Context, Result, bail};
use knit_kernel::{Error, Netns};
use nix::errno::Errno;

use self::bare::Bare;
use self::knit::Knit;
use super::attach::in_turn;
use knit_dev::progress::Step;
use knit_report::{Goal, Report};
use knit_report::{Samples, WARM_UP};

/// A kind of link: what people write, and what the kernel is told.
pub struct Case {
    /// The kind as the kernel calls it.
    pub name: &'static str,
    /// The object's kind.
    pub object: &'static str,
    /// The object's spec, but for name, address and MTU.
    pub spec: &'static str,
    /// The kind's own attributes in the message that makes it.
    pub data: &'static [(u16, Data)],
    /// Whether it sits on the pod's `eth0`.
    pub on_eth0: bool,
}

/// The value of an attribute.
pub enum Data {
    U8(u8),
    U16(u16),
    U32(u32),
    /// A port: in the order of the network.
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

/// Kinds that no bare netlink message of a link makes.
const NO_MESSAGE: [(&str, &str); 2] = [
    ("tap", "made by an ioctl, not by a message"),
    ("wireguard", "its keys and peers are told by another protocol"),
];

/// Measures everything, inside host namespaces of its own: this machine's stays as it is.
pub fn run(rounds: u32) -> Result<Report> {
    let host = Netns::unnamed().context("cannot make a network namespace to measure in")?;
    host.enter(|| measure_all(rounds as usize + WARM_UP))?
}

fn measure_all(rounds: usize) -> Result<Report> {
    let mut report = Report::default();
    let mut bare = Bare::new()?;
    let folder = tempfile::tempdir().context("cannot make a folder for Knit's state")?;
    let present = |case: &&Case| bare.has(case);
    let (there, lacking) = split(CASES.iter(), present)?;
    let mut knit = Knit::open(folder.path(), &there)?;
    for case in there {
        let step = Step::start(case.name);
        measure(&mut report, case, &mut bare, &mut knit, rounds)
            .with_context(|| format!("cannot measure: {}", case.name))?;
        step.done();
    }
    for case in lacking {
        report.note(format!("not measured: {}, this kernel does not have it", case.name));
    }
    for (name, why) in NO_MESSAGE {
        report.note(format!("not measured: {name}, {why}"));
    }
    Ok(report)
}

/// The kinds that this kernel has, and the others.
fn split<'a>(
    cases: impl Iterator<Item = &'a Case>,
    mut is_there: impl FnMut(&&Case) -> Result<bool>,
) -> Result<(Vec<&'a Case>, Vec<&'a Case>)> {
    let (mut there, mut lacking) = (Vec::new(), Vec::new());
    for case in cases {
        if is_there(&case)? { &mut there } else { &mut lacking }.push(case);
    }
    Ok((there, lacking))
}

fn measure(report: &mut Report, case: &Case, bare: &mut Bare, knit: &mut Knit, rounds: usize) -> Result<()> {
    let [mut make, mut change, mut remove] = [const { Samples::new() }; 3];
    let [mut knit_make, mut knit_change, mut knit_remove] = [const { Samples::new() }; 3];
    for round in 0..rounds {
        in_turn(round, || make.time(|| bare.make(case)), || knit_make.time(|| knit.make(case)))?;
        knit.check(case, bare::MTU)?;
        in_turn(round, || change.time(|| bare.change(case)), || knit_change.time(|| knit.change(case)))?;
        knit.check(case, bare::OTHER_MTU)?;
        in_turn(round, || remove.time(|| bare.remove(case)), || knit_remove.time(|| knit.remove()))?;
        knit.tidy()?;
    }
    for (what, bare, knit) in
        [("make", make, knit_make), ("change", change, knit_change), ("remove", remove, knit_remove)]
    {
        let names = [format!("bare netlink: {what} {}", case.name), format!("Knit: {what} {}", case.name)];
        report.add(&names[0], &bare)?;
        report.add(&names[1], &knit)?;
        report.compare(&names[1], &names[0], Some(Goal::AtMost(1.5)))?;
    }
    Ok(())
}

/// Whether a refusal says that the kernel does not have a kind.
fn is_lacking(error: &Error) -> bool {
    error.errno() == Some(Errno::EOPNOTSUPP)
}

/// A step that must not go wrong, in words.
fn expect(is_so: bool, what: impl FnOnce() -> String) -> Result<()> {
    if is_so { Ok(()) } else { bail!(what()) }
}
