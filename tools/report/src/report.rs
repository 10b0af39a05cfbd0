//! The results of a benchmark: rows as JSON, or a table.

use std::fmt;

use anyhow::{Context, Result, bail};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::measure::Samples;

/// The minimum number of rounds for a p99.
pub const MIN_ROUNDS: usize = 200;

/// The statistics of each row, in this order.
const STATISTICS: [&str; 2] = ["p50", "p99"];

/// One number of a benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The measured operation.
    pub name: String,
    /// `p50`, `p99` or `once`.
    pub statistic: &'static str,
    /// The measured value.
    pub value: f64,
    /// The unit of the value.
    pub unit: &'static str,
    /// The name of the row that it is compared with, of the same run and statistic.
    pub against: Option<String>,
    /// This value divided by that row's.
    pub ratio: Option<f64>,
    /// The goal for the ratio or the value.
    pub goal: Option<Goal>,
    /// Whether the goal is met.
    pub met: Option<bool>,
}

impl Row {
    /// A value without a comparison.
    fn new(name: &str, statistic: &'static str, value: f64, unit: &'static str) -> Self {
        let (against, ratio, goal, met) = (None, None, None, None);
        Self { name: name.to_owned(), statistic, value, unit, against, ratio, goal, met }
    }

    /// The value as text; the unit of microseconds is in the table's header.
    fn text(&self) -> String {
        match self.unit {
            "µs" => number(self.value),
            "x" => format!("{:.2}x", self.value),
            unit if self.value >= 1000.0 => format!("{} {unit}", number(self.value)),
            unit => format!("{:.1} {unit}", self.value),
        }
    }

    /// Durations are faster or slower than others; any other value is a multiple.
    fn ratio_text(&self, ratio: f64) -> String {
        let digits = |times: f64| if times < 10.0 { format!("{times:.1}") } else { number(times.round()) };
        match self.unit {
            "µs" if ratio <= 1.0 => format!("{}x faster than", digits(1.0 / ratio)),
            "µs" => format!("{}x the time of", digits(ratio)),
            unit if unit.ends_with("/s") => format!("{ratio:.2}x the rate of"),
            _ => format!("{ratio:.2}x the size of"),
        }
    }
}

/// A goal for a ratio or value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// The ratio is at most this: 1.5 is "at most one and a half times", 0.1 is "ten times faster".
    AtMost(f64),
    /// The ratio is at least this, where more is better: a rate.
    AtLeast(f64),
    /// The value itself is at most this.
    Limit(f64),
}

impl Goal {
    fn is_met(self, number: f64) -> bool {
        match self {
            Self::AtMost(limit) | Self::Limit(limit) => number <= limit,
            Self::AtLeast(least) => number >= least,
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(most) if *most < 1.0 => write!(f, "at least {:.0}x faster", 1.0 / most),
            Self::AtMost(most) => write!(f, "at most {most}x"),
            Self::AtLeast(least) => write!(f, "at least {least}x"),
            Self::Limit(most) => write!(f, "at most {most}"),
        }
    }
}

/// The rows of one benchmark.
#[derive(Debug, Default)]
pub struct Report {
    rows: Vec<Row>,
    /// Values without percentiles.
    single: Vec<Row>,
    /// Remarks printed with the rows.
    notes: Vec<String>,
}

impl Report {
    /// Adds median and 99th percentile of durations, in microseconds.
    pub fn add(&mut self, name: &str, samples: &Samples) -> Result<()> {
        if samples.count() < MIN_ROUNDS {
            bail!("{name}: {} rounds are too few for a p99", samples.count());
        }
        for (statistic, share) in STATISTICS.into_iter().zip([0.5, 0.99]) {
            let time = samples.quantile(share).context("no samples")?;
            self.rows.push(Row::new(name, statistic, time.as_nanos() as f64 / 1000.0, "µs"));
        }
        Ok(())
    }

    /// Adds the median only, for an operation that is too slow for the number of rounds that a p99 needs.
    pub fn add_median(&mut self, name: &str, samples: &Samples) -> Result<()> {
        let time = samples.quantile(0.5).with_context(|| format!("{name}: no samples"))?;
        self.rows.push(Row::new(name, "p50", time.as_nanos() as f64 / 1000.0, "µs"));
        Ok(())
    }

    /// Adds the median, and the 99th percentile if there are enough rounds.
    pub fn add_times(&mut self, name: &str, samples: &Samples) -> Result<()> {
        if samples.count() < MIN_ROUNDS { self.add_median(name, samples) } else { self.add(name, samples) }
    }

