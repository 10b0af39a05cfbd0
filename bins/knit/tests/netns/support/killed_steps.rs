//! The steps before which `KNIT_FAULT_KILL_AT` killed a process, from what the process prints.

/// The steps at which processes were killed, one each.
#[derive(Debug, Default)]
pub struct KilledSteps(Vec<String>);

impl KilledSteps {
    /// Adds the step that a killed process printed.
    #[track_caller]
    pub fn add(&mut self, printed: &str) {
        let line = printed.lines().find_map(|line| line.strip_prefix("knit: killed before step: "));
        self.0.push(line.unwrap_or_else(|| panic!("no step in: {printed}")).to_owned());
    }

    pub fn last(&self) -> Option<&str> {
        self.0.last().map(String::as_str)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Asserts that some steps change the packet filter, one of which begins so, and that others change something else.
    #[track_caller]
    pub fn assert_contains_filter_steps(&self, prefix: &str) {
        let filter: Vec<&String> = self.0.iter().filter(|step| is_filter_step(step)).collect();
        assert!(filter.iter().any(|step| step.starts_with(prefix)), "{prefix} in {self:?}");
        assert!(self.0.len() > filter.len(), "only steps of the packet filter: {self:?}");
    }
}

/// Steps on the packet filter name their table; the name of a link, such as `knit0`, is never just `knit`.
fn is_filter_step(step: &str) -> bool {
    let words: Vec<&str> = step.split_whitespace().collect();
    words.windows(2).any(|pair| matches!(pair, ["inet" | "bridge", "knit"]))
}
