//! Test programs: which there are, how they are built, where they run.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::count::Count;
use super::{Request, kinds};
use crate::metadata;
use knit_dev::places;
use knit_dev::process;
use knit_dev::progress::seconds;
use knit_guest::{self, Guest};

/// A test program may take this long inside the guest, which is emulated.
const GUEST_LIMIT: Duration = Duration::from_secs(1800);

/// When more tests of a program fail than this, something is broken, and running them again tells nothing new.
const MAX_RETRIES: usize = 3;

/// Which test programs to run, and which tests in them.
pub struct Selection<'a> {
    accepts: fn(&Target) -> bool,
    filter: Option<&'a str>,
    until_failure: bool,
    retry: bool,
}

/// Where a test program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// On this machine.
    Here,
    /// On this machine, as root of a user namespace of its own.
    UserNamespace,
    /// In the guest kernel; built statically.
    Guest,
}

/// A test program that cargo can build.
#[derive(Clone, Debug, Deserialize)]
pub struct Target {
    kind: Vec<String>,
    name: String,
}

/// A test program that was built.
struct Program {
    name: String,
    executable: PathBuf,
    folder: PathBuf,
    /// The programs of the same package.
    own: Vec<PathBuf>,
}

impl<'a> Selection<'a> {
    /// Test programs that `accepts` accepts, and in them the tests that were asked for.
    pub fn new(accepts: fn(&Target) -> bool, request: &'a Request) -> Self {
        Self { accepts, filter: request.filter.as_deref(), until_failure: false, retry: request.retry }
    }

    /// Once a test program has failed, those after it do not run: what they share may be broken, and each would wait for
    /// it in vain.
    pub fn until_failure(self) -> Self {
        Self { until_failure: true, ..self }
    }
}

/// Unit tests of a library or program, and integration tests of no other family.
pub fn is_unit(target: &Target) -> bool {
    let other_families = ["netns", "vm", "cluster"];
    !target.is_integration_test() || !other_families.iter().any(|family| target.begins_with(family))
}

/// Tests on this machine's kernel.
pub fn is_netns(target: &Target) -> bool {
    target.is_integration_test() && target.begins_with("netns")
}

/// Tests that drive the guest from outside.
pub fn is_vm_host(target: &Target) -> bool {
    target.is_integration_test() && target.begins_with("vm_host")
}

/// Tests that run inside the guest.
pub fn is_vm(target: &Target) -> bool {
    let inside = target.begins_with("vm") || target.begins_with("netns_vm");
    target.is_integration_test() && inside && !target.begins_with("vm_host")
}

/// Tests against a running cluster with the reference network.
pub fn is_cluster(target: &Target) -> bool {
    let others = ["cluster_cni", "cluster_primary", "cluster_hostile", "cluster_migrate"];
    let is_other = others.iter().any(|other| target.begins_with(other));
    target.is_integration_test() && target.begins_with("cluster") && !is_other
}

/// Tests after which a cluster with the reference network has another one.
pub fn is_cluster_migrate(target: &Target) -> bool {
    target.is_integration_test() && target.begins_with("cluster_migrate")
}

/// Tests against a running cluster whose network is Knit: its own, attacks on it, and what the reference network has to do,
/// too.
pub fn is_cluster_primary(target: &Target) -> bool {
    let own = ["cluster_primary", "cluster_hostile", "cluster_reference"];
    target.is_integration_test() && own.iter().any(|own| target.begins_with(own))
}

/// Tests against a running cluster whose pods Knit connects, asked through its CNI shim.
pub fn is_cluster_cni(target: &Target) -> bool {
    target.is_integration_test() && target.begins_with("cluster_cni")
}

impl Target {
    fn is_integration_test(&self) -> bool {
        self.kind.iter().any(|kind| kind == "test")
    }

    /// Whether the name begins with these whole words: `netns_wire` begins with `netns`, `netnswire` does not.
    fn begins_with(&self, words: &str) -> bool {
        self.name.strip_prefix(words).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
    }
}

/// Builds and runs the selected test programs, one after the other on this machine.
pub fn run(selection: &Selection<'_>, place: Where) -> Result<Count> {
    run_with(selection, place, &[])
}