    /// Adds a remark, such as why something could not be measured.
    pub fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Adds a remark about the machine and its load.
    pub fn note_machine(&mut self, when: &str) -> Result<()> {
        self.note(machine(when)?);
        Ok(())
    }

    /// Adds the ratio of two rows: how an operation grew.
    pub fn add_growth(&mut self, name: &str, from: &str, to: &str) -> Result<()> {
        for statistic in STATISTICS {
            let value =
                self.rows[self.find(to, statistic)?].value / self.rows[self.find(from, statistic)?].value;
            self.rows.push(Row::new(name, statistic, value, "x"));
        }
        Ok(())
    }

    /// Adds a single value with an optional upper limit.
    pub fn add_value(&mut self, name: &str, value: f64, unit: &'static str, limit: Option<f64>) {
        let mut row = Row::new(name, "once", value, unit);
        row.goal = limit.map(Goal::Limit);
        row.met = row.goal.map(|goal| goal.is_met(value));
        self.single.push(row);
    }

    /// Compares a single value with another one of this run. A second comparison of the same value adds a row.
    pub fn compare_value(&mut self, name: &str, against: &str, goal: Option<Goal>) -> Result<()> {
        let find = |name: &str| {
            let found = self.single.iter().rposition(|row| row.name == name);
            found.with_context(|| format!("no row named {name:?}"))
        };
        let (mut index, other) = (find(name)?, self.single[find(against)?].value);
        if self.single[index].against.is_some() {
            let row = &self.single[index];
            let copy = Row::new(name, row.statistic, row.value, row.unit);
            index += 1;
            self.single.insert(index, copy);
        }
        let row = &mut self.single[index];
        let ratio = row.value / other;
        row.against = Some(against.to_owned());
        row.ratio = Some(ratio);
        row.met = goal.map(|goal| goal.is_met(ratio)).or(row.met);
        row.goal = goal.or(row.goal);
        Ok(())
    }

    /// Sets an upper limit for the 99th percentile of durations, in microseconds.
    pub fn limit_p99(&mut self, name: &str, limit: f64) -> Result<()> {
        let row = self.find(name, STATISTICS[1])?;
        let row = &mut self.rows[row];
        row.goal = Some(Goal::Limit(limit));
        row.met = Some(row.value <= limit);
        Ok(())
    }

    /// Compares a row with another one of this run; a goal applies to the median. A second comparison of the same row adds rows.
    pub fn compare(&mut self, name: &str, against: &str, goal: Option<Goal>) -> Result<()> {
        self.copy_if_compared(name)?;
        self.find(name, STATISTICS[0]).and(self.find(against, STATISTICS[0]))?;
        for statistic in STATISTICS {
            // A row without p99 is compared by its median only.
            let (Ok(row), Ok(other)) = (self.find(name, statistic), self.find(against, statistic)) else {
                continue;
            };
            let other = self.rows[other].value;
            let row = &mut self.rows[row];
            let ratio = row.value / other;
            row.against = Some(against.to_owned());
            row.ratio = Some(ratio);
            if let Some(goal) = goal.filter(|_| statistic == "p50") {
                row.goal = Some(goal);
                row.met = Some(goal.is_met(ratio));
            }
        }
        Ok(())
    }

    /// The row to compare: the last one of this name.
    fn find(&self, name: &str, statistic: &str) -> Result<usize> {
        let found = self.rows.iter().rposition(|row| row.name == name && row.statistic == statistic);
        found.with_context(|| format!("no row named {name:?}"))
    }

    /// Appends a copy of a row that already has a comparison.
    fn copy_if_compared(&mut self, name: &str) -> Result<()> {
        let last = self.find(name, STATISTICS[1]).or(self.find(name, STATISTICS[0]))?;
        if self.rows[last].against.is_some() {
            let existing = STATISTICS.iter().filter_map(|statistic| self.find(name, statistic).ok());
            let copies: Vec<Row> = existing
                .map(|row| &self.rows[row])
                .map(|row| Row::new(name, row.statistic, row.value, row.unit))
                .collect();
            for (offset, row) in copies.into_iter().enumerate() {
                self.rows.insert(last + 1 + offset, row);
            }
        }
        Ok(())
    }

