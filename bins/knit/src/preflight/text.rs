//! The report as text: a row for each check, the advice below it, and a summary at the end.

use super::{Report, Verdict};

/// Renders the report.
pub fn render(report: &Report) -> String {
    let width = report.checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut text = format!("{}\n\n", report.server);
    for check in &report.checks {
        let verdict = match check.verdict {
            Verdict::Pass => "pass",
            Verdict::Warn => "warn",
            Verdict::Fail => "fail",
            Verdict::Unknown => "unknown",
        };
        text += &format!("  {verdict:<7}  {:<width$}  {}\n", check.name, check.found);
        if let Some(advice) = &check.advice {
            text += &format!("  {:<7}  {:<width$}  {advice}\n", "", "");
        }
    }
    let count = |verdict| report.checks.iter().filter(|check| check.verdict == verdict).count();
    text + &match (count(Verdict::Fail), count(Verdict::Unknown)) {
        (0, 0) => "\nno check failed\n".to_owned(),
        (0, unknown) => {
            format!("\nno check failed, {unknown} of {} could not be completed\n", report.checks.len())
        }
        (1, _) => "\n1 check failed\n".to_owned(),
        (failed, _) => format!("\n{failed} checks failed\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preflight::{Check, Ranges};

    #[test]
    fn the_report_has_a_row_for_each_check_with_advice_and_a_summary() {
        let checks = vec![
            Check::pass("api-server", "v1.36.4"),
            Check::new("permissions", Verdict::Fail, "you may not create namespaces", "install as an admin"),
        ];
        let report =
            Report { server: "https://10.0.0.1/".into(), ready: false, ranges: Ranges::default(), checks };
        assert_eq!(
            render(&report),
            "https://10.0.0.1/\n\n  pass     api-server   v1.36.4\n  fail     permissions  you may not create namespaces\n\
             \x20                       install as an admin\n\n1 check failed\n"
        );
    }
}
