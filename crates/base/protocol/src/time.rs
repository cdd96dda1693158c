//! Points in time and durations of the protocol.

use std::fmt;
use std::time::SystemTime;

use serde::de::{self, IgnoredAny, MapAccess};
use serde::ser::{Error as _, SerializeMap};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::calendar::Date;

const MICROS_PER_SECOND: u64 = 1_000_000;
/// Durations on the wire stay below 2⁵³ microseconds.
const MAX_WIRE_MICROS: u64 = (1 << 53) - 1;
/// Last second whose microseconds fit into 64 bits.
const MAX_SECONDS: u64 = u64::MAX / MICROS_PER_SECOND;

/// A point in time: whole seconds since 1970-01-01 UTC, or never.
///
/// JSON: `{"t_s": 1600000000}` or `{"t_s": "never"}`. In signed structures: 8 bytes of microseconds, big
/// endian, where never is all ones. Always whole seconds, so that what is signed is what is sent. Never is
/// later than everything.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Later than every other time.
    pub const NEVER: Self = Self(u64::MAX);
    /// 1970-01-01 00:00 UTC.
    pub const ZERO: Self = Self(0);

    /// From seconds since the epoch; times beyond the year 586,524 become never.
    pub const fn from_secs(secs: u64) -> Self {
        if secs > MAX_SECONDS { Self::NEVER } else { Self(secs * MICROS_PER_SECOND) }
    }

    /// From microseconds since the epoch, rounded down to the second. `u64::MAX` is never.
    pub const fn from_micros(micros: u64) -> Self {
        if micros == u64::MAX { Self::NEVER } else { Self(micros - micros % MICROS_PER_SECOND) }
    }

    /// From a clock, rounded down to the second. Times before 1970 become zero.
    pub fn from_system_time(time: SystemTime) -> Self {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self::from_secs(since.as_secs())
    }

    /// Seconds since the epoch, `None` for never.
    pub const fn as_secs(self) -> Option<u64> {
        if self.is_never() { None } else { Some(self.0 / MICROS_PER_SECOND) }
    }

    /// Microseconds since the epoch; `u64::MAX` for never.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns whether this is never.
    pub const fn is_never(self) -> bool {
        self.0 == u64::MAX
    }

    /// The 8 bytes of signed structures and stored rows (microseconds, big endian; sorts by time).
    pub const fn to_nbo(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }

    /// Reads [`Timestamp::to_nbo`], rounding down to the second.
    pub const fn from_nbo(bytes: [u8; 8]) -> Self {
        Self::from_micros(u64::from_be_bytes(bytes))
    }

    /// The time `duration` later, rounded down to the second. Never stays never, and forever later is never.
    /// `None` if the result is out of range.
    pub(crate) const fn checked_add(self, duration: Duration) -> Option<Self> {
        if self.is_never() || duration.is_forever() {
            return Some(Self::NEVER);
        }
        match self.0.checked_add(duration.0) {
            Some(u64::MAX) | None => None,
            Some(micros) => Some(Self::from_micros(micros)),
        }
    }

    /// As `Timestamp::checked_add`, but never if the result is out of range.
    #[must_use]
    pub const fn saturating_add(self, duration: Duration) -> Self {
        match self.checked_add(duration) {
            Some(time) => time,
            None => Self::NEVER,
        }
    }

    /// The time `duration` earlier, rounded down to the second, not before zero. Never stays never; forever
    /// earlier than any other time is zero.
    #[must_use]
    pub const fn saturating_sub(self, duration: Duration) -> Self {
        if self.is_never() { self } else { Self::from_micros(self.0.saturating_sub(duration.0)) }
    }

    /// Returns the time since `earlier`, zero if this is before it. Never is forever after everything else.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        if earlier.is_never() {
            Duration::ZERO
        } else if self.is_never() {
            Duration::FOREVER
        } else {
            Duration(self.0.saturating_sub(earlier.0))
        }
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_secs() {
            Some(secs) => write!(f, "{secs}s"),
            None => f.write_str("never"),
        }
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC (`2023-11-14T22:13:20Z`), or `never`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(secs) = self.as_secs() else { return f.write_str("never") };
        let (hour, minute, second) = (secs / 3600 % 24, secs / 60 % 60, secs % 60);
        write!(f, "{}T{hour:02}:{minute:02}:{second:02}Z", date(secs))
    }
}

