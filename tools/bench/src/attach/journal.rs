//! The journal's share of an attach: the records of the measured attaches, appended once more.

use std::path::Path;

use anyhow::{Context, Result, bail};
use knit_agent::node::FORMAT;
use knit_engine::{Record, State};
use knit_store::{Journal, Options, Seq};

use knit_report::Samples;

/// Appends the records of `rounds` attaches to a second journal on the same disk.
pub fn measure(folder: &Path, rounds: usize) -> Result<Samples> {
    let options = Options { format: FORMAT, ..Options::default() };
    let journal = |name: &str| Journal::<Record, State>::open(folder.join(name), options);
    let written = journal("state")?.journal;
    let mut attaches: Vec<Vec<Record>> = Vec::new();
    for record in written.history(Seq(0))? {
        let (_, record) = record.context("cannot read the journal")?;
        match record {
            Record::SandboxUpdated(_) => attaches.push(vec![record]),
            Record::ChangeStarted(_) | Record::ChangeEnded(_) => {
                // A detach writes such records too, after the attach is complete.
                if let Some(attach) = attaches.last_mut().filter(|attach| attach.len() < 3) {
                    attach.push(record);
                }
            }
            _ => {}
        }
    }
    attaches.retain(|attach| attach.len() == 3);
    if attaches.len() < rounds {
        bail!("the journal contains {} attaches, {rounds} are needed", attaches.len());
    }
    let second = journal("second")?.journal;
    let mut samples = Samples::new();
    for attach in attaches.iter().take(rounds) {
        samples.time(|| attach.iter().try_for_each(|record| second.append(record).map(drop)))?;
    }
    Ok(samples)
}
