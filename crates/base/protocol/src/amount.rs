//! Amounts of money, exact to 10⁻⁸ of a currency unit.
//!
//! [`Money`] is a quantity without currency, for arithmetic; [`Amount`] is a quantity with its [`Currency`],
//! as sent over the wire. Nothing here wraps, saturates or rounds silently: results out of range are errors.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use crate::text::{debug_as_text, text_form};

/// Number of smallest units (10⁻⁸) in one currency unit.
pub(crate) const FRACTION_BASE: u32 = 100_000_000;
/// Digits after the decimal point.
pub(crate) const FRACTION_DIGITS: usize = 8;
/// Largest integer part of an amount, 2⁵². A fraction beside it is allowed.
pub(crate) const MAX_VALUE: u64 = 1 << 52;
/// Longest currency name, in bytes.
pub(crate) const MAX_CURRENCY_LEN: usize = 11;

/// Errors of amounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AmountError {
    /// The text is not an amount (`CUR:VAL` or `CUR:VAL.FRAC`).
    #[error("malformed amount")]
    Malformed,
    /// The currency is empty, longer than 11 bytes, or has characters that are not printable ASCII.
    #[error("malformed currency")]
    Currency,
    /// The result is above the largest amount.
    #[error("amount overflow")]
    Overflow,
    /// The result would be below zero.
    #[error("negative amount")]
    Negative,
    /// Amounts of two different currencies were combined.
    #[error("different currencies")]
    CurrencyMismatch,
    /// A rounding unit with both an integer part and a fraction, or a division by zero.
    #[error("invalid unit or divisor")]
    InvalidUnit,
}

/// A currency name: 1 to 11 printable ASCII bytes without colon.
///
/// Compared without regard to ASCII case (also by `==` and `Hash`), but the bytes are kept unchanged, because
/// they enter hashes and signatures.
#[derive(Clone, Copy)]
pub struct Currency {
    /// Zero-padded; the last byte is always zero.
    bytes: [u8; 12],
}

impl Currency {
    /// Validates `name`.
    ///
    /// # Errors
    /// [`AmountError::Currency`] unless it has 1 to 11 printable ASCII characters, none of them a colon or
    /// blank.
    pub const fn new(name: &str) -> Result<Self, AmountError> {
        let name = name.as_bytes();
        if name.is_empty() || name.len() > MAX_CURRENCY_LEN {
            return Err(AmountError::Currency);
        }
        let mut bytes = [0u8; 12];
        let mut i = 0;
        while i < name.len() {
            if !name[i].is_ascii_graphic() || name[i] == b':' {
                return Err(AmountError::Currency);
            }
            bytes[i] = name[i];
            i += 1;
        }
        Ok(Self { bytes })
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        let len = self.bytes.iter().position(|&b| b == 0).unwrap_or(self.bytes.len());
        std::str::from_utf8(&self.bytes[..len]).expect("a currency is ASCII by construction")
    }

    /// The name as in signed structures: 12 bytes, zero-padded on the right.
    pub const fn padded(&self) -> [u8; 12] {
        self.bytes
    }

    /// Reads the zero-padded form of signed structures.
    ///
    /// # Errors
    /// [`AmountError::Currency`] if the bytes are not a currency followed by zeros only.
    pub(crate) fn from_padded(bytes: [u8; 12]) -> Result<Self, AmountError> {
        let len = bytes.iter().position(|&b| b == 0).ok_or(AmountError::Currency)?;
        if bytes[len..].iter().any(|&b| b != 0) {
            return Err(AmountError::Currency);
        }
        Self::new(std::str::from_utf8(&bytes[..len]).map_err(|_| AmountError::Currency)?)
    }

    /// The same currency in upper case, as wallets write it.
    #[must_use]
    pub(crate) const fn to_upper(self) -> Self {
        let mut bytes = self.bytes;
        bytes.make_ascii_uppercase();
        Self { bytes }
    }
}

impl PartialEq for Currency {
    fn eq(&self, other: &Self) -> bool {
        self.bytes.eq_ignore_ascii_case(&other.bytes)
    }
}

impl Eq for Currency {}

impl Hash for Currency {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.to_upper().bytes.hash(state);
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Currency {
    type Err = AmountError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::new(s)
    }
}

text_form!(Currency, "a currency of 1 to 11 ASCII characters");

