//! Sums in JSON: decimal numbers as text, without a currency.

use crate::MoneySum;
use serde::{Deserialize, Deserializer, Serializer, de};

/// Units of 10⁻⁸ in one.
const UNITS: u128 = 100_000_000;
const DIGITS: usize = 8;

/// Parses what [`MoneySum`] prints.
fn parse(text: &str) -> Option<MoneySum> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    // 39 digits are more than any sum has.
    if whole.is_empty()
        || whole.len() > 39
        || fraction.len() > DIGITS
        || !is_number(whole)
        || !is_number(fraction)
    {
        return None;
    }
    let below: u128 = format!("{fraction:0<DIGITS$}").parse().ok()?;
    let units = whole.parse::<u128>().ok()?.checked_mul(UNITS)?.checked_add(below)?;
    // One spelling for each number, so that equal documents are equal bytes.
    Some(MoneySum::from_units(units)).filter(|sum| sum.to_string() == text)
}

/// Writes the text.
///
/// # Errors
/// The serializer's errors.
pub(crate) fn serialize<S: Serializer>(sum: &MoneySum, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(sum)
}

/// Parses the text.
///
/// # Errors
/// If it is no sum, or not spelt as it is written.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<MoneySum, D::Error> {
    let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
    parse(&text).ok_or_else(|| de::Error::custom("expected a sum such as 12.5"))
}

/// A sum that is a document's element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub(crate) struct Sum(#[serde(with = "crate::liabilities::sum")] pub MoneySum);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_read_as_they_are_written() {
        for units in [0, 1, 100_000_000, 150_000_000, 10, u128::from(u64::MAX) * 1_000, u128::MAX] {
            let sum = MoneySum::from_units(units);
            assert_eq!(parse(&sum.to_string()), Some(sum), "{sum}");
        }
        for text in
            ["", ".5", "1.", "01", "1.50", "-1", "+1", "1e3", " 1", "1.000000001", "9".repeat(40).as_str()]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
