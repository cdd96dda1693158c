//! Access to one test vector.

use std::str::FromStr;

use batzen_protocol::{Amount, Duration, Timestamp};
use serde_json::Value;

/// One case of a group: inputs and outputs side by side.
#[derive(Clone, Copy)]
pub(super) struct Case<'a>(pub &'a Value);

impl<'a> Case<'a> {
    pub(super) fn get(self, name: &str) -> &'a Value {
        self.0.get(name).unwrap_or_else(|| panic!("missing {name} in {}", self.0))
    }

    pub(super) fn has(self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| !value.is_null())
    }

    pub(super) fn inputs(self) -> Self {
        Case(self.get("inputs"))
    }

    pub(super) fn list(self, name: &str) -> Vec<Self> {
        self.get(name).as_array().expect("array").iter().map(Case).collect()
    }

    pub(super) fn text(self, name: &str) -> &'a str {
        self.get(name).as_str().unwrap_or_else(|| panic!("{name} is no text in {}", self.0))
    }

    pub(super) fn flag(self, name: &str) -> bool {
        self.get(name).as_bool().expect("boolean")
    }

    pub(super) fn int(self, name: &str) -> i64 {
        self.get(name).as_i64().expect("integer")
    }

    pub(super) fn u32(self, name: &str) -> u32 {
        self.get(name).as_u64().and_then(|n| n.try_into().ok()).expect("32-bit number")
    }

    pub(super) fn hex(self, name: &str) -> Vec<u8> {
        hex(self.text(name))
    }

    pub(super) fn bytes<const N: usize>(self, name: &str) -> [u8; N] {
        self.hex(name).try_into().unwrap_or_else(|bytes: Vec<u8>| panic!("{name} has {} bytes", bytes.len()))
    }

    /// A value made of fixed-size bytes.
    pub(super) fn value<T: for<'b> TryFrom<&'b [u8]>>(self, name: &str) -> T {
        T::try_from(&self.hex(name)).unwrap_or_else(|_| panic!("wrong size of {name}"))
    }

    pub(super) fn optional<T: for<'b> TryFrom<&'b [u8]>>(self, name: &str) -> Option<T> {
        self.has(name).then(|| self.value(name))
    }

    pub(super) fn values<T: for<'b> TryFrom<&'b [u8]>>(self, name: &str) -> Vec<T> {
        let item = |item: Case<'_>| T::try_from(&hex(item.0.as_str().expect("text"))).ok().expect("size");
        self.list(name).into_iter().map(item).collect()
    }

    pub(super) fn amount(self, name: &str) -> Amount {
        Amount::from_str(self.text(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    pub(super) fn time(self, name: &str) -> Timestamp {
        serde_json::from_value(self.get(name).clone()).expect("time stamp")
    }

    pub(super) fn duration(self, name: &str) -> Duration {
        serde_json::from_value(self.get(name).clone()).expect("duration")
    }
}

pub(super) fn hex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2), "odd number of digits");
    let digit = |c: u8| (c as char).to_digit(16).expect("hexadecimal digit") as u8;
    text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}
