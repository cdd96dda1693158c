//! Dates in HTTP headers.

use batzen_protocol::Timestamp;

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
    // The civil date from a day count, after Howard Hinnant: years start in March, so that the leap day is
    // the last.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12;
    let year = year_of_era + era * 400 + u64::from(month < 2);
    let index = |value: u64| usize::try_from(value).expect("days and months are small");
    format!(
        "{}, {day:02} {} {year:04} {:02}:{:02}:{:02} GMT",
        DAYS[index(days % 7)],
        MONTHS[index(month)],
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