/// The same, with more environment for the tests.
pub fn run_with(selection: &Selection<'_>, place: Where, environment: &[(String, String)]) -> Result<Count> {
    let programs = build(selection)?;
    if place == Where::Guest {
        return run_in_guests(&programs, selection, environment);
    }
    let mut count = Count::default();
    for program in programs {
        if selection.until_failure && count.failed() > 0 {
            println!("-- {}: not run, because a test before it failed", program.name);
            continue;
        }
        count += program.run(selection, |arguments| program.run_here(place, arguments, environment))?;
    }
    Ok(count)
}

/// An emulated guest keeps one processor busy: as many run at once as there are processors, each with one module of a
/// test program.
fn run_in_guests(
    programs: &[Program],
    selection: &Selection<'_>,
    environment: &[(String, String)],
) -> Result<Count> {
    let mut shards = Vec::new();
    for program in programs {
        let modules = program.modules(selection)?.into_iter();
        shards.extend(modules.map(|(module, tests)| (program, module, tests)));
    }
    // The longest first, so that all processors are busy until the end: a single test is one of all pages or of a device.
    shards.sort_by_key(|(_, _, tests)| std::cmp::Reverse(if *tests == 1 { usize::MAX } else { *tests }));
    let at_once = processors();
    let (next, count) = (AtomicUsize::new(0), Mutex::new(Count::default()));
    let work = || {
        while let Some((program, module, _)) = shards.get(next.fetch_add(1, Ordering::Relaxed)) {
            println!("-- {} {module} (guest kernel)", program.name);
            let ran = program
                .retried(selection, &[module], |arguments| program.run_in_guest(arguments, environment));
            let mut count = count.lock().expect("no worker panics while it holds this");
            match ran {
                Ok(more) => *count += more,
                Err(error) => drop(count.check::<()>(&program.name, Err(error))),
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..at_once.min(shards.len()) {
            scope.spawn(work);
        }
    });
    Ok(count.into_inner().expect("no worker panics while it holds this"))
}

/// How many processors this machine has.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Builds programs that tests start and that belong to other packages than the tests.
pub fn build_programs(packages: &[&str]) -> Result<()> {
    let mut cargo = process::cargo();
    cargo.current_dir(places::workspace()).args(["build", "--locked", "--bins"]);
    cargo.args(packages.iter().flat_map(|package| ["--package", package]));
    process::run(&mut cargo)
}

/// Runs the examples in the documentation of every library.
pub fn run_examples(filter: Option<&str>) -> Result<Count> {
    println!("-- examples in documentation");
    let mut cargo = process::cargo();
    cargo.current_dir(places::workspace()).args([
        "test",
        "--workspace",
        "--locked",
        "--quiet",
        "--doc",
        "--",
    ]);
    cargo.args(filter);
    count_output(cargo, "examples in documentation")
}

fn build(selection: &Selection<'_>) -> Result<Vec<Program>> {
    let targets: Vec<(String, Target)> =
        all_targets()?.into_iter().filter(|(_, target)| (selection.accepts)(target)).collect();
    if targets.is_empty() {
        return Ok(Vec::new());
    }
    eprintln!("-- building {} test programs", targets.len());
    let start = Instant::now();
    let mut cargo = process::cargo();
    cargo.current_dir(places::workspace());
    cargo.args(["test", "--workspace", "--locked", "--no-run", "--message-format=json-render-diagnostics"]);
    if targets.iter().any(|(_, target)| !target.is_integration_test()) {
        cargo.args(["--lib", "--bins"]);
    }
    let integration = targets.iter().filter(|(_, target)| target.is_integration_test());
    let names: BTreeSet<&str> = integration.map(|(_, target)| target.name.as_str()).collect();
    cargo.args(names.into_iter().flat_map(|name| ["--test", name]));
    // Cargo shows its own diagnostics on standard error.
    let done = cargo.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    if !done.status.success() {
        bail!("the tests do not build");
    }
    let programs = built_programs(&done.stdout, &selection.accepts)?;
    eprintln!("-- built in {}", seconds(start.elapsed()));
    Ok(programs)
}

fn all_targets() -> Result<Vec<(String, Target)>> {
    #[derive(Deserialize)]
    struct Package {
        name: String,
        targets: Vec<Target>,
    }
    let packages = metadata::packages::<Package>()?.into_iter();
    Ok(packages
        .flat_map(|package| package.targets.into_iter().map(move |target| (package.name.clone(), target)))
        .collect())
}

fn built_programs(messages: &[u8], accepts: &fn(&Target) -> bool) -> Result<Vec<Program>> {
    #[derive(Deserialize)]
    struct Message {
        reason: String,
        target: Option<Target>,
        executable: Option<PathBuf>,
        manifest_path: Option<PathBuf>,
        profile: Option<Profile>,
    }
    #[derive(Deserialize)]
    struct Profile {
        test: bool,
    }
    let (mut programs, mut own) = (Vec::new(), Vec::new());
    for line in messages.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"{")) {
        let message: Message = serde_json::from_slice(line).context("cargo's build messages")?;
        if message.reason != "compiler-artifact" {
            continue;
        }
        let is_test = message.profile.is_some_and(|profile| profile.test);
        let (Some(target), Some(executable)) = (message.target, message.executable) else { continue };
        if is_test && accepts(&target) {
            let manifest = message.manifest_path.context("a build message without its manifest")?;
            let folder = manifest.parent().context("a manifest lies in a folder")?.to_owned();
            programs.push(Program { name: target.name, executable, folder, own: Vec::new() });
        } else if !is_test && target.kind.iter().any(|kind| kind == "bin") {
            let manifest = message.manifest_path.context("a build message without its manifest")?;
            own.push((manifest.parent().map(Path::to_owned), executable));
        }
    }
    for program in &mut programs {
        let same_package = own.iter().filter(|(folder, _)| folder.as_ref() == Some(&program.folder));
        program.own = same_package.map(|(_, executable)| executable.clone()).collect();
    }
    programs.sort_by(|a, b| a.executable.cmp(&b.executable));
    Ok(programs)
}

