//! Helpers for values that are texts in JSON, and hashes of texts.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use batzen_crypto::HashCode;
use batzen_crypto::base32::{self, Base32Error};
use batzen_crypto::hash::sha512_parts;
use serde::{Deserializer, de};

/// Parses a JSON string, without copying it first where the format permits.
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

/// Lets `Debug` show types as `Display` does.
macro_rules! debug_as_text {
    ($($type:ty),+) => {
        $(
            impl ::std::fmt::Debug for $type {
                fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                    ::std::fmt::Display::fmt(self, f)
                }
            }
        )+
    };
}
pub(crate) use debug_as_text;

/// Lets a type be a text in JSON and for `Debug`, as `Display` and `FromStr` have it.
macro_rules! text_form {
    ($type:ty, $expected:literal) => {
        $crate::text::debug_as_text!($type);

        impl ::serde::Serialize for $type {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $type {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::text::deserialize_from_str(deserializer, $expected)
            }
        }
    };
}
pub(crate) use text_form;

/// SHA-512 of a text and a terminating zero byte: how URLs, section names, wire methods and names enter
/// signatures.
pub fn hash_text(text: &str) -> HashCode {
    sha512_parts(&[text.as_bytes(), &[0]])
}

/// Bytes of any number, written as base32.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Base32Data(pub Vec<u8>);

impl AsRef<[u8]> for Base32Data {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl From<Vec<u8>> for Base32Data {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl FromStr for Base32Data {
    type Err = Base32Error;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        base32::decode(s).map(Self)
    }
}

impl fmt::Display for Base32Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&base32::encode(&self.0))
    }
}

text_form!(Base32Data, "base32 text");
