//! `cargo xtask test`: every test, by family, with what is missing built first, and one plain count at the end.
//!
//! A test's family is in the name of its file: `tests/netns_*.rs` needs a kernel and namespaces, `tests/vm_*.rs` runs
//! inside the guest kernel, `tests/netns_vm_*.rs` in both, `tests/vm_host_*.rs` drives the guest from outside,
//! `tests/cluster_*.rs` needs the test cluster. Everything else is a unit test and needs nothing.

mod binaries;
mod cluster;
mod count;
mod kinds;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use crate::python;
use binaries::{Selection, Where};
use count::Count;
use knit_dev::packages::{self, Purpose};
use knit_dev::process;
use knit_testcluster::bpffs;

/// A group of tests with the same needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Family {
    /// Needs nothing but cargo
    Unit,
    /// Needs network namespaces: root, or user namespaces
    Netns,
    /// Runs in the guest kernel
    Vm,
    /// Needs root: runs on a real Kubernetes
    Cluster,
}

/// Which tests to run.
#[derive(Args, Clone, Debug, Default)]
pub struct Request {
    /// Only these families
    pub families: Vec<Family>,
    /// Only tests whose name contains this
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
    /// Run a failed test a second time, alone, and report it as flaky if it passes then
    #[arg(long)]
    pub retry: bool,
}

/// Runs the tests, prints the count as the last line, and fails if any test failed.
pub fn command(request: &Request) -> Result<()> {
    let families = match request.families.as_slice() {
        [] => &[Family::Unit, Family::Netns, Family::Vm, Family::Cluster],
        some => some,
    };
    let mut total = Count::default();
    for &family in families {
        eprintln!("== {}", family.title());
        // A family that cannot even start is a failure, and the others still run.
        match family.run(request) {
            Ok(count) => total += count,
            Err(error) => {
                eprintln!("error: {}: {error:#}", family.title());
                total += Count::failure();
            }
        }
    }
    // The table is about both kernels, so it takes both to check it, and every test.
    let is_whole = request.filter.is_none()
        && [Family::Netns, Family::Vm].iter().all(|family| families.contains(family));
    if is_whole && total.failed() == 0 {
        let checked = total.seen().check_page();
        total.check("the table of link kinds is what the tests did", checked);
    }
    total.print_failures();
    println!("{total}");
    if total.failed() > 0 {
        bail!("{} of {} tests failed", total.failed(), total.failed() + total.passed());
    }
    if total.passed() == 0 {
        bail!("no test ran: nothing matches");
    }
    Ok(())
}

impl Family {
    fn title(self) -> &'static str {
        match self {
            Self::Unit => "unit tests",
            Self::Netns => "namespace tests",
            Self::Vm => "guest kernel tests",
            Self::Cluster => "cluster tests",
        }
    }

    fn run(self, request: &Request) -> Result<Count> {
        packages::ensure(&[Purpose::Build])?;
        match self {
            Self::Unit => {
                let mut count = binaries::run(&Selection::new(binaries::is_unit, request), Where::Here)?;
                count += binaries::run_examples(request.filter.as_deref())?;
                Ok(count)
            }
            Self::Netns => {
                packages::ensure(&[Purpose::Netns])?;
                let _ebpf = bpffs::ensure()?;
                let place = if process::is_root() { Where::Here } else { Where::UserNamespace };
                let python = ("KNIT_TEST_PYTHON".to_owned(), python::ensure()?.display().to_string());
                binaries::run_with(&Selection::new(binaries::is_netns, request), place, &[python])
            }
            Self::Vm => {
                packages::ensure(&[Purpose::Netns, Purpose::Vm])?;
                let mut count = binaries::run(&Selection::new(binaries::is_vm_host, request), Where::Here)?;
                count += binaries::run(&Selection::new(binaries::is_vm, request), Where::Guest)?;
                Ok(count)
            }
            Self::Cluster => {
                process::require_root("the test cluster")?;
                packages::ensure(&[Purpose::Cluster])?;
                cluster::run(request)
            }
        }
    }
}