/// A quantity of money without its currency: a whole number of 10⁻⁸ units between zero and [`Money::MAX`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Money(u128);

impl Money {
    /// No money.
    pub const ZERO: Self = Self(0);
    /// The largest amount: 2⁵² and 99999999 · 10⁻⁸.
    pub const MAX: Self = Self(MAX_VALUE as u128 * FRACTION_BASE as u128 + FRACTION_BASE as u128 - 1);
    /// The smallest positive amount, 10⁻⁸.
    pub const UNIT: Self = Self(1);

    /// From integer part and fraction (in 10⁻⁸).
    ///
    /// # Errors
    /// [`AmountError::Overflow`] if `value` is above 2⁵², [`AmountError::Malformed`] if `fraction` is 10⁸ or
    /// more.
    pub const fn new(value: u64, fraction: u32) -> Result<Self, AmountError> {
        if fraction >= FRACTION_BASE {
            return Err(AmountError::Malformed);
        }
        if value > MAX_VALUE {
            return Err(AmountError::Overflow);
        }
        Ok(Self(value as u128 * FRACTION_BASE as u128 + fraction as u128))
    }

    /// From a count of 10⁻⁸ units.
    ///
    /// # Errors
    /// [`AmountError::Overflow`] above [`Money::MAX`].
    pub const fn from_units(units: u128) -> Result<Self, AmountError> {
        if units > Self::MAX.0 { Err(AmountError::Overflow) } else { Ok(Self(units)) }
    }

    /// The count of 10⁻⁸ units.
    pub const fn units(self) -> u128 {
        self.0
    }

    /// The integer part.
    pub const fn value(self) -> u64 {
        (self.0 / FRACTION_BASE as u128) as u64
    }

    /// The fraction in 10⁻⁸, below 10⁸.
    pub const fn fraction(self) -> u32 {
        (self.0 % FRACTION_BASE as u128) as u32
    }

    /// Returns whether this is zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Sum.
    ///
    /// # Errors
    /// [`AmountError::Overflow`] above [`Money::MAX`].
    pub const fn checked_add(self, other: Self) -> Result<Self, AmountError> {
        Self::from_units(self.0 + other.0)
    }

    /// Difference.
    ///
    /// # Errors
    /// [`AmountError::Negative`] if `other` is larger.
    pub const fn checked_sub(self, other: Self) -> Result<Self, AmountError> {
        match self.0.checked_sub(other.0) {
            Some(units) => Ok(Self(units)),
            None => Err(AmountError::Negative),
        }
    }

    /// Product with a count.
    ///
    /// # Errors
    /// [`AmountError::Overflow`] above [`Money::MAX`].
    pub const fn checked_mul(self, factor: u64) -> Result<Self, AmountError> {
        match self.0.checked_mul(factor as u128) {
            Some(units) => Self::from_units(units),
            None => Err(AmountError::Overflow),
        }
    }

    /// Quotient, rounded down to 10⁻⁸.
    ///
    /// # Errors
    /// [`AmountError::InvalidUnit`] for division by zero.
    pub const fn checked_div(self, divisor: u64) -> Result<Self, AmountError> {
        match self.0.checked_div(divisor as u128) {
            Some(units) => Ok(Self(units)),
            None => Err(AmountError::InvalidUnit),
        }
    }

    /// Sum of many.
    ///
    /// # Errors
    /// [`AmountError::Overflow`] above [`Money::MAX`].
    pub fn checked_sum(items: impl IntoIterator<Item = Self>) -> Result<Self, AmountError> {
        items.into_iter().try_fold(Self::ZERO, Self::checked_add)
    }

    /// Rounds down to a unit, as done before wire transfers.
    ///
    /// A zero unit changes nothing. A unit below one (`0.01`) cuts the fraction down to a multiple of it. A
    /// whole unit (`5`) cuts both value and fraction, except that an amount whose integer part is already a
    /// multiple of the unit stays unchanged, fraction included. The protocol defines it this way.
    ///
    /// # Errors
    /// [`AmountError::InvalidUnit`] if the unit has both an integer part and a fraction.
    pub const fn round_down(self, unit: Self) -> Result<Self, AmountError> {
        let (value, fraction) = (self.value(), self.fraction());
        match (unit.value(), unit.fraction()) {
            (0, 0) => Ok(self),
            (0, step) => Ok(Self(self.0 - (fraction % step) as u128)),
            (step, 0) if value % step == 0 => Ok(self),
            (step, 0) => Self::new(value - value % step, 0),
            _ => Err(AmountError::InvalidUnit),
        }
    }

