//! Record encodings that differ from the encodings of the protocol.

/// Serializes values that print and parse as text, such as amounts without currency.
pub(crate) mod text {
    use serde::{Deserialize, Deserializer, Serializer, de};

    /// Writes the text.
    ///
    /// # Errors
    /// The serializer's errors.
    pub(crate) fn serialize<T: std::fmt::Display, S: Serializer>(
        value: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    /// Parses the text.
    ///
    /// # Errors
    /// If it does not parse.
    pub(crate) fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: std::str::FromStr,
        T::Err: std::fmt::Display,
        D: Deserializer<'de>,
    {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}