/// The day of an instant, in seconds since 1970.
fn date(secs: u64) -> Date {
    Date::from_days((secs / 86_400).cast_signed())
}

/// First second of a calendar year (UTC), from 1970 on.
pub fn year_start(year: u64) -> Timestamp {
    let year = i64::try_from(year.max(1970)).expect("a year of this era");
    Timestamp::from_secs(Date { year, month: 1, day: 1 }.days().cast_unsigned() * 86_400)
}

/// Calendar year (UTC) of a time; `None` for never.
pub fn year_of(time: Timestamp) -> Option<u64> {
    time.as_secs().map(|secs| date(secs).year.cast_unsigned())
}

/// A length of time in microseconds, or forever ("relative time").
///
/// JSON: `{"d_us": 3600000000}` or `{"d_us": "forever"}`; finite ones are below 2⁵³ there. In signed
/// structures: 8 bytes, big endian, where forever is all ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Duration(u64);

impl Duration {
    /// Longer than every other duration.
    pub const FOREVER: Self = Self(u64::MAX);
    /// No time.
    pub const ZERO: Self = Self(0);

    /// From microseconds; `u64::MAX` is forever.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// From seconds; forever if they do not fit.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(MICROS_PER_SECOND))
    }

    /// From days of 86,400 seconds.
    pub const fn from_days(days: u64) -> Self {
        Self(days.saturating_mul(86_400 * MICROS_PER_SECOND))
    }

    /// Microseconds; `u64::MAX` for forever.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Whole seconds, rounded down; `None` for forever.
    pub const fn as_secs(self) -> Option<u64> {
        if self.is_forever() { None } else { Some(self.0 / MICROS_PER_SECOND) }
    }

    /// Returns whether this is forever.
    pub const fn is_forever(self) -> bool {
        self.0 == u64::MAX
    }

    /// Returns whether this is zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The 8 bytes of signed structures (microseconds, big endian).
    pub const fn to_nbo(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }

    /// Reads [`Duration::to_nbo`].
    pub const fn from_nbo(bytes: [u8; 8]) -> Self {
        Self(u64::from_be_bytes(bytes))
    }

    /// For timers; `None` for forever.
    pub const fn to_std(self) -> Option<std::time::Duration> {
        if self.is_forever() { None } else { Some(std::time::Duration::from_micros(self.0)) }
    }
}

impl From<std::time::Duration> for Duration {
    /// Forever if it does not fit into 64 bits of microseconds.
    fn from(duration: std::time::Duration) -> Self {
        Self(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
    }
}

impl fmt::Debug for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_forever() { f.write_str("forever") } else { write!(f, "{}us", self.0) }
    }
}

impl fmt::Display for Duration {
    /// In the largest unit that divides it: `7 days`, `90 s`, `1500 us`, or `forever`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_forever() {
            return f.write_str("forever");
        }
        for (unit, micros) in
            [("days", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000)]
        {
            if self.0 >= micros && self.0.is_multiple_of(micros) {
                let unit = if unit == "days" && self.0 == micros { "day" } else { unit };
                return write!(f, "{} {unit}", self.0 / micros);
            }
        }
        if self.0 == 0 { f.write_str("0 s") } else { write!(f, "{} us", self.0) }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1))?;
        match self.as_secs() {
            Some(secs) => map.serialize_entry("t_s", &secs)?,
            None => map.serialize_entry("t_s", "never")?,
        }
        map.end()
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !self.is_forever() && self.0 > MAX_WIRE_MICROS {
            return Err(S::Error::custom("duration of 2^53 microseconds or more"));
        }
        let mut map = serializer.serialize_map(Some(1))?;
        if self.is_forever() {
            map.serialize_entry("d_us", "forever")?;
        } else {
            map.serialize_entry("d_us", &self.0)?;
        }
        map.end()
    }
}