    /// The 12-byte form of stored rows: integer part (8) and fraction (4), big endian, so that it sorts by
    /// size.
    pub const fn to_compact(self) -> [u8; 12] {
        let (value, fraction) = (self.value().to_be_bytes(), self.fraction().to_be_bytes());
        let mut out = [0u8; 12];
        let mut i = 0;
        while i < 8 {
            out[i] = value[i];
            i += 1;
        }
        while i < 12 {
            out[i] = fraction[i - 8];
            i += 1;
        }
        out
    }

    /// Reads [`Money::to_compact`].
    ///
    /// # Errors
    /// As [`Money::new`].
    pub const fn from_compact(bytes: [u8; 12]) -> Result<Self, AmountError> {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = bytes;
        Self::new(u64::from_be_bytes([a, b, c, d, e, f, g, h]), u32::from_be_bytes([i, j, k, l]))
    }

    /// This quantity of `currency`.
    pub const fn of(self, currency: Currency) -> Amount {
        Amount { currency, money: self }
    }
}

impl fmt::Display for Money {
    /// Formats it without trailing zeros: `1`, `1.5`, `0.00000001`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_decimal(f, self.value().into(), self.fraction())
    }
}

impl FromStr for Money {
    type Err = AmountError;

    /// Parses `VAL` or `VAL.FRAC`. An empty value before a dot counts as zero.
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let (value, fraction) = match s.split_once('.') {
            Some((_, "")) => return Err(AmountError::Malformed),
            Some((value, fraction)) => (value, fraction),
            None if s.is_empty() => return Err(AmountError::Malformed),
            None => (s, ""),
        };
        let mut whole = 0u64;
        for c in value.bytes() {
            if !c.is_ascii_digit() {
                return Err(AmountError::Malformed);
            }
            // Stays below 10 · 2^52 + 9, so this cannot overflow.
            whole = whole * 10 + u64::from(c - b'0');
            if whole > MAX_VALUE {
                return Err(AmountError::Overflow);
            }
        }
        if fraction.len() > FRACTION_DIGITS {
            return Err(AmountError::Malformed);
        }
        let mut part = 0u32;
        for i in 0..FRACTION_DIGITS {
            let digit = match fraction.as_bytes().get(i) {
                None => 0,
                Some(c) if c.is_ascii_digit() => c - b'0',
                Some(_) => return Err(AmountError::Malformed),
            };
            part = part * 10 + u32::from(digit);
        }
        Self::new(whole, part)
    }
}

/// A sum of many amounts, as balance sheets need: a whole number of 10⁻⁸ units, far beyond [`Money::MAX`].
///
/// The protocol limits an amount to 2⁵², but the total turnover of an exchange may be larger.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MoneySum(u128);

impl MoneySum {
    /// No money.
    pub const ZERO: Self = Self(0);

    /// From a count of 10⁻⁸ units.
    pub const fn from_units(units: u128) -> Self {
        Self(units)
    }

    /// The count of 10⁻⁸ units.
    pub const fn units(self) -> u128 {
        self.0
    }

    /// The integer part.
    pub const fn value(self) -> u128 {
        self.0 / FRACTION_BASE as u128
    }

    /// The fraction in 10⁻⁸, below 10⁸.
    pub const fn fraction(self) -> u32 {
        (self.0 % FRACTION_BASE as u128) as u32
    }

    /// Returns whether this is zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Sum.
    ///
    /// # Errors
    /// [`AmountError::Overflow`] above 2¹²⁸ units.
    pub fn checked_add(self, other: impl Into<Self>) -> Result<Self, AmountError> {
        self.0.checked_add(other.into().0).map(Self).ok_or(AmountError::Overflow)
    }

    /// Difference.
    ///
    /// # Errors
    /// [`AmountError::Negative`] if `other` is larger.
    pub fn checked_sub(self, other: impl Into<Self>) -> Result<Self, AmountError> {
        self.0.checked_sub(other.into().0).map(Self).ok_or(AmountError::Negative)
    }

    /// Difference, or nothing if `other` is larger.
    #[must_use]
    pub fn saturating_sub(self, other: impl Into<Self>) -> Self {
        Self(self.0.saturating_sub(other.into().0))
    }

