//! Helpers for values that are texts in JSON.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use batzen_crypto::HashCode;
use batzen_crypto::hash::sha512_parts;
use serde::{Deserializer, de};

/// Reads a JSON text and parses it, without copying it first where the format permits.
pub(crate) fn deserialize_from_str<'de, D, T>(deserializer: D, expecting: &'static str) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr,
    T::Err: fmt::Display,
{
    struct Visitor<T>(&'static str, PhantomData<T>);
    impl<T> de::Visitor<'_> for Visitor<T>
    where
        T: FromStr,
        T::Err: fmt::Display,
    {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
            text.parse().map_err(E::custom)
        }
    }
    deserializer.deserialize_str(Visitor(expecting, PhantomData))
}

/// SHA-512 of a text and a terminating zero byte: how URLs, section names, wire methods and names enter signatures.
pub fn hash_text(text: &str) -> HashCode {
    sha512_parts(&[text.as_bytes(), &[0]])
}
