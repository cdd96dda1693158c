//! Formats of values in messages: amounts, times, identifiers. Parsing a value and formatting it again yields
//! the same text.

use std::fmt::Write as _;

use batzen_protocol::calendar::Date;

/// Decimals of an amount: amounts are counted in ten-thousandths.
pub const SCALE: u32 = 4;
const UNIT: u128 = 10_u128.pow(SCALE);
/// The most digits before the point.
const INTEGER_DIGITS_MAX: usize = 18;

/// Parses an amount into ten-thousandths: up to 18 digits without leading zeros, optionally a point and up to
/// four decimals without trailing zeros. `None` for any other text.
#[must_use]
pub fn parse_amount(text: &str) -> Option<u128> {
    let (integer, decimals) = match text.split_once('.') {
        Some((_, "")) => return None,
        Some((integer, decimals)) => (integer, decimals),
        None => (text, ""),
    };
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if integer.is_empty() || integer.len() > INTEGER_DIGITS_MAX || decimals.len() > SCALE as usize {
        return None;
    }
    if !digits(integer) || !digits(decimals) || decimals.ends_with('0') {
        return None;
    }
    if integer.len() > 1 && integer.starts_with('0') {
        return None;
    }
    let number = |text: &str| text.bytes().fold(0_u128, |sum, b| sum * 10 + u128::from(b - b'0'));
    let missing = SCALE - u32::try_from(decimals.len()).expect("at most four");
    Some(number(integer) * UNIT + number(decimals) * 10_u128.pow(missing))
}

/// Formats an amount of ten-thousandths.
#[must_use]
pub fn format_amount(amount: u128) -> String {
    let mut text = (amount / UNIT).to_string();
    let decimals = amount % UNIT;
    if decimals != 0 {
        let _ = write!(text, ".{decimals:04}");
        text.truncate(text.trim_end_matches('0').len());
    }
    text
}

/// Formats a signed amount of ten-thousandths.
#[must_use]
pub fn format_signed(amount: i128) -> String {
    let sign = if amount < 0 { "-" } else { "" };
    format!("{sign}{}", format_amount(amount.unsigned_abs()))
}

/// Parses a UUID in lower case (versions 1 to 8 of RFC 9562).
#[must_use]
pub fn parse_uuid(text: &str) -> Option<u128> {
    let bytes: &[u8; 36] = text.as_bytes().try_into().ok()?;
    let mut id = 0_u128;
    for (place, &byte) in bytes.iter().enumerate() {
        let digit = match (place, byte) {
            (8 | 13 | 18 | 23, b'-') => continue,
            (8 | 13 | 18 | 23, _) => return None,
            (_, b'0'..=b'9') => byte - b'0',
            (_, b'a'..=b'f') => byte - b'a' + 10,
            _ => return None,
        };
        id = (id << 4) | u128::from(digit);
    }
    let (version, variant) = ((id >> 76) & 0xf, (id >> 62) & 0b11);
    ((1..=8).contains(&version) && variant == 0b10).then_some(id)
}

/// Formats a UUID.
#[must_use]
pub fn format_uuid(id: u128) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(36);
    for place in 0..32 {
        if matches!(place, 8 | 12 | 16 | 20) {
            text.push('-');
        }
        text.push(char::from(DIGITS[usize::try_from((id >> (124 - 4 * place)) & 0xf).expect("four bits")]));
    }
    text
}

/// Parses 32 bytes of base64url without padding: 43 characters, with the two spare bits of the last one zero,
/// so that each value has one spelling.
#[must_use]
pub fn parse_hash(text: &str) -> Option<[u8; 32]> {
    let bytes: &[u8; 43] = text.as_bytes().try_into().ok()?;
    let mut out = [0; 32];
    let (mut bits, mut count, mut at) = (0_u32, 0, 0);
    for &byte in bytes {
        bits = (bits << 6) | u32::from(sextet(byte)?);
        count += 6;
        if count >= 8 {
            count -= 8;
            out[at] = u8::try_from((bits >> count) & 0xff).expect("eight bits");
            at += 1;
        }
    }
    (bits & 0b11 == 0).then_some(out)
}

/// Returns whether a text has the format of a hash, possibly with spare bits set.
#[must_use]
pub fn is_hash_text(text: &str) -> bool {
    text.len() == 43 && text.bytes().all(|b| sextet(b).is_some())
}

/// Returns whether a text is base64url, with or without padding.
#[must_use]
pub fn is_base64url(text: &str) -> bool {
    text.trim_end_matches('=').bytes().all(|b| sextet(b).is_some())
}

fn sextet(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'-' => Some(62),
        b'_' => Some(63),
        _ => None,
    }
}

/// Formats 32 bytes as base64url without padding.
#[must_use]
pub fn format_hash(bytes: &[u8; 32]) -> String {
    const CHARACTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::with_capacity(43);
    let (mut bits, mut count) = (0_u32, 0);
    for &byte in bytes {
        bits = (bits << 8) | u32::from(byte);
        count += 8;
        while count >= 6 {
            count -= 6;
            text.push(char::from(CHARACTERS[(bits >> count) as usize & 63]));
        }
    }
    text.push(char::from(CHARACTERS[(bits << (6 - count)) as usize & 63]));
    text
}

