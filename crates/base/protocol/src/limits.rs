//! Size limits for client input: bodies, texts, arrays.
//!
//! Every limit follows from the meaning of the field, with room for the largest honest value. Services that
//! accept a text and services that later receive it from them use the same constant, so that nothing is
//! accepted by one and refused by the other.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// A payto URI, in bytes. IBANs with a name take about 100; the rest leaves room for long, escaped names.
pub const PAYTO_BYTES_MAX: usize = 2_048;
/// A base URL, in bytes.
pub const URL_BYTES_MAX: usize = 1_024;
/// A name, in bytes: an auditor's, a section's, a wire method's.
pub(crate) const NAME_BYTES_MAX: usize = 256;
/// Planchets in one batch withdrawal.
pub const PLANCHETS_MAX: usize = 256;
/// Coins in one batch deposit.
pub const DEPOSIT_COINS_MAX: usize = 256;
/// Coins in one request of a purse, or for keeping a reserve open.
pub const PURSE_COINS_MAX: usize = 256;
/// The encrypted contract of a purse, in bytes. A contract of a few lines takes about 300. Reserves create purses
/// without paying for them.
pub const ECONTRACT_BYTES_MAX: usize = 4 << 10;
/// Fresh coins of one refresh.
pub const FRESH_COINS_MAX: usize = 255;
/// The most elements read from an array whose excess has its own error code. One more than any such array may
/// have, so that the endpoint sees the excess.
pub(crate) const ARRAY_READ_MAX: usize = 257;
/// Coins of a payment at a shop, which deposits them in several requests.
pub const PAY_COINS_MAX: usize = 1_024;
/// The most coins of a payment that are read. The endpoint sees the excess.
pub(crate) const PAY_COINS_READ_MAX: usize = PAY_COINS_MAX + 1;
/// The most denominations, or signing keys, that one request to `/management/keys` puts into use: about 20
/// denominations renewed weekly for three years.
pub const KEY_SIGNATURES_MAX: usize = 4_096;

/// A body if none is expected, in bytes.
pub const NO_BODY_BYTES_MAX: usize = 1 << 10;
/// The body of a request about one thing (a coin, a planchet, an account), in bytes. The largest honest one
/// has a payto URI and a signature of 8,192 bits, and is below 6 KiB.
pub const SMALL_BODY_BYTES_MAX: usize = 16 << 10;
/// The body of a request with up to 256 hashes or keys, in bytes.
pub const LIST_BODY_BYTES_MAX: usize = 64 << 10;
/// The body of a request with up to 256 planchets or coins, in bytes. Each takes up to 2.1 KiB with keys of
/// 8,192 bits.
pub const BATCH_BODY_BYTES_MAX: usize = 640 << 10;
/// The body of a request with up to [`PURSE_COINS_MAX`] coins, each with an age commitment of up to 1.7 KiB, and an
/// encrypted contract, in bytes.
pub const PURSE_BODY_BYTES_MAX: usize = 1 << 20;
/// The body of `/management/keys`, in bytes: [`KEY_SIGNATURES_MAX`] denominations of 240 bytes, with white
/// space.
pub const KEYS_BODY_BYTES_MAX: usize = 2 << 20;
/// The body of a wire gateway's transfer, in bytes. Exchanges send up to this size, and banks accept it.
pub const TRANSFER_BODY_BYTES_MAX: usize = 4 << 10;

/// The size of a transfer without account and base URL: member names, request UID and transfer identifier in
/// base32, amount.
const TRANSFER_REST_BYTES_MAX: usize = 512;
// Every accepted deposit can be paid out.
const _: () = assert!(PAYTO_BYTES_MAX + URL_BYTES_MAX + TRANSFER_REST_BYTES_MAX <= TRANSFER_BODY_BYTES_MAX);

/// The beginning of each error message about a limit.
pub(crate) const OVER_LIMIT: &str = "over the limit of ";

/// The exceeded limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{OVER_LIMIT}{max} {unit}")]
pub struct OverLimit {
    /// The limit.
    pub(crate) max: usize,
    /// Its unit.
    pub(crate) unit: &'static str,
}