impl Program {
    /// Runs the selected tests, given how to run this program with arguments.
    fn run(&self, selection: &Selection<'_>, run: impl Fn(&[&str]) -> Result<Count>) -> Result<Count> {
        self.retried(selection, selection.filter.as_slice(), run)
    }

    /// Runs tests. Of a few that failed, each may run a second time, alone: one that passes then counts as passed, and is
    /// reported as flaky.
    fn retried(
        &self,
        selection: &Selection<'_>,
        arguments: &[&str],
        run: impl Fn(&[&str]) -> Result<Count>,
    ) -> Result<Count> {
        let mut count = run(arguments)?;
        if selection.retry && count.failures().len() <= MAX_RETRIES {
            for name in count.failures().to_vec() {
                println!("-- {}: {name}, second try", self.name);
                let second = run(&["--exact", &name])?;
                if second.failed() == 0 && second.passed() == 1 {
                    count.passed_on_retry(&name, second);
                }
            }
        }
        Ok(count)
    }

    /// The outermost modules of the selected tests, each as a filter for the program, with the number of tests. A program
    /// for the guest is static, so it can list its tests here.
    fn modules(&self, selection: &Selection<'_>) -> Result<BTreeMap<String, usize>> {
        let listed = process::output(Command::new(&self.executable).args(["--list", "--format=terse"]))?;
        let tests = listed.lines().filter_map(|line| line.strip_suffix(": test"));
        let tests = tests.filter(|test| selection.filter.is_none_or(|filter| test.contains(filter)));
        let mut modules = BTreeMap::new();
        for test in tests {
            let module = selection.filter.map_or_else(|| module_of(test), str::to_owned);
            *modules.entry(module).or_default() += 1;
        }
        Ok(modules)
    }

    fn run_here(&self, place: Where, arguments: &[&str], environment: &[(String, String)]) -> Result<Count> {
        println!("-- {}", self.name);
        let mut command = match place {
            Where::UserNamespace => in_user_namespace(self),
            Where::Here | Where::Guest => Command::new(&self.executable),
        };
        command.args(arguments).current_dir(&self.folder);
        command.envs(environment.iter().map(|(key, value)| (key, value)));
        let notes = tempfile::NamedTempFile::new().context("cannot make a file for what tests note")?;
        command.env(kinds::NOTE, notes.path());
        let mut count = count_output(command, &self.name)?;
        let noted = std::fs::read_to_string(notes.path()).context("cannot read what tests noted")?;
        count.read_notes(&noted, "host");
        Ok(count)
    }

