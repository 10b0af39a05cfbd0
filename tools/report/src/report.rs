//! What a benchmark says: rows for programs, a table for people.

use std::fmt;

use anyhow::{Context, Result, bail};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::measure::Samples;

/// The smallest number of rounds that a p99 may rest on.
const LEAST_ROUNDS: usize = 200;

/// The numbers of each measured thing, in this order.
const STATISTICS: [&str; 2] = ["p50", "p99"];

/// One number of a benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What was measured.
    pub name: String,
    /// Which number of it: `p50` or `p99`.
    pub statistic: &'static str,
    /// The number.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// The name of the row that it is compared with, of the same run and statistic.
    pub against: Option<String>,
    /// This value divided by that one's.
    pub ratio: Option<f64>,
    /// What the ratio should be.
    pub goal: Option<Goal>,
    /// Whether it is.
    pub met: Option<bool>,
}

impl Row {
    /// A number that is not compared yet.
    fn new(name: &str, statistic: &'static str, value: f64, unit: &'static str) -> Self {
        let (against, ratio, goal, met) = (None, None, None, None);
        Self { name: name.to_owned(), statistic, value, unit, against, ratio, goal, met }
    }

    /// The number as people read it; microseconds go without saying.
    fn text(&self) -> String {
        match self.unit {
            "µs" => number(self.value),
            "x" => format!("{:.2}x", self.value),
            unit if self.value >= 1000.0 => format!("{} {unit}", number(self.value)),
            unit => format!("{:.1} {unit}", self.value),
        }
    }

    /// A time is faster or slower than another; any other number is so many times as large.
    fn ratio_in_words(&self, ratio: f64) -> String {
        let digits = |times: f64| if times < 10.0 { format!("{times:.1}") } else { number(times.round()) };
        match self.unit {
            "µs" if ratio <= 1.0 => format!("{}x faster than", digits(1.0 / ratio)),
            "µs" => format!("{}x the time of", digits(ratio)),
            unit if unit.ends_with("/s") => format!("{ratio:.2}x the rate of"),
            _ => format!("{ratio:.2}x the size of"),
        }
    }
}

/// What a ratio should be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// No more than this: 1.5 is "at most one and a half times", 0.1 is "ten times faster".
    AtMost(f64),
    /// No less than this, where more is better: a rate.
    AtLeast(f64),
    /// The number itself, not a ratio, is no more than this.
    Limit(f64),
}

