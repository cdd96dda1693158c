//! Formats texts of the interface into reusable buffers.

/// A transfer's id: a random UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub u128);

impl TransferId {
    /// A version 4 UUID of these random bits.
    #[must_use]
    pub(crate) const fn from_random(bits: u128) -> Self {
        let version = (bits & !(0xf << 76)) | (4 << 76);
        Self((version & !(3 << 62)) | (2 << 62))
    }

    /// Parses 36 characters in lower case.
    #[must_use]
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        if text.len() != 36 {
            return None;
        }
        let mut bits = 0;
        for (index, letter) in text.iter().enumerate() {
            if matches!(index, 8 | 13 | 18 | 23) {
                if *letter != b'-' {
                    return None;
                }
                continue;
            }
            let digit = match letter {
                b'0'..=b'9' => letter - b'0',
                b'a'..=b'f' => letter - b'a' + 10,
                _ => return None,
            };
            bits = bits << 4 | u128::from(digit);
        }
        Some(Self(bits))
    }

    pub(crate) fn write(self, out: &mut Vec<u8>) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        for (index, byte) in self.0.to_be_bytes().into_iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                out.push(b'-');
            }
            out.extend([DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
    }
}

impl std::fmt::Display for TransferId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = Vec::with_capacity(36);
        self.write(&mut out);
        f.write_str(std::str::from_utf8(&out).map_err(|_| std::fmt::Error)?)
    }
}

/// Appends a number.
pub(crate) fn number(out: &mut Vec<u8>, number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut left = number;
    loop {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends a number with this many digits.
fn padded(out: &mut Vec<u8>, number: u64, digits: u32) {
    for place in (0..digits).rev() {
        out.push(b'0' + (number / 10_u64.pow(place) % 10) as u8);
    }
}

/// Appends an amount without superfluous zeros.
pub(crate) fn amount(out: &mut Vec<u8>, cents: u64) {
    number(out, cents / 100);
    let fraction = cents % 100;
    if fraction > 0 {
        out.push(b'.');
        out.push(b'0' + (fraction / 10) as u8);
        if !fraction.is_multiple_of(10) {
            out.push(b'0' + (fraction % 10) as u8);
        }
    }
}

/// Year, month and day of a day counted from 1970-01-01 (Hinnant, "chrono-Compatible Low-Level Date
/// Algorithms").
const fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    (year_of_era + era * 400 + if month <= 2 { 1 } else { 0 }, month, day)
}

/// Appends `2026-11-21T15:04:05.678Z`.
pub(crate) fn date_time(out: &mut Vec<u8>, ms: u64) {
    let (year, month, day) = civil(ms / 86_400_000);
    let in_day = ms % 86_400_000;
    for (number, digits, after) in [
        (year, 4, b'-'),
        (month, 2, b'-'),
        (day, 2, b'T'),
        (in_day / 3_600_000, 2, b':'),
        (in_day / 60_000 % 60, 2, b':'),
        (in_day / 1000 % 60, 2, b'.'),
        (in_day % 1000, 3, b'Z'),
    ] {
        padded(out, number, digits);
        out.push(after);
    }
}

/// Appends the date in HTTP format: `Sat, 21 Nov 2026 15:04:05 GMT`.
pub(crate) fn http_date(out: &mut Vec<u8>, ms: u64) {
    const DAYS: [&[u8]; 7] = [b"Thu", b"Fri", b"Sat", b"Sun", b"Mon", b"Tue", b"Wed"];
    const MONTHS: [&[u8]; 12] =
        [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];
    let days = ms / 86_400_000;
    let (year, month, day) = civil(days);
    let index = |number: u64| usize::try_from(number).unwrap_or(0);
    out.extend_from_slice(DAYS[index(days % 7)]);
    out.extend_from_slice(b", ");
    padded(out, day, 2);
    out.push(b' ');
    out.extend_from_slice(MONTHS[index(month - 1)]);
    out.push(b' ');
    padded(out, year, 4);
    let in_day = ms % 86_400_000;
    for (number, before) in
        [(in_day / 3_600_000, b' '), (in_day / 60_000 % 60, b':'), (in_day / 1000 % 60, b':')]
    {
        out.push(before);
        padded(out, number, 2);
    }
    out.extend_from_slice(b" GMT");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn ids_are_random_uuids() {
        let id = TransferId::from_random(u128::MAX);
        assert_eq!(id.to_string(), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(TransferId::parse(id.to_string().as_bytes()), Some(id));
        let text = "1a0a1f3e-7c1d-4c9b-8a55-6a3b1e8f2b10";
        assert_eq!(TransferId::parse(text.as_bytes()).unwrap().to_string(), text);
        for wrong in ["", "1A0a1f3e-7c1d-4c9b-8a55-6a3b1e8f2b10", "1a0a1f3e07c1d-4c9b-8a55-6a3b1e8f2b10"] {
            assert_eq!(TransferId::parse(wrong.as_bytes()), None);
        }
    }

    #[test]
    fn amounts_have_no_superfluous_zeros() {
        for (cents, expected) in [(1, "0.01"), (10, "0.1"), (100, "1"), (12_345, "123.45"), (0, "0")] {
            assert_eq!(written(|out| amount(out, cents)), expected);
        }
    }

    #[test]
    fn dates_follow_the_calendar() {
        let ms = 1_795_273_445_678;
        assert_eq!(written(|out| date_time(out, ms)), "2026-11-21T15:04:05.678Z");
        assert_eq!(written(|out| http_date(out, ms)), "Sat, 21 Nov 2026 15:04:05 GMT");
        assert_eq!(written(|out| date_time(out, 1_709_164_800_000)), "2024-02-29T00:00:00.000Z");
    }
}
