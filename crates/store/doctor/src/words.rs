//! Formats sizes, time spans and shares for reading.

/// A size in bytes: `128 MB`, `5.9 GB`. Units are powers of 1,024, as in `postgresql.conf`.
pub(crate) fn bytes(size: u64) -> String {
    const UNITS: [&str; 6] = ["bytes", "kB", "MB", "GB", "TB", "PB"];
    let mut unit = 0;
    let mut value = size as f64;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let is_whole = (value - value.round()).abs() < 0.05 || value >= 100.0;
    let decimals = usize::from(!is_whole);
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// A size for `postgresql.conf`, in the largest unit that divides it: `6016MB`, `2GB`.
pub(crate) fn setting_bytes(size: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB")];
    UNITS
        .into_iter()
        .find(|(unit, _)| size > 0 && size.is_multiple_of(*unit))
        .map_or_else(|| format!("{}kB", size / 1024), |(unit, name)| format!("{}{name}", size / unit))
}

/// A count with separators: `1,234,567`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A share between 0 and 1 as a percentage. Only exactly 1 is `100 %`.
pub(crate) fn share(part: f64) -> String {
    let percent = part * 100.0;
    if percent >= 100.0 || percent == 0.0 {
        format!("{percent:.0} %")
    } else if percent > 99.9 {
        format!("{:.2} %", percent.min(99.99))
    } else if percent < 1.0 {
        format!("{percent:.2} %")
    } else {
        format!("{percent:.1} %")
    }
}

/// A span of time: `3 h 12 min`, `45 s`, `1.8 ms`.
pub(crate) fn span(seconds: f64) -> String {
    let seconds = seconds.max(0.0);
    if seconds < 0.001 {
        return format!("{:.0} µs", seconds * 1e6);
    }
    if seconds < 1.0 {
        return format!("{:.1} ms", seconds * 1e3);
    }
    if seconds < 10.0 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds as u64;
    let (days, hours, minutes) = (whole / 86_400, whole / 3_600 % 24, whole / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0..2) => format!("{whole} s"),
        (0, 0, _) => format!("{minutes} min"),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

/// `1 table`, `2 tables`.
pub(crate) fn several(number: usize, one: &str) -> String {
    let plural = match number {
        1 => "",
        _ if one.ends_with('x') => "es",
        _ => "s",
    };
    format!("{} {one}{plural}", count(number as u64))
}

/// The first characters of a statement on one line.
pub(crate) fn statement(text: &str, limit: usize) -> String {
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() > limit {
        line = line.chars().take(limit.saturating_sub(1)).collect();
        line.push('…');
    }
    line
}

/// A name for SQL, quoted if necessary.
pub(crate) fn identifier(name: &str) -> String {
    let is_plain = name.starts_with(|first: char| first.is_ascii_lowercase() || first == '_')
        && name.chars().all(|one| one.is_ascii_lowercase() || one.is_ascii_digit() || one == '_');
    if is_plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_readable_units() {
        assert_eq!(bytes(0), "0 bytes");
        assert_eq!(bytes(128 << 20), "128 MB");
        assert_eq!(bytes(6_335_076_762), "5.9 GB");
        assert_eq!(bytes(u64::MAX), "16384 PB");
        assert_eq!(setting_bytes(6016 << 20), "6016MB");
        assert_eq!(setting_bytes(2 << 30), "2GB");
        assert_eq!(setting_bytes(64 << 10), "64kB");
    }

    #[test]
    fn shares_never_round_up_to_everything() {
        assert_eq!(share(1.0), "100 %");
        assert_eq!(share(0.999_999), "99.99 %");
        assert_eq!(share(0.0035), "0.35 %");
        assert_eq!(share(0.0), "0 %");
        assert_eq!(share(0.5), "50.0 %");
    }

    #[test]
    fn spans_use_two_units_at_most() {
        assert_eq!(span(-1.0), "0 µs");
        assert_eq!(span(0.000_25), "250 µs");
        assert_eq!(span(0.0018), "1.8 ms");
        assert_eq!(span(75.0), "75 s");
        assert_eq!(span(180.0), "3 min");
        assert_eq!(span(11_520.0), "3 h 12 min");
        assert_eq!(span(90_000.0), "1 d 1 h");
    }

    #[test]
    fn names_are_quoted_when_sql_needs_it() {
        assert_eq!(identifier("coins_p01"), "coins_p01");
        assert_eq!(identifier("Coins"), "\"Coins\"");
        assert_eq!(identifier("1st"), "\"1st\"");
        assert_eq!(identifier("a\"b"), "\"a\"\"b\"");
    }

    #[test]
    fn statements_fit_on_a_line() {
        assert_eq!(statement("SELECT\n  1", 20), "SELECT 1");
        assert_eq!(statement("SELECT 12345", 8), "SELECT …");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(several(1, "table"), "1 table");
        assert_eq!(several(0, "index"), "0 indexes");
        assert_eq!(several(1200, "table"), "1,200 tables");
    }
}
