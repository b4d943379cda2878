//! The time of day, to name a run by.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Utc {
    year: u64,
    month: u64,
    day: u64,
    second: u64,
}

impl From<SystemTime> for Utc {
    /// A clock before 1970 counts as 1970.
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = since.as_secs();
        // Howard Hinnant's days: a year begins in March, so that the leap day is the last of it.
        let days = seconds / 86_400 + 719_468;
        let (era, day) = (days / 146_097, days % 146_097);
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let january = u64::from(month >= 10);
        Self {
            year: 400 * era + year + january,
            month: month + 3 - 12 * january,
            day: day - (153 * month + 2) / 5 + 1,
            second: seconds % 86_400,
        }
    }
}

impl Utc {
    /// A part of a file's name that sorts by time.
    pub(crate) fn compact(self) -> String {
        let text = self.to_string();
        let digits = text.trim_end_matches(" UTC").replace(['-', ':'], "");
        digits.replace(' ', "-")
    }
}

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = (self.year, self.month, self.day);
        let (hours, minutes) = (self.second / 3600, self.second / 60 % 60);
        write!(f, "{year}-{month:02}-{day:02} ")?;
        write!(f, "{hours:02}:{minutes:02}:{:02} UTC", self.second % 60)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn seconds_are_dates() {
        for (seconds, date) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (951_868_800, "2000-03-01 00:00:00 UTC"),
            (1_735_689_599, "2024-12-31 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(Utc::from(time).to_string(), date);
        }
        let compact = Utc::from(UNIX_EPOCH + Duration::from_secs(951_782_399)).compact();
        assert_eq!(compact, "20000228-235959");
    }
}
