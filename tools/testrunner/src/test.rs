//! `cargo xtask test`: every test, by family, with what is missing installed and built first, and one count at the end.
//!
//! The name of a test program tells its family: `netns*` needs a kernel and namespaces, `vm*` runs inside the guest
//! kernel, `netns_vm*` in both, `vm_host*` drives the guest from outside, `cluster*` needs the test cluster. Everything
//! else is a unit test and needs nothing.

mod binaries;
mod cluster;
mod count;
mod kinds;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::python;
use binaries::{Selection, Where};
use count::Count;
use knit_dev::packages::{self, Purpose};
use knit_dev::process;
use knit_dev::progress::seconds;
use knit_testcluster::{bpffs, go_tools};

/// How many tests of a program run at once.
const TEST_THREADS: &str = "RUST_TEST_THREADS";

/// A group of tests with the same needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
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
    /// Write the result to this file, for the run that started this one
    #[arg(long, hide = true, value_name = "FILE")]
    pub record: Option<PathBuf>,
}

/// Runs the tests, prints the count as the last line, and fails if any test failed.
pub fn command(request: &Request) -> Result<()> {
    let families = match request.families.as_slice() {
        [] => &[Family::Unit, Family::Netns, Family::Vm, Family::Cluster],
        some => some,
    };
    run_after(Total::default(), families, request)
}

/// Runs these families, and adds them to what ran before.
pub fn run_after(before: Total, families: &[Family], request: &Request) -> Result<()> {
    let Total { mut count, families: mut done } = before;
    if families.contains(&Family::Cluster) && families.len() > 1 {
        go_tools::build_ahead(cluster::tools())?;
    }
    for &family in families {
        eprintln!("== {}", family.title());
        let start = Instant::now();
        // A family that cannot even start is a failure, and the others still run.
        match family.run(request) {
            Ok(more) => count += more,
            Err(error) => {
                eprintln!("error: {}: {error:#}", family.title());
                count += Count::failure();
            }
        }
        eprintln!("== {} took {}", family.title(), seconds(start.elapsed()));
        done.push(family);
    }
    // The table is about both kernels, so it takes both to check it, and every test.
    let is_whole =
        request.filter.is_none() && [Family::Netns, Family::Vm].iter().all(|family| done.contains(family));
    if is_whole && count.failed() == 0 {
        let checked = count.seen().check_page();
        count.check("link_kinds_page_matches_the_tests", checked);
    }
    count.limit_flaky();
    count.print_failures();
    println!("{count}");
    let total = Total { count, families: done };
    if let Some(file) = &request.record {
        let text = serde_json::to_string(&total).context("a count is plain data")?;
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let count = total.count;
    if count.failed() > 0 {
        bail!("{} of {} tests failed", count.failed(), count.failed() + count.passed());
    }
    if count.passed() == 0 {
        bail!("no test ran: nothing matches");
    }
    Ok(())
}

/// What several families did, also of another process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Total {
    count: Count,
    families: Vec<Family>,
}

impl Total {
    /// What a run of another process recorded. If there is no record, that run failed before its end: `ran` says why.
    pub fn recorded(record: &Path, ran: Result<()>) -> Result<Self> {
        let text =
            std::fs::read_to_string(record).with_context(|| format!("cannot read {}", record.display()))?;
        if text.is_empty() {
            ran?;
            bail!("the tests in the fresh root recorded no result");
        }
        serde_json::from_str(&text).context("the record of another run")
    }
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
                // A virtual machine on a tap needs QEMU; clients in Python run on the environment in the cache.
                packages::ensure(&[Purpose::Netns, Purpose::Vm, Purpose::Clients])?;
                let _ebpf = bpffs::ensure()?;
                let place = if process::is_root() { Where::Here } else { Where::UserNamespace };
                // Pages start them by name.
                binaries::build_programs(&["knit-cni", "mesh-redirect"])?;
                let environment = [
                    ("KNIT_TEST_PYTHON".to_owned(), python::ensure()?.display().to_string()),
                    // These tests mostly wait for the kernel.
                    (TEST_THREADS.to_owned(), (2 * binaries::processors()).to_string()),
                ];
                binaries::run_with(&Selection::new(binaries::is_netns, request), place, &environment)
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
