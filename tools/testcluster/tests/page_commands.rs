//! How the output of a page's commands is compared, and that the page about isolation can be read. Needs no cluster.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by tests")]
    pub mod page;
}

use support::page::{self, Addresses};

const PAGE: &str = include_str!("../../../docs/isolation-walkthrough.md");

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

fn is_as_expected(expected: &str, output: &str) -> bool {
    Addresses::default().compare(&lines(expected), output).is_ok()
}

#[test]
fn only_durations_addresses_and_omitted_lines_may_differ() {
    let expected = "...\n2 packets transmitted, 0 received, 100% packet loss, time 1012ms\n...";
    let output =
        |received: &str| format!("PING\n2 packets transmitted, {received} packet loss, time 999ms\n\nend");
    assert!(is_as_expected(expected, &output("0 received, 100%")));
    assert!(!is_as_expected(expected, &output("1 received, 50%")));
    assert!(!is_as_expected(expected, "PING"));
    assert!(is_as_expected("db-1 1/1 Running 0 20s", "db-1   1/1   Running   0   2m3s\n"));
    for other in
        ["db-1 0/1 Running 0 20s", "db-1 1/1 Running 1 20s", "db-2 1/1 Running 0 20s", "db-1 1/1 Running 0"]
    {
        assert!(!is_as_expected("db-1 1/1 Running 0 20s", other), "{other}");
    }
    assert!(
        is_as_expected("...denied: no", "Error: denied: no") && !is_as_expected("...denied: no", "Error")
    );
    assert!(!is_as_expected("", "something") && !is_as_expected("something", ""));
}

#[test]
fn an_address_of_the_page_stands_for_one_address_of_the_cluster() {
    assert!(is_as_expected("10.224.0.1 a\n10.224.0.1 b", "10.9.0.7 a\n10.9.0.7 b"));
    assert!(!is_as_expected("10.224.0.1 a\n10.224.0.1 b", "10.9.0.7 a\n10.9.0.8 b"));
    assert!(!is_as_expected("10.224.0.1 a\n10.224.0.2 b", "10.9.0.7 a\n10.9.0.7 b"));
    let mut addresses = Addresses::default();
    addresses.compare(&lines("10.224.0.1 10.224.0.12"), "10.9.0.7 10.9.0.8").unwrap();
    assert_eq!(addresses.in_command("ping 10.224.0.12"), "ping 10.9.0.8");
    assert_eq!(addresses.in_command("curl http://10.224.0.1:80/x"), "curl http://10.9.0.7:80/x");
    assert!(addresses.compare(&lines("10.224.0.1:41934"), "10.9.0.7:5000").is_ok());
    assert!(addresses.compare(&lines("10.224.0.1:41934"), "10.9.0.8:5000").is_err());
}

#[test]
fn the_page_about_isolation_has_files_and_commands() {
    let folder = tempfile::tempdir().unwrap();
    page::write_files(PAGE, folder.path());
    let steps = page::steps(PAGE);
    assert!(steps.len() > 40 && steps.iter().all(|step| step.command.starts_with("kubectl ")), "{steps:#?}");
    for file in steps.iter().filter_map(|step| step.command.split_once(" -f ")) {
        assert!(folder.path().join(file.1).exists(), "{}", file.1);
    }
}