/// Parses an ISO 8601 instant with milliseconds and zone into milliseconds since 1970:
/// `2026-11-21T15:04:05.678Z` or with `+01:00` instead of `Z`. `None` for any other text, and for times
/// before 1970.
#[must_use]
pub fn parse_time(text: &str) -> Option<u64> {
    let bytes = text.as_bytes();
    let number = |from: usize, digits: usize| -> Option<i64> {
        let part = bytes.get(from..from + digits)?;
        let all = part.iter().all(u8::is_ascii_digit);
        all.then(|| part.iter().fold(0, |sum, b| sum * 10 + i64::from(b - b'0')))
    };
    let separators = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':'), (19, b'.')];
    if bytes.len() < 24 || separators.iter().any(|(place, want)| bytes[*place] != *want) {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 2)?, number(8, 2)?);
    let (hour, minute, second, milli) = (number(11, 2)?, number(14, 2)?, number(17, 2)?, number(20, 3)?);
    let offset_minutes = match (bytes[23], bytes.len()) {
        (b'Z', 24) => 0,
        (sign @ (b'+' | b'-'), 29) if bytes[26] == b':' => {
            let (hours, minutes) = (number(24, 2)?, number(27, 2)?);
            if hours > 14 || minutes > 59 {
                return None;
            }
            (hours * 60 + minutes) * if sign == b'+' { 1 } else { -1 }
        }
        _ => return None,
    };
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let days = Date::new(year, month, day)?.days();
    let minutes = days * 1440 + hour * 60 + minute - offset_minutes;
    u64::try_from((minutes * 60 + second) * 1000 + milli).ok()
}

/// The ledger code of a currency: its three letters encoded as a number, so that no table is needed. `None`
/// for other texts.
#[must_use]
pub fn currency_number(text: &str) -> Option<u32> {
    let letters: &[u8; 3] = text.as_bytes().try_into().ok()?;
    letters
        .iter()
        .all(u8::is_ascii_uppercase)
        .then(|| letters.iter().fold(0, |number, letter| (number << 8) | u32::from(*letter)))
}

/// The three letters of [`currency_number`].
#[must_use]
pub fn currency_text(number: u32) -> String {
    number.to_be_bytes()[1..].iter().map(|letter| char::from(*letter)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use batzen_protocol::calendar::format_ms;
    use proptest::prelude::*;

    #[test]
    fn amounts_have_one_spelling() {
        for (text, value) in
            [("0", 0), ("1", 10_000), ("0.0001", 1), ("12.5", 125_000), ("100.25", 1_002_500)]
        {
            assert_eq!(parse_amount(text), Some(value), "{text}");
            assert_eq!(format_amount(value), text);
        }
        assert_eq!(parse_amount("999999999999999999.9999"), Some(10_u128.pow(22) - 1));
        let bad = [
            "",
            "00",
            "01",
            "1.",
            ".5",
            "1.50",
            "1.0",
            "1.23456",
            "-1",
            "+1",
            "1e3",
            " 1",
            "1 ",
            "1234567890123456789",
            "1,5",
            "٣",
        ];
        for text in bad {
            assert_eq!(parse_amount(text), None, "{text:?}");
        }
        assert_eq!((format_signed(-15_000), format_signed(10_000)), ("-1.5".to_owned(), "1".to_owned()));
    }

    #[test]
    fn identifiers_are_uuids_in_lower_case() {
        let text = "b51ec534-ee48-4575-b6a9-ead2955b8069";
        assert_eq!(format_uuid(parse_uuid(text).unwrap()), text);
        for bad in [
            "B51ec534-ee48-4575-b6a9-ead2955b8069",
            "b51ec534-ee48-f575-b6a9-ead2955b8069",
            "b51ec534-ee48-4575-06a9-ead2955b8069",
            "b51ec534ee484575b6a9ead2955b8069",
            "b51ec534-ee48-4575-b6a9-ead2955b806",
            "00000000-0000-0000-0000-000000000000",
        ] {
            assert_eq!(parse_uuid(bad), None, "{bad}");
        }
    }

    #[test]
    fn times_are_read_with_their_zone() {
        assert_eq!(parse_time("1970-01-01T00:00:00.000Z"), Some(0));
        assert_eq!(parse_time("2026-11-21T15:04:05.678Z"), Some(1_795_273_445_678));
        assert_eq!(parse_time("2026-11-21T16:04:05.678+01:00"), parse_time("2026-11-21T15:04:05.678Z"));
        assert_eq!(
            parse_time("2024-02-29T00:00:00.000Z").map(format_ms).unwrap(),
            "2024-02-29T00:00:00.000Z"
        );
        for bad in [
            "2026-11-21T15:04:05Z",
            "2026-11-21 15:04:05.678Z",
            "2026-02-29T00:00:00.000Z",
            "2026-13-01T00:00:00.000Z",
            "1969-12-31T23:59:59.999Z",
            "2026-11-21T24:04:05.678Z",
            "2026-11-21T15:04:05.678",
            "2026-11-21T15:04:05.678+0100",
        ] {
            assert_eq!(parse_time(bad), None, "{bad}");
        }
    }

    #[test]
    fn currencies_are_three_letters() {
        assert_eq!(currency_text(currency_number("EUR").unwrap()), "EUR");
        assert!(["eur", "EURO", "", "E1R"].iter().all(|text| currency_number(text).is_none()));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(amount in 0..10_u128.pow(22), hash: [u8; 32], millis in 0..253_402_300_800_000_u64) {
            prop_assert_eq!(parse_amount(&format_amount(amount)), Some(amount));
            prop_assert_eq!(parse_hash(&format_hash(&hash)), Some(hash));
            prop_assert_eq!(parse_time(&format_ms(millis)), Some(millis));
        }

        #[test]
        fn what_is_read_is_written_again(text in "[0-9]{1,3}(\\.[0-9]{1,5})?") {
            if let Some(amount) = parse_amount(&text) {
                prop_assert_eq!(format_amount(amount), text);
            }
        }
    }
}