impl Goal {
    fn is_met(self, number: f64) -> bool {
        match self {
            Self::AtMost(most) | Self::Limit(most) => number <= most,
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
    /// What is measured once, and has no percentiles.
    once: Vec<Row>,
    /// What people should know beside the numbers.
    notes: Vec<String>,
}

impl Report {
    /// Adds the median and the 99th percentile of some times, in microseconds.
    pub fn add(&mut self, name: &str, samples: &Samples) -> Result<()> {
        if samples.len() < LEAST_ROUNDS {
            bail!("{name}: {} rounds are too few for a p99", samples.len());
        }
        for (statistic, share) in STATISTICS.into_iter().zip([0.5, 0.99]) {
            let time = samples.quantile(share).context("there are samples")?;
            self.rows.push(Row::new(name, statistic, time.as_nanos() as f64 / 1000.0, "µs"));
        }
        Ok(())
    }

    /// Adds the median alone, of something that is too slow for the many rounds that a p99 needs.
    pub fn add_median(&mut self, name: &str, samples: &Samples) -> Result<()> {
        let time = samples.quantile(0.5).with_context(|| format!("{name}: there are no samples"))?;
        self.rows.push(Row::new(name, "p50", time.as_nanos() as f64 / 1000.0, "µs"));
        Ok(())
    }

    /// Adds the median, and the 99th percentile where there are rounds enough for one.
    pub fn add_times(&mut self, name: &str, samples: &Samples) -> Result<()> {
        if samples.len() < LEAST_ROUNDS { self.add_median(name, samples) } else { self.add(name, samples) }
    }

    /// Says something beside the numbers: what could not be measured, and why.
    pub fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Says what the machine is, and how busy.
    pub fn note_machine(&mut self, when: &str) -> Result<()> {
        self.note(machine(when)?);
        Ok(())
    }

    /// Adds how many times as large one row is as another: how something grew.
    pub fn add_growth(&mut self, name: &str, from: &str, to: &str) -> Result<()> {
        for statistic in STATISTICS {
            let value =
                self.rows[self.find(to, statistic)?].value / self.rows[self.find(from, statistic)?].value;
            self.rows.push(Row::new(name, statistic, value, "x"));
        }
        Ok(())
    }

    /// Adds a number that is measured once, and what it should be at most.
    pub fn add_once(&mut self, name: &str, value: f64, unit: &'static str, most: Option<f64>) {
        let mut row = Row::new(name, "once", value, unit);
        row.goal = most.map(Goal::Limit);
        row.met = row.goal.map(|goal| goal.is_met(value));
        self.once.push(row);
    }

    /// Compares a number that is measured once with another such number of this run. One that is compared already stands
    /// once more, with the second comparison.
    pub fn compare_once(&mut self, name: &str, against: &str, goal: Option<Goal>) -> Result<()> {
        let find = |name: &str| {
            let found = self.once.iter().rposition(|row| row.name == name);
            found.with_context(|| format!("no row is called {name:?}"))
        };
        let (mut place, other) = (find(name)?, self.once[find(against)?].value);
        if self.once[place].against.is_some() {
            let row = &self.once[place];
            let again = Row::new(name, row.statistic, row.value, row.unit);
            place += 1;
            self.once.insert(place, again);
        }
        let row = &mut self.once[place];
        let ratio = row.value / other;
        row.against = Some(against.to_owned());
        row.ratio = Some(ratio);
        row.met = goal.map(|goal| goal.is_met(ratio)).or(row.met);
        row.goal = goal.or(row.goal);
        Ok(())
    }

    /// States what the 99th percentile of some times should be at most, in microseconds.
    pub fn limit_p99(&mut self, name: &str, most: f64) -> Result<()> {
        let row = self.find(name, STATISTICS[1])?;
        let row = &mut self.rows[row];
        row.goal = Some(Goal::Limit(most));
        row.met = Some(row.value <= most);
        Ok(())
    }

    /// Compares a row with another of this run; a goal is judged on the median. A row that is compared already stands
    /// once more, with the second comparison.
    pub fn compare(&mut self, name: &str, against: &str, goal: Option<Goal>) -> Result<()> {
        self.stand_once_more(name)?;
        self.find(name, STATISTICS[0]).and(self.find(against, STATISTICS[0]))?;
        for statistic in STATISTICS {
            // A median alone is compared with a median alone.
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

    /// The row to compare: the last of this name.
    fn find(&self, name: &str, statistic: &str) -> Result<usize> {
        let found = self.rows.iter().rposition(|row| row.name == name && row.statistic == statistic);
        found.with_context(|| format!("no row is called {name:?}"))
    }

    /// Puts a copy behind a row that is compared already.
    fn stand_once_more(&mut self, name: &str) -> Result<()> {
        let last = self.find(name, STATISTICS[1]).or(self.find(name, STATISTICS[0]))?;
        if self.rows[last].against.is_some() {
            let there = STATISTICS.iter().filter_map(|statistic| self.find(name, statistic).ok());
            let again: Vec<Row> = there
                .map(|row| &self.rows[row])
                .map(|row| Row::new(name, row.statistic, row.value, row.unit))
                .collect();
            for (place, row) in again.into_iter().enumerate() {
                self.rows.insert(last + 1 + place, row);
            }
        }
        Ok(())
    }

    /// Prints the rows: JSON for programs, or a table for people.
    pub fn print(&self, json: bool) -> Result<()> {
        if json {
            let all: Vec<&Row> = self.rows.iter().chain(&self.once).collect();
            println!("{}", serde_json::to_string_pretty(&all)?);
            // Standard output is the rows alone.
            self.notes.iter().for_each(|note| eprintln!("{note}"));
        } else {
            println!("{}", self.table());
            self.notes.iter().for_each(|note| println!("{note}"));
        }
        Ok(())
    }

    /// A line per measured thing, with both of its numbers.
    fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["OPERATION", "P50 µs", "P99 µs", "", "AGAINST", "GOAL", "MET"]);
        for (place, median) in self.rows.iter().enumerate().filter(|(_, row)| row.statistic == "p50") {
            let p99 = self.rows.get(place + 1).filter(|row| row.statistic == "p99");
            let goal = match (median.goal, p99.and_then(|row| row.goal)) {
                (None, Some(Goal::Limit(most))) => format!("p99 at most {}", number(most)),
                (goal, _) => goal.map(|goal| goal.to_string()).unwrap_or_default(),
            };
            table.add_row([
                median.name.clone(),
                median.text(),
                p99.map(Row::text).unwrap_or_default(),
                median.ratio.map(|ratio| median.ratio_in_words(ratio)).unwrap_or_default(),
                median.against.clone().unwrap_or_default(),
                goal,
                median
                    .met
                    .or(p99.and_then(|row| row.met))
                    .map(|met| if met { "yes" } else { "NO" })
                    .unwrap_or_default()
                    .to_owned(),
            ]);
        }
        for row in &self.once {
            table.add_row([
                row.name.clone(),
                row.text(),
                String::new(),
                row.ratio.map(|ratio| row.ratio_in_words(ratio)).unwrap_or_default(),
                row.against.clone().unwrap_or_default(),
                row.goal.map(|goal| in_words(goal, row.unit)).unwrap_or_default(),
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

/// What the machine is, and how busy.
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

/// A limit has the unit of its number, a ratio has none.
fn in_words(goal: Goal, unit: &str) -> String {
    match goal {
        Goal::Limit(_) => format!("{goal} {unit}"),
        Goal::AtMost(_) | Goal::AtLeast(_) => goal.to_string(),
    }
}

/// As many digits as mean something, thousands apart.
fn number(value: f64) -> String {
    if value < 100.0 && value.fract() != 0.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
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

    fn of(microseconds: u64) -> Samples {
        let mut samples = Samples::new();
        (0..LEAST_ROUNDS).for_each(|_| samples.add_warm(Duration::from_micros(microseconds)));
        samples
    }

    fn report() -> Report {
        let mut report = Report::default();
        report.add("attach", &of(500)).unwrap();
        report.add("reference", &of(8805)).unwrap();
        report
    }

    #[test]
    fn a_goal_is_met_or_not_by_the_median_of_the_same_run() {
        let mut report = report();
        report.compare("attach", "reference", Some(Goal::AtMost(0.1))).unwrap();
        assert_eq!((report.rows[0].statistic, report.rows[0].met), ("p50", Some(true)));
        assert_eq!((report.rows[1].statistic, report.rows[1].met), ("p99", None));
        report.compare("reference", "attach", Some(Goal::AtMost(1.5))).unwrap();
        assert_eq!(report.rows[2].met, Some(false));
        assert!(report.compare("attach", "nothing", None).is_err());
    }

    #[test]
    fn a_second_comparison_has_a_line_of_its_own() {
        let mut report = report();
        report.add("floor", &of(400)).unwrap();
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
    fn a_limit_is_about_the_slowest_and_says_so() {
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
    fn growth_is_a_number_that_can_be_compared() {
        let mut report = report();
        report.add_growth("growth", "attach", "reference").unwrap();
        report.compare("growth", "growth", Some(Goal::AtMost(1.0))).unwrap();
        assert!(report.table().contains("17.61x"));
        assert!(report.table().contains("1.00x the size of"));
        assert_eq!(report.rows[4].met, Some(true));
    }

    #[test]
    fn a_p99_of_few_rounds_is_refused() {
        let mut samples = of(1);
        samples.add_warm(Duration::ZERO);
        assert!(Report::default().add("enough", &samples).is_ok());
        assert!(Report::default().add("none", &Samples::new()).is_err());
    }

    #[test]
    fn a_median_alone_is_compared_and_has_no_p99() {
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
    fn a_rate_is_compared_with_another_and_should_be_at_least_so_much() {
        let mut report = Report::default();
        report.add_once("pods", 1_200.0, "requests/s", None);
        report.add_once("hosts", 1_500.0, "requests/s", None);
        report.add_once("other pods", 1_000.0, "requests/s", None);
        report.compare_once("pods", "other pods", Some(Goal::AtLeast(1.0))).unwrap();
        report.compare_once("pods", "hosts", Some(Goal::AtLeast(1.0))).unwrap();
        let lines: Vec<_> =
            report.once.iter().filter_map(|row| Some((row.against.as_deref()?, row.met))).collect();
        assert_eq!(lines, [("other pods", Some(true)), ("hosts", Some(false))]);
        let table = report.table();
        assert!(table.contains("1.20x the rate of") && table.contains("at least 1x"), "{table}");
        assert!(report.compare_once("pods", "nothing", None).is_err());
    }

    #[test]
    fn people_read_a_line_per_operation() {
        let mut report = report();
        report.compare("attach", "reference", Some(Goal::AtMost(0.1))).unwrap();
        let table = report.table();
        let line = table.lines().find(|line| line.contains("attach")).unwrap();
        let words: Vec<_> = line.split_whitespace().collect();
        let expected = "attach 500 500 18x faster than reference at least 10x faster yes";
        assert_eq!(words.join(" "), expected);
        assert!(table.contains("8,805"));
    }

    #[test]
    fn programs_read_every_number() {
        let json = serde_json::to_value(&report().rows).unwrap();
        assert_eq!(json.as_array().unwrap().len(), 4);
        for key in ["name", "value", "unit", "against", "ratio", "goal", "met"] {
            assert!(json[0].as_object().unwrap().contains_key(key), "{key}");
        }
    }
}