    /// Sum of many.
    ///
    /// # Errors
    /// [`AmountError::Overflow`] above 2¹²⁸ units.
    pub fn checked_sum(items: impl IntoIterator<Item = Self>) -> Result<Self, AmountError> {
        items.into_iter().try_fold(Self::ZERO, Self::checked_add)
    }
}

impl From<Money> for MoneySum {
    fn from(money: Money) -> Self {
        Self(money.units())
    }
}

impl PartialEq<Money> for MoneySum {
    fn eq(&self, other: &Money) -> bool {
        self.0 == other.0
    }
}

impl PartialOrd<Money> for MoneySum {
    fn partial_cmp(&self, other: &Money) -> Option<std::cmp::Ordering> {
        Some(self.0.cmp(&other.0))
    }
}

impl fmt::Display for MoneySum {
    /// As [`Money`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_decimal(f, self.value(), self.fraction())
    }
}

/// Writes a number without trailing zeros: `1`, `1.5`, `0.00000001`.
fn write_decimal(f: &mut fmt::Formatter<'_>, value: u128, mut fraction: u32) -> fmt::Result {
    write!(f, "{value}")?;
    if fraction == 0 {
        return Ok(());
    }
    let mut digits = FRACTION_DIGITS;
    while fraction.is_multiple_of(10) {
        fraction /= 10;
        digits -= 1;
    }
    write!(f, ".{fraction:0digits$}")
}

/// An amount of money in a currency.
///
/// The text form is `CUR:VAL` or `CUR:VAL.FRAC`. `==` compares currencies without regard to case.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Amount {
    /// The currency.
    pub currency: Currency,
    /// The quantity.
    pub money: Money,
}

impl Amount {
    /// Size of the form used in signed structures, in bytes.
    pub(crate) const NBO_SIZE: usize = 24;

    /// From its parts.
    pub const fn new(currency: Currency, money: Money) -> Self {
        Self { currency, money }
    }

    /// No money of a currency.
    pub const fn zero(currency: Currency) -> Self {
        Self { currency, money: Money::ZERO }
    }

    /// Parses the text form. Leading white space and an empty value before the dot are accepted.
    ///
    /// # Errors
    /// [`AmountError::Malformed`], [`AmountError::Currency`], or [`AmountError::Overflow`] above 2⁵².
    pub fn parse(text: &str) -> Result<Self, AmountError> {
        let text = text.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == '\x0b');
        let (currency, quantity) = text.split_once(':').ok_or(AmountError::Malformed)?;
        Ok(Self { currency: Currency::new(currency)?, money: quantity.parse()? })
    }

    /// The 24 bytes of signed structures: integer part (8), fraction (4), currency (12, zero-padded), big
    /// endian.
    pub fn to_nbo(&self) -> [u8; Self::NBO_SIZE] {
        let mut out = [0u8; Self::NBO_SIZE];
        out[..12].copy_from_slice(&self.money.to_compact());
        out[12..].copy_from_slice(&self.currency.padded());
        out
    }

    /// Reads [`Amount::to_nbo`].
    ///
    /// # Errors
    /// As [`Money::new`] and `Currency::from_padded`.
    pub fn from_nbo(bytes: &[u8; Self::NBO_SIZE]) -> Result<Self, AmountError> {
        let (mut money, mut currency) = ([0u8; 12], [0u8; 12]);
        money.copy_from_slice(&bytes[..12]);
        currency.copy_from_slice(&bytes[12..]);
        Ok(Self { currency: Currency::from_padded(currency)?, money: Money::from_compact(money)? })
    }

    fn same_currency(&self, other: &Self) -> Result<(), AmountError> {
        if self.currency == other.currency { Ok(()) } else { Err(AmountError::CurrencyMismatch) }
    }

    /// The quantity, if this is an amount of `currency`.
    ///
    /// # Errors
    /// [`AmountError::CurrencyMismatch`] otherwise.
    pub fn money_in(&self, currency: Currency) -> Result<Money, AmountError> {
        if self.currency == currency { Ok(self.money) } else { Err(AmountError::CurrencyMismatch) }
    }

    /// Sum.
    ///
    /// # Errors
    /// [`AmountError::CurrencyMismatch`] or [`AmountError::Overflow`].
    pub fn checked_add(&self, other: &Self) -> Result<Self, AmountError> {
        self.same_currency(other)?;
        Ok(Self { money: self.money.checked_add(other.money)?, ..*self })
    }

    /// Difference.
    ///
    /// # Errors
    /// [`AmountError::CurrencyMismatch`] or [`AmountError::Negative`].
    pub fn checked_sub(&self, other: &Self) -> Result<Self, AmountError> {
        self.same_currency(other)?;
        Ok(Self { money: self.money.checked_sub(other.money)?, ..*self })
    }

    /// Product with a count.
    ///
    /// # Errors
    /// [`AmountError::Overflow`].
    pub fn checked_mul(&self, factor: u64) -> Result<Self, AmountError> {
        Ok(Self { money: self.money.checked_mul(factor)?, ..*self })
    }

    /// Quotient, rounded down to 10⁻⁸.
    ///
    /// # Errors
    /// [`AmountError::InvalidUnit`] for division by zero.
    pub fn checked_div(&self, divisor: u64) -> Result<Self, AmountError> {
        Ok(Self { money: self.money.checked_div(divisor)?, ..*self })
    }

    /// Compares two amounts of the same currency.
    ///
    /// # Errors
    /// [`AmountError::CurrencyMismatch`].
    pub fn checked_cmp(&self, other: &Self) -> Result<std::cmp::Ordering, AmountError> {
        self.same_currency(other)?;
        Ok(self.money.cmp(&other.money))
    }

    /// Rounds down to a unit, see [`Money::round_down`].
    ///
    /// # Errors
    /// [`AmountError::CurrencyMismatch`] or [`AmountError::InvalidUnit`].
    pub fn round_down(&self, unit: &Self) -> Result<Self, AmountError> {
        self.same_currency(unit)?;
        Ok(Self { money: self.money.round_down(unit.money)?, ..*self })
    }

    /// Returns whether this is zero.
    pub const fn is_zero(&self) -> bool {
        self.money.is_zero()
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.currency, self.money)
    }
}