    /// Prints the rows as JSON or as a table.
    pub fn print(&self, json: bool) -> Result<()> {
        if json {
            let all: Vec<&Row> = self.rows.iter().chain(&self.single).collect();
            println!("{}", serde_json::to_string_pretty(&all)?);
            // Standard output has the rows only.
            self.notes.iter().for_each(|note| eprintln!("{note}"));
        } else {
            println!("{}", self.table());
            self.notes.iter().for_each(|note| println!("{note}"));
        }
        Ok(())
    }

    /// One line per row with both of its statistics.
    fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["OPERATION", "P50 µs", "P99 µs", "", "AGAINST", "GOAL", "MET"]);
        for (index, median) in self.rows.iter().enumerate().filter(|(_, row)| row.statistic == "p50") {
            let p99 = self.rows.get(index + 1).filter(|row| row.statistic == "p99");
            let goals = [
                median.goal.map(|goal| goal.to_string()),
                p99.and_then(|row| row.goal).map(|goal| match goal {
                    Goal::Limit(limit) => format!("p99 at most {}", number(limit)),
                    goal => format!("p99 {goal}"),
                }),
            ];
            let met = [median.met, p99.and_then(|row| row.met)].into_iter().flatten();
            let met = met.reduce(|one, other| one && other);
            table.add_row([
                median.name.clone(),
                median.text(),
                p99.map(Row::text).unwrap_or_default(),
                median.ratio.map(|ratio| median.ratio_text(ratio)).unwrap_or_default(),
                median.against.clone().unwrap_or_default(),
                goals.into_iter().flatten().collect::<Vec<_>>().join(", "),
                met.map(|met| if met { "yes" } else { "NO" }).unwrap_or_default().to_owned(),
            ]);
        }
        for row in &self.single {
            table.add_row([
                row.name.clone(),
                row.text(),
                String::new(),
                row.ratio.map(|ratio| row.ratio_text(ratio)).unwrap_or_default(),
                row.against.clone().unwrap_or_default(),
                row.goal.map(|goal| goal_text(goal, row.unit)).unwrap_or_default(),
                row.met.map(|met| if met { "yes" } else { "NO" }).unwrap_or_default().to_owned(),
            ]);
        }
        for column in [1, 2, 3] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.trim_fmt()
    }
}

/// The machine and its load.
fn machine(when: &str) -> Result<String> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let memory = read("/proc/meminfo");
    let memory = memory.split_whitespace().nth(1).and_then(|text| text.parse::<f64>().ok());
    let release = read("/proc/sys/kernel/osrelease");
    let release = release.trim().split('-').next().unwrap_or_default().to_owned();
    let load = read("/proc/loadavg");
    Ok(format!(
        "{} cores, {:.0} GiB, Linux {release}; load average {when}: {}",
        std::thread::available_parallelism()?,
        memory.unwrap_or_default() / f64::from(1 << 20),
        load.split(' ').next().unwrap_or_default(),
    ))
}

/// A limit has the unit of its value, a ratio has none.
fn goal_text(goal: Goal, unit: &str) -> String {
    match goal {
        Goal::Limit(_) => format!("{goal} {unit}"),
        Goal::AtMost(_) | Goal::AtLeast(_) => goal.to_string(),
    }
}

