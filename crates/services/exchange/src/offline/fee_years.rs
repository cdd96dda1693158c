//! A reminder of next year's fees: fees are signed for a calendar year, and payments need them on 1 January.

use batzen_http::http_date;
use batzen_protocol::time::{year_of, year_start};
use batzen_protocol::{Duration, Timestamp};

/// Time before the end of a year at which the next year's fees should be signed: from 1 November.
const REMIND_BEFORE: Duration = Duration::from_days(61);

/// Commands that set fees for a year, with the number of arguments after the year.
const FEE_COMMANDS: [(&str, usize); 2] = [("wire-fee", 3), ("global-fee", 6)];

/// A reminder if a command line sets fees for this year, which ends soon, but not for the next one. It
/// contains the commands for both years.
pub(super) fn reminder(arguments: &[String], now: Timestamp) -> Option<String> {
    let this_year = year_of(now)?;
    let end = year_start(this_year + 1);
    if end.saturating_since(now) > REMIND_BEFORE {
        return None;
    }
    let commands: Vec<FeeCommand<'_>> =
        (0..arguments.len()).filter_map(|index| FeeCommand::at(&arguments[index..], this_year)).collect();
    let has_next = |command: &FeeCommand<'_>| {
        commands.iter().any(|other| other.year == this_year + 1 && other.subject() == command.subject())
    };
    let missing: Vec<_> =
        commands.iter().filter(|command| command.year == this_year && !has_next(command)).collect();
    if missing.is_empty() {
        return None;
    }
    let mut text = format!(
        "These fees end at {}. The fees of {} are not set by this command line. Set both years:",
        http_date(end),
        this_year + 1
    );
    for command in missing {
        for year in [this_year, this_year + 1] {
            text.push_str(&format!("\n  batzen exchange offline {} upload", command.line(year)));
        }
    }
    Some(text)
}

/// A command that sets fees.
struct FeeCommand<'a> {
    name: &'static str,
    year: u64,
    rest: &'a [String],
}

impl<'a> FeeCommand<'a> {
    /// The command at the beginning of these words.
    fn at(words: &'a [String], this_year: u64) -> Option<Self> {
        let (name, count) =
            FEE_COMMANDS.into_iter().find(|(name, _)| words.first().is_some_and(|word| word == name))?;
        let year = match words.get(1)?.as_str() {
            "now" => this_year,
            text => text.parse().ok()?,
        };
        Some(Self { name, year, rest: words.get(2..2 + count)? })
    }

    /// Returns the subject of the fees: a wire method, or nothing for the global fees.
    fn subject(&self) -> (&str, Option<&String>) {
        (self.name, self.rest.first().filter(|_| self.name == "wire-fee"))
    }

    /// The command for a given year, to be typed into a shell.
    fn line(&self, year: u64) -> String {
        let rest = self.rest.iter().map(|word| match word.contains(' ') {
            true => format!("'{word}'"),
            false => word.clone(),
        });
        [self.name.to_owned(), year.to_string()].into_iter().chain(rest).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 20 November 2026.
    const NOVEMBER: Timestamp = Timestamp::from_secs(1_795_132_800);
    /// 1 July 2026.
    const JULY: Timestamp = Timestamp::from_secs(1_782_864_000);

    fn remind(line: &str, now: Timestamp) -> Option<String> {
        let words: Vec<String> = line.split('|').map(str::to_owned).collect();
        reminder(&words, now)
    }

    #[test]
    fn fees_for_this_year_alone_are_reported_from_november_on() {
        let text = remind("wire-fee|now|iban|EUR:0.1|EUR:1|upload", NOVEMBER).unwrap();
        for expected in ["2027 are not set", "wire-fee 2026 iban EUR:0.1 EUR:1 upload", "wire-fee 2027 iban"]
        {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        assert_eq!(remind("wire-fee|now|iban|EUR:0.1|EUR:1", JULY), None);
        let text = remind("global-fee|2026|EUR:1|EUR:2|EUR:0|1 h|1 year|5", NOVEMBER).unwrap();
        assert!(text.contains("global-fee 2027 EUR:1 EUR:2 EUR:0 '1 h' '1 year' 5 upload"), "{text}");
    }

    #[test]
    fn fees_for_both_years_need_no_reminder() {
        let both = "wire-fee|now|iban|EUR:1|EUR:1|wire-fee|2027|iban|EUR:1|EUR:1";
        assert_eq!(remind(both, NOVEMBER), None);
        assert!(remind("wire-fee|now|iban|EUR:1|EUR:1|wire-fee|2027|x|EUR:1|EUR:1", NOVEMBER).is_some());
        assert_eq!(remind("wire-fee|2027|iban|EUR:1|EUR:1", NOVEMBER), None);
        assert_eq!(remind("download|sign|upload", NOVEMBER), None);
    }
}
