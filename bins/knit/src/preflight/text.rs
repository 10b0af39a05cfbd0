//! The report for people: a row for each check, what to do below it, and a verdict at the end.

use super::{Report, Verdict};

/// The whole answer.
pub fn render(report: &Report) -> String {
    let width = report.checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut text = format!("{}\n\n", report.server);
    for check in &report.checks {
        let word = match check.verdict {
            Verdict::Fine => "ok",
            Verdict::Note => "note",
            Verdict::Wrong => "wrong",
            Verdict::Unknown => "unknown",
        };
        text += &format!("  {word:<7}  {:<width$}  {}\n", check.name, check.found);
        if let Some(advice) = &check.advice {
            let begin = if check.verdict == Verdict::Wrong { "to do: " } else { "" };
            text += &format!("  {:<7}  {:<width$}  {begin}{advice}\n", "", "");
        }
    }
    let count = |verdict| report.checks.iter().filter(|check| check.verdict == verdict).count();
    text + &match (count(Verdict::Wrong), count(Verdict::Unknown)) {
        (0, 0) => "\nKnit would work here, as far as can be seen from the API server\n".to_owned(),
        (0, unknown) => format!(
            "\nnothing is known to be in the way, {unknown} of {} could not be seen\n",
            report.checks.len()
        ),
        (1, _) => "\none thing would not work\n".to_owned(),
        (wrong, _) => format!("\n{wrong} things would not work\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preflight::{Check, Ranges};

    #[test]
    fn a_row_for_each_check_with_what_to_do_and_a_verdict() {
        let checks = vec![
            Check::fine("api-server", "v1.36.4"),
            Check::new("rights", Verdict::Wrong, "you may not create namespaces", "install as an admin"),
        ];
        let report =
            Report { server: "https://10.0.0.1/".into(), ready: false, ranges: Ranges::default(), checks };
        assert_eq!(
            render(&report),
            "https://10.0.0.1/\n\n  ok       api-server  v1.36.4\n  wrong    rights      you may not create namespaces\n\
             \x20                      to do: install as an admin\n\none thing would not work\n"
        );
    }
}