/// The significant digits, with thousands separators.
fn number(value: f64) -> String {
    if value < 100.0 && value.fract() != 0.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn samples_of(microseconds: u64) -> Samples {
        let mut samples = Samples::new();
        (0..MIN_ROUNDS).for_each(|_| samples.add_warm(Duration::from_micros(microseconds)));
        samples
    }

    fn report() -> Report {
        let mut report = Report::default();
        report.add("attach", &samples_of(500)).unwrap();
        report.add("reference", &samples_of(8805)).unwrap();
        report
    }

    #[test]
    fn a_goal_applies_to_the_median_of_the_same_run() {
        let mut report = report();
        report.compare("attach", "reference", Some(Goal::AtMost(0.1))).unwrap();
        assert_eq!((report.rows[0].statistic, report.rows[0].met), ("p50", Some(true)));
        assert_eq!((report.rows[1].statistic, report.rows[1].met), ("p99", None));
        report.compare("reference", "attach", Some(Goal::AtMost(1.5))).unwrap();
        assert_eq!(report.rows[2].met, Some(false));
        assert!(report.compare("attach", "nothing", None).is_err());
    }

    #[test]
    fn a_second_comparison_adds_a_row() {
        let mut report = report();
        report.add("floor", &samples_of(400)).unwrap();
        report.compare("attach", "floor", Some(Goal::AtMost(1.5))).unwrap();
        report.compare("attach", "reference", Some(Goal::AtMost(0.01))).unwrap();
        let lines: Vec<_> = report.rows.iter().filter(|row| row.name == "attach").collect();
        assert_eq!(
            lines.iter().map(|row| row.met).collect::<Vec<_>>(),
            [Some(true), None, Some(false), None]
        );
        assert_eq!(lines[2].against.as_deref(), Some("reference"));
    }

    #[test]
    fn a_limit_applies_to_the_p99() {
        let mut report = report();
        report.limit_p99("attach", 500.0).unwrap();
        report.limit_p99("reference", 8_000.0).unwrap();
        assert_eq!(
            (report.rows[0].met, report.rows[1].met, report.rows[3].met),
            (None, Some(true), Some(false))
        );
        assert!(report.table().contains("p99 at most 8,000"), "{}", report.table());
    }

    #[test]
    fn a_row_with_two_goals_shows_both() {
        let mut report = report();
        report.limit_p99("attach", 400.0).unwrap();
        report.compare("attach", "reference", Some(Goal::AtMost(0.1))).unwrap();
        let table = report.table();
        let line = table.lines().find(|line| line.contains("attach")).unwrap();
        assert!(line.contains("at least 10x faster, p99 at most 400"), "{line}");
        assert!(line.ends_with("NO"), "{line}");
    }

    #[test]
    fn growth_can_be_compared() {
        let mut report = report();
        report.add_growth("growth", "attach", "reference").unwrap();
        report.compare("growth", "growth", Some(Goal::AtMost(1.0))).unwrap();
        assert!(report.table().contains("17.61x"));
        assert!(report.table().contains("1.00x the size of"));
        assert_eq!(report.rows[4].met, Some(true));
    }

    #[test]
    fn a_p99_of_few_rounds_is_rejected() {
        let mut samples = samples_of(1);
        samples.add_warm(Duration::ZERO);
        assert!(Report::default().add("enough", &samples).is_ok());
        assert!(Report::default().add("none", &Samples::new()).is_err());
    }

    #[test]
    fn a_row_without_p99_can_be_compared() {
        let mut report = report();
        let mut few = Samples::new();
        (1..=3).for_each(|milliseconds| few.add_warm(Duration::from_millis(milliseconds)));
        report.add_median("slow", &few).unwrap();
        report.add_median("slower", &few).unwrap();
        report.compare("slow", "slower", Some(Goal::AtMost(1.0))).unwrap();
        assert_eq!((report.rows[4].statistic, report.rows[4].met), ("p50", Some(true)));
        let table = report.table();
        assert!(table.lines().any(|line| line.split_whitespace().eq(["slower", "2,000"])));
        assert!(report.compare("attach", "slow", None).is_ok());
        assert!(Report::default().add_median("none", &Samples::new()).is_err());
    }

    #[test]
    fn rates_are_compared_with_a_lower_bound() {
        let mut report = Report::default();
        report.add_value("pods", 1_200.0, "requests/s", None);
        report.add_value("hosts", 1_500.0, "requests/s", None);
        report.add_value("other pods", 1_000.0, "requests/s", None);
        report.compare_value("pods", "other pods", Some(Goal::AtLeast(1.0))).unwrap();
        report.compare_value("pods", "hosts", Some(Goal::AtLeast(1.0))).unwrap();
        let lines: Vec<_> =
            report.single.iter().filter_map(|row| Some((row.against.as_deref()?, row.met))).collect();
        assert_eq!(lines, [("other pods", Some(true)), ("hosts", Some(false))]);
        let table = report.table();
        assert!(table.contains("1.20x the rate of") && table.contains("at least 1x"), "{table}");
        assert!(report.compare_value("pods", "nothing", None).is_err());
    }

    #[test]
    fn the_table_has_a_line_per_operation() {
        let mut report = report();
        report.compare("attach", "reference", Some(Goal::AtMost(0.1))).unwrap();
        let table = report.table();
        let line = table.lines().find(|line| line.contains("attach")).unwrap();
        let cells: Vec<_> = line.split_whitespace().collect();
        let expected = "attach 500 500 18x faster than reference at least 10x faster yes";
        assert_eq!(cells.join(" "), expected);
        assert!(table.contains("8,805"));
    }

    #[test]
    fn json_rows_have_every_field() {
        let json = serde_json::to_value(&report().rows).unwrap();
        assert_eq!(json.as_array().unwrap().len(), 4);
        for key in ["name", "value", "unit", "against", "ratio", "goal", "met"] {
            assert!(json[0].as_object().unwrap().contains_key(key), "{key}");
        }
    }
}