impl FromStr for Amount {
    type Err = AmountError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::parse(s)
    }
}

text_form!(Amount, "an amount such as \"EUR:1.50\"");
debug_as_text!(Money, MoneySum);

#[cfg(test)]
mod tests {
    use super::*;

    fn money(text: &str) -> Money {
        text.parse().unwrap()
    }

    #[test]
    fn prints_without_needless_zeros() {
        for (text, canonical) in [
            ("0", "0"),
            ("1.10", "1.1"),
            ("007", "7"),
            (".5", "0.5"),
            ("0.00000001", "0.00000001"),
            ("10.02030000", "10.0203"),
            ("4503599627370496.99999999", "4503599627370496.99999999"),
        ] {
            assert_eq!(money(text).to_string(), canonical);
        }
        assert_eq!(Money::MAX, money("4503599627370496.99999999"));
    }

    #[test]
    fn sums_go_beyond_the_largest_amount() {
        let sum = MoneySum::checked_sum([Money::MAX, Money::MAX].map(MoneySum::from)).unwrap();
        assert_eq!(sum.to_string(), "9007199254740993.99999998");
        assert!(sum > Money::MAX && sum.checked_sub(Money::MAX).unwrap() == Money::MAX);
        assert_eq!(MoneySum::ZERO.checked_sub(Money::UNIT), Err(AmountError::Negative));
        assert_eq!(MoneySum::from_units(u128::MAX).checked_add(Money::UNIT), Err(AmountError::Overflow));
    }

    #[test]
    fn compact_form_sorts_by_size() {
        let mut amounts = ["0", "0.5", "1", "1.00000001", "255", "256", "65536.1"].map(money);
        let sorted = amounts;
        amounts.sort_by_key(|m| m.to_compact());
        assert_eq!(amounts, sorted);
        assert_eq!(Money::from_compact(Money::MAX.to_compact()), Ok(Money::MAX));
        assert_eq!(Money::from_compact([0xff; 12]), Err(AmountError::Malformed));
    }

    #[test]
    fn currencies_ignore_case_but_keep_it() {
        let (upper, lower) = (Currency::new("EUR").unwrap(), Currency::new("eur").unwrap());
        assert_eq!(upper, lower);
        assert_ne!(upper.padded(), lower.padded());
        assert_eq!(lower.to_upper().padded(), upper.padded());
        assert!(Currency::new("E R").is_err() && Currency::new("").is_err() && Currency::new("EÜR").is_err());
    }
}
