//! The recording of the last minutes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::recorder::RecentLimits;

/// The recording of the last minutes in the state directory, for `knit support-bundle` and `knit replay`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct RecentRecordingConfig {
    /// Its size on disk at most, 2 to 1024. 0: nothing is recorded.
    pub megabytes: u64,
    /// How many minutes it covers at least, as far as its size allows, 1 to 1440.
    pub minutes: u64,
}

impl Default for RecentRecordingConfig {
    fn default() -> Self {
        Self { megabytes: 32, minutes: 10 }
    }
}

impl RecentRecordingConfig {
    /// Validates every value.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.megabytes != 0 && !(2..=1024).contains(&self.megabytes) {
            return Err(format!(
                "recentRecording.megabytes: {} is neither 0 nor between 2 and 1024",
                self.megabytes
            ));
        }
        if !(1..=1440).contains(&self.minutes) {
            return Err(format!("recentRecording.minutes: {} is not between 1 and 1440", self.minutes));
        }
        Ok(())
    }

    /// The limits; `None` if nothing is recorded.
    pub(crate) fn limits(&self) -> Option<RecentLimits> {
        let age = Duration::from_secs(self.minutes * 60);
        (self.megabytes > 0).then_some(RecentLimits { bytes: self.megabytes << 20, age })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recording_can_be_disabled_but_not_unlimited() {
        let config = |megabytes, minutes| RecentRecordingConfig { megabytes, minutes };
        assert_eq!(config(0, 10).limits(), None);
        assert_eq!(RecentRecordingConfig::default().limits().unwrap().bytes, 32 << 20);
        config(0, 1).check().unwrap();
        for (config, key) in
            [(config(1, 10), "megabytes"), (config(4096, 10), "megabytes"), (config(8, 0), "minutes")]
        {
            assert!(config.check().unwrap_err().contains(key));
        }
    }
}
