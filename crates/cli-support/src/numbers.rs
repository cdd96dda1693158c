//! Formats counts, rates, durations and sizes for people, in the same way in all commands, reports and
//! tables.

/// A count: `1,234,567`.
#[must_use]
pub fn count(value: u64) -> String {
    apart(&value.to_string())
}

/// Groups digits by three.
fn apart(digits: &str) -> String {
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A measured number with three significant digits, or all digits of its integer part: `0.012`, `12.3`,
/// `28,512`.
#[must_use]
pub fn number(value: f64) -> String {
    let magnitude = value.abs();
    let decimals = match magnitude {
        _ if value == 0.0 || magnitude >= 100.0 => 0,
        _ if magnitude >= 10.0 => 1,
        _ if magnitude >= 0.1 => 2,
        _ => 3,
    };
    let text = format!("{magnitude:.decimals$}");
    let (whole, fraction) = text.split_at(text.find('.').unwrap_or(text.len()));
    let is_zero = text.bytes().all(|digit| matches!(digit, b'0' | b'.'));
    let sign = if value < 0.0 && !is_zero { "−" } else { "" };
    format!("{sign}{}{fraction}", apart(whole))
}

/// A number as short as an axis needs it: `500`, `25k`, `1M`.
#[must_use]
pub fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        magnitude if magnitude >= 999_999_500.0 => (value / 1e9, "G"),
        magnitude if magnitude >= 999_999.5 => (value / 1e6, "M"),
        magnitude if magnitude >= 9_999.5 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = format!("{scaled:.2}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

/// A measured number, or a dash if there is none.
#[must_use]
pub fn optional(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), number)
}

/// The ratio of two numbers: `0.75`.
#[must_use]
pub fn ratio(value: f64) -> String {
    format!("{value:.2}")
}

/// Microseconds as milliseconds, without the unit.
#[must_use]
pub fn milliseconds(us: f64) -> String {
    number(us / 1e3)
}

/// Bytes of memory as whole gigabytes of 2³⁰ bytes, without the unit.
#[must_use]
pub fn gigabytes(bytes: u64) -> String {
    format!("{:.0}", bytes as f64 / (1_u64 << 30) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(
            (count(0), count(1_000), count(1_234_567)),
            ("0".into(), "1,000".into(), "1,234,567".into())
        );
        for (value, long) in [
            (0.0, "0"),
            (0.012_34, "0.012"),
            (0.756, "0.76"),
            (12.34, "12.3"),
            (999.6, "1,000"),
            (28_512.4, "28,512"),
            (1_234_567.0, "1,234,567"),
            (-1_500.0, "−1,500"),
            (-0.000_1, "0.000"),
        ] {
            assert_eq!(number(value), long);
        }
        for (value, brief) in [
            (0.0, "0"),
            (0.25, "0.25"),
            (500.0, "500"),
            (2_500.0, "2500"),
            (25_000.0, "25k"),
            (1e6, "1M"),
            (12.5e6, "12.5M"),
        ] {
            assert_eq!(short(value), brief);
        }
    }

    #[test]
    fn units_are_converted() {
        assert_eq!(optional(None), "–");
        assert_eq!(optional(Some(12.34)), "12.3");
        assert_eq!(ratio(0.756), "0.76");
        assert_eq!((milliseconds(250.0), milliseconds(1_234_567.0)), ("0.25".into(), "1,235".into()));
        assert_eq!((gigabytes(24 << 30), gigabytes((24 << 30) - 1)), ("24".into(), "24".into()));
    }
}
