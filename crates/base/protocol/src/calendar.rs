//! The calendar: days and instants as text, all in UTC.

use std::fmt;

/// Days of 400 years, after which the calendar repeats itself.
const ERA_DAYS: i64 = 146_097;
/// Days from 0000-03-01 to 1970-01-01. Years that begin in March have the leap day at their end (Howard Hinnant,
/// "chrono-Compatible Low-Level Date Algorithms").
const EPOCH_DAYS: i64 = 719_468;

/// A day of the proleptic Gregorian calendar. As text: `2026-11-29`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date {
    /// The year.
    pub year: i64,
    /// 1 to 12.
    pub month: i64,
    /// 1 to 31.
    pub day: i64,
}

impl Date {
    /// The day of these numbers; `None` if there is no such day.
    #[must_use]
    pub fn new(year: i64, month: i64, day: i64) -> Option<Self> {
        let date = Self { year, month, day };
        ((1..=12).contains(&month) && Self::from_days(date.days()) == date).then_some(date)
    }

    /// The day this many days after 1970-01-01.
    #[must_use]
    pub const fn from_days(days: i64) -> Self {
        let days = days + EPOCH_DAYS;
        let (era, of_era) = (days.div_euclid(ERA_DAYS), days.rem_euclid(ERA_DAYS));
        let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / (ERA_DAYS - 1)) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let from_march = (5 * of_year + 2) / 153;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
        let day = of_year - (153 * from_march + 2) / 5 + 1;
        Self { year: era * 400 + year + if month <= 2 { 1 } else { 0 }, month, day }
    }

    /// The day of an instant, in milliseconds since 1970.
    #[must_use]
    pub const fn of_ms(ms: u64) -> Self {
        // 2⁶⁴ milliseconds are fewer than 2³⁸ days.
        Self::from_days((ms / 86_400_000).cast_signed())
    }

    /// The days since 1970-01-01.
    #[must_use]
    pub const fn days(self) -> i64 {
        let year = if self.month <= 2 { self.year - 1 } else { self.year };
        let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
        let of_year = (153 * ((self.month + 9) % 12) + 2) / 5 + self.day - 1;
        era * ERA_DAYS + of_era * 365 + of_era / 4 - of_era / 100 + of_year - EPOCH_DAYS
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

/// An instant with milliseconds as RFC 3339 in UTC: `2026-11-21T15:04:05.678Z`.
#[must_use]
pub fn format_ms(ms: u64) -> String {
    let (date, in_day) = (Date::of_ms(ms), ms % 86_400_000);
    let (hour, minute) = (in_day / 3_600_000, in_day / 60_000 % 60);
    let (second, milli) = (in_day / 1000 % 60, in_day % 1000);
    format!("{date}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_follow_the_calendar() {
        for (days, text) in [
            (0, "1970-01-01"),
            (-1, "1969-12-31"),
            (59, "1970-03-01"),
            (789, "1972-02-29"),
            (11_016, "2000-02-29"),
            (20_786, "2026-11-29"),
            (47_541, "2100-03-01"),
        ] {
            assert_eq!(Date::from_days(days).to_string(), text);
        }
        for days in (-800_000..800_000).step_by(37) {
            let date = Date::from_days(days);
            assert_eq!(date.days(), days);
            assert_eq!(Date::new(date.year, date.month, date.day), Some(date));
        }
        for (year, month, day) in [(2026, 2, 29), (2026, 0, 1), (2026, 13, 1), (2026, 4, 31), (2026, 4, 0)] {
            assert_eq!(Date::new(year, month, day), None);
        }
    }

    #[test]
    fn instants_have_milliseconds() {
        assert_eq!(format_ms(1_795_273_445_678), "2026-11-21T15:04:05.678Z");
        assert_eq!(format_ms(1_709_164_800_000), "2024-02-29T00:00:00.000Z");
        assert!(format_ms(u64::MAX).ends_with('Z'));
    }
}