/// The value of the single member: a number, or the word for the infinite value.
struct NumberOr {
    word: &'static str,
    max: u64,
}

impl<'de> de::DeserializeSeed<'de> for NumberOr {
    type Value = Option<u64>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl de::Visitor<'_> for NumberOr {
    type Value = Option<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an integer from 0 to {} or \"{}\"", self.max, self.word)
    }

    fn visit_u64<E: de::Error>(self, n: u64) -> Result<Self::Value, E> {
        if n > self.max { Err(E::invalid_value(de::Unexpected::Unsigned(n), &self)) } else { Ok(Some(n)) }
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        if text == self.word { Ok(None) } else { Err(E::invalid_value(de::Unexpected::Str(text), &self)) }
    }
}

/// An object with one relevant member.
struct TimeObject {
    member: &'static str,
    word: &'static str,
    max: u64,
}

impl<'de> de::Visitor<'de> for TimeObject {
    type Value = Option<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with the member \"{}\"", self.member)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        struct Name(&'static str);
        impl<'de> de::DeserializeSeed<'de> for Name {
            type Value = bool;

            fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
                deserializer.deserialize_identifier(self)
            }
        }
        impl de::Visitor<'_> for Name {
            type Value = bool;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a member name")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<bool, E> {
                Ok(name == self.0)
            }
        }

        let mut found = None;
        while let Some(wanted) = map.next_key_seed(Name(self.member))? {
            if !wanted {
                map.next_value::<IgnoredAny>()?;
            } else if found.is_some() {
                return Err(de::Error::duplicate_field(self.member));
            } else {
                found = Some(map.next_value_seed(NumberOr { word: self.word, max: self.max })?);
            }
        }
        found.ok_or_else(|| de::Error::missing_field(self.member))
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let visitor = TimeObject { member: "t_s", word: "never", max: MAX_SECONDS };
        Ok(deserializer.deserialize_map(visitor)?.map_or(Self::NEVER, Self::from_secs))
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let visitor = TimeObject { member: "d_us", word: "forever", max: MAX_WIRE_MICROS };
        Ok(deserializer.deserialize_map(visitor)?.map_or(Self::FOREVER, Self::from_micros))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_dates() {
        for (secs, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_700_000_000, "2023-11-14T22:13:20Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(Timestamp::from_secs(secs).to_string(), text);
        }
        assert_eq!(Timestamp::NEVER.to_string(), "never");
    }

    #[test]
    fn years_begin_where_they_should() {
        for year in [1970, 1972, 1973, 2000, 2001, 2023, 2024, 2100, 2101] {
            let start = year_start(year);
            assert_eq!(start.to_string(), format!("{year}-01-01T00:00:00Z"));
            assert_eq!(year_of(start), Some(year));
        }
    }

    #[test]
    fn never_and_forever_absorb() {
        let now = Timestamp::from_secs(1_600_000_000);
        assert_eq!(now.checked_add(Duration::FOREVER), Some(Timestamp::NEVER));
        assert_eq!(Timestamp::NEVER.checked_add(Duration::from_secs(1)), Some(Timestamp::NEVER));
        assert_eq!(now.checked_add(Duration::from_micros(u64::MAX - 1)), None);
        assert_eq!(now.saturating_add(Duration::from_micros(1_999_999)), Timestamp::from_secs(1_600_000_001));
        assert_eq!(now.saturating_sub(Duration::FOREVER), Timestamp::ZERO);
        assert_eq!(Timestamp::NEVER.saturating_since(now), Duration::FOREVER);
        assert_eq!(now.saturating_since(Timestamp::NEVER), Duration::ZERO);
    }

    #[test]
    fn durations_read_well() {
        assert_eq!(Duration::from_days(7).to_string(), "7 days");
        assert_eq!(Duration::from_secs(90).to_string(), "90 s");
        assert_eq!(Duration::from_micros(1500).to_string(), "1500 us");
        assert!(serde_json::to_string(&Duration::from_micros(1 << 53)).is_err());
    }
}