/// Checks the length of a text.
///
/// # Errors
/// If it has more than `max` bytes.
pub(crate) const fn check_text(text: &str, max: usize) -> Result<(), OverLimit> {
    if text.len() <= max { Ok(()) } else { Err(OverLimit { max, unit: "bytes" }) }
}

/// Reads a text of at most `MAX` bytes: `#[serde(deserialize_with = "text::<_, MAX>")]`.
///
/// # Errors
/// If the value is malformed or too long.
pub fn text<'de, D: Deserializer<'de>, const MAX: usize>(deserializer: D) -> Result<String, D::Error> {
    struct Text<const MAX: usize>;
    impl<const MAX: usize> Visitor<'_> for Text<MAX> {
        type Value = String;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a text of at most {MAX} bytes")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
            check_text(text, MAX).map_err(E::custom)?;
            Ok(text.to_owned())
        }
    }
    deserializer.deserialize_str(Text::<MAX>)
}

/// Reads an array of at most `MAX` elements: `#[serde(deserialize_with = "array::<_, _, MAX>")]`. Stops at
/// the first excess element.
///
/// # Errors
/// If the value is malformed or has too many elements.
pub(crate) fn array<'de, D, T, const MAX: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Array<T, const MAX: usize>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Array<T, MAX> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "an array of at most {MAX} elements")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
            let mut array = Vec::with_capacity(elements.size_hint().unwrap_or(0).min(MAX));
            while array.len() < MAX {
                match elements.next_element()? {
                    Some(element) => array.push(element),
                    None => return Ok(array),
                }
            }
            // The next element is not deserialized.
            match elements.next_element::<Present>()? {
                None => Ok(array),
                Some(Present) => Err(A::Error::custom(OverLimit { max: MAX, unit: "elements" })),
            }
        }
    }
    deserializer.deserialize_seq(Array::<T, MAX>(PhantomData))
}

/// An element that is only counted.
struct Present;

impl<'de> Deserialize<'de> for Present {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Sample {
        #[serde(deserialize_with = "text::<_, 4>")]
        name: String,
        #[serde(deserialize_with = "array::<_, _, 3>")]
        list: Vec<u8>,
    }

    #[test]
    fn texts_and_arrays_end_at_their_limit() {
        let fits: Sample = serde_json::from_str(r#"{"name":"äö","list":[1,2,3]}"#).unwrap();
        assert_eq!((fits.name.as_str(), fits.list.as_slice()), ("äö", [1, 2, 3].as_slice()));
        for (body, path, message) in [
            (r#"{"name":"äöx","list":[]}"#, "name", "over the limit of 4 bytes"),
            (r#"{"name":"\u00e4\u00f6x","list":[]}"#, "name", "over the limit of 4 bytes"),
            (r#"{"name":"","list":[1,2,3,4]}"#, "list", "over the limit of 3 elements"),
            (r#"{"name":"","list":[1,2,3,[]]}"#, "list", "over the limit of 3 elements"),
        ] {
            let error = crate::parse_body::<Sample>(body.as_bytes()).unwrap_err();
            assert_eq!(error.field.as_deref(), Some(path), "{body}");
            assert!(error.message.starts_with(message), "{body}: {}", error.message);
            let answer = serde_json::to_value(error.to_error_body()).unwrap();
            assert_eq!(answer["field"], path);
            assert!(answer["detail"].as_str().unwrap().starts_with(message), "{answer}");
        }
    }

    #[test]
    fn elements_beyond_the_limit_are_not_built() {
        struct Built;
        impl<'de> Deserialize<'de> for Built {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                COUNT.with(|count| count.set(count.get() + 1));
                u8::deserialize(deserializer).map(|_| Self)
            }
        }
        thread_local!(static COUNT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) });
        let many = format!("[{}1]", "1,".repeat(10_000));
        let mut deserializer = serde_json::Deserializer::from_str(&many);
        assert!(array::<_, Built, 5>(&mut deserializer).is_err());
        assert_eq!(COUNT.with(std::cell::Cell::get), 5);
    }
}
