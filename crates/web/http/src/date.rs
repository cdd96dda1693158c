//! Dates in HTTP headers.

use batzen_protocol::Timestamp;
use batzen_protocol::calendar::Date;

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// The last second of the year 9999: HTTP has four digits for the year.
const SECS_MAX: u64 = 253_402_300_799;

/// A time in the format of RFC 9110: `Fri, 01 Jan 2027 00:00:00 GMT`. Times after the year 9999 (and "never")
/// become its last second.
pub fn http_date(time: Timestamp) -> String {
    let secs = time.as_secs().unwrap_or(SECS_MAX).min(SECS_MAX);
    let (days, second) = (secs / 86_400, secs % 86_400);
    let Date { year, month, day } = Date::from_days(days.cast_signed());
    let weekday = DAYS[usize::try_from(days % 7).expect("below seven")];
    let month = MONTHS[usize::try_from(month - 1).expect("a month")];
    format!(
        "{weekday}, {day:02} {month} {year:04} {:02}:{:02}:{:02} GMT",
        second / 3_600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_dates() {
        for (secs, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (951_868_800, "Wed, 01 Mar 2000 00:00:00 GMT"),
            (1_795_191_998, "Fri, 20 Nov 2026 16:26:38 GMT"),
            (1_798_761_600, "Fri, 01 Jan 2027 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
        ] {
            assert_eq!(http_date(Timestamp::from_secs(secs)), text);
        }
        assert_eq!(http_date(Timestamp::NEVER), "Fri, 31 Dec 9999 23:59:59 GMT");
    }
}