    fn run_in_guest(&self, arguments: &[&str], environment: &[(String, String)]) -> Result<Count> {
        let guest = Guest {
            arguments: arguments.iter().map(OsString::from).collect(),
            environment: environment
                .iter()
                .map(|(key, value)| (key.clone(), value.into()))
                .chain([(kinds::NOTE.to_owned(), "stderr".into())])
                .chain(std::env::var_os(kinds::WRITE).map(|value| (kinds::WRITE.to_owned(), value)))
                .collect(),
            tools: self.own.clone(),
            timeout: GUEST_LIMIT,
            // Several guests run at once: each one's output is shown whole, when it has ended.
            show: false,
            keep: true,
            ..Guest::new(&self.executable)
        };
        let outcome = knit_guest::run(&guest)?;
        let (output, error) =
            (String::from_utf8_lossy(&outcome.stdout), String::from_utf8_lossy(&outcome.stderr));
        let (took, why) = (seconds(outcome.took), if outcome.code == 0 { "" } else { &*error });
        println!("-- {} (guest kernel) ended after {took}\n{output}{why}", self.name);
        let mut count = Count::default();
        count.read_notes(&error, "guest");
        output.lines().for_each(|line| count.read_line(line));
        if outcome.code != 0 {
            count.program_failed(&self.name);
        }
        Ok(count)
    }
}

/// `kinds::` of `kinds::tunnels::vxlan`; a test outside of any module stands for itself.
fn module_of(test: &str) -> String {
    test.split_once("::").map_or_else(|| test.to_owned(), |(module, _)| format!("{module}::"))
}

/// Passes a test program's output on, and counts its tests.
fn count_output(mut command: Command, name: &str) -> Result<Count> {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot start the tests `{name}`"))?;
    let stdout = child.stdout.take().context("the test's output is piped")?;
    let mut count = Count::default();
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        println!("{line}");
        count.read_line(&line);
    }
    if !child.wait()?.success() {
        count.program_failed(name);
    }
    Ok(count)
}

/// Not root, but where the machine allows user namespaces a test can be root in one of its own.
fn in_user_namespace(program: &Program) -> Command {
    let mut command = Command::new("unshare");
    command.args([
        "--user",
        "--map-root-user",
        "--net",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]);
    command.arg(&program.executable);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(kind: &str, name: &str) -> Target {
        Target { kind: vec![kind.to_owned()], name: name.to_owned() }
    }

    #[test]
    fn a_file_name_tells_the_family() {
        let families = |name: &str| {
            let target = target("test", name);
            [is_unit(&target), is_netns(&target), is_vm_host(&target), is_vm(&target), is_cluster(&target)]
        };
        assert_eq!(families("snapshots"), [true, false, false, false, false]);
        assert_eq!(families("netns_wire"), [false, true, false, false, false]);
        assert_eq!(families("netns_vm_kinds"), [false, true, false, true, false]);
        assert_eq!(families("vm_features"), [false, false, false, true, false]);
        assert_eq!(families("vm_host"), [false, false, true, false, false]);
        assert_eq!(families("cluster_pods"), [false, false, false, false, true]);
        assert_eq!(
            families("cluster_cni"),
            [false, false, false, false, false],
            "it has a cluster of its own"
        );
        let hostile = target("test", "cluster_hostile");
        assert!(is_cluster_primary(&hostile) && !is_cluster(&hostile));
        assert_eq!(families("vmlinux"), [true, false, false, false, false]);
    }

    #[test]
    fn guests_share_a_program_by_modules() {
        assert_eq!(
            ["kinds::tunnels::vxlan", "kinds::veth", "boots"].map(module_of),
            ["kinds::", "kinds::", "boots"]
        );
    }

    #[test]
    fn a_library_is_a_unit_test_whatever_its_name() {
        assert!(is_unit(&target("lib", "netns")));
        assert!(!is_netns(&target("lib", "netns")));
    }
}
